"""The books and Wikipedia articles beside this checkout, prepared for pretraining by the command line."""

import subprocess
import sys
from pathlib import Path

from support.cli import ROOT
from support.shared_files import DATA

CORPUS = DATA / "pretrain"
VOCABULARY = DATA / "vocab/bert-uncased.txt"


def argv(*words: object) -> list[str]:
    return [sys.executable, "-m", "bench.cli.main", *map(str, words)]


def run(*words: object, timeout: float = 1500) -> str:
    """Return what a command prints."""
    done = subprocess.run(argv(*words), cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def prepare(output: Path, *seq_lens: int, corpus: Path = CORPUS, dataset: str = "pretrain") -> Path:
    """Write the shards of a whole corpus at these lengths; return the folder."""
    words = ["--input", corpus, "--output", output, "--vocab", VOCABULARY, "--dataset", dataset]
    run("data", "pretrain", *words, "--seq-lens", *seq_lens)
    return output
