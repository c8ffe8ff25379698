"""Keeps of a trace what the analysis of one window needs, from tables that were spilled to a file.

What is kept, beside every event that meets the window:

- work of the window (launched in it, or begun in it where the launch is not known), what runs until it ends, and the
  calls of all work that is kept;
- operators and collectives of the CPU that began in the window, what runs until they end, and what ran around the calls
  that are kept;
- operators of the forward pass whose backward pass is in the window, with what ran around them;
- the nearest work before and after the window, which bounds idle time at its ends;
- of the whole trace marked steps, one launch of each, the first and last event of each name, the first work of each
  stream whose call is known, one collective per process group.

So tables of the window are those of the whole trace, except for what is replayed: a replay begins with what was kept.
Memory grows with the window. Where the share of work that is tied to calls decides something, and would decide it
otherwise, everything is kept.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.names import communicates
from analysis.readers.columns import Integers, require_memory
from analysis.readers.kineto.spill import Part, Spill
from analysis.readers.kineto.tables import CALL, HOST, KINDS, OPERATOR, RANGE, WORK, Tables, is_host_call, label
from analysis.readers.steps import marked_steps
from analysis.timeline import EVALUATES, MOSTLY, Mask
from analysis.window_choice import WindowChoice

_MOST, _LEAST = np.iinfo(np.int64).max, np.iinfo(np.int64).min
_NONE = np.empty(0, dtype=np.int64)


def narrow(path: Path, tables: Tables, spill: Spill, choice: WindowChoice) -> None:
    """Put back into the tables what the window needs.

    Args:
        path: the trace, for messages.
        tables: they were spilled as a whole.
        spill: their rows.
        choice: the window; where the trace does not have it, what says so is kept.

    Raises:
        InputError: the window's events take more memory than there is.
    """
    _Narrowing(path, tables, spill, choice).run()


class _Numbers:
    """A set of correlation ids, one bit each: they are numbers of 32 bits, and dense."""

    def __init__(self) -> None:
        self._pages: dict[int, npt.NDArray[np.uint8]] = {}

    def add(self, ids: Integers) -> None:
        ids = ids[ids > 0] & 0xFFFFFFFF
        for page, own in self._paged(ids):
            bits = self._pages.setdefault(page, np.zeros(1 << 13, dtype=np.uint8))
            flags = np.unpackbits(bits)
            flags[ids[own] & 0xFFFF] = 1
            bits[:] = np.packbits(flags)

    def has(self, ids: Integers) -> Mask:
        found = np.zeros(len(ids), dtype=bool)
        masked = ids & 0xFFFFFFFF
        for page, own in self._paged(masked):
            if page in self._pages:
                found[own] = np.unpackbits(self._pages[page])[masked[own] & 0xFFFF]
        found &= ids > 0
        return found

    @staticmethod
    def _paged(ids: Integers) -> Iterator[tuple[int, Integers]]:
        pages = ids >> 16
        order = np.argsort(pages, kind="stable")
        numbers, first = np.unique(pages[order], return_index=True)
        yield from zip(numbers.tolist(), np.split(order, first[1:]), strict=True) if len(ids) else ()


class _FirstAndLast:
    """The first start and the last end of each name of a table."""

    def __init__(self, names: int) -> None:
        self.start, self.end = np.full(names, _MOST), np.full(names, _LEAST)

    def add(self, part: Part) -> None:
        np.minimum.at(self.start, part["name"], part["start"])
        np.maximum.at(self.end, part["name"], _ends(part))

    def of(self, part: Part) -> Mask:
        found: Mask = (part["start"] == self.start[part["name"]]) | (_ends(part) == self.end[part["name"]])
        return found


class _OnePerCell:
    """One moment between each two bounds: enough to know which steps launched something."""

    def __init__(self, bounds: Integers) -> None:
        self._bounds, self._seen = bounds, np.zeros(len(bounds) + 1, dtype=bool)

    def rows(self, moments: Integers, wanted: Mask) -> Integers:
        rows = np.flatnonzero(wanted)
        cells, first = np.unique(np.searchsorted(self._bounds, moments[rows], side="right"), return_index=True)
        new = ~self._seen[cells]
        self._seen[cells] = True
        return rows[first[new]]


class _Narrowing:
    def __init__(self, path: Path, tables: Tables, spill: Spill, choice: WindowChoice) -> None:
        self._path, self._tables, self._spill, self._choice = path, tables, spill, choice
        self._labels = {table: [label(name) for name in tables.names[table]] for table in tables.names}
        self._steps = {table: marked_steps(self._labels[table]) for table in (OPERATOR, RANGE)}
        self._bounds = {table: _FirstAndLast(len(self._labels[table])) for table in (CALL, OPERATOR, RANGE, WORK)}
        for table, bounds in self._bounds.items():
            for part in spill.parts(table):
                bounds.add(part)
        self._marks = self._marked()
        self._window = self._chosen()
        self._calls, self._work, self._forced = _Numbers(), _Numbers(), _Numbers()
        self._everything = False

    def run(self) -> None:
        self._look_at_calls()
        self._look_at_work()
        self._represent_steps()
        self._everything = not self._decided_alike()
        kept, rows = self._put_back_work()
        points = [self._put_back_calls(kept), self._makers()]
        around = _closed(*(np.concatenate([side, *points]) for side in self._operators_end))
        self._put_back_spans(around)
        self._put_back_communication(rows, around)

    # What the window is.

    def _marked(self) -> Integers:
        """Number, start and end of the marked steps, shape (n, 3)."""
        found = [np.empty((0, 3), dtype=np.int64)]
        for table, numbers in self._steps.items():
            for part in self._spill.parts(table) if (numbers >= 0).any() else ():
                own = np.flatnonzero(numbers[part["name"]] >= 0)
                found.append(np.column_stack([numbers[part["name"]], part["start"], _ends(part)])[own])
        return np.concatenate(found)

    def _chosen(self) -> Integers:
        """The window on the trace's own clock, shape (n, 2), in order and apart; steps that may be empty count."""
        choice, marks = self._choice, self._marks
        if choice.time_ns is not None:
            origin = min((int(bounds.start.min()) for bounds in self._bounds.values() if len(bounds.start)), default=0)
            return np.array([choice.time_ns], dtype=np.int64) + origin
        found = [np.empty((0, 2), dtype=np.int64)]
        if choice.steps is not None:
            own = marks[(marks[:, 0] >= choice.steps[0]) & (marks[:, 0] <= choice.steps[1])]
            if len(own):
                found.append(np.array([[own[:, 1].min(), own[:, 2].max()]]))
        if choice.name:
            found.append(self._occurrences())
        return _closed(*np.concatenate(found).T)

    def _occurrences(self) -> Integers:
        for table in (RANGE, OPERATOR):
            plain = self._steps[table] < 0
            for matches in self._choice.matchers():
                wanted = plain & np.array([matches(name) for name in self._labels[table]], dtype=bool)
                if wanted.any():
                    rows = [
                        np.column_stack([part["start"], _ends(part)])[wanted[part["name"]] & (part["duration"] > 0)]
                        for part in self._spill.parts(table)
                    ]
                    if found := [own for own in rows if len(own)]:
                        return np.concatenate(found)
                    break
        return np.empty((0, 2), dtype=np.int64)

    # What belongs to it.

    def _look_at_calls(self) -> None:
        launched, pieces = [_NONE], [_NONE]
        for part in self._spill.parts(CALL):
            ids = part["correlation_id"]
            self._calls.add(ids)
            piece = _piece(self._window, part["start"])
            own = np.flatnonzero((piece >= 0) & (ids > 0))
            launched.append(ids[own])
            pieces.append(piece[own])
        ids, first = np.unique(np.concatenate(launched), return_index=True)
        self._launched, self._launched_in = ids, np.concatenate(pieces)[first]

    def _look_at_work(self) -> None:
        """When work of each piece of the window runs, its neighbors, and the first known work of each stream.

        Work is of the piece in which it was launched; where that is not known, of the one in which it begins.
        """
        begins, stops = self._window.T
        began, reached = begins.copy(), stops.copy()
        before, after = np.full(len(begins) + 1, _LEAST), np.full(len(begins) + 1, _MOST)
        self._first_known: dict[tuple[int, int], int] = {}
        for part in self._spill.parts(WORK):
            ids, start, end = part["correlation_id"], part["start"], _ends(part)
            self._work.add(ids)
            known = self._calls.has(ids)
            place, own = _found(self._launched, ids)
            piece = np.where(known, -1, _piece(self._window, start))
            piece[own] = self._launched_in[place[own]]
            inside = piece >= 0
            np.minimum.at(began, piece[inside], start[inside])
            np.maximum.at(reached, piece[inside], end[inside])
            lasting = end > start
            np.maximum.at(before, np.searchsorted(begins, end[lasting]), end[lasting])
            np.minimum.at(after, np.searchsorted(stops, start[lasting], side="right"), start[lasting])
            for stream, rows in _by_stream(part):
                if len(tied := rows[known[rows]]):
                    earliest = self._first_known.get(stream, _MOST)
                    self._first_known[stream] = min(earliest, int(start[tied].min()))
        self._runs = _closed(began, reached)
        self._neighbors = (np.unique(before), np.unique(after))

    def _one_collective_per_group(self) -> Integers:
        first: dict[Any, int] = {}
        for kernel_calls, _ in self._spill.calls():
            for place, said in kernel_calls.items():
                first.setdefault((said.group, said.group_size), place)
        return np.array(list(first.values()), dtype=np.int64)

    def _represent_steps(self) -> None:
        bounds = np.unique(self._marks[:, 1:])
        self._operator_of_step, call, work = (_OnePerCell(bounds) for _ in range(3))
        for part in self._spill.parts(CALL):
            ids = part["correlation_id"]
            self._forced.add(ids[call.rows(part["start"], self._work.has(ids))])
        rows, row = [self._one_collective_per_group()], 0
        for part in self._spill.parts(WORK):
            rows.append(work.rows(part["start"], np.ones(len(part["start"]), dtype=bool)) + row)
            row += len(part["start"])
        self._other_rows = np.unique(np.concatenate(rows))

    def _decided_alike(self) -> bool:
        """Whether what is kept of the work is tied to calls as often as all work, as far as that decides something."""
        whole, kept, row = np.zeros(4), np.zeros(4), 0
        computes = np.array([not communicates(name) for name in self._labels[WORK]], dtype=bool)
        for part in self._spill.parts(WORK):
            known = self._calls.has(part["correlation_id"])
            counted = computes[part["name"]] & (part["kind"] == KINDS.index("kernel")) & ~self._early(part, known)
            flags = np.stack([np.ones(len(known), dtype=bool), known, counted, counted & known])
            whole += flags.sum(axis=1)
            kept += flags[:, self._keeps_work(part, row)].sum(axis=1)
            row += len(known)
        decisions = [(2 * n[1] <= n[0], n[3] < MOSTLY * n[2]) for n in (whole, kept)]
        return decisions[0] == decisions[1]

    def _early(self, part: Part, known: Mask) -> Mask:
        found = np.zeros(len(known), dtype=bool)
        least = min(self._first_known.values(), default=_LEAST)
        for stream, rows in _by_stream(part):
            found[rows] = ~known[rows] & (part["start"][rows] < self._first_known.get(stream, least))
        return found

    def _keeps_work(self, part: Part, row: int) -> Mask:
        ids, start, end = part["correlation_id"], part["start"], _ends(part)
        found = _meets(self._runs, start, end) | _found(self._launched, ids)[1] | self._forced.has(ids)
        places = self._other_rows - row
        found[places[(places >= 0) & (places < len(found))]] = True
        found |= self._bounds[WORK].of(part)
        found |= _found(self._neighbors[0], end)[1] | _found(self._neighbors[1], start)[1]
        for stream, rows in _by_stream(part):
            found[rows] |= start[rows] == self._first_known.get(stream, _LEAST)
        return found

    # What is put back.

    def _put_back(self, table: str, keeps: Callable[[Part, int], Mask]) -> Iterator[tuple[Part, Mask, int]]:
        """Put back what is kept of a table; yield each part, what of it is kept, and the row that it begins with."""
        row = 0
        for part in self._spill.parts(table):
            kept = np.ones(len(part["start"]), dtype=bool) if self._everything else keeps(part, row)
            self._tables.put_back(table, {name: values[kept] for name, values in part.items()})
            if table not in (WORK, HOST):
                self._tables.count_threads(part["thread"][~kept])
            require_memory(self._path, self._tables.bytes)
            yield part, kept, row
            row += len(kept)

    def _put_back_work(self) -> tuple[_Numbers, Integers]:
        """Return the correlation ids and the rows that are kept."""
        ids, rows = _Numbers(), [_NONE]
        for part, kept, row in self._put_back(WORK, self._keeps_work):
            ids.add(part["correlation_id"][kept])
            rows.append(np.flatnonzero(kept) + row)
        return ids, np.concatenate(rows)

    def _put_back_calls(self, kept_work: _Numbers) -> Integers:
        """Return when the calls were made whose work is kept."""
        moments = [_NONE]

        def keeps(part: Part, _: int) -> Mask:
            found = kept_work.has(part["correlation_id"])
            moments.append(part["start"][found & (_piece(self._window, part["start"]) < 0)])
            return found | _meets(self._window, part["start"], _ends(part)) | self._bounds[CALL].of(part)

        for _ in self._put_back(CALL, keeps):
            pass
        return np.concatenate(moments)

    def _makers(self) -> Integers:
        """When the operators were called whose nodes autograd evaluates in the window; finds their numbers too, and
        until when the operators and collectives run that begin in the window."""
        begins, stops = self._window.T
        reached, evaluated = stops.copy(), [_NONE]
        communicate = np.array([is_host_call(name) for name in self._labels[RANGE]], dtype=bool)
        for part in self._spill.parts(RANGE) if communicate.any() else ():
            piece = np.where(communicate[part["name"]], _piece(self._window, part["start"]), -1)
            np.maximum.at(reached, piece[piece >= 0], _ends(part)[piece >= 0])
        evaluates = np.array([name.startswith(EVALUATES) for name in self._labels[OPERATOR]], dtype=bool)
        for part in self._spill.parts(OPERATOR):
            start, end = part["start"], _ends(part)
            piece = _piece(self._window, start)
            np.maximum.at(reached, piece[piece >= 0], end[piece >= 0])
            nodes = evaluates[part["name"]] & (part["sequence"] >= 0)
            evaluated.append(part["sequence"][nodes & _meets(self._window, start, end)])
        self._operators_end = (begins, reached)
        self._evaluated = np.unique(np.concatenate(evaluated))
        made = [_NONE]
        for part in self._spill.parts(OPERATOR) if len(self._evaluated) else ():
            made.append(part["start"][_found(self._evaluated, part["sequence"])[1] & ~evaluates[part["name"]]])
        return np.concatenate(made)

    def _put_back_spans(self, around: Integers) -> None:
        def keeps(table: str) -> Callable[[Part, int], Mask]:
            def of_part(part: Part, _: int) -> Mask:
                found = _meets(around, part["start"], _ends(part))
                if table in self._steps:
                    found |= (self._steps[table][part["name"]] >= 0) | self._bounds[table].of(part)
                if table == OPERATOR:
                    found |= _found(self._evaluated, part["sequence"])[1]
                    plain = self._steps[OPERATOR][part["name"]] < 0
                    found[self._operator_of_step.rows(part["start"], plain)] = True
                return found

            return of_part

        for table in (OPERATOR, RANGE, HOST):
            for _ in self._put_back(table, keeps(table)):
                pass

    def _put_back_communication(self, rows: Integers, around: Integers) -> None:
        """Arguments of the communication kernels that are kept, and the host's calls that say more of them."""
        tables, named = self._tables, set[Any]()
        for kernel_calls, _ in self._spill.calls():
            place, kept = _found(rows, np.array(list(kernel_calls), dtype=np.int64))
            for said, new in zip(np.array(list(kernel_calls.values()), dtype=object)[kept], place[kept], strict=True):
                tables.kernel_calls[int(new)] = said
                named.add(said.external_id)
        first = set[Any]()
        for _, host_calls in self._spill.calls():
            start, end = (np.array([call[side] for call in host_calls], dtype=np.int64) for side in (2, 3))
            near = _meets(around, start, end)
            for call, kept in zip(host_calls, near.tolist(), strict=True):
                kind = (call[0], call[4].group, call[4].group_size)
                if kept or self._everything or call[4].external_id in named - {None} or kind not in first:
                    tables.host_calls.append(call)
                    first.add(kind)


