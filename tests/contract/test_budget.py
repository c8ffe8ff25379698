"""The size of the project: nothing grows above its number in [tool.bertbench.budget] of pyproject.toml."""

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUDGET = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["bertbench"]["budget"]


def files(*patterns: str) -> list[Path]:
    words = ["git", "ls-files", "-z", "--", *patterns]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


@pytest.mark.parametrize("name", BUDGET)
def test_nothing_is_above_its_budget(name: str) -> None:
    unit, most, *patterns = BUDGET[name]
    found = files(*patterns)
    size = len(found) if unit == "files" else sum(path.read_bytes().count(b"\n") for path in found)
    size = sum(path.stat().st_size for path in found) if unit == "bytes" else size
    assert size <= most, f"{name}: {size:,} {unit}, {most:,} at most"
