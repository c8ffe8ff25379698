"""Named choices: look one up with an error that names the choices, or import it."""

import importlib
from collections.abc import Mapping
from typing import Any, TypeVar

from common.errors import UsageError

T = TypeVar("T")


def lookup(registry: Mapping[str, T], name: str, kind: str) -> T:
    """Return `registry[name]`. Raises UsageError that lists the known names."""
    if name not in registry:
        raise UsageError("option-choice", f"unknown {kind} {name!r}: choose one of {', '.join(registry)}")
    return registry[name]


def load(registry: Mapping[str, str], name: str, kind: str) -> Any:
    """Import "package.module:attribute", the value of `name`; paths, so that listing the choices imports nothing."""
    module, _, attribute = lookup(registry, name, kind).partition(":")
    return getattr(importlib.import_module(module), attribute)
