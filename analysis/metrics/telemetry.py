"""What the sensors said while the measured steps ran, and how often they were really read. Needs numpy only."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.metrics.clock_reasons import reason_names
from analysis.metrics.energy import series
from analysis.metrics.ranks import combine

Row = Mapping[str, Any]

COUNTERS = frozenset({"energy_joules", "nvlink_rx_bytes", "nvlink_tx_bytes"})
"""Quantities that only grow: their increase says something, their mean does not."""


def telemetry_in_window(
    rows: Sequence[Row], steps_by_rank: Mapping[int, Sequence[Row]], start: int, stop: int
) -> list[dict[str, Any]]:
    """Return one row per device and quantity, over the time in which the steps [start, stop) ran.

    That time is from the earliest start_ns of any rank to the latest end (start_ns + step_time_ms); a reading belongs
    to it by its time_ns. Clocks of several nodes are taken to agree.

    Columns: device, quantity, samples; rate_hz, samples per second of the window: the rate that was reached, not the
    one asked for; mean, min, max (None for counters, for bit masks and without a sample); increase, for counters,
    between the first and the last sample (None with fewer than two, or where the counter fell: it was reset); reasons,
    for throttle_reasons, the share of the samples in which each stood.

    Args:
        rows: rows of records.schema.TELEMETRY.
        steps_by_rank: rows of records.schema.STEPS by rank.
        start: first step of the window.
        stop: one past its last step.

    Returns:
        Sorted by device and quantity; empty where no step of the window has a start_ns.
    """
    window = [row for row in combine(steps_by_rank) if start <= row["step"] < stop and row["start_ns"] is not None]
    if not window:
        return []
    begin_ns = min(row["start_ns"] for row in window)
    end_ns = max(row["end_ns"] for row in window)
    by_quantity: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("quantity") is not None:
            by_quantity.setdefault(str(row["quantity"]), []).append(row)
    table = []
    for quantity, readings in by_quantity.items():
        for device, (times, values) in series(readings, quantity).items():
            inside = values[(times >= begin_ns) & (times <= end_ns)]
            seconds = (end_ns - begin_ns) / 1e9
            table.append({"device": device, "quantity": quantity, **_summary(quantity, inside, seconds)})
    return sorted(table, key=lambda row: (row["device"], row["quantity"]))


def _summary(quantity: str, values: np.ndarray, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {"samples": len(values), "rate_hz": len(values) / seconds}
    found.update(dict.fromkeys(("mean", "min", "max", "increase", "reasons")))
    if quantity == "throttle_reasons":
        found["reasons"] = _shares(values)
    elif quantity in COUNTERS:
        if len(values) > 1 and not np.any(np.diff(values) < 0):
            found["increase"] = float(values[-1] - values[0])
    elif len(values):
        found.update(mean=float(np.mean(values)), min=float(np.min(values)), max=float(np.max(values)))
    return found


def _shares(masks: np.ndarray) -> dict[str, float]:
    counts: dict[str, int] = {}
    for mask in masks:
        for name in reason_names(int(mask)):
            counts[name] = counts.get(name, 0) + 1
    return {name: count / len(masks) for name, count in counts.items()}
