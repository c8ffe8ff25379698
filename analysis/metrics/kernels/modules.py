"""GPU time by module of the model.

Each kernel, copy and memset of the window (see window.in_window) belongs to the innermost `nn.Module` of the
profiler's Python stack that was open on the thread of its launching call. Where that call lies in autograd's evaluation
of a node, it belongs to the module of the forward operator that made the node, which has the same sequence number; that
is time of the backward pass. All other work is OUTSIDE. Without GPU work, operators with their self time are counted.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.intervals import Nested
from analysis.metrics.time.window import Numbers, in_window, launching_calls
from analysis.timeline import EVALUATES, MODULE, Timeline, name_codes, named

OUTSIDE = "(outside of modules)"
BETWEEN = " > "
"""Between the names of a path."""


def module_rows(timelines: Sequence[Timeline]) -> pd.DataFrame:
    """Return one row per module that has time, a module before what it contains, in order of first appearance.

    path: names from the outermost to this one, which is `name`. depth: 0 outermost. ranks: that have it. calls (in the
    window) and kernels (pieces of work, within it too): sums over ranks. Times are means over ranks: own_ms is outside
    of what it contains, total_ms with it, of that backward_ms in the backward pass. total_share: of all work.
    """
    each = pd.concat([_by_path(timeline).assign(rank=place) for place, timeline in enumerate(timelines)])
    sums = each.groupby("path", sort=False)[["calls", "ns"]].sum()
    inside = each.assign(path=each["path"].map(_lineage)).explode("path")
    totals = inside.groupby("path", sort=False)[["kernels", "ns", "backward_ns"]].sum()
    place = {path: number for number, path in enumerate(totals.index)}
    order = sorted(totals.index, key=lambda path: [place[above] for above in _lineage(path)])
    totals = totals.loc[[path for path in order if totals["kernels"][path]]]
    sums = sums.loc[totals.index]
    columns = {
        "path": totals.index,
        "name": [path.rpartition(BETWEEN)[2] for path in totals.index],
        "total_ms": totals["ns"] / len(timelines) / 1e6,
        "total_share": totals["ns"] / (sums["ns"].sum() or np.nan),
        "own_ms": sums["ns"] / len(timelines) / 1e6,
        "backward_ms": totals["backward_ns"] / len(timelines) / 1e6,
        "calls": sums["calls"],
        "kernels": totals["kernels"],
        "depth": [path.count(BETWEEN) for path in totals.index],
        "ranks": inside[inside["kernels"] > 0].groupby("path")["rank"].nunique(),
    }
    table = pd.DataFrame(columns, index=totals.index).reset_index(drop=True)
    return table.astype({"path": "str", "name": "str"})


def class_rows(places: pd.DataFrame) -> pd.DataFrame:
    """Return what `module_rows` returned by class of module, the largest own time first: name, instances, calls,
    own_ms and own_share."""
    modules = places[places["path"] != OUTSIDE]
    grouped = modules.groupby(modules["name"].str.replace(r"_\d+$", "", regex=True), sort=False)
    rows = grouped.agg(instances=("name", "nunique"), calls=("calls", "sum"), own_ms=("own_ms", "sum"))
    rows["own_share"] = rows["own_ms"] / (places["own_ms"].sum() or np.nan)
    return rows.reset_index().sort_values("own_ms", ascending=False, kind="stable", ignore_index=True)


def _lineage(path: str) -> list[str]:
    """Return a path after those of all that contain it."""
    names = path.split(BETWEEN)
    return [BETWEEN.join(names[:depth]) for depth in range(1, len(names) + 1)]


def _by_path(timeline: Timeline) -> pd.DataFrame:
    """Return path, calls, kernels, ns and backward_ns of one rank, a module before what it contains."""
    threads: dict[str, int] = {}
    host = timeline.host[named(timeline.host["name"], lambda name: name.startswith(MODULE))]
    modules = _nested_spans(host, threads)
    names = host["name"].astype(str).str.removeprefix(MODULE).tolist()
    callers, order, paths = modules.callers().tolist(), modules.in_order(), np.array([*names, OUTSIDE], dtype=object)
    for row in order.tolist():
        paths[row] = f"{paths[callers[row]]}{BETWEEN}{names[row]}" if callers[row] >= 0 else names[row]
    calls = np.append(timeline.inside(host["start"].to_numpy(dtype=np.int64))[order], False)
    table = pd.DataFrame({"path": paths[np.append(order, -1)], "calls": calls.astype(np.int64)})
    table = table.groupby("path", sort=False).sum()

    if len(timeline.kernels):
        rows = np.flatnonzero(in_window(timeline)[0])
        thread, moment = _launches(timeline, rows, threads)
        ns = timeline.work.end[rows] - timeline.work.start[rows]
    else:
        operators = timeline.operators
        operators = operators[timeline.inside(operators["start"].to_numpy(dtype=np.int64))]
        moment, ns = (operators[name].to_numpy(dtype=np.int64) for name in ("start", "self_ns"))
        thread = _thread_numbers(operators, threads)
    module = modules.around(thread, moment)
    evaluations, makers = node_makers(timeline.operators, threads)
    lost = np.flatnonzero(module < 0)
    evaluated = _nested_spans(evaluations, threads).around(thread[lost], moment[lost])
    lost, evaluated = lost[evaluated >= 0], evaluated[evaluated >= 0]
    module[lost] = modules.around(*makers[evaluated].T)
    backward = np.zeros(len(ns), dtype=np.int64)
    backward[lost] = ns[lost]
    pieces = pd.DataFrame({"path": paths[module], "kernels": 1, "ns": ns, "backward_ns": backward})
    sums = pieces.groupby("path", sort=False).sum().reindex(table.index, fill_value=0)
    return table.join(sums).reset_index()


def launched_in(timeline: Timeline, spans: pd.DataFrame, rows: Numbers, any_thread: bool = False) -> Numbers:
    """Return the place of the innermost of the host's spans around the call that launched each piece of work, or -1.

    Spans have thread, start and end, such as operators; they are of the calling thread, or of any. Rows are places of
    the work in timeline.work, shape (n,).
    """
    threads: dict[str, int] = {}
    nested = _nested_spans(spans.assign(thread="") if any_thread else spans, threads)
    thread, moment = _launches(timeline, rows, threads)
    return nested.around(np.where(thread >= 0, threads[""], -1) if any_thread else thread, moment)


def _launches(timeline: Timeline, rows: Numbers, threads: dict[str, int]) -> tuple[Numbers, Numbers]:
    """Return the thread (-1 unknown) and moment of the call that launched each of n pieces of GPU work."""
    thread, moment, calls = np.full(len(rows), -1), timeline.work.start[rows], launching_calls(timeline)
    if calls is not None:
        tied = np.flatnonzero(calls[rows] >= 0)
        thread[tied] = _thread_numbers(timeline.api, threads)[calls[rows[tied]]]
        moment[tied] = timeline.api["start"].to_numpy(dtype=np.int64)[calls[rows[tied]]]
    return thread, moment


def _nested_spans(table: pd.DataFrame, threads: dict[str, int]) -> Nested:
    """Return rows of a table as spans that nest by thread; `threads` numbers the threads and grows."""
    return Nested(_thread_numbers(table, threads), *(table[name].to_numpy(np.int64) for name in ("start", "end")))


def _thread_numbers(table: pd.DataFrame, threads: dict[str, int]) -> Numbers:
    codes, names = name_codes(table["thread"])
    numbers: Numbers = np.array([threads.setdefault(name, len(threads)) for name in names], dtype=np.int64)[codes]
    return numbers


def node_makers(operators: pd.DataFrame, threads: dict[str, int]) -> tuple[pd.DataFrame, Numbers]:
    """Return autograd's evaluations of nodes, n, and thread and start of each node's forward operator, shape (n, 2).

    Sequence numbers count the nodes of one thread of the forward pass. Operators that run before a node is made have
    its number too, so the last one with it made the node. Autograd numbers threads on its own: of the trace's threads,
    the one with most of the numbers that are evaluated for a thread of autograd is that thread.
    """
    if "forward_thread" not in operators.columns:
        return operators.iloc[:0], np.empty((0, 2), dtype=np.int64)
    numbered = operators[(operators["sequence"] >= 0).to_numpy()]
    evaluates = named(numbered["name"], lambda name: name.startswith(EVALUATES))
    nodes = named(numbered["name"], lambda name: name.rstrip("0123456789").endswith("Backward"))
    evaluated, made = numbered[evaluates], numbered[~evaluates & ~nodes]
    begun, wanted, owners = (evaluated[name].to_numpy(np.int64) for name in ("start", "sequence", "forward_thread"))
    start, number = (made[name].to_numpy(np.int64) for name in ("start", "sequence"))
    thread = _thread_numbers(made, threads)
    makers = np.full(len(wanted), -1, dtype=np.int64)
    for owner in np.unique(owners).tolist():
        asking = np.flatnonzero(owners == owner)
        best = np.full(len(asking), -1, dtype=np.int64)
        for candidate in np.unique(thread).tolist():
            rows = np.flatnonzero(thread == candidate)
            rows = rows[np.lexsort((start[rows], number[rows]))]
            last = np.searchsorted(number[rows], wanted[asking], side="right") - 1
            maker = rows[last.clip(min=0)]
            fits = (last >= 0) & (number[maker] == wanted[asking]) & (start[maker] < begun[asking])
            if fits.sum() > (best >= 0).sum():
                best = np.where(fits, maker, -1)
        makers[asking] = best
    known = makers >= 0
    return evaluated[known], np.column_stack([thread[makers[known]], start[makers[known]]])
