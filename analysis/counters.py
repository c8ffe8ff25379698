"""What a profiler counted in every kernel, whatever tool wrote it; readers make it, metrics use it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

IDENTITY = ("process", "kernel_id", "name", "device", "duration_ns", "cycles")
"""The columns that every table of kernels has; all others are metrics, under the tool's own names."""


@dataclass(frozen=True, slots=True)
class KernelCounters:
    """The kernels of one file, one row per launch, in the order of the file."""

    kernels: "pd.DataFrame"
    """process (int64, the system's number), kernel_id (int64, per process), name, device (Int64, may be missing),
    duration_ns and cycles (float64, NaN where unknown), and one float64 column per metric, in the units of `units`."""
    units: Mapping[str, str]
    """Unit of each metric column: %, ns, byte, byte/s, hz, inst, ...; "" where the tool names none."""
    device_name: str | None
    """What the driver calls the GPU; None where the file does not say."""
    compute_capability: tuple[int, int] | None
    """(9, 0) on a GPU of compute capability 9.0; None where the file does not say."""
    problems: tuple[str, ...]
    """What could not be read and why, one sentence each."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metric columns."""
        return tuple(str(name) for name in self.kernels.columns if name not in IDENTITY)