def _ends(part: Part) -> Integers:
    found: Integers = part["start"] + part["duration"]
    return found


def _closed(begins: Integers, ends: Integers) -> Integers:
    """The union of intervals, shape (n, 2), in order and apart; those without a length count too."""
    order = np.argsort(begins, kind="stable")
    begins, reached = begins[order], np.maximum.accumulate(ends[order])
    first = np.append(True, begins[1:] > reached[:-1])[: len(begins)]
    return np.column_stack([begins[first], reached[np.append(first[1:], True)[: len(begins)]]])


def _meets(spans: Integers, start: Integers, end: Integers) -> Mask:
    """Which of n intervals touch one of the spans."""
    if not len(spans):
        return np.zeros(len(start), dtype=bool)
    place = np.searchsorted(spans[:, 1], start)
    found: Mask = (place < len(spans)) & (spans[place.clip(max=len(spans) - 1), 0] <= end)
    return found


def _piece(spans: Integers, moments: Integers) -> Integers:
    """The place of the span that each moment is in; -1 for none."""
    place = np.searchsorted(spans[:, 0], moments, side="right") - 1
    inside = (place >= 0) & (moments <= spans[place, 1]) if len(spans) else np.zeros(len(moments), dtype=bool)
    return np.where(inside, place, -1)


def _found(ordered: Integers, values: Integers) -> tuple[Integers, Mask]:
    """Where n values are in an ordered array, and which of them are there."""
    if not len(ordered):
        return np.zeros(len(values), dtype=np.int64), np.zeros(len(values), dtype=bool)
    place = np.searchsorted(ordered, values).clip(max=len(ordered) - 1)
    return place, ordered[place] == values


def _by_stream(part: Part) -> Iterator[tuple[tuple[int, int], Integers]]:
    """The rows of each stream of each device."""
    for device in np.unique(part["device"]).tolist():
        rows = np.flatnonzero(part["device"] == device)
        streams = part["stream"][rows]
        for stream in np.unique(streams).tolist():
            yield (device, stream), rows[streams == stream]
