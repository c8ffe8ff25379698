"""What a log of sensors says about the state of the GPUs: power, clocks, temperature, use, and signs of throttling."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.counters import Summary
from analysis.diagnose.finding import Finding
from analysis.metrics.telemetry import COUNTERS, POWER_CAP, SLOWED_DOWN, reason_names

if TYPE_CHECKING:
    import pandas as pd

_ORDER = ("power_watts", "sm_clock_mhz", "temperature_celsius", "gpu_utilization_percent", "gpu_memory_used_bytes")
_BUSY_PERCENT = 80
_LONG = 0.1  # share of the samples


def sensor_findings(summary: Summary) -> Iterator[Finding]:
    """Yield one table: a row per quantity and device, "all" first where there are several."""
    import pandas as pd

    table = summary.table
    kept = table[~table["quantity"].isin(COUNTERS | {"throttle_reasons"})]
    rows: list[dict[str, Any]] = []
    quantities = sorted(kept["quantity"].unique(), key=lambda name: (name not in _ORDER, _place(str(name)), str(name)))
    devices = sorted(map(str, table["device"].unique()), key=lambda name: (len(name), name))
    for quantity in quantities:
        part = kept[kept["quantity"] == quantity]
        if len(devices) > 1:
            rows.append(_row(str(quantity), "all", part))
        rows += [_row(str(quantity), device, part[part["device"] == device]) for device in devices]
    columns = ["quantity", "device", "samples", "mean", "p95", "min", "max"]
    frame = pd.DataFrame([row for row in rows if row["samples"]], columns=columns)
    yield Finding("sensors", summary.title, frame, _sentence(table))


def _place(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else 0


def _row(quantity: str, device: str, part: "pd.DataFrame") -> dict[str, Any]:
    values = part["value"].to_numpy()
    found: dict[str, Any] = {"quantity": quantity, "device": device, "samples": len(values)}
    if len(values):
        found |= {"mean": values.mean(), "p95": np.percentile(values, 95), "min": values.min(), "max": values.max()}
    return found


def _sentence(table: "pd.DataFrame") -> str:
    if not len(table):
        return "The log holds no reading."
    suspicions = list(_suspicions(table))
    parts = [f"Mean power is {power:.4g} W per GPU" for power in _means(table, "power_watts")]
    parts += [f"utilisation {use:.3g} %" for use in _means(table, "gpu_utilization_percent")]
    said = ", ".join(parts) if parts else "The log has neither power nor utilisation"
    energy = _joules(table)
    if energy is not None:
        said += f" ({energy / 1000:.4g} kJ over the log)"
    if suspicions:
        why = "; ".join(suspicions)
        return f"{said}; throttling is likely: {why}: cool the GPUs or raise the limit, then measure again."
    if not {"throttle_reasons", "sm_clock_mhz"} & set(table["quantity"].unique()):
        return f"{said}; without clocks and clocks_event_reasons.active throttling cannot be seen: query these too."
    return f"{said}; nothing in the log hints at throttling."


def _means(table: "pd.DataFrame", quantity: str) -> list[float]:
    values = table.loc[table["quantity"] == quantity, "value"]
    return [float(values.mean())] if len(values) else []


def _suspicions(table: "pd.DataFrame") -> Iterator[str]:
    masks = table.loc[table["quantity"] == "throttle_reasons", "value"].to_numpy().astype(np.int64)
    for bits, text in ((SLOWED_DOWN, "slowed down"), (POWER_CAP, "held at the power limit")):
        share = float(np.mean((masks & bits) != 0)) if len(masks) else 0.0
        if share > 0 and (bits == SLOWED_DOWN or share >= _LONG):
            named = int(np.bitwise_or.reduce(masks)) & bits
            yield f"GPUs were {text} in {share:.0%} of the samples ({', '.join(reason_names(named))})"
    for device, part in table.groupby("device", observed=True):
        yield from _of_device(str(device), part)


def _of_device(device: str, part: "pd.DataFrame") -> Iterator[str]:
    """Clocks fall while the GPU works, or power stands at its limit; samples of one time belong together."""
    series = {str(name): rows["value"].to_numpy() for name, rows in part.groupby("quantity", observed=True)}
    clocks, use = series.get("sm_clock_mhz"), series.get("gpu_utilization_percent")
    if clocks is not None and use is not None and len(clocks) == len(use):
        busy = clocks[use >= _BUSY_PERCENT]
        if len(busy) >= 10 and np.percentile(busy, 5) < 0.85 * np.percentile(busy, 95):
            yield (
                f"GPU {device}'s SM clock falls from {np.percentile(busy, 95):.0f} to {np.percentile(busy, 5):.0f} MHz "
                "while it is busy"
            )
    power, limit = series.get("power_watts"), series.get("power_limit_watts")
    if power is not None and limit is not None and len(power) == len(limit) and len(power):
        share = float(np.mean(power >= 0.97 * limit))
        if share >= _LONG:
            yield f"GPU {device} draws its power limit of {limit.max():.0f} W in {share:.0%} of the samples"


def _joules(table: "pd.DataFrame") -> float | None:
    """Trapezoid rule over each device's power; None without times or with fewer than two samples."""
    power = table[(table["quantity"] == "power_watts") & (table["time_ns"] >= 0)]
    total = 0.0
    for _, part in power.groupby("device", observed=True):
        order = np.argsort(part["time_ns"].to_numpy(), kind="stable")
        times, values = part["time_ns"].to_numpy()[order] / 1e9, part["value"].to_numpy()[order]
        total += float(np.sum(np.diff(times) * (values[1:] + values[:-1]) / 2))
    return total or None
