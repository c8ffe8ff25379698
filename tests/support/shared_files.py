"""Data of tests/data, and public data of ../shared beside the checkout; BERTBENCH_PUBLIC=0 hides the latter.

Tests that read public data have the marker `public` and are deselected where it is absent.
"""

import bz2
import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from support.cli import ROOT

OWN = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared" if os.environ.get("BERTBENCH_PUBLIC", "1") != "0" else ROOT / "no-public-data"
DATA = SHARED / "data"
TRACES = SHARED / "traces"
VOCABULARY = OWN / "vocab/uncased.txt"
PUBLIC_VOCABULARY = DATA / "vocab/bert-uncased.txt"


def samples(*patterns: str) -> list[ParameterSet]:
    """Return the files and folders that match in tests/data, and with the marker `public` those in ../shared."""
    matches = [path for pattern in patterns for path in sorted(OWN.glob(pattern))]
    public = [path for pattern in patterns for root in (DATA, TRACES) for path in sorted(root.glob(pattern))]
    return [pytest.param(path, id=path.name) for path in matches] + [
        pytest.param(path, id=f"public-{path.name[-40:]}", marks=pytest.mark.public) for path in public
    ]


def vocabulary_beside(path: Path) -> Path:
    """Return the vocabulary of tests/data, or for public data the published one."""
    return VOCABULARY if path.is_relative_to(OWN) else PUBLIC_VOCABULARY


def unpacked(path: Path) -> bytes:
    """Return the content of a file that may be compressed."""
    return {".gz": gzip.decompress, ".bz2": bz2.decompress}.get(path.suffix, bytes)(path.read_bytes())


_LATIN_1 = ("1661-8.txt", "sms_spam_latin1.csv", "letters-8.txt", "latin-1.csv")
_SUFFIXES = {".txt", ".tsv", ".csv", ".json", ".bz2", ".gz"}
_FOLDERS = ("csv", "gap", "glue", "pretrain", "squad", "vocab")
MOST_CHARACTERS = 5000
"""Of a line; JSON files are one line, and are cut."""


def lines(folder: Path, step: int = 1) -> Iterator[str]:
    """Yield every `step`-th line."""
    paths = [path for name in _FOLDERS for path in sorted((folder / name).rglob("*"))]
    for path in (path for path in paths if path.suffix in _SUFFIXES):
        text = unpacked(path).decode("latin-1" if path.name in _LATIN_1 else "utf-8", "replace")
        for line in text.split("\n")[::step]:
            for begin in range(0, max(1, len(line)), MOST_CHARACTERS * step):
                yield line[begin : begin + MOST_CHARACTERS]
