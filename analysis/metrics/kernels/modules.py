"""GPU time by module of the model.

Each kernel, copy and memset of the window (see window.in_window) belongs to the innermost `nn.Module` of the
profiler's Python stack that was open on the thread of its launching call. Where that call lies in autograd's evaluation
of a node, it belongs to the module of the forward operator that made the node, which has the same sequence number; that
is time of the backward pass. All other work is OUTSIDE. Without GPU work, operators with their self time are counted.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.metrics.time.window import in_window
from analysis.metrics.time.work import launching_calls
from analysis.spans import Nested
from analysis.timeline import EVALUATES, MODULE, Timeline, empty, name_codes, named

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.int64]

OUTSIDE = "(outside of modules)"
BETWEEN = " > "
"""Between the names of a path."""
MODULE_COLUMNS = {
    "path": "str",
    "name": "str",
    "depth": "int64",
    "ranks": "int64",
    "calls": "int64",
    "kernels": "int64",
    "own_ms": "float64",
    "total_ms": "float64",
    "backward_ms": "float64",
    "total_share": "float64",
}
CLASS_COLUMNS = {"name": "str", "instances": "int64", "calls": "int64", "own_ms": "float64", "own_share": "float64"}
_CALLS, _KERNELS, _NS, _BACKWARD_NS = range(4)


def module_rows(timelines: Sequence[Timeline]) -> "pd.DataFrame":
    """Return one row per module that has time, a module before what it contains, in order of first appearance.

    Returns:
        MODULE_COLUMNS. path: names from the outermost to this one, which is `name`. depth: 0 outermost. ranks: that
        have it. calls (in the window) and kernels (pieces of work, within it too): sums over ranks. Times are means
        over ranks: own_ms is outside of what it contains, total_ms with it, of that backward_ms in the backward pass.
        total_share: of the time of all work.
    """
    import pandas as pd

    sums: dict[str, Numbers] = {}
    totals: dict[str, Numbers] = {}
    ranks: dict[str, int] = defaultdict(int)
    for timeline in timelines:
        own = _by_path(timeline)
        within: dict[str, Numbers] = defaultdict(lambda: np.zeros(4, dtype=np.int64))
        for path, numbers in own.items():
            sums[path] = sums.get(path, 0) + numbers
            for above in _and_above(path):
                within[above] += numbers
        for path, numbers in within.items():
            totals[path] = totals.get(path, 0) + numbers
            ranks[path] += int(numbers[_KERNELS] > 0)
    paths = [path for path in _in_order(totals) if totals[path][_KERNELS]]
    if not paths:
        return empty(MODULE_COLUMNS)
    each, total = (np.array([table[path] for path in paths]) for table in (sums, totals))
    everything = int(each[:, _NS].sum())
    columns = {
        "path": paths,
        "name": [path.rpartition(BETWEEN)[2] for path in paths],
        "depth": [path.count(BETWEEN) for path in paths],
        "ranks": [ranks[path] for path in paths],
        "calls": each[:, _CALLS],
        "kernels": total[:, _KERNELS],
        "own_ms": each[:, _NS] / len(timelines) / 1e6,
        "total_ms": total[:, _NS] / len(timelines) / 1e6,
        "backward_ms": total[:, _BACKWARD_NS] / len(timelines) / 1e6,
        "total_share": total[:, _NS] / everything if everything else np.nan,
    }
    return pd.DataFrame(columns).astype(MODULE_COLUMNS)


def class_rows(places: "pd.DataFrame") -> "pd.DataFrame":
    """Return what `module_rows` returned by class of module, the largest own time first: CLASS_COLUMNS."""
    modules = places[places["path"] != OUTSIDE]
    if not len(modules):
        return empty(CLASS_COLUMNS)
    grouped = modules.groupby(modules["name"].str.replace(r"_\d+$", "", regex=True), sort=False)
    rows = grouped[["calls", "own_ms"]].sum()
    rows.insert(0, "instances", grouped["name"].nunique())
    whole = float(places["own_ms"].sum())
    rows["own_share"] = rows["own_ms"] / whole if whole else np.nan
    return rows.reset_index().sort_values("own_ms", ascending=False, kind="stable", ignore_index=True)


def _by_path(timeline: Timeline) -> dict[str, Numbers]:
    """Return calls, kernels, ns and backward ns of one rank by path, a module before what it contains."""
    threads: dict[str, int] = {}
    host = timeline.host[named(timeline.host["name"], lambda name: name.startswith(MODULE))]
    modules = nested_spans(host, threads)
    names = host["name"].astype(str).str.removeprefix(MODULE).tolist()
    callers, paths = modules.callers().tolist(), [""] * len(names)
    for row in modules.in_order().tolist():
        paths[row] = f"{paths[callers[row]]}{BETWEEN}{names[row]}" if callers[row] >= 0 else names[row]
    sums = {paths[row]: np.zeros(4, dtype=np.int64) for row in modules.in_order().tolist()}
    for row in np.flatnonzero(timeline.inside(host["start"].to_numpy(dtype=np.int64))).tolist():
        sums[paths[row]][_CALLS] += 1
    sums[OUTSIDE] = np.zeros(4, dtype=np.int64)

    thread, moment, ns = _pieces(timeline, threads)
    module = modules.around(thread, moment)
    evaluations, makers = node_makers(timeline.operators, threads)
    lost = np.flatnonzero(module < 0)
    evaluated = nested_spans(evaluations, threads).around(thread[lost], moment[lost])
    lost, evaluated = lost[evaluated >= 0], evaluated[evaluated >= 0]
    module[lost] = modules.around(*makers[evaluated].T)
    backward = np.zeros(len(ns), dtype=np.int64)
    backward[lost] = ns[lost]
    for row in np.unique(module).tolist():
        pieces = module == row
        sums[paths[row] if row >= 0 else OUTSIDE] += (0, pieces.sum(), ns[pieces].sum(), backward[pieces].sum())
    return sums


def nested_spans(table: "pd.DataFrame", threads: dict[str, int]) -> Nested:
    """Return rows of a table as spans that nest by thread; `threads` numbers the threads and grows."""
    return Nested(thread_numbers(table, threads), *(table[name].to_numpy(np.int64) for name in ("start", "end")))


def thread_numbers(table: "pd.DataFrame", threads: dict[str, int]) -> Numbers:
    """Return the number of each row's thread, shape (n,)."""
    codes, names = name_codes(table["thread"])
    numbers: Numbers = np.array([threads.setdefault(name, len(threads)) for name in names], dtype=np.int64)[codes]
    return numbers


