"""Recordings whose numbers are known by construction, through the command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli import ROOT
from support.corpus_answers import answers
from support.truth_book import Book
from support.truth_corpus import write_corpus


def called(*words: object) -> Any:
    argv = [sys.executable, "-m", "bench.cli.main", *map(str, words), "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", [0, 1])
def test_recordings_are_read_as_they_were_made(seed: int, book: Book, tmp_path: Path) -> None:
    facts = write_corpus(tmp_path, seed)
    given = answers(tmp_path, called)
    for fact in facts:
        within = fact.allowed / abs(fact.truth or 1)
        book.check("traces", f"{fact.name}, seed {seed}", fact.truth, given.get(fact.name), fact.unit, within)
    assert not book.failures()
