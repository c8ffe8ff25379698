"""Sensor readings while the measured steps ran: energy and throttling."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SLOWDOWNS: dict[int, str] = {
    0x008: "hardware slowdown",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "power brake",
}
"""What slows a GPU down because it is too hot or short of power: bits of nvml.h, nvmlClocksThrottleReason*. The
software power cap is none of them: it is usual under full load.
"""
# Readings that cover less of a window than this say too little about the rest of it.
_SMALLEST_COVERAGE = 0.9
# A GPU's counter is renewed every 20 to 100 ms, its power is a mean over as much: of less time they say too little.
_SHORTEST_OF_GPU_NS = 500_000_000

Reading = Mapping[str, Any]
Series = tuple[np.ndarray, np.ndarray]
"""Times in ns, values."""


def series(telemetry: Sequence[Reading], quantity: str) -> dict[str, Series]:
    """Return the readings of one quantity in order of time, by device ("node N/device" beyond node 0)."""
    pairs: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in telemetry:
        if row["quantity"] == quantity and row["value"] is not None:
            node = row.get("node") or 0
            pairs[f"node {node}/{row['device']}" if node else row["device"]].append((row["time_ns"], row["value"]))
    return {
        device: (np.array([t for t, _ in sorted(read)], dtype=np.int64), np.array([v for _, v in sorted(read)], float))
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
    device: str,
    unavailable: Mapping[str, Any] | None = None,
) -> tuple[float | None, str]:
    """Return the energy in J of the devices that train, from begin_ns to end_ns, or None and why it is not known.

    These are the GPUs (cuda) or the CPU packages (cpu): a host's energy never stands for that of its GPUs. A device's
    energy counter is used where it has one (interpolated at both ends), otherwise its power, integrated by the
    trapezoid rule. Readings have to cover 90 % of the window; the mean power of the covered part then stands for the
    whole. `unavailable` holds reasons by sensor, of env.json.
    """
    counters, powers = series(telemetry, "energy_joules"), series(telemetry, "power_watts")
    worker = "gpu" if device == "cuda" else "cpu"
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


def throttle_reasons(telemetry: Sequence[Reading], begin_ns: int, end_ns: int) -> tuple[str, ...]:
    """Return the names of the slowdowns seen in the window."""
    mask = int(np.bitwise_or.reduce(inside(telemetry, "throttle_reasons", begin_ns, end_ns).astype(np.int64)))
    return tuple(name for bit, name in SLOWDOWNS.items() if mask & bit)
