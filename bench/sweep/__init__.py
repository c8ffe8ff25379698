"""From what was asked for to trials: sweeps, comparisons, searches."""
