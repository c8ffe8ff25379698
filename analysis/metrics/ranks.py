"""Ranks put side by side: one step time out of many, skew and the straggler. Needs numpy only."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from records.schema import PHASE_COLUMNS

Row = Mapping[str, Any]

COUNTS = ("samples", "real_tokens", "padded_tokens", "model_flops")

# A rank this much slower in its own work than the median of the others is a straggler.
STRAGGLER_SKEW = 0.05


def combine(steps: Mapping[int, Sequence[Row]]) -> list[dict[str, Any]]:
    """Return one row per step that every rank finished, of rows of records.schema.STEPS by rank.

    Time and phases are those of the slowest rank in that step, counts are summed over the ranks (None where a rank has
    none), start_ns is the earliest and end_ns the latest.
    """
    by_rank = [_by_step(rows) for rows in steps.values()]
    table = []
    for number in sorted(set.intersection(*map(set, by_rank))) if by_rank else []:
        rows = [by_step[number] for by_step in by_rank]
        slowest = max(rows, key=lambda row: float(row["step_time_ms"]))
        spans = [(int(row["start_ns"]), row["step_time_ms"]) for row in rows if row.get("start_ns") is not None]
        combined: dict[str, Any] = {"step": number, "step_time_ms": float(slowest["step_time_ms"])}
        combined["start_ns"] = min((begin for begin, _ in spans), default=None)
        combined["end_ns"] = max((begin + round(time_ms * 1e6) for begin, time_ms in spans), default=None)
        combined |= {name: slowest.get(name) for name in PHASE_COLUMNS}
        for name in COUNTS:
            values = [row.get(name) for row in rows]
            combined[name] = None if None in values else sum(v for v in values if v is not None)
        table.append(combined)
    return table


def _by_step(rows: Sequence[Row], start: int = 0, stop: float = math.inf) -> dict[int, Row]:
    """The rows of the steps [start, stop) that have a time, by step; a killed process may leave one without."""
    known = [row for row in rows if row.get("step") is not None and row.get("step_time_ms") is not None]
    timed = {int(row["step"]): row for row in known if math.isfinite(row["step_time_ms"]) and row["step_time_ms"] > 0}
    return {step: row for step, row in timed.items() if start <= step < stop}


def median_of(rows: Sequence[Row], name: str) -> float | None:
    """Return the median of the finite values of a column; None where there is none."""
    values = [float(row[name]) for row in rows if row.get(name) is not None and math.isfinite(row[name])]
    return float(np.median(values)) if values else None


def per_rank(
    steps: Mapping[int, Sequence[Row]], ranks: Mapping[int, Mapping[str, Any]], start: int, stop: int
) -> list[dict[str, Any]]:
    """Return one row per rank over the steps [start, stop).

    Ranks wait for each other in the all-reduce, so their step times hide who is late. `work_ms` is the median of step
    time less exposed communication and data wait; `skew` is that relative to the quickest rank. A rank whose work is 5
    % above the median of the others is the `straggler`. Further columns: rank, step_time_ms, data_wait_ms,
    communication_ms (medians), slowest_share (of the steps), peak_memory_bytes.
    """
    windows = {rank: _by_step(rows, start, stop) for rank, rows in sorted(steps.items())}
    shared = set.intersection(*map(set, windows.values())) if windows else set()
    slowest = [max(windows, key=lambda rank: float(windows[rank][number]["step_time_ms"])) for number in shared]
    table: list[dict[str, Any]] = []
    for rank, by_step in windows.items():
        rows = list(by_step.values())
        waits = [(row.get("communication_ms") or 0.0) + (row.get("data_wait_ms") or 0.0) for row in rows]
        work = [max(float(row["step_time_ms"]) - wait, 0.0) for row, wait in zip(rows, waits, strict=True)]
        row: dict[str, Any] = {"rank": rank, "work_ms": float(np.median(work)) if work else None}
        row |= {name: median_of(rows, name) for name in ("step_time_ms", "data_wait_ms", "communication_ms")}
        row["slowest_share"] = slowest.count(rank) / len(shared) if shared else None
        row["peak_memory_bytes"] = ranks.get(rank, {}).get("peak_memory_bytes")
        table.append(row)
    works = [row["work_ms"] for row in table if row["work_ms"]]
    for row in table:
        row["skew"] = row["work_ms"] / min(works) - 1 if row["work_ms"] else None
        others = [other["work_ms"] for other in table if other is not row and other["work_ms"]]
        late = others and row["work_ms"] and row["work_ms"] > (1 + STRAGGLER_SKEW) * float(np.median(others))
        row["straggler"] = bool(late)
    return table
