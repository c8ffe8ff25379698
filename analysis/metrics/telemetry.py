"""Sensor readings while the measured steps ran: energy, throttling, and how often each sensor was really read."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.metrics.ranks import combine

CLOCK_REASONS: dict[int, str] = {
    0x001: "idle",
    0x002: "clocks set by the user",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
    0x100: "display clock",
    0x200: "board limit",
    0x400: "reliability voltage",
}
"""Names of the bits (nvml.h, nvmlClocksEventReason* and nvmlClocksThrottleReason*)."""
# Usual under full load, and so apart from the others.
_POWER_CAP = 0x004
# What slows a GPU down because it is too hot or short of power.
_SLOWED_DOWN = 0x008 | 0x020 | 0x040 | 0x080
# Quantities that only grow: their increase says something, their mean does not.
_COUNTERS = frozenset({"energy_joules", "nvlink_rx_bytes", "nvlink_tx_bytes"})
# Readings that cover less of a window than this say too little about the rest of it.
_SMALLEST_COVERAGE = 0.9
# A GPU's counter is renewed every 20 to 100 ms, its power is a mean over as much: of less time they say too little.
_SHORTEST_OF_GPU_NS = 500_000_000

Reading = Mapping[str, Any]


def reason_names(mask: int) -> tuple[str, ...]:
    """Return the names of the reasons in a bit mask, a bit without a name as "bit 0x..."."""
    unknown = [1 << bit for bit in range(mask.bit_length()) if mask >> bit & 1 and 1 << bit not in CLOCK_REASONS]
    return tuple([name for bit, name in CLOCK_REASONS.items() if mask & bit] + [f"bit {bit:#x}" for bit in unknown])


def series(telemetry: Sequence[Reading], quantity: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return (times in ns, values) of one quantity, in order of time, by device ("node/device" beyond node 0)."""
    pairs: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in telemetry:
        if row.get("quantity") == quantity and row.get("value") is not None and row.get("time_ns") is not None:
            node, name = row.get("node") or 0, str(row.get("device") or "machine")
            pairs[f"node {node}/{name}" if node else name].append((int(row["time_ns"]), float(row["value"])))
    return {
        device: (np.array([t for t, _ in sorted(read)], dtype=np.int64), np.array([v for _, v in sorted(read)]))
        for device, read in pairs.items()
    }


def inside(telemetry: Sequence[Reading], quantity: str, begin_ns: int, end_ns: int) -> np.ndarray:
    """Return all devices' values of one quantity read in [begin_ns, end_ns]."""
    parts = [v[(t >= begin_ns) & (t <= end_ns)] for t, v in series(telemetry, quantity).values()]
    return np.concatenate(parts) if parts else np.array([])


def energy(
    telemetry: Sequence[Reading],
    begin_ns: int,
    end_ns: int,
    device: str = "",
    unavailable: Mapping[str, Any] | None = None,
) -> tuple[float | None, str]:
    """Return the energy in J of the devices that train, from begin_ns to end_ns, or None and why it is not known.

    These are the GPUs, or the CPU packages: a host's energy never stands for that of its GPUs.

    A device's energy counter is used where it has one (interpolated at both ends), otherwise its power, integrated by
    the trapezoid rule. Readings have to cover 90 % of the window; the mean power of the covered part then stands for
    the whole. Of less than half a second a GPU's energy is not known. Without `device` all that was read is added up;
    `unavailable` holds reasons by sensor, of env.json.
    """
    counters, powers = series(telemetry, "energy_joules"), series(telemetry, "power_watts")
    worker = {"cuda": "gpu", "cpu": "cpu"}.get(device, "")
    devices = [name for name in sorted({*counters, *powers}) if name.rsplit("/", 1)[-1].startswith(worker)]
    if not devices:
        reasons = (
            str(reason)
            for sensor, reason in (unavailable or {}).items()
            if sensor.startswith(worker) and (" " not in sensor or "energy" in sensor or "power" in sensor)
        )
        return None, next(reasons, "no energy or power sensor was read")
    if worker == "gpu" and end_ns - begin_ns < _SHORTEST_OF_GPU_NS:
        ms = (end_ns - begin_ns) / 1e6
        return None, f"the window of {ms:.0f} ms is too short for the energy counter of a GPU: measure at least 500 ms"
    total = 0.0
    for name in devices:
        watts = _mean_watts(*counters[name], begin_ns, end_ns, counter=True) if name in counters else None
        if watts is None and name in powers:
            watts = _mean_watts(*powers[name], begin_ns, end_ns, counter=False)
        if watts is None:
            return None, f"the readings of {name} do not cover the window; measure longer"
        total += watts * (end_ns - begin_ns) / 1e9
    return total, ""


