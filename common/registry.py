"""Look-ups in explicit registries, with an error that names the choices."""

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from common.errors import UsageError

T = TypeVar("T")


def lookup(registry: Mapping[str, T], name: str, kind: str) -> T:
    """Return `registry[name]`. Raises UsageError that lists the known names and the nearest one."""
    try:
        return registry[name]
    except KeyError:
        near = difflib.get_close_matches(name, registry, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            "option-choice", f"unknown {kind} {name!r}: choose one of {', '.join(registry)}{hint}"
        ) from None


def load(registry: Mapping[str, str], name: str, kind: str) -> Any:
    """Import what `registry[name]` ("package.module:attribute") names. Raises UsageError for an unknown name.

    Registries hold paths, not objects, so that listing the choices imports nothing.
    """
    module, _, attribute = lookup(registry, name, kind).partition(":")
    return getattr(importlib.import_module(module), attribute)
