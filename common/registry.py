"""Named choices: look one up with an error that names the choices, or import it."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from common.errors import UsageError

T = TypeVar("T")


def lookup(registry: Mapping[str, T], name: str, kind: str) -> T:
    """Return `registry[name]`. Raises UsageError that names the nearest and lists all."""
    if name not in registry:
        near = "".join(f"did you mean {one!r}? " for one in difflib.get_close_matches(name, registry, 1))
        raise UsageError("option-choice", f"unknown {kind} {name!r}: {near}choose one of {', '.join(registry)}")
    return registry[name]


def load(registry: Mapping[str, str], name: str, kind: str) -> Any:
    """Import "package.module:attribute", the value of `name`; paths, so that listing the choices imports nothing."""
    module, _, attribute = lookup(registry, name, kind).partition(":")
    return getattr(importlib.import_module(module), attribute)
