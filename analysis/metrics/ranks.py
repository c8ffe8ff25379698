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
    """Return one row per step that every rank finished, in order of step number.

    Time and phases are those of the slowest rank in that step (so phases still add up to the step), counts are summed
    over the ranks (None where a rank has none), start_ns is the earliest and end_ns the latest over the ranks.

    Args:
        steps: rows of records.schema.STEPS by rank.
    """
    by_rank = [{int(row["step"]): row for row in rows if _usable(row)} for rows in steps.values()]
    if not by_rank:
        return []
    shared = sorted(set.intersection(*(set(rows) for rows in by_rank)))
    return [_combine_step(number, [rows[number] for rows in by_rank]) for number in shared]


def _usable(row: Row) -> bool:
    time = row.get("step_time_ms")
    return row.get("step") is not None and time is not None and math.isfinite(time) and time > 0


def _combine_step(number: int, rows: Sequence[Row]) -> dict[str, Any]:
    slowest = max(rows, key=lambda row: float(row["step_time_ms"]))
    begins = [int(row["start_ns"]) for row in rows if row.get("start_ns") is not None]
    ends = [int(r["start_ns"]) + round(r["step_time_ms"] * 1e6) for r in rows if r.get("start_ns") is not None]
    combined: dict[str, Any] = {"step": number, "step_time_ms": float(slowest["step_time_ms"])}
    combined["start_ns"] = min(begins) if begins else None
    combined["end_ns"] = max(ends) if ends else None
    combined.update({name: slowest.get(name) for name in PHASE_COLUMNS})
    for name in COUNTS:
        values = [row.get(name) for row in rows]
        combined[name] = None if any(value is None for value in values) else sum(v for v in values if v is not None)
    return combined


def median_of(rows: Sequence[Row], name: str) -> float | None:
    """Return the median of the finite values of a column; None where there is none."""
    values = [float(row[name]) for row in rows if row.get(name) is not None and math.isfinite(row[name])]
    return float(np.median(values)) if values else None


def per_rank(
    steps: Mapping[int, Sequence[Row]], ranks: Mapping[int, Mapping[str, Any]], start: int, stop: int
) -> list[dict[str, Any]]:
    """Return one row per rank over the steps [start, stop).

    Ranks wait for each other in the all-reduce, so their step times are nearly equal and hide who is late. `work_ms` is
    the median of step time less exposed communication and data wait, a rank's own work; `skew` is that relative to the
    quickest rank (0 for itself). A rank whose work is 5 % above the median of the other ranks is the `straggler`.

    Columns: rank, step_time_ms, work_ms, data_wait_ms, communication_ms (medians in ms, None where not measured), skew,
    slowest_share (share of steps in which it was the slowest), straggler, peak_memory_bytes.
    """
    windows = {
        rank: {int(r["step"]): r for r in rows if _usable(r) and start <= int(r["step"]) < stop}
        for rank, rows in sorted(steps.items())
    }
    slowest = _slowest_shares(windows)
    table: list[dict[str, Any]] = []
    for rank, by_step in windows.items():
        rows = list(by_step.values())
        work = [_own_work(row) for row in rows]
        table.append(
            {
                "rank": rank,
                "step_time_ms": median_of(rows, "step_time_ms"),
                "work_ms": float(np.median(work)) if work else None,
                "data_wait_ms": median_of(rows, "data_wait_ms"),
                "communication_ms": median_of(rows, "communication_ms"),
                "slowest_share": slowest.get(rank),
                "peak_memory_bytes": ranks.get(rank, {}).get("peak_memory_bytes"),
            }
        )
    works = [row["work_ms"] for row in table if row["work_ms"]]
    for row in table:
        row["skew"] = row["work_ms"] / min(works) - 1 if row["work_ms"] else None
        others = [other["work_ms"] for other in table if other is not row and other["work_ms"]]
        late = others and row["work_ms"] and row["work_ms"] > (1 + STRAGGLER_SKEW) * float(np.median(others))
        row["straggler"] = bool(late)
    return table


def _own_work(row: Row) -> float:
    waits = (row.get("communication_ms") or 0.0) + (row.get("data_wait_ms") or 0.0)
    return max(float(row["step_time_ms"]) - waits, 0.0)


def _slowest_shares(windows: Mapping[int, Mapping[int, Row]]) -> dict[int, float]:
    if not windows:
        return {}
    shared = set.intersection(*(set(rows) for rows in windows.values()))
    counts = dict.fromkeys(windows, 0)
    for number in shared:
        counts[max(windows, key=lambda rank: float(windows[rank][number]["step_time_ms"]))] += 1
    return {rank: count / len(shared) for rank, count in counts.items()} if shared else {}
