"""Public data and recordings in ../shared, beside the checkout; BERTBENCH_PUBLIC=0 hides them.

Tests that read them have the marker `public` and are deselected where the files are not.
"""

import os

from support.cli import ROOT

SHARED = ROOT.parent / "shared" if os.environ.get("BERTBENCH_PUBLIC", "1") != "0" else ROOT / "no-public-data"
DATA = SHARED / "data"
TRACES = SHARED / "traces"
