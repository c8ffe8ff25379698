"""GPU time by where in the model it was launched: a tree of modules, named ranges and operators.

Each kernel, copy and memset of the window (see launches.in_window) belongs to one place, by the call that launched it:

1. the innermost module (`nn.Module` of the profiler's Python stack) that was open on the calling thread;
2. else, where that call lies in autograd's evaluation of a node: the place of the operator of the forward pass that
   made the node, which has the same sequence number; this is time of the backward pass;
3. else the innermost named range of the thread, and in it the outermost operator. Ranges of the whole forward or
   backward pass are left out where operators were recorded: they would part the two passes of an operator;
4. else the innermost phase that any thread was in;
5. else no place: NOWHERE.

All kernels of a CUDA graph are of the place that launched the graph, those of compiled code of the module that holds
it. Without GPU work, operators with their own time (less what they called) take the place of kernels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.metrics.time.launches import in_window, launching_calls
from analysis.metrics.time.phases import phase_of
from analysis.spans import Nested
from analysis.timeline import EVALUATES, MODULE, Timeline, empty, name_codes, named

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.int64]

_AT_ONCE = 1 << 18
"""Pieces of work whose places are looked up together."""
NOWHERE = "(no launching call in a module, range or operator)"
_SCRIPTED = "torch::jit"
"""In names of nodes of TorchScript: no operator of the forward pass is recorded that has their number."""
BETWEEN = " > "
"""Between the names of a path."""
MODULE_COLUMNS = {
    "path": "str",
    "name": "str",
    "kind": "str",
    "depth": "int64",
    "ranks": "int64",
    "calls": "int64",
    "kernels": "int64",
    "own_ms": "float64",
    "total_ms": "float64",
    "backward_ms": "float64",
    "total_share": "float64",
}


def module_rows(timelines: Sequence[Timeline]) -> "pd.DataFrame":
    """Return one row per place that has time, a place before what it contains, in order of first appearance.

    Returns:
        MODULE_COLUMNS. path: names from the outermost to this one, which is `name`. kind: module, range, operator, or
        none. depth: 0 outermost. ranks: that have it. calls (of the module, range or operator in the window) and
        kernels (pieces of work, within it too): sums over ranks. Times are means over ranks: own_ms is outside of what
        it contains, so that the sum over all rows is the time of all work; total_ms with it, of that backward_ms
        launched by the backward pass. total_share is total_ms over the time of all work.
    """
    tree = _Tree()
    parts = [found for timeline in timelines if (found := _sums(timeline, tree)) is not None]
    if not parts:
        return empty(MODULE_COLUMNS)
    size = len(tree.names)
    sums = np.zeros((4, size), dtype=np.int64)
    ranks = np.zeros(size, dtype=np.int64)
    for found in parts:
        part = found.within(tree.parents, size)
        sums += part
        ranks += part[1] > 0
    return _frame(tree, sums, ranks, len(timelines))


class _Tree:
    """Places, numbered as they come: what contains a place has a lower number. Place 0 contains all."""

    def __init__(self) -> None:
        self.names, self.kinds, self.parents = [""], [""], [-1]
        self._known: dict[tuple[int, str, str], int] = {}

    def child(self, parent: int, name: str, kind: str) -> int:
        """Return the number of a place by what contains it and its name."""
        key = (parent, name, kind)
        if key not in self._known:
            self._known[key] = len(self.names)
            self.names.append(name)
            self.kinds.append(kind)
            self.parents.append(parent)
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _Sums:
    """By place, without what it contains, shape (up to the number of places,)."""

    calls: Numbers
    pieces: Numbers
    ns: Numbers
    backward_ns: Numbers

    def within(self, parents: Sequence[int], size: int) -> Numbers:
        """Return calls, pieces, ns and backward ns of each place, shape (4, size); all but calls with its content."""
        found = np.zeros((4, size), dtype=np.int64)
        for row, values in enumerate((self.calls, self.pieces, self.ns, self.backward_ns)):
            found[row, : len(values)] = values
        for place in range(size - 1, 0, -1):
            found[1:, parents[place]] += found[1:, place]
        return found


def _sums(timeline: Timeline, tree: _Tree) -> _Sums | None:
    places: _Places | None = None
    sums = np.zeros((3, 0), dtype=np.int64)
    for pieces in _pieces(timeline):
        places = places or _Places(timeline, tree)
        place, backward = places.of(pieces)
        sums = np.pad(sums, ((0, 0), (0, len(tree.names) - sums.shape[1])))
        np.add.at(sums[0], place, 1)
        np.add.at(sums[1], place, pieces.ns)
        np.add.at(sums[2], place[backward], pieces.ns[backward])
    return None if places is None else _Sums(np.bincount(places.calls(), minlength=len(tree.names)), *sums)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """n pieces of work: the thread that launched them by its place in `threads`, when, and their lengths."""

    threads: Sequence[str]
    """Names of threads, "" an unknown one."""
    thread: npt.NDArray[Any]
    moment: Numbers
    ns: Numbers


def _pieces(timeline: Timeline) -> Iterator[_Pieces]:
    """Yield the pieces of the window, so many at once that their arrays stay small."""
    if not len(timeline.kernels):
        table = timeline.operators
        start, own = (table[name].to_numpy(dtype=np.int64) for name in ("start", "self_ns"))
        codes, threads = name_codes(table["thread"])
        for rows in _in_parts(np.flatnonzero(timeline.inside(start))):
            yield _Pieces(threads, codes[rows], start[rows], own[rows])
        return
    work, calls = timeline.work, launching_calls(timeline)
    codes, threads = name_codes(timeline.api["thread"])
    called = timeline.api["start"].to_numpy(dtype=np.int64)
    for rows in _in_parts(np.flatnonzero(in_window(timeline)[0])):
        # The last name is that of what has none.
        thread, moment = np.full(len(rows), len(threads) - 1), work.start[rows]
        if calls is not None:
            tied = np.flatnonzero(calls[rows] >= 0)
            call = calls[rows[tied]]
            thread[tied], moment[tied] = codes[call], called[call]
        yield _Pieces(threads, thread, moment, work.end[rows] - work.start[rows])


def _in_parts(rows: Numbers) -> Iterator[Numbers]:
    return (rows[begin : begin + _AT_ONCE] for begin in range(0, len(rows), _AT_ONCE))


class _Spans:
    """Rows of a table that nest by thread."""

    def __init__(self, table: "pd.DataFrame", threads: dict[str, int], anywhere: bool = False) -> None:
        codes, names = name_codes(table["name"])
        self.names, self.codes = names, codes
        self.start, end = (table[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
        own, labels = name_codes(table["thread"])
        known = np.array([threads.setdefault(label, len(threads)) for label in labels], dtype=np.int64)
        self.thread = np.zeros(len(table), dtype=np.int64) if anywhere else known[own]
        self.nested = Nested(self.thread, self.start, end)

    def places(self, tree: _Tree, kind: str) -> Numbers:
        """Return the place in the tree of each row, shape (n,)."""
        callers, found = self.nested.callers().tolist(), [0] * len(self.start)
        labels = [name.removeprefix(MODULE) for name in self.names]
        codes = self.codes.tolist()
        for row in self.nested.in_order().tolist():
            parent = found[callers[row]] if callers[row] >= 0 else 0
            found[row] = tree.child(parent, labels[codes[row]], kind)
        return np.array(found, dtype=np.int64)


class _Places:
    """Where in the tree the work of one rank belongs."""

    def __init__(self, timeline: Timeline, tree: _Tree) -> None:
        self._timeline, self._tree = timeline, tree
        self._threads: dict[str, int] = {}
        operators, ranges, host = timeline.operators, timeline.ranges, timeline.host
        self._modules = _Spans(host[named(host["name"], lambda name: name.startswith(MODULE))], self._threads)
        passes = ("forward", "backward") if len(operators) else ()
        self._ranges = _Spans(ranges[named(ranges["name"], lambda name: phase_of(name) not in passes)], self._threads)
        self._phases = _Spans(ranges[named(ranges["name"], lambda name: phase_of(name) is not None)], {}, anywhere=True)
        self._outermost = _Spans(operators[_reaching_out(operators)], self._threads)
        self._module_places = self._modules.places(tree, "module")
        self._range_places = self._ranges.places(tree, "range")
        self._called: set[tuple[int, int]] = set()
        self._evaluations, self._makers = _makers(operators, self._threads)

    def of(self, pieces: _Pieces) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Return the place of each of n pieces of work, and whether it is of the backward pass, shape (n,)."""
        known = [self._threads.setdefault(label, len(self._threads)) for label in pieces.threads]
        thread, moment = np.array(known, dtype=np.int64)[pieces.thread], pieces.moment
        place = _taken(self._modules.nested.around(thread, moment), self._module_places)
        backward = np.zeros(len(place), dtype=bool)
        lost = np.flatnonzero(place < 0)
        evaluated = self._evaluations.nested.around(thread[lost], moment[lost])
        backward[lost] = evaluated >= 0
        rows, evaluated = lost[evaluated >= 0], evaluated[evaluated >= 0]
        made_by, made_at = self._makers[evaluated].T
        place[rows] = self._direct(made_by, made_at)
        lost = np.flatnonzero(place < 0)
        place[lost] = self._direct(thread[lost], moment[lost])
        lost = np.flatnonzero(place < 0)
        phase = self._phases.nested.around(np.zeros(len(lost), dtype=np.int64), moment[lost])
        place[lost] = self._children(np.zeros(len(lost), dtype=np.int64), self._phases, phase, "range")
        lost = np.flatnonzero(place < 0)
        if len(lost):
            place[lost] = self._tree.child(0, NOWHERE, "none")
        return place, backward

    def _direct(self, thread: Numbers, moment: Numbers) -> Numbers:
        """The module, else the range with the outermost operator in it; -1 for none."""
        place = _taken(self._modules.nested.around(thread, moment), self._module_places)
        lost = np.flatnonzero(place < 0)
        around = _taken(self._ranges.nested.around(thread[lost], moment[lost]), self._range_places)
        operator = self._outermost.nested.around(thread[lost], moment[lost])
        inner = self._children(around.clip(min=0), self._outermost, operator, "operator")
        place[lost] = np.where(operator >= 0, inner, around)
        launched = np.flatnonzero(operator >= 0)
        self._called.update(zip(inner[launched].tolist(), operator[launched].tolist(), strict=True))
        return place

    def _children(self, parents: Numbers, spans: _Spans, rows: Numbers, kind: str) -> Numbers:
        """Return the place below each of n others by the name of a span; -1 where the row is -1."""
        found = np.full(len(rows), -1, dtype=np.int64)
        has = np.flatnonzero(rows >= 0)
        pairs = parents[has] * len(spans.names) + spans.codes[rows[has]]
        numbers, first, pair = np.unique(pairs, return_index=True, return_inverse=True)
        made = np.empty(len(numbers), dtype=np.int64)
        for at in np.argsort(first).tolist():  # in order of appearance
            parent, name = divmod(int(numbers[at]), len(spans.names))
            made[at] = self._tree.child(parent, spans.names[name], kind)
        found[has] = made[pair.reshape(-1)]
        return found

    def calls(self) -> Numbers:
        """Return the place of each call in the window; asked after `of`, of operators those that launched work."""
        parts = [np.array([place for place, _ in self._called], dtype=np.int64)]
        for spans, places in ((self._modules, self._module_places), (self._ranges, self._range_places)):
            parts.append(places[self._timeline.inside(spans.start)])
        return np.concatenate(parts)


