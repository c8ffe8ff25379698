"""What a schedule of the PyTorch profiler consists of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cycle:
    """Steps that become one trace."""

    warm_up: int
    """First step with the profiler on, whose records are dropped up to `start`."""
    start: int
    stop: int
