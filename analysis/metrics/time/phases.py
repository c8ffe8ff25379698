"""Time by phase of the step (data, forward, backward, communication, optimizer), and by named range.

docs/explanation/timeline.md defines both. Host time is the union of a phase's ranges over all threads, each moment
counted once (of nested phases the first of `_FIRST`). GPU time is of what is launched in the innermost phase open on
the calling thread, else, in a range, on any thread; kernels of communication are of that phase, unknown ones "other".
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.intervals import difference, merged, own_times, total_ns, union, within
from analysis.metrics.kernels.modules import launched_in
from analysis.metrics.time.window import NOTHING, analysis_time, in_window
from analysis.names import OTHER, communicates
from analysis.timeline import Timeline, columns, name_codes, typed
from records.schema import RANGE_COLUMNS

PREFIX = "bertbench:"
PHASES = ("data", "forward", "backward", "communication", "optimizer")
PHASE_COLUMNS = {**columns("rank phase host_ms host_share gpu_ms gpu_share"), "kernels": "Int64"}
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
    phases, counted = _phases_of_work(timeline, spans), in_window(timeline)[0]
    host, taken = dict.fromkeys(PHASES, 0), NOTHING
    if whole is not None:
        for phase in _FIRST:
            part = spans[spans["phase"] == phase]
            open_ = within(merged(part["start"], part["end"]), whole)
            host[phase] = total_ns(difference(open_, taken))
            taken = union(taken, open_)
    if not any(host.values()) and (phases[counted] == OTHER).all():
        return typed([], PHASE_COLUMNS)
    window = 0 if whole is None else total_ns(whole)
    host[OTHER] = window - total_ns(taken)
    lengths, copies = work.end - work.start, work.is_kind("memcpy", "memset")
    total = int(lengths[counted].sum())
    rows = []
    for name, host_ns in host.items():
        chosen = counted & (phases == name)
        if not chosen.any() and not host_ns:
            continue
        row = {"rank": timeline.rank, "phase": name, "host_ms": host_ns / 1e6}
        row["host_share"] = host_ns / window if window else None
        if len(work):
            gpu = int(lengths[chosen].sum())
            row |= {"gpu_ms": gpu / 1e6, "gpu_share": gpu / total if total else None}
            row["kernels"] = int((chosen & ~copies).sum())
        rows.append(row)
    return typed(rows, PHASE_COLUMNS)


def _spans(timeline: Timeline) -> pd.DataFrame:
    """Return the ranges and operators that are phases: phase, thread, start, end, is_range."""
    parts = []
    for table in (timeline.ranges, timeline.operators):
        codes, names = name_codes(table["name"])
        phases = np.array([phase_of(name) or "" for name in names], dtype=object)[codes]
        part = table.loc[phases != "", ["thread", "start", "end"]]
        parts.append(part.assign(phase=phases[phases != ""], is_range=table is timeline.ranges))
    spans = pd.concat(parts, ignore_index=True)
    order = np.argsort([-_FIRST.index(phase) for phase in spans["phase"]], kind="stable")
    ordered: pd.DataFrame = spans.iloc[order]
    return ordered


def _phases_of_work(timeline: Timeline, spans: pd.DataFrame) -> npt.NDArray[np.object_]:
    work = timeline.work
    phases = np.full(len(work), OTHER, dtype=object)
    for part, any_thread in ((spans, False), (spans[spans["is_range"]], True)):
        left = np.flatnonzero(phases == OTHER)
        around = launched_in(timeline, part, left, any_thread)
        phases[left] = np.append(part["phase"].to_numpy(dtype=object), OTHER)[around]
    phases[work.is_named(communicates) & ~work.is_kind("memcpy", "memset")] = "communication"
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
