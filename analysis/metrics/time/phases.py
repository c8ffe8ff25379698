"""Time by phase of the step: data, forward, backward, communication, optimizer; of the CPU and of the GPU.

Host time is the union of a phase's ranges over all threads, cut to the window, each moment counted once (of nested
phases the one that stands first in the order communication, optimizer, backward, forward, data). GPU time is the sum of
the kernels, copies and memsets of the window (see launches.in_window), each attributed by what launched it:

1. communication kernels are of the phase "communication";
2. the call that launched it lies in a phase's range on the same thread: the innermost one (autograd's own thread:
   `autograd::engine::evaluate_function` is backward; `Optimizer.step#...` is optimizer);
3. else the call lies in a phase's range of any thread;
4. else, and where the launching call is not in the trace, "other".
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.metrics.time.launches import in_window, launching_calls
from analysis.metrics.time.temporal import analysis_window, window_set
from analysis.names import OTHER
from analysis.spans import Intervals, difference, merged, total_ns, union, within
from analysis.timeline import Timeline, is_communication, is_kind, name_codes

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.int64]
PhaseNumbers = npt.NDArray[np.int8]
Spans = Mapping[str, Mapping[str, Intervals]]

PHASES = ("data", "forward", "backward", "communication", "optimizer")
_ALL = (*PHASES, OTHER)
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
    text = name[:200].casefold().removeprefix("bertbench:").strip("# \t")
    found = _BY_NAME.get(text.replace(" ", "_"))
    return found or next((phase for begin, phase in _BY_BEGINNING.items() if text.startswith(begin)), None)


def phase_rows(timeline: Timeline) -> "pd.DataFrame":
    """Return one row per phase and one for "other".

    Columns: rank, phase, host_ms, host_share (of the window), gpu_ms (kernels, copies and memsets), gpu_share (of
    their time), kernels (these alone). The GPU's are missing on a trace without kernels. No row where the trace has
    neither a phase's range nor a kernel tied to one.
    """
    import pandas as pd

    columns = ["rank", "phase", "host_ms", "host_share", "gpu_ms", "gpu_share", "kernels"]
    spans = _spans(timeline)
    host = _host_ns(timeline, spans)
    numbers = _kernel_numbers(timeline, spans)
    kept, _ = in_window(timeline)
    kernels = timeline.kernels
    lengths = (kernels["end"].to_numpy() - kernels["start"].to_numpy()).astype(np.int64) if len(kernels) else kept
    if not spans or (not any(host.get(name) for name in PHASES) and (numbers[kept] == _OTHER).all()):
        return pd.DataFrame({name: [] for name in columns})
    window, work = sum(host.values()), int(lengths[kept].sum())
    copies = is_kind(kernels, "memcpy", "memset") if len(kernels) else kept
    rows = []
    for number, name in enumerate(_ALL):
        own = kept & (numbers == number)
        gpu = int(lengths[own].sum())
        if not own.any() and not host.get(name):
            continue
        row = [timeline.rank, name, host.get(name, 0) / 1e6, host.get(name, 0) / window if window else None]
        row += (
            [gpu / 1e6, gpu / work if work else None, int((own & ~copies).sum())]
            if len(kernels)
            else [None, None, None]
        )
        rows.append(row)
    types = {"rank": "Int64", "kernels": "Int64", "gpu_ms": "float64", "gpu_share": "float64", "host_share": "float64"}
    return pd.DataFrame(rows, columns=columns).astype(types)


def _kernel_numbers(timeline: Timeline, spans: Spans) -> PhaseNumbers:
    kernels = timeline.kernels
    numbers = np.full(len(kernels), _OTHER, dtype=np.int8)
    if not len(kernels):
        return numbers
    calls = launching_calls(timeline)
    if calls is not None and spans:
        known = np.flatnonzero(calls >= 0)
        called = timeline.api["start"].to_numpy(dtype=np.int64)[calls[known]]
        codes, threads = name_codes(timeline.api["thread"])
        thread = codes[calls[known]]
        found = np.full(len(known), _OTHER, dtype=np.int8)
        for code in np.flatnonzero(np.bincount(thread)):
            own = thread == code
            found[own] = _innermost(spans.get(threads[code], {}), called[own])
        lost = found == _OTHER
        if lost.any():
            found[lost] = _innermost(_any_thread(timeline), called[lost])
        numbers[known] = found
    numbers[is_communication(kernels) & ~is_kind(kernels, "memcpy", "memset")] = PHASES.index("communication")
    return numbers


def _spans(timeline: Timeline) -> dict[str, dict[str, Intervals]]:
    found: dict[str, dict[str, Intervals]] = {}
    for table in (timeline.ranges, timeline.operators):
        for (thread, phase), part in _named(table).items():
            own = found.setdefault(thread, {})
            own[phase] = union(own[phase], part) if phase in own else part
    return found


def _any_thread(timeline: Timeline) -> dict[str, Intervals]:
    """The same of ranges alone and of all threads together: what the loop marked."""
    found: dict[str, Intervals] = {}
    for (_, phase), part in _named(timeline.ranges).items():
        found[phase] = union(found[phase], part) if phase in found else part
    return found


def _named(table: "pd.DataFrame") -> dict[tuple[str, str], Intervals]:
    if not len(table):
        return {}
    codes, names = name_codes(table["name"])
    phases = [phase_of(name) for name in names]
    rows = np.flatnonzero(np.array([phase is not None for phase in phases], dtype=bool)[codes])
    if not len(rows):
        return {}
    starts, ends = table["start"].to_numpy(dtype=np.int64)[rows], table["end"].to_numpy(dtype=np.int64)[rows]
    thread, threads = name_codes(table["thread"]) if "thread" in table.columns else (np.zeros(len(table), int), [""])
    number = np.array([_FIRST.index(phase) if phase else 0 for phase in phases])[codes[rows]]
    key = thread[rows].astype(np.int64) * len(_FIRST) + number
    found = {}
    for value in np.unique(key):
        own = key == value
        place = (threads[value // len(_FIRST)], _FIRST[value % len(_FIRST)])
        found[place] = merged(starts[own], ends[own])
    return found


def _innermost(spans: Mapping[str, Intervals], points: Numbers) -> PhaseNumbers:
    """The phase whose interval around each point began last: of properly nested ones the innermost."""
    latest = np.full(len(points), np.iinfo(np.int64).min)
    found = np.full(len(points), _OTHER, dtype=np.int8)
    # Of two that began at once, the one that is first in _FIRST is taken, so it goes last.
    for phase in reversed(_FIRST):
        intervals = spans.get(phase)
        if intervals is None or not len(intervals):
            continue
        place = np.searchsorted(intervals[:, 0], points, side="right") - 1
        inside = (place >= 0) & (points < intervals[place, 1]) & (intervals[place, 0] >= latest)
        found[inside] = PHASES.index(phase)
        latest[inside] = intervals[place[inside], 0]
    return found


def _host_ns(timeline: Timeline, spans: Spans) -> dict[str, int]:
    window = analysis_window(timeline)
    if window is None:
        return {}
    whole = window_set(timeline, window)
    taken = np.empty((0, 2), dtype=np.int64)
    found = {}
    for phase in _FIRST:
        own = union(*(within(by_phase[phase], whole) for by_phase in spans.values() if phase in by_phase))
        found[phase] = total_ns(difference(own, taken))
        taken = union(taken, own)
    return {**found, OTHER: total_ns(whole) - total_ns(taken)}
