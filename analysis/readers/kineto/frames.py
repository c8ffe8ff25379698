"""The tables of a Kineto trace, made from its columns when they are first asked for."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.names import PRECISIONS, is_gpu_library
from analysis.readers.columns import Codes, Integers, categories
from analysis.readers.kineto.collectives import collectives
from analysis.readers.kineto.events import HostCall
from analysis.readers.kineto.tables import (
    CALL,
    HOST,
    KINDS,
    OPERATOR,
    RANGE,
    WORK,
    Tables,
    label,
    thread_name,
)
from analysis.readers.steps import empty_steps, launch_moments, left_out, marked_steps
from analysis.timeline import GpuWork, ProcessGroup

if TYPE_CHECKING:
    import pandas as pd


_LAUNCH = re.compile("LaunchKernel|KernelLaunch|GraphLaunch")
_SPANS = ("steps", "operators", "ranges", "host")

_Columns = dict[str, Any]


class Frames:
    """Makes the tables of one trace; see analysis.timeline."""

    def __init__(self, tables: Tables, base_ns: int, groups: Mapping[str, ProcessGroup]) -> None:
        """Take the columns of the tables.

        Args:
            tables: all that was read.
            base_ns: what is added to the trace's times.
            groups: process groups by name.
        """
        self._columns = {table: tables.columns(table, base_ns) for table in (CALL, OPERATOR, RANGE, HOST, WORK)}
        self._names = {table: [label(name) for name in tables.names[table]] for table in self._columns}
        self._threads = [thread_name(thread) for thread in tables.threads]
        self._inputs = [str(text) for text in tables.inputs]
        self._groups = groups
        self._host_calls: list[HostCall] = [
            (name, thread, start + base_ns, end + base_ns, said) for name, thread, start, end, said in tables.host_calls
        ]
        self._kernel_calls = dict(tables.kernel_calls)
        self._order_work()
        self._steps, self.problems = self._whole_steps()
        """What of the marked steps was left out: one sentence each."""

    def work(self) -> GpuWork:
        """Return the GPU work, in order of start."""
        columns = self._columns[WORK]
        names, place = _distinct(self._names[WORK])
        name = columns["name"] if len(names) == len(place) else place[columns["name"]]
        device, stream, start, end = (columns[column] for column in ("device", "stream", "start", "end"))
        return GpuWork(names, name, KINDS, columns["kind"], device, stream, start, end)

    def launches(self) -> bool:
        """Return whether the host launched work on a GPU, before the tables are made."""
        return any(_LAUNCH.search(name) for name in self._names[CALL])

    def calls_nccl(self) -> bool:
        """Return whether the host called NCCL or RCCL, whose collectives run on GPUs."""
        return any(is_gpu_library(name) for table in (OPERATOR, RANGE) for name in self._names[table])

    def make(self, table: str) -> dict[str, "pd.DataFrame"]:
        """Return a table by its name in Timeline, and those that are made with it; forget what they are made of."""
        return self._spans() if table in _SPANS else self._work_and_calls()

    def _order_work(self) -> None:
        columns = self._columns[WORK]
        start = columns["start"]
        if not (start[1:] < start[:-1]).any():
            return
        order = np.argsort(start, kind="stable")
        self._columns[WORK] = {name: values[order] for name, values in columns.items()}
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self._kernel_calls = {int(place[row]): said for row, said in self._kernel_calls.items()}

    def _work_and_calls(self) -> dict[str, "pd.DataFrame"]:
        import pandas as pd

        calls = self._columns.pop(CALL)
        order = np.argsort(calls["start"], kind="stable")
        api = self._table(CALL, {name: values[order] for name, values in calls.items()})
        del calls
        columns: _Columns = self._columns.pop(WORK)
        columns["name"] = categories(columns["name"], self._names[WORK])
        columns["kind"] = categories(columns["kind"], KINDS)
        if not np.isfinite(columns["blocks_per_sm"]).any():
            del columns["blocks_per_sm"]
        ordered = ("name", "kind", "device", "stream", "start", "end")
        kernels = pd.DataFrame({name: columns.pop(name) for name in ordered} | columns, copy=False)
        communication = collectives(kernels, self._kernel_calls, self._host_calls, api, self._groups)
        self._kernel_calls, self._host_calls = {}, []
        return {"kernels": kernels, "api": api, "collectives": communication}

    def _whole_steps(self) -> tuple[Integers, list[str]]:
        """Number, start and end of the marked steps, shape (n, 3), and notes on those left out."""
        found = [np.empty((0, 3), dtype=np.int64)]
        for table in (OPERATOR, RANGE):
            step, columns = self._step_numbers(table), self._columns[table]
            if len(rows := np.flatnonzero(step >= 0)):
                found.append(np.column_stack([step[rows], columns["start"][rows], columns["end"][rows]]))
        steps = np.concatenate(found)
        steps = steps[np.argsort(steps[:, 1], kind="stable")]
        empty = empty_steps(steps[:, 1], steps[:, 2], self._launches)
        return steps[~empty], left_out(steps[empty, 0], (steps[:, 2] - steps[:, 1])[empty])

    def _step_numbers(self, table: str) -> Integers:
        """The number of the step that each row marks, -1 for none."""
        numbers = marked_steps(self._names[table])
        names = self._columns[table]["name"]
        return numbers[names] if (numbers >= 0).any() else np.full(len(names), -1, dtype=np.int64)

    def _launches(self) -> Integers:
        """When work was launched: calls that are tied to it; else operators; else the work's own starts."""
        work, calls = self._columns[WORK], self._columns[CALL]
        found = launch_moments(work["correlation_id"], calls["correlation_id"], calls["start"])
        if len(found):
            return found
        operators: Integers = self._columns[OPERATOR]["start"][self._step_numbers(OPERATOR) < 0]
        return operators if len(operators) else work["start"]

    def _spans(self) -> dict[str, "pd.DataFrame"]:
        from analysis.spans import nesting

        made = {}
        for table, name in ((OPERATOR, "operators"), (RANGE, "ranges"), (HOST, "host")):
            is_step = self._step_numbers(table) >= 0
            columns = self._columns.pop(table)
            if table != HOST and is_step.any():
                columns = {column: values[~is_step] for column, values in columns.items()}
            _sort(columns)
            if table == OPERATOR:
                for column, unknown in (("precision", 0), ("inputs", 0), ("sequence", -1), ("forward_thread", -1)):
                    if not (columns[column] != unknown).any():
                        del columns[column]
                columns["self_ns"], columns["outermost"] = nesting(columns["thread"], columns["start"], columns["end"])
            made[name] = self._table(table, columns)
        return {"steps": _step_table(self._steps), **made}

    def _table(self, table: str, columns: _Columns) -> "pd.DataFrame":
        import pandas as pd

        columns["name"] = categories(columns["name"], self._names[table])
        columns["thread"] = categories(columns["thread"], self._threads)
        for column, labels in (("precision", PRECISIONS), ("inputs", self._inputs)):
            if column in columns:
                columns[column] = categories(columns[column], labels)
        ordered = {name: columns.pop(name) for name in ("name", "thread", "start", "end")}
        return pd.DataFrame(ordered | columns, copy=False)


def _sort(columns: _Columns) -> None:
    from analysis.spans import by_start

    order = by_start(columns["start"], columns["end"])
    for name in columns if order is not None else ():
        columns[name] = columns[name][order]


def _distinct(labels: Sequence[str]) -> tuple[list[str], Integers]:
    """Return each label once, and of each of `labels` its place there."""
    codes = Codes()
    place = np.array([codes[text] for text in labels], dtype=np.int64)
    return list(codes), place


def _step_table(rows: Integers) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame({"step": rows[:, 0], "start": rows[:, 1], "end": rows[:, 2]})
