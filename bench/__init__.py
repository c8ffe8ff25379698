"""The harness: plans trials, launches them, measures them, records them."""
