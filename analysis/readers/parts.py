"""Traces of the PyTorch profiler that are parts of one rank's: one file per cycle of its schedule, or cut by size.

Parts have the same rank and process and follow each other in time, and their step numbers continue. Rows that two parts
repeat are counted once.
"""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.spans import merged, nesting
from analysis.timeline import ChosenWindow, Timeline

if TYPE_CHECKING:
    import pandas as pd

_TABLES = ("steps", "operators", "ranges", "host", "api", "kernels", "collectives")
_SAME = ("step", "name", "thread", "device", "stream", "start", "end")
"""Rows that agree in those of these columns that they have are one."""
_LAUNCHED = ("api", "kernels", "collectives")
_LONGEST_PAUSE_NS = 1_000_000
"""A longer time without any record between two parts was not recorded, unless their step numbers continue."""


def join_parts(timelines: Sequence[Timeline]) -> tuple[list[Timeline], list[str]]:
    """Return the timelines, parts of one rank joined in order of time, and one sentence on each that was.

    The window of a joined timeline is that of its parts together, without unrecorded time between them.
    """
    groups: dict[Any, list[Timeline]] = {}
    for place, found in enumerate(timelines):
        known = found.process is not None and _bounds(found) is not None
        own = (found.rank, found.process, found.world_size, tuple(sorted(found.devices.items())))
        groups.setdefault(own if known else place, []).append(found)
    joined: dict[int, list[Timeline]] = {}  # by the member, of which the first stands for the group
    said: list[str] = []
    for group in groups.values():
        ordered = sorted(group, key=lambda found: _bounds(found) or (0, 0))
        repeated = [_repeated(*pair) for pair in pairwise(ordered)]
        if len(group) < 2 or None in repeated:
            continue
        again = sum(sum(map(len, rows.values())) for rows in repeated if rows is not None)
        whole = _joined(ordered, [{}, *(rows or {} for rows in repeated)])
        joined |= {id(found): [] for found in group} | {id(group[0]): [whole]}
        once = f"; {again:,} rows that two files repeat are counted once" if again else ""
        where = "a trace without a rank" if whole.rank is None else f"rank {whole.rank}"
        said.append(
            f"{len(group)} files are parts of {where} (process {whole.process}): they are read as one timeline in "
            f"order of time{once}; if they are of different runs, give the files of one run"
        )
    return [one for found in timelines for one in joined.get(id(found), [found])], said


def _bounds(timeline: Timeline) -> tuple[int, int] | None:
    filled = [table for name in _TABLES if len(table := getattr(timeline, name))]
    if not filled:
        return None
    return min(int(table["start"].min()) for table in filled), max(int(table["end"].max()) for table in filled)


def _repeated(earlier: Timeline, later: Timeline) -> "dict[str, np.ndarray[Any, Any]] | None":
    """Places of the later part's rows that the earlier one has too, by table; None where they are no two parts."""
    import pandas as pd

    (first, end), (begin, last) = _bounds(earlier) or (0, 0), _bounds(later) or (0, 0)
    if begin >= end:
        before, after = earlier.steps["step"], later.steps["step"]
        counts_on = not len(before) or not len(after) or int(before.max()) < int(after.min())
        return {} if counts_on else None
    if later.rank is None or begin == first or last <= end:  # a copy adds nothing: it may stand for another run
        return None
    found: dict[str, np.ndarray[Any, Any]] = {}
    overlapping = 0
    for name in _TABLES:
        old, new = getattr(earlier, name), getattr(later, name)
        rows = np.flatnonzero(new["start"].to_numpy() < end)
        overlapping += len(rows)
        columns = [column for column in _SAME if column in new and column in old]
        if len(rows) and len(old):
            keys = [
                pd.MultiIndex.from_frame(table[columns].astype({c: str for c in columns if c in ("name", "thread")}))
                for table in (old[old["end"].to_numpy() >= begin], new.iloc[rows])
            ]
            rows = rows[keys[1].isin(keys[0])]
            if len(rows):
                found[name] = rows
    # Two runs of one rank that only happen to overlap repeat nothing.
    return found if 2 * sum(map(len, found.values())) >= overlapping else None


