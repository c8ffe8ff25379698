"""Names and units of what nvidia-smi reports, brought to those of the suite's own telemetry."""

import math
import re
from dataclasses import dataclass

INFORMATION = frozenset(
    {
        "timestamp", "date", "time", "gpu", "index", "gpu_index", "gpu_id", "uuid", "gpu_uuid", "pci.bus_id",
        "gpu_bus_id", "name", "gpu_name", "serial", "driver_version", "count", "vbios_version",
    }
)  # fmt: skip
"""Columns that say which GPU or when, and are no readings."""

# Column of --query-gpu or of dmon -> (quantity, unit it comes in where the column names none).
_NAMES: dict[str, tuple[str, str]] = {
    "utilization.gpu": ("gpu_utilization_percent", "%"),
    "sm": ("gpu_utilization_percent", "%"),
    "utilization.memory": ("gpu_memory_utilization_percent", "%"),
    "mem": ("gpu_memory_utilization_percent", "%"),
    "memory.used": ("gpu_memory_used_bytes", "mib"),
    "fb": ("gpu_memory_used_bytes", "mib"),
    "memory.total": ("gpu_memory_total_bytes", "mib"),
    "memory.free": ("gpu_memory_free_bytes", "mib"),
    "memory.reserved": ("gpu_memory_reserved_bytes", "mib"),
    "power.draw": ("power_watts", "w"),
    "pwr": ("power_watts", "w"),
    "power.draw.instant": ("power_instant_watts", "w"),
    "power.draw.average": ("power_average_watts", "w"),
    "power.limit": ("power_limit_watts", "w"),
    "enforced.power.limit": ("power_limit_watts", "w"),
    "power.max_limit": ("power_max_limit_watts", "w"),
    "temperature.gpu": ("temperature_celsius", "c"),
    "gtemp": ("temperature_celsius", "c"),
    "temperature.memory": ("memory_temperature_celsius", "c"),
    "mtemp": ("memory_temperature_celsius", "c"),
    "clocks.sm": ("sm_clock_mhz", "mhz"),
    "clocks.current.sm": ("sm_clock_mhz", "mhz"),
    "pclk": ("sm_clock_mhz", "mhz"),
    "clocks.mem": ("memory_clock_mhz", "mhz"),
    "clocks.current.memory": ("memory_clock_mhz", "mhz"),
    "mclk": ("memory_clock_mhz", "mhz"),
    "clocks.gr": ("graphics_clock_mhz", "mhz"),
    "clocks.current.graphics": ("graphics_clock_mhz", "mhz"),
    "clocks.max.sm": ("sm_clock_max_mhz", "mhz"),
    "clocks.max.mem": ("memory_clock_max_mhz", "mhz"),
    "clocks.applications.graphics": ("graphics_clock_set_mhz", "mhz"),
    "clocks_throttle_reasons.active": ("throttle_reasons", "bits"),
    "clocks_event_reasons.active": ("throttle_reasons", "bits"),
    "fan.speed": ("fan_percent", "%"),
    "pcie.link.gen.current": ("pcie_generation", ""),
    "pcie.link.width.current": ("pcie_lanes", ""),
    "rxpci": ("pcie_rx_bytes_per_second", "mb/s"),
    "txpci": ("pcie_tx_bytes_per_second", "mb/s"),
    "pstate": ("performance_state", "p"),
    "enc": ("encoder_utilization_percent", "%"),
    "dec": ("decoder_utilization_percent", "%"),
}
# A column's own unit wins; MB of dmon and of the queries are MiB. (unit of the column) -> (suffix, factor to it)
_UNITS: dict[str, tuple[str, float]] = {
    "%": ("percent", 1.0),
    "mib": ("bytes", 2.0**20),
    "mb": ("bytes", 2.0**20),
    "kib": ("bytes", 2.0**10),
    "gib": ("bytes", 2.0**30),
    "b": ("bytes", 1.0),
    "w": ("watts", 1.0),
    "mw": ("watts", 1e-3),
    "c": ("celsius", 1.0),
    "mhz": ("mhz", 1.0),
    "mb/s": ("bytes_per_second", 1e6),
    "kb/s": ("bytes_per_second", 1e3),
    "ms": ("ms", 1.0),
}
_NUMBER = re.compile(r"([-+]?[0-9]{1,20}(?:\.[0-9]{1,20})?(?:[eE][-+]?[0-9]{1,3})?)\s*(.{0,8})")
_REASON = re.compile(r"clocks_(?:throttle|event)_reasons\.([a-z_]{1,40})")
_YES = {"active": 1.0, "enabled": 1.0, "not active": 0.0, "disabled": 0.0}


QUERIED = re.compile("|".join([re.escape(name) for name in _NAMES if "." in name] + [_REASON.pattern]))
"""Names of columns that only --query-gpu has."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """What one column measures."""

    name: str
    """Name with unit."""
    unit: str
    """Unit that its numbers come in where they name none, in small letters; "bits": a mask; "p": P0 .. P12."""


def quantity_of(column: str, bare: str) -> Quantity | None:
    """Return what a column measures; None for what is no reading, or one whose unit nobody names.

    Args:
        column: as the header has it, such as "power.draw [W]".
        bare: the same in small letters without its unit.
    """
    match = re.search(r"\[(.{1,8})\]\s*$", column)
    unit = match[1].strip().lower() if match else ""
    if bare in _NAMES:
        name, usual = _NAMES[bare]
        return Quantity(name, unit or usual)
    if reason := _REASON.fullmatch(bare):
        return Quantity(f"throttle_{reason[1]}", "yes")
    if bare in INFORMATION or unit not in _UNITS:
        return None
    return Quantity(f"{re.sub(r'[^a-z0-9]+', '_', bare).strip('_')}_{_UNITS[unit][0]}", unit)


def reading(quantity: Quantity, text: str) -> float | None:
    """Return a value in the unit of the quantity's name; None for what is no number: N/A, -, [Not Supported]."""
    text = text.strip().lower()
    if quantity.unit == "bits":
        return float(int(text, 16)) if re.fullmatch(r"0x0{0,16}[0-9a-f]{1,13}", text) else None
    if quantity.unit == "yes":
        return _YES.get(text)
    if quantity.unit == "p":
        text = text.removeprefix("p")
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    unit = match[2].strip() or quantity.unit
    factor = _UNITS.get(unit, ("", 1.0))[1]
    value = float(match[1]) * factor
    return value if math.isfinite(value) else None
