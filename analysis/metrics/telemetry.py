"""What the sensors said while the measured steps ran: energy, throttling, and how often each was really read."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
_POWER_CAP = 0x004
"""Usual under full load, and so apart from the others."""
_SLOWED_DOWN = 0x008 | 0x020 | 0x040 | 0x080
"""What slows a GPU down because it is too hot or short of power."""


def reason_names(mask: int) -> tuple[str, ...]:
    """Return the names of the reasons in a bit mask, a bit without a name as "bit 0x..."."""
    unknown = [1 << bit for bit in range(mask.bit_length()) if mask >> bit & 1 and 1 << bit not in CLOCK_REASONS]
    return tuple([name for bit, name in CLOCK_REASONS.items() if mask & bit] + [f"bit {bit:#x}" for bit in unknown])


Reading = Mapping[str, Any]
Series = Mapping[str, tuple[np.ndarray, np.ndarray]]

# Readings that cover less of a window than this say too little about the rest of it.
_SMALLEST_COVERAGE = 0.9
# A GPU's counter is renewed every 20 to 100 ms, its power is a mean over as much: of less time they say too little.
_SHORTEST_OF_GPU_NS = 500_000_000


@dataclass(frozen=True, slots=True)
class Energy:
    """Energy used inside a window, or why it is not known."""

    joules: float | None
    """Sum in J over the devices that train; None when not known."""
    devices: tuple[str, ...] = ()
    """Names of the devices the sum is over."""
    reason: str | None = None
    """Why `joules` is None."""
    host_joules: float | None = None
    """Where GPUs train: energy of the CPU packages in J, in none of the other numbers; None when not known."""


def series(telemetry: Sequence[Reading], quantity: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return (times in ns, values) of one quantity, in order of time, by device ("node/device" beyond node 0)."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for row in telemetry:
        if row.get("quantity") == quantity and row.get("value") is not None and row.get("time_ns") is not None:
            node = row.get("node") or 0
            name = str(row.get("device") or "machine")
            found[f"node {node}/{name}" if node else name].append((int(row["time_ns"]), float(row["value"])))
    result = {}
    for device, readings in found.items():
        readings.sort()
        result[device] = (np.array([t for t, _ in readings], dtype=np.int64), np.array([v for _, v in readings]))
    return result


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
) -> Energy:
    """Return the energy of the devices that train, from begin_ns to end_ns: of the GPUs, or of the CPU packages.

    What is counted must not depend on which sensors a machine lets one read, so a host's energy stands apart.

    A device's energy counter is used where it has one (interpolated at both ends), otherwise its power, integrated by
    the trapezoid rule. Readings have to cover 90 % of the window; the mean power of the covered part then stands for
    the whole. Of less than half a second a GPU's energy is not known.

    Args:
        telemetry: rows of records.schema.TELEMETRY.
        begin_ns: start of the window, Unix time in ns.
        end_ns: end of the window, Unix time in ns.
        device: cpu or cuda: what trains; empty adds up everything that was read.
        unavailable: reasons by sensor ("gpu0 power_watts"), from env.json.
    """
    counters = series(telemetry, "energy_joules")
    powers = series(telemetry, "power_watts")
    worker = {"cuda": "gpu", "cpu": "cpu"}.get(device, "")
    readings = (counters, powers)
    host = None
    if worker == "gpu" and (packages := _named(readings, "cpu")):
        host, _ = _sum(readings, packages, begin_ns, end_ns)
    devices = _named(readings, worker)
    if not devices:
        return Energy(None, reason=_why_unavailable(unavailable or {}, worker), host_joules=host)
    if worker == "gpu" and end_ns - begin_ns < _SHORTEST_OF_GPU_NS:
        milliseconds = (end_ns - begin_ns) / 1e6
        reason = (
            f"the window of {milliseconds:.0f} ms is too short for the energy counter of a GPU: measure at least 500 ms"
        )
        return Energy(None, reason=reason, host_joules=host)
    total, missing = _sum(readings, devices, begin_ns, end_ns)
    if total is None:
        reason = f"the readings of {missing} do not cover the window; measure longer"
        return Energy(None, reason=reason, host_joules=host)
    return Energy(total, tuple(devices), host_joules=host)


def _named(readings: tuple[Series, Series], prefix: str) -> list[str]:
    return sorted(name for name in {*readings[0], *readings[1]} if name.rsplit("/", 1)[-1].startswith(prefix))


def _sum(
    readings: tuple[Series, Series], devices: Sequence[str], begin_ns: int, end_ns: int
) -> tuple[float | None, str]:
    """Return the joules of `devices` together; None and the first of them whose readings do not suffice."""
    counters, powers = readings
    total = 0.0
    for name in devices:
        watts = _mean_watts_of_counter(*counters[name], begin_ns, end_ns) if name in counters else None
        if watts is None and name in powers:
            watts = _mean_watts_of_power(*powers[name], begin_ns, end_ns)
        if watts is None:
            return None, name
        total += watts * (end_ns - begin_ns) / 1e9
    return total, ""


def _why_unavailable(reasons: Mapping[str, Any], worker: str) -> str:
    for sensor, reason in reasons.items():
        if sensor.startswith(worker) and (" " not in sensor or "energy" in sensor or "power" in sensor):
            return str(reason)
    return "no energy or power sensor was read"


def _covered(times: np.ndarray, begin_ns: int, end_ns: int) -> tuple[int, int] | None:
    if len(times) < 2 or end_ns <= begin_ns:
        return None
    begin, end = max(begin_ns, int(times[0])), min(end_ns, int(times[-1]))
    return (begin, end) if end - begin >= _SMALLEST_COVERAGE * (end_ns - begin_ns) else None


def _mean_watts_of_counter(times: np.ndarray, values: np.ndarray, begin_ns: int, end_ns: int) -> float | None:
    covered = _covered(times, begin_ns, end_ns)
    # A counter that falls was reset or has wrapped round: its difference means nothing.
    if covered is None or np.any(np.diff(values) < 0):
        return None
    first, last = np.interp(covered, times, values)
    return float(last - first) / ((covered[1] - covered[0]) / 1e9)


def _mean_watts_of_power(times: np.ndarray, values: np.ndarray, begin_ns: int, end_ns: int) -> float | None:
    covered = _covered(times, begin_ns, end_ns)
    if covered is None:
        return None
    within = (times > covered[0]) & (times < covered[1])
    at = np.concatenate(([covered[0]], times[within], [covered[1]]))
    seconds = (at - covered[0]) / 1e9
    watts = np.interp(at, times, values)
    return float(np.sum((watts[1:] + watts[:-1]) / 2 * np.diff(seconds)) / seconds[-1])


def throttle_reasons(telemetry: Sequence[Reading], begin_ns: int, end_ns: int) -> tuple[tuple[str, ...], bool]:
    """Return the names of the throttles seen in the window, and whether the software power cap was active."""
    mask = 0
    for value in inside(telemetry, "throttle_reasons", begin_ns, end_ns):
        mask |= int(value)
    return reason_names(mask & _SLOWED_DOWN), bool(mask & _POWER_CAP)


_COUNTERS = frozenset({"energy_joules", "nvlink_rx_bytes", "nvlink_tx_bytes"})
"""Quantities that only grow: their increase says something, their mean does not."""


def telemetry_in_window(
    rows: Sequence[Reading], steps_by_rank: Mapping[int, Sequence[Reading]], start: int, stop: int
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
    by_quantity: dict[str, list[Reading]] = {}
    for row in rows:
        if row.get("quantity") is not None:
            by_quantity.setdefault(str(row["quantity"]), []).append(row)
    table = []
    for quantity, readings in by_quantity.items():
        for device, (times, values) in series(readings, quantity).items():
            within = values[(times >= begin_ns) & (times <= end_ns)]
            seconds = (end_ns - begin_ns) / 1e9
            table.append({"device": device, "quantity": quantity, **_summary_of(quantity, within, seconds)})
    return sorted(table, key=lambda row: (row["device"], row["quantity"]))


def _summary_of(quantity: str, values: np.ndarray, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {"samples": len(values), "rate_hz": len(values) / seconds}
    found.update(dict.fromkeys(("mean", "min", "max", "increase", "reasons")))
    if quantity == "throttle_reasons":
        found["reasons"] = _shares(values)
    elif quantity in _COUNTERS:
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