def _reaching_out(operators: "pd.DataFrame") -> npt.NDArray[np.bool_]:
    """Which operators end after all that began before them on their thread.

    Those are the outermost ones, also where times in whole microseconds let one begin before the last one's end.
    """
    codes = name_codes(operators["thread"])[0]
    start, end = (operators[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    found = np.zeros(len(operators), dtype=bool)
    for code in np.unique(codes).tolist():
        own = np.flatnonzero(codes == code)
        own = own[np.lexsort((-end[own], start[own]))]
        reached = np.maximum.accumulate(end[own])
        found[own] = np.append(True, end[own][1:] > reached[:-1])
    return found


def _taken(rows: Numbers, places: Numbers) -> Numbers:
    found = np.full(len(rows), -1, dtype=np.int64)
    found[rows >= 0] = places[rows[rows >= 0]]
    return found


def _makers(operators: "pd.DataFrame", threads: dict[str, int]) -> tuple[_Spans, Numbers]:
    """The evaluations of nodes whose maker is known; thread and start of each maker, shape (n, 2).

    Sequence numbers count the nodes of one thread of the forward pass. Operators that run before a node is made have
    its number too, so the maker is the last one with it. Of several threads, the one that has most of the numbers that
    are evaluated for a thread of autograd's own numbering is that thread.
    """
    if "forward_thread" not in operators.columns:
        return _Spans(operators.iloc[:0], threads), np.empty((0, 2), dtype=np.int64)
    numbered = operators[(operators["sequence"] >= 0).to_numpy()]
    evaluates = named(numbered["name"], lambda name: name.startswith(EVALUATES) and _SCRIPTED not in name)
    nodes = named(numbered["name"], lambda name: name.rstrip("0123456789").endswith("Backward"))
    evaluations, made = _Spans(numbered[evaluates], threads), numbered[~evaluates & ~nodes]
    makers, number = _Spans(made, threads), made["sequence"].to_numpy(dtype=np.int64)
    wanted = numbered["sequence"].to_numpy(dtype=np.int64)[evaluates]
    owners = numbered["forward_thread"].to_numpy(dtype=np.int64)[evaluates]
    row = np.full(len(wanted), -1, dtype=np.int64)
    for owner in np.unique(owners).tolist():
        own = np.flatnonzero(owners == owner)
        best = np.full(len(own), -1, dtype=np.int64)
        for thread in np.unique(makers.thread).tolist():
            have = np.flatnonzero(makers.thread == thread)
            have = have[np.lexsort((makers.start[have], number[have]))]
            last = np.searchsorted(number[have], wanted[own], side="right") - 1
            maker = have[last.clip(min=0)]
            fits = (last >= 0) & (number[maker] == wanted[own]) & (makers.start[maker] < evaluations.start[own])
            if fits.sum() > (best >= 0).sum():
                best = np.where(fits, maker, -1)
        row[own] = best
    kept = np.flatnonzero(row >= 0)
    found = np.column_stack([makers.thread[row[kept]], makers.start[row[kept]]])
    return _Spans(numbered[evaluates].iloc[kept], threads), found


def _frame(tree: _Tree, sums: Numbers, ranks: Numbers, members: int) -> "pd.DataFrame":
    """The places that have work, a place before what it contains."""
    import pandas as pd

    children: list[list[int]] = [[] for _ in tree.names]
    own = sums[2].copy()
    for place in range(1, len(tree.names)):
        children[tree.parents[place]].append(place)
        own[tree.parents[place]] -= sums[2, place]
    order, depths, paths = [], [], [""] * len(tree.names)
    stack = [(place, 0) for place in reversed(children[0])]
    while stack:
        place, depth = stack.pop()
        if not sums[1, place]:
            continue
        above = paths[tree.parents[place]]
        paths[place] = f"{above}{BETWEEN}{tree.names[place]}" if above else tree.names[place]
        order.append(place)
        depths.append(depth)
        stack += [(child, depth + 1) for child in reversed(children[place])]
    everything = int(sums[2, 0])
    total = sums[2, order]
    found = {
        "path": [paths[place] for place in order],
        "name": [tree.names[place] for place in order],
        "kind": [tree.kinds[place] for place in order],
        "depth": depths,
        "ranks": ranks[order],
        "calls": sums[0, order],
        "kernels": sums[1, order],
        "own_ms": own[order] / members / 1e6,
        "total_ms": total / members / 1e6,
        "backward_ms": sums[3, order] / members / 1e6,
        "total_share": total / everything if everything else np.full(len(order), np.nan),
    }
    return pd.DataFrame(found).astype(MODULE_COLUMNS)


CLASS_COLUMNS = {
    "name": "str",
    "instances": "int64",
    "calls": "int64",
    "own_ms": "float64",
    "own_share": "float64",
}


def class_rows(places: "pd.DataFrame") -> "pd.DataFrame":
    """Return modules by class, the largest own time first: CLASS_COLUMNS.

    Args:
        places: what `module_rows` returned; places that are no modules are not in the result, but in the shares' whole.
    """
    found = places[places["kind"] == "module"]
    if not len(found):
        return empty(CLASS_COLUMNS)
    found = found.assign(instance=found["name"], name=found["name"].str.replace(r"_\d+$", "", regex=True))
    grouped = found.groupby("name", sort=False)
    sums = grouped[["calls", "own_ms"]].sum().reset_index()
    sums.insert(1, "instances", grouped["instance"].nunique().to_numpy())
    whole = float(places["own_ms"].sum())
    sums["own_share"] = sums["own_ms"] / whole if whole else np.nan
    return sums.sort_values("own_ms", ascending=False, kind="stable", ignore_index=True).astype(CLASS_COLUMNS)