def _mean_watts(times: np.ndarray, values: np.ndarray, begin_ns: int, end_ns: int, *, counter: bool) -> float | None:
    """Mean power of what readings of energy (a counter) or power cover of a window; None where that is too little."""
    # A counter that falls was reset or has wrapped round: its difference means nothing.
    if len(times) < 2 or end_ns <= begin_ns or (counter and np.any(np.diff(values) < 0)):
        return None
    begin, end = max(begin_ns, int(times[0])), min(end_ns, int(times[-1]))
    if end - begin < _SMALLEST_COVERAGE * (end_ns - begin_ns):
        return None
    if counter:
        first, last = np.interp((begin, end), times, values)
        return float(last - first) / ((end - begin) / 1e9)
    at = np.concatenate(([begin], times[(times > begin) & (times < end)], [end]))
    seconds = (at - begin) / 1e9
    watts = np.interp(at, times, values)
    return float(np.sum((watts[1:] + watts[:-1]) / 2 * np.diff(seconds)) / seconds[-1])


def throttle_reasons(telemetry: Sequence[Reading], begin_ns: int, end_ns: int) -> tuple[tuple[str, ...], bool]:
    """Return the names of the throttles seen in the window, and whether the software power cap was active."""
    mask = 0
    for value in inside(telemetry, "throttle_reasons", begin_ns, end_ns):
        mask |= int(value)
    return reason_names(mask & _SLOWED_DOWN), bool(mask & _POWER_CAP)


def telemetry_in_window(
    rows: Sequence[Reading], steps_by_rank: Mapping[int, Sequence[Reading]], start: int, stop: int
) -> list[dict[str, Any]]:
    """Return one row per device and quantity, over the time in which the steps [start, stop) ran on any rank.

    Columns: device, quantity, samples, rate_hz (reached, not requested), mean, min, max (None for counters and masks),
    increase (of counters; None with fewer than two samples or after a reset), reasons (for throttle_reasons, the share
    of the samples in which each stood). Empty where no step of the window has a start_ns.
    """
    window = [row for row in combine(steps_by_rank) if start <= row["step"] < stop and row["start_ns"] is not None]
    if not window:
        return []
    begin_ns, end_ns = min(row["start_ns"] for row in window), max(row["end_ns"] for row in window)
    table = []
    for quantity in dict.fromkeys(str(row["quantity"]) for row in rows if row.get("quantity") is not None):
        for device, (times, all_values) in series(rows, quantity).items():
            values = all_values[(times >= begin_ns) & (times <= end_ns)]
            row: dict[str, Any] = {"device": device, "quantity": quantity, "samples": len(values)}
            row["rate_hz"] = len(values) / ((end_ns - begin_ns) / 1e9)
            row |= dict.fromkeys(("mean", "min", "max", "increase", "reasons"))
            if quantity == "throttle_reasons":
                names = [name for mask in values for name in reason_names(int(mask))]
                row["reasons"] = {name: names.count(name) / len(values) for name in dict.fromkeys(names)}
            elif quantity in _COUNTERS:
                if len(values) > 1 and not np.any(np.diff(values) < 0):
                    row["increase"] = float(values[-1] - values[0])
            elif len(values):
                row |= {"mean": float(np.mean(values)), "min": float(np.min(values)), "max": float(np.max(values))}
            table.append(row)
    return sorted(table, key=lambda row: (row["device"], row["quantity"]))
