"""What readers of traces return: one timeline per rank, as tables. Times are integer nanoseconds of one clock."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from analysis.gpu_work import GpuWork

if TYPE_CHECKING:
    import pandas as pd

STEP_COLUMNS = {"step": "int64", "start": "int64", "end": "int64"}
SPAN_COLUMNS = {"name": "str", "thread": "str", "start": "int64", "end": "int64"}
OPERATOR_COLUMNS = {**SPAN_COLUMNS, "self_ns": "int64", "outermost": "bool"}
API_COLUMNS = {**SPAN_COLUMNS, "correlation_id": "int64"}
KERNEL_COLUMNS = {"name": "str", "kind": "str", "device": "int64", "stream": "int64", "start": "int64", "end": "int64"}
COLLECTIVE_COLUMNS = {
    "name": "str",  # as the trace has it
    "collective": "str",  # one of names.COLLECTIVES
    "device": "int64",  # GPU; -1: the span of a CPU thread (gloo, MPI)
    "stream": "int64",  # -1 on a CPU
    "start": "int64",
    "end": "int64",
    "bytes": "int64",  # as nccl-tests counts: all_reduce the buffer, all_gather what one rank receives
    "dtype": "str",  # as the trace has it; "" unknown
    "group": "str",  # process group; "" unknown
    "group_size": "int64",  # ranks in it; -1 unknown
    "seq": "int64",  # number of the collective in its group, equal on all ranks; -1 unknown
    "correlation_id": "int64",  # of the kernel; -1 unknown
}
"""Numbers that a trace does not say are -1, texts ""."""


def empty(columns: Mapping[str, str]) -> "pd.DataFrame":
    """Return a table without rows that has these columns and types."""
    import pandas as pd

    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in columns.items()})


def _no_api() -> "pd.DataFrame":
    return empty(API_COLUMNS)


def _no_collectives() -> "pd.DataFrame":
    return empty(COLLECTIVE_COLUMNS)


@dataclass(frozen=True, slots=True)
class Timeline:
    """One rank's trace. Tables are in order of start; a table without rows still has its columns.

    Columns of text may be categories: use `observed=True` when grouping by them. A reader may add columns to those
    named here. What it adds is said in its own docstring, and users of a timeline ask whether the column is there.
    """

    rank: int | None
    """Rank, None where the trace does not say."""
    steps: "pd.DataFrame"
    """step, start, end: the marked iterations that are in the trace as a whole; nsys: thread too."""
    operators: "pd.DataFrame"
    """name, thread, start, end, self_ns (less what it called), outermost (called by no other operator)."""
    kernels: "pd.DataFrame"
    """name, kind (kernel | memcpy | memset | graph), device, stream, start, end: work on a GPU. A graph is a CUDA graph
    that was recorded as one piece. Where the trace has them: correlation_id (of the launching call in `api`, -1
    unknown), bytes (of copies), grid_x, grid_y, grid_z, block_x, block_y, block_z (0 unknown)."""
    ranges: "pd.DataFrame"
    """name, thread, start, end: named regions of the program, such as the phases of a step ("bertbench:forward":
    domain, colon, name); nsys: domain, payload, json, cut too."""
    api: "pd.DataFrame" = field(default_factory=_no_api)
    """name, thread, start, end, correlation_id: calls of the CUDA runtime and driver."""
    collectives: "pd.DataFrame" = field(default_factory=_no_collectives)
    """COLLECTIVE_COLUMNS: communication, the kernels of a GPU or, where there are none, the spans of CPU threads. Its
    kernels stand in `kernels` too."""
    source: str = ""
    """What wrote the trace, with its version where the trace says it."""
    process: int | None = None
    """Process id, None where the trace does not say."""
    problems: tuple[str, ...] = ()
    """What the trace should hold and does not, or what of it could not be read: one sentence each."""
    devices: Mapping[int, str] = field(default_factory=dict)
    """GPU name by device number, as far as the trace says."""
    sm_counts: Mapping[int, int] = field(default_factory=dict)
    """Streaming multiprocessors by device number, as far as the trace says."""
    world_size: int | None = None
    """Ranks of the whole job, None where the trace does not say."""

    @property
    def work(self) -> GpuWork:
        """`kernels` as arrays, made anew each time."""
        return GpuWork.of_frame(self.kernels)


def lost_kernels(timelines: Sequence[Timeline]) -> str:
    """Return why the first trace lacks kernels that it should hold, as its reader says it; "" where none does."""
    said = (text for timeline in timelines for text in timeline.problems)
    return next((text for text in said if re.search(r"\bkernels?\b", text)), "")
