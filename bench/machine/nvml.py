"""NVML, the library that describes GPUs: opened here alone."""

from collections.abc import Callable
from typing import Any


def nvml() -> Any:
    """Return pynvml, initialized. Raises ImportError without the package, NVMLError without a driver."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def ask(query: Callable[..., Any], *handles: Any) -> Any:
    """Return what a query of NVML returns; None where the driver or the GPU does not have it."""
    try:
        return query(*handles)
    except Exception:  # NVML raises a class per error code
        return None
