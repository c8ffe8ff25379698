"""The implementations of BERT, by name: "module:class" of this repository, imported on demand, and those of users, as
`--implementations my_module:MyImplementation`."""

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from common.errors import UsageError
from common.registry import load, lookup

if TYPE_CHECKING:
    from bench.implementations.base import Implementation

OURS = "bertbench"

IMPLEMENTATIONS = {
    OURS: "bench.implementations.ours:BertbenchImplementation",
    "hf": "bench.implementations.hugging_face:HuggingFaceImplementation",
    "hf-trainer": "bench.implementations.hugging_face:HuggingFaceImplementation",
    "hf-unpadded": "bench.implementations.hugging_face:HuggingFaceImplementation",
    "hf-compiled": "bench.implementations.hugging_face:HuggingFaceImplementation",
}

TRAINER_STRATEGIES = ("single", "ddp")
"""The strategies that Hugging Face's Trainer supports here."""

# Implementations for complete training runs with evaluations; each takes a bert.train.base_run.RunRequest.
TRAININGS = {
    OURS: "bert.train.run:run_training",
    "hf-trainer": "bench.implementations.hf_trainer:run_training",
}

_FOLDER = "BERTBENCH_OWN_MODULES"


def own_variables(name: str) -> dict[str, str]:
    """Return the environment variable with which ranks find a module: the folder in which the command was started."""
    return {_FOLDER: os.environ.get(_FOLDER) or str(Path.cwd())} if ":" in name else {}


def make_implementation(name: str) -> "Implementation":
    """Return one of IMPLEMENTATIONS, or "module:Class" of the Python path or the folder of the command."""
    if ":" not in name:
        return cast("Implementation", load(IMPLEMENTATIONS, name, "implementation")())
    folder, (module, _, attribute) = own_variables(name)[_FOLDER], name.partition(":")
    if folder not in sys.path:
        sys.path.append(folder)  # last: a file of this folder never replaces an installed module
        importlib.invalidate_caches()
    try:
        made = getattr(importlib.import_module(module), attribute)()
        _ = made.check, made.adapter, made.build
    except (Exception, SystemExit) as error:
        problem = f"implementation {name!r} cannot be made in {folder} ({type(error).__name__}: {error})"
        raise UsageError("option-value", f"{problem}: give module:Class as in docs/how-to/measure.md") from error
    return cast("Implementation", made)


def check_implementation(name: str) -> None:
    """Refuse a name that `make_implementation` cannot make. Imports only modules that are not of this repository."""
    if ":" in name:
        make_implementation(name)
    else:
        lookup(IMPLEMENTATIONS, name, "implementation")
