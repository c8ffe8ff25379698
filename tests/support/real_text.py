"""The books and Wikipedia articles beside this checkout, prepared for pretraining by the command line."""

from pathlib import Path

from support.cli import bertbench, run_to_end
from support.shared_files import DATA

CORPUS = DATA / "pretrain"
VOCABULARY = DATA / "vocab/bert-uncased.txt"


def run(*words: object) -> str:
    """Return what a command prints."""
    return run_to_end(bertbench(*words), timeout=1500).stdout


def prepare(output: Path, *seq_lens: int, corpus: Path = CORPUS, dataset: str = "pretrain") -> Path:
    """Write the shards of a whole corpus at these lengths; return the folder."""
    words = ["--input", corpus, "--output", output, "--vocab", VOCABULARY, "--dataset", dataset]
    run("data", "pretrain", *words, "--seq-lens", *seq_lens)
    return output
