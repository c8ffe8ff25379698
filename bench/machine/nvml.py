"""NVML, the library that describes GPUs."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def nvml() -> Any:
    """Return pynvml, initialized (again is cheap). Raises ImportError without the package, NVMLError without driver."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def ask(query: Callable[[Any], T]) -> T | None:
    """Return what a query of pynvml returns; None where NVML, or this value, is unavailable."""
    try:
        return query(nvml())
    except Exception:  # NVML raises a class per error code
        return None
