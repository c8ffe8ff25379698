"""Implementations outside this repository: `--implementations my_module:MyImplementation`."""

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bench.implementations import IMPLEMENTATIONS
from common.errors import MissingToolError, UsageError
from common.registry import load, lookup

if TYPE_CHECKING:
    from bench.implementations.base import Built, Implementation

FOLDER_VARIABLE = "BERTBENCH_OWN_MODULES"
"""Environment variable of ranks: the folder in which the command was started."""
METHODS = ("check", "adapter", "build")
_PAGE = "docs/how-to/own-implementation.md"
_FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def is_own(name: str) -> bool:
    """Whether a name is that of a module and a class, not one of IMPLEMENTATIONS."""
    return ":" in name and name not in IMPLEMENTATIONS


def own_variables(name: str) -> dict[str, str]:
    """Return the environment variables with which ranks find the module; none for registered implementations."""
    return {FOLDER_VARIABLE: _folder()} if is_own(name) else {}


def make_implementation(name: str) -> "Implementation":
    """Return the implementation of this name: one of IMPLEMENTATIONS, or "module:Class".

    The module is imported from the Python path, then from the folder in which the command was started.

    Raises:
        UsageError: the name is unknown; the module does not exist or raises; it has no such attribute; the attribute
            is no class, cannot be made without arguments or lacks a method of bench.implementations.base.
        MissingToolError: the module imports a package that is not installed.
    """
    if not is_own(name):
        return cast("Implementation", load(IMPLEMENTATIONS, name, "implementation")())
    made = _make(name, _attribute(name))
    missing = [method for method in METHODS if not callable(getattr(made, method, None))]
    if missing:
        raise UsageError(
            "option-value",
            f"implementation {name!r} is no implementation: it needs the methods {', '.join(METHODS)}, and lacks "
            f"{', '.join(missing)}; {_PAGE} has an example",
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


def _attribute(name: str) -> Any:
    """Import the module of "module:Class" and return the attribute."""
    if not _FORM.fullmatch(name):
        raise UsageError(
            "option-value",
            f"implementation {name!r} is not of the form module:Class, such as my_bert:MyImplementation",
        )
    module_name, _, attribute = name.partition(":")
    folder = _folder()
    if folder not in sys.path:
        sys.path.append(folder)  # last: a file of this folder never replaces an installed module
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise UsageError(
                "option-choice",
                f"implementation {name!r}: there is no module {error.name!r} in {folder} or on the Python path; start "
                "the command in the folder of the module, or add that folder to PYTHONPATH",
            ) from None
        raise MissingToolError(
            "package-missing",
            f"implementation {name!r}: module {module_name!r} imports {error.name!r}, which is not installed",
        ) from error
    except (Exception, SystemExit) as error:
        raise UsageError(
            "option-value",
            f"implementation {name!r}: importing {module_name!r} failed with {type(error).__name__}: {error}",
        ) from error
    if not hasattr(module, attribute):
        classes = [key for key, value in vars(module).items() if isinstance(value, type) and hasattr(value, "build")]
        hint = f"; its classes with a method build are {', '.join(classes)}" if classes else ""
        raise UsageError(
            "option-choice",
            f"implementation {name!r}: module {module_name!r} ({module.__file__}) has no attribute {attribute!r}{hint}",
        )
    return getattr(module, attribute)


def _make(name: str, found: Any) -> Any:
    if not callable(found):
        raise UsageError(
            "option-value",
            f"implementation {name!r} is no class but a {type(found).__name__}: name a class with the methods "
            f"{', '.join(METHODS)}; {_PAGE} has an example",
        )
    try:
        return found()
    except Exception as error:
        raise UsageError(
            "option-value",
            f"implementation {name!r} must be made without arguments, but that failed with "
            f"{type(error).__name__}: {error}",
        ) from error