def _joined(parts: Sequence[Timeline], repeated: "Sequence[dict[str, np.ndarray[Any, Any]]]") -> Timeline:
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in _TABLES}
    highest = -1
    for part, rows in zip(parts, repeated, strict=True):
        own = {name: getattr(part, name) for name in _TABLES}
        own |= {name: own[name].drop(index=own[name].index[places]) for name, places in rows.items()}
        ids = own["api"]["correlation_id"].to_numpy()
        # The profiler of a later cycle may count its calls from the start again.
        again = any(np.isin(ids[ids >= 0], old["correlation_id"].to_numpy()).any() for old in tables["api"])
        shift = highest + 1 if again else 0
        for name in _LAUNCHED if shift else ():
            column = own[name]["correlation_id"]
            own[name] = own[name].assign(correlation_id=column.where(column < 0, column + shift))
        for name, table in own.items():
            tables[name].append(table)
        highest = max([highest, *(int(own[name]["correlation_id"].max()) for name in _LAUNCHED if len(own[name]))])
    made: dict[str, Any] = {name: _in_order(list_) for name, list_ in tables.items()}
    operators = made["operators"]
    if len(operators):
        columns = (operators["start"].to_numpy(), operators["end"].to_numpy())
        own_ns, outermost = nesting(operators["thread"].cat.codes.to_numpy().astype(np.int64), *columns)
        made["operators"] = operators.assign(self_ns=own_ns, outermost=outermost)
    problems = tuple(dict.fromkeys(text for part in parts for text in part.problems))
    groups = {name: group for part in parts for name, group in part.groups.items()}
    return dataclasses.replace(parts[0], **made, problems=problems, groups=groups, window=_window(parts))


def _in_order(tables: "Sequence[pd.DataFrame]") -> "pd.DataFrame":
    import pandas as pd

    filled = [table for table in tables if len(table)] or tables[:1]
    names = dict.fromkeys(name for table in filled for name in table.columns)
    columns: dict[str, Any] = {}
    for name in names:
        is_text = any(name in table and isinstance(table[name].dtype, pd.CategoricalDtype) for table in filled)
        unknown = "" if is_text else -1
        own = [table[name] if name in table else pd.Series(unknown, table.index) for table in filled]
        if is_text:
            columns[name] = pd.api.types.union_categoricals([texts.astype("category") for texts in own])
        else:
            columns[name] = pd.concat(own, ignore_index=True)
    frame = pd.DataFrame(columns)
    order = np.lexsort((-frame["end"].to_numpy(), frame["start"].to_numpy()))
    return frame.iloc[order].reset_index(drop=True)


def _window(parts: Sequence[Timeline]) -> ChosenWindow | None:
    """What the parts cover; None where nothing between them is missing."""
    spans: list[tuple[int, int]] = []
    last: Timeline | None = None
    for part in parts:
        bounds = _bounds(part) or (0, 0)
        steps = part.steps
        own = (int(steps["start"].min()), int(steps["end"].max())) if len(steps) else bounds
        if last is not None and _goes_on(last, part, bounds[0]):
            spans[-1] = (spans[-1][0], max(own[1], spans[-1][1]))
        else:
            spans.append(own)
        last = part
    if len(spans) < 2:
        return None
    whole = merged([begin for begin, _ in spans], [end for _, end in spans])
    return ChosenWindow("steps", whole, (_bounds(parts[0]) or (0, 0))[0])


def _goes_on(earlier: Timeline, later: Timeline, begin: int) -> bool:
    if len(earlier.steps) and len(later.steps):
        return int(earlier.steps["step"].max()) + 1 >= int(later.steps["step"].min())
    return begin - (_bounds(earlier) or (0, 0))[1] <= _LONGEST_PAUSE_NS
