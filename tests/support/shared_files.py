"""Real data and recordings of real tools: they lie beside the checkout, and tests of them are skipped without."""

from support.cli import ROOT

DATA = ROOT.parent / "shared" / "data"
TRACES = ROOT.parent / "shared" / "traces"
