"""Implementations by name: those of this repository, and others as `--implementations my_module:MyImplementation`."""

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench.implementations import IMPLEMENTATIONS
from common.errors import UsageError
from common.registry import load, lookup

if TYPE_CHECKING:
    from bench.implementations.base import Implementation

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
        raise UsageError(
            "option-value", f"{problem}: give module:Class as in docs/how-to/own-implementation.md"
        ) from error
    return cast("Implementation", made)


def check_implementation(name: str) -> None:
    """Refuse a name that `make_implementation` cannot make. Imports only modules that are not of this repository."""
    if ":" in name:
        make_implementation(name)
    else:
        lookup(IMPLEMENTATIONS, name, "implementation")
