"""The truth corpus, whose numbers are known by construction, through the command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cli import ROOT
from support.corpus_answers import answers
from support.truth_book import Book


def called(*words: object) -> Any:
    argv = [sys.executable, "-m", "bench.cli.main", *map(str, words), "--json"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", [0, 1])
def test_recordings_are_read_as_they_were_made(seed: int, book: Book, tmp_path: Path) -> None:
    corpus, path = tmp_path / "corpus", tmp_path / "answers.json"
    called("truth-corpus", corpus, "--seed", seed)
    path.write_text(json.dumps({"answers": answers(corpus, called)}))
    for fact in called("truth-corpus", corpus, "--score", path)["facts"]:
        name, within = f"{fact['id']}, seed {seed}", fact["allowed"] / abs(fact["truth"] or 1)
        book.check("traces", name, fact["truth"], fact["answer"], fact["unit"] or "share", within)
    assert not book.failures()
