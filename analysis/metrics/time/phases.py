"""Time by phase of the step (data, forward, backward, communication, optimizer), and by named range.

docs/explanation/timeline.md defines both. Host time is the union of a phase's ranges over all threads, each moment
counted once (of nested phases the first of `_FIRST`). GPU time is of what is launched in the innermost phase open on
the calling thread, else, in a range, on any thread; kernels of communication are of that phase, unknown ones "other".
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.intervals import difference, intersection, merged, own_times, total_ns, union
from analysis.metrics.kernels.modules import launched_in
from analysis.metrics.time.window import NOTHING, Numbers, analysis_time, communicating, in_window, is_kernel
from analysis.names import OTHER
from analysis.timeline import Timeline, columns, named, typed

PREFIX = "bertbench:"
PHASES = ("data", "forward", "backward", "communication", "optimizer")
RANGE_COLUMNS = columns("name ranks count total_ms self_ms mean_ms min_ms max_ms")
PHASE_COLUMNS = {**columns("rank phase host_ms host_share gpu_ms gpu_share"), "kernels": "Int64"}
_OTHER = len(PHASES)
_FIRST = ("communication", "optimizer", "backward", "forward", "data")
_NAMES = {
    "data": "data data_load data_loading dataloader load_batch wait_for_batch wait_for_training_batch",
    "forward": "forward fwd forward_pass",
    "backward": "backward bwd backward_pass",
    "communication": "communication all-reduce all_reduce allreduce",
    "optimizer": "optimizer optimizer_step optim zero_grad",
}
_BY_NAME = {name: phase for phase, names in _NAMES.items() for name in names.split()}
_BY_BEGINNING = {
    "enumerate(dataloader)": "data",
    "distributeddataparallel.forward": "forward",
    "autograd::engine::evaluate_function": "backward",
    "optimizer.step#": "optimizer",
    "optimizer.zero_grad#": "optimizer",
}


def phase_of(name: str) -> str | None:
    """Return which of PHASES a range or operator is by its name; None where it is none, such as a layer's range.

    Takes the suite's ("bertbench:forward"), PyTorch's own ("Optimizer.step#AdamW.step", "enumerate(DataLoader)#...")
    and plain names ("## forward ##", "Forward pass").
    """
    text = name[:200].casefold().removeprefix(PREFIX).strip("# \t")
    phase = _BY_NAME.get(text.replace(" ", "_"))
    return phase or next((phase for begin, phase in _BY_BEGINNING.items() if text.startswith(begin)), None)


def phase_rows(timeline: Timeline) -> pd.DataFrame:
    """Return one row per phase and one for "other": PHASE_COLUMNS; copies and memsets count in gpu_ms alone.

    The GPU's are missing on a trace without kernels. No row where the trace has neither a phase's range nor a kernel
    tied to one.
    """
    spans, work, whole = _spans(timeline), timeline.work, analysis_time(timeline)
    whole = NOTHING if whole is None else whole
    counted = in_window(timeline)[0]
    phases, lengths = _phases_of_work(timeline, spans)[counted], (work.end - work.start)[counted]
    host, taken = np.zeros(len(PHASES) + 1, dtype=np.int64), NOTHING
    for phase in _FIRST:
        part = spans[spans["phase"] == phase]
        open_ = intersection(merged(part["start"], part["end"]), whole)
        host[PHASES.index(phase)] = total_ns(difference(open_, taken))
        taken = union(taken, open_)
    if not host.any() and (phases == _OTHER).all():
        return typed([], PHASE_COLUMNS)
    window, total = total_ns(whole), lengths.sum()
    host[_OTHER] = window - total_ns(taken)
    gpu = np.bincount(phases, lengths, minlength=len(host))
    table = pd.DataFrame({"phase": [*PHASES, OTHER], "rank": timeline.rank, "host_ms": host / 1e6})
    table["host_share"] = host / (window or np.nan)
    if len(work):
        table["gpu_ms"], table["gpu_share"] = gpu / 1e6, gpu / (total or np.nan)
        table["kernels"] = np.bincount(phases[is_kernel(timeline)[counted]], minlength=len(host))
    used = (host > 0) | (np.bincount(phases, minlength=len(host)) > 0)
    return table[used].reindex(columns=list(PHASE_COLUMNS)).astype(PHASE_COLUMNS).reset_index(drop=True)


def _spans(timeline: Timeline) -> pd.DataFrame:
    """Return the ranges and operators that are phases: phase, thread, start, end, is_range."""
    parts = []
    for table in (timeline.ranges, timeline.operators):
        rows = table.loc[named(table["name"], lambda name: phase_of(name) is not None)]
        phases = rows["name"].astype(str).map(phase_of)
        parts.append(rows[["thread", "start", "end"]].assign(phase=phases, is_range=table is timeline.ranges))
    order = pd.CategoricalDtype([*reversed(_FIRST)], ordered=True)
    return pd.concat(parts).astype({"phase": order}).sort_values("phase", kind="stable")


def _phases_of_work(timeline: Timeline, spans: pd.DataFrame) -> Numbers:
    """Return the place in PHASES of each row of `kernels`, _OTHER for none, shape (n,)."""
    phases = np.full(len(timeline.work), _OTHER, dtype=np.int64)
    for part, any_thread in ((spans, False), (spans[spans["is_range"]], True)):
        left = np.flatnonzero(phases == _OTHER)
        numbers = np.array([*map(PHASES.index, part["phase"]), _OTHER], dtype=np.int64)
        phases[left] = numbers[launched_in(timeline, part, left, any_thread)]
    phases[communicating(timeline)] = PHASES.index("communication")
    return phases


def range_rows(timelines: Sequence[Timeline]) -> pd.DataFrame:
    """Return one row per name of a range that begins in the window, over all ranks, the longest first: RANGE_COLUMNS.

    Times are the CPU's. total_ms is from entering to leaving, what lies within counted too (inclusive); self_ms leaves
    out what lies within on the same thread, so that its sum is the time of threads in any range.
    """
    parts = []
    for member, timeline in enumerate(timelines):
        ranges = timeline.ranges[timeline.inside(timeline.ranges["start"].to_numpy(dtype=np.int64))]
        starts, ends = (ranges[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
        self_ns = own_times(pd.factorize(ranges["thread"])[0].astype(np.int64), starts, ends)
        rows = {"name": ranges["name"].astype(str), "ms": (ends - starts) / 1e6, "self_ms": self_ns / 1e6}
        parts.append(pd.DataFrame({**rows, "member": member}))
    if not any(map(len, parts)):
        return pd.DataFrame(columns=list(RANGE_COLUMNS))
    table = pd.concat(parts).groupby("name", sort=False).agg(
        ranks=("member", "nunique"), count=("ms", "size"), total_ms=("ms", "sum"), self_ms=("self_ms", "sum"),
        mean_ms=("ms", "mean"), min_ms=("ms", "min"), max_ms=("ms", "max"),
    )  # fmt: skip
    return table.reset_index().sort_values("total_ms", ascending=False, kind="stable", ignore_index=True)
