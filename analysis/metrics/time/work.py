"""What a rank did when, as sets of intervals (see analysis.intervals), and which call launched which kernel.

On a GPU computation is kernels and CUDA graphs that are not communication. On a CPU it is the outermost operators of
every thread less the communication in them; communication is the spans of gloo and MPI. A rank with several GPUs has
one of these a GPU, and its times are means over its GPUs.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.intervals import Intervals, difference, merged, union
from analysis.names import collective, communicates, is_gpu_library
from analysis.timeline import Timeline, is_communication, kept

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.int64]
NOTHING: Intervals = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class WorkSets:
    """What a rank, or one of its GPUs, did when."""

    compute: Intervals
    communication: Intervals
    memory: Intervals
    """Copies and memsets."""
    busy: Intervals
    active: Intervals
    """Computation or communication."""
    on_gpu: bool
    device: int | None = None
    """The GPU; None for all GPUs together, and on a CPU."""


@kept
def work_sets(timeline: Timeline, device: int | None = None) -> WorkSets:
    """Return what a rank did when, on one GPU or, by default, on any of them."""
    work = timeline.work
    if not len(work):
        compute = cpu_computation(timeline.operators) if len(timeline.operators) else NOTHING
        communication = cpu_communication(timeline)
        active = union(compute, communication)
        return WorkSets(compute, communication, NOTHING, active, active, on_gpu=False)
    copies = work.is_kind("memcpy", "memset")
    talks = work.is_named(communicates) & ~copies
    here = np.ones(len(work), dtype=bool) if device is None else work.device == device
    compute, communication, memory = (
        merged(work.start[chosen & here], work.end[chosen & here]) for chosen in (~(copies | talks), talks, copies)
    )
    active = union(compute, communication)
    return WorkSets(compute, communication, memory, union(active, memory), active, on_gpu=True, device=device)


@kept
def device_sets(timeline: Timeline) -> list[WorkSets]:
    """Return what each GPU that ran kernels did when; one entry for a rank with one GPU or none."""
    work = timeline.work
    devices = np.unique(work.device[work.is_kind("kernel", "graph")]).tolist() if len(work) else []
    return [work_sets(timeline, device) for device in devices] if len(devices) > 1 else [work_sets(timeline)]


def cpu_communication(timeline: Timeline) -> Intervals:
    """Return the spans of communication on CPU threads: the collectives, or where none are listed what is named so.

    Ranges of NCCL and RCCL are left out: they end when the collective is in the GPU's queue.
    """
    spans = timeline.collectives
    if len(spans):
        spans = spans[spans["device"] < 0]
        return merged(spans["start"], spans["end"])
    parts = []
    for table in (timeline.operators, timeline.ranges):
        names = {name for name in table["name"].unique() if collective(str(name)) and not is_gpu_library(str(name))}
        part = table[table["name"].isin(names)]
        parts.append(merged(part["start"], part["end"]))
    return union(*parts)


def cpu_computation(operators: "pd.DataFrame") -> Intervals:
    """Return when a CPU computes: the outermost operators of every thread less the communication in them."""
    parts = []
    for _, part in operators.assign(communicating=is_communication(operators)).groupby("thread"):
        outermost, waiting = part[part["outermost"]], part[part["communicating"]]
        parts.append(difference(merged(outermost["start"], outermost["end"]), merged(waiting["start"], waiting["end"])))
    return union(*parts)


@kept
def launching_calls(timeline: Timeline) -> Numbers | None:
    """Return for each row of `kernels` the row of `api` that launched it, -1 unknown; None where no row is known.

    Several rows of one call (a CUDA graph's) have the same. Of calls that share an id the first counts.
    """
    kernels, api = timeline.kernels, timeline.api
    if not {"correlation_id"} <= {*kernels.columns} & {*api.columns} or not len(kernels) or not len(api):
        return None
    calls = calls_with(api, kernels["correlation_id"].to_numpy())
    return calls if (calls >= 0).any() else None


def calls_with(api: "pd.DataFrame", correlations: npt.NDArray[Any]) -> Numbers:
    """Return for each of n correlation ids the row of `api` that has it, the first of several; -1 where none has.

    Ids begin with 1; 0 is no call's.
    """
    ids, first = np.unique(api["correlation_id"].to_numpy(), return_index=True)
    if not len(ids):
        return np.full(len(correlations), -1, dtype=np.int64)
    place = np.searchsorted(ids, correlations).clip(max=len(ids) - 1)
    return np.where((ids[place] == correlations) & (correlations > 0), first[place], -1)
