"""Implementations outside this repository: `--implementations my_module:MyImplementation`."""

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench.implementations import IMPLEMENTATIONS
from common.errors import UsageError
from common.registry import load, lookup

if TYPE_CHECKING:
    from bench.implementations.base import Built, Implementation

FOLDER_VARIABLE = "BERTBENCH_OWN_MODULES"
"""Environment variable of ranks: the folder in which the command was started."""
METHODS = ("check", "adapter", "build")
_PAGE = "docs/how-to/own-implementation.md"


def is_own(name: str) -> bool:
    """Whether a name is that of a module and a class, not one of IMPLEMENTATIONS."""
    return ":" in name and name not in IMPLEMENTATIONS


def own_variables(name: str) -> dict[str, str]:
    """Return the environment variables with which ranks find the module; none for registered implementations."""
    return {FOLDER_VARIABLE: _folder()} if is_own(name) else {}


def make_implementation(name: str) -> "Implementation":
    """Return the implementation of this name: one of IMPLEMENTATIONS, or "module:Class".

    The module is imported from the Python path, then from the folder in which the command was started.
    """
    if not is_own(name):
        return cast("Implementation", load(IMPLEMENTATIONS, name, "implementation")())
    module, _, attribute = name.partition(":")
    if _folder() not in sys.path:
        sys.path.append(_folder())  # last: a file of this folder never replaces an installed module
        importlib.invalidate_caches()
    try:
        made = getattr(importlib.import_module(module), attribute)()
    except (Exception, SystemExit) as error:
        raise UsageError(
            "option-value",
            f"implementation {name!r} cannot be made in {_folder()} ({type(error).__name__}: {error}): name "
            f"module:Class with the methods {', '.join(METHODS)}; {_PAGE} has an example",
        ) from error
    missing = [method for method in METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise UsageError(
            "option-value",
            f"implementation {name!r} lacks {', '.join(missing)}: it needs the methods {', '.join(METHODS)}; {_PAGE} "
            "has an example",
        )
    return cast("Implementation", made)


def check_implementation(name: str) -> None:
    """Refuse a name that `make_implementation` cannot make. Imports only modules that are not of this repository."""
    if is_own(name):
        make_implementation(name)
    else:
        lookup(IMPLEMENTATIONS, name, "implementation")


def check_built(name: str, built: object) -> "Built":
    """Return what `build` of an implementation returned. Raises UsageError if it is not a Built."""
    from bench.implementations.base import Built

    if not isinstance(built, Built):
        raise UsageError(
            "option-value",
            f"build of implementation {name!r} returned {type(built).__name__}: it must return a "
            f"bench.implementations.base.Built; {_PAGE} has an example",
        )
    return built


def _folder() -> str:
    return os.environ.get(FOLDER_VARIABLE) or str(Path.cwd())
