"""tests/gpu/acceptance.py as a module of its own, which a test may change."""

from importlib import util
from typing import Any

from support.cli import ROOT

SCRIPT = ROOT / "tests/gpu/acceptance.py"
ABOUT = {"python": "3", "torch": "2", "cuda": "13", "gpus": ["NVIDIA H200, 580.1"], "commit": "c"}


def acceptance() -> Any:
    """Return it, loaded anew."""
    spec = util.spec_from_file_location("acceptance", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