def launched_in(timeline: Timeline, spans: "pd.DataFrame", rows: Numbers) -> Numbers:
    """Return the place of the innermost of the host's spans around the call that launched each piece of work, or -1.

    Args:
        timeline: what a reader returned.
        spans: rows with thread, start and end, such as operators.
        rows: places of the work in timeline.work, shape (n,).
    """
    owner, calls = np.full(len(rows), -1, dtype=np.int64), launching_calls(timeline)
    if calls is not None:
        threads: dict[str, int] = {}
        nested, tied = nested_spans(spans, threads), np.flatnonzero(calls[rows] >= 0)
        call = calls[rows[tied]]
        moment = timeline.api["start"].to_numpy(dtype=np.int64)[call]
        owner[tied] = nested.around(thread_numbers(timeline.api, threads)[call], moment)
    return owner


def _pieces(timeline: Timeline, threads: dict[str, int]) -> tuple[Numbers, Numbers, Numbers]:
    """Return of each piece of work in the window the thread that launched it, when, and its length, ns, (n,) each."""
    if not len(timeline.kernels):
        table = timeline.operators
        table = table[timeline.inside(table["start"].to_numpy(dtype=np.int64))]
        start, own = (table[name].to_numpy(dtype=np.int64) for name in ("start", "self_ns"))
        return thread_numbers(table, threads), start, own
    work, calls = timeline.work, launching_calls(timeline)
    rows = np.flatnonzero(in_window(timeline)[0])
    thread, moment = np.full(len(rows), threads.setdefault("", len(threads))), work.start[rows]
    if calls is not None:
        tied = np.flatnonzero(calls[rows] >= 0)
        thread[tied] = thread_numbers(timeline.api, threads)[calls[rows[tied]]]
        moment[tied] = timeline.api["start"].to_numpy(dtype=np.int64)[calls[rows[tied]]]
    return thread, moment, work.end[rows] - work.start[rows]


def node_makers(operators: "pd.DataFrame", threads: dict[str, int]) -> "tuple[pd.DataFrame, Numbers]":
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
    thread = thread_numbers(made, threads)
    makers = np.full(len(wanted), -1, dtype=np.int64)
    for owner in np.unique(owners).tolist():
        own = np.flatnonzero(owners == owner)
        best = np.full(len(own), -1, dtype=np.int64)
        for candidate in np.unique(thread).tolist():
            rows = np.flatnonzero(thread == candidate)
            rows = rows[np.lexsort((start[rows], number[rows]))]
            last = np.searchsorted(number[rows], wanted[own], side="right") - 1
            maker = rows[last.clip(min=0)]
            fits = (last >= 0) & (number[maker] == wanted[own]) & (start[maker] < begun[own])
            if fits.sum() > (best >= 0).sum():
                best = np.where(fits, maker, -1)
        makers[own] = best
    known = makers >= 0
    return evaluated[known], np.column_stack([thread[makers[known]], start[makers[known]]])


def _and_above(path: str) -> Iterator[str]:
    yield path
    while BETWEEN in path:
        path = path.rpartition(BETWEEN)[0]
        yield path


def _in_order(totals: "dict[str, Numbers]") -> Iterator[str]:
    """Yield the paths, each followed by what it contains, in order of first appearance."""
    inside: dict[str, list[str]] = defaultdict(list)
    for path in totals:
        inside[path.rpartition(BETWEEN)[0]].append(path)
    stack = inside[""][::-1]
    while stack:
        path = stack.pop()
        yield path
        stack += inside[path][::-1]
