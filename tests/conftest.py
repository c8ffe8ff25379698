"""Fixtures for all tests. Helpers that are no fixtures live in tests/support and are imported as `support`."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS.parent), os.environ.get("PYTHONPATH")]))

from support.cli import Cli  # noqa: E402


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """A command line with a fresh run directory; no process of it outlives the test."""
    instance = Cli(tmp_path / "run")
    yield instance
    for process in instance.processes():
        process.kill()
