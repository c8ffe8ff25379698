"""Readings of nvidia-smi: the CSV of --query-gpu (with or without units, `-l` loops too) and the text of `dmon`.

A table may be between other lines of a log; repeated headers, as after a restart, are accepted.
"""

import csv
import math
import re
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.counters import Summary
from analysis.readers.packed import log_lines
from analysis.readers.registry import Head
from common.errors import InputError

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


FORM = "summaries"
QUERY = (
    "nvidia-smi --query-gpu=timestamp,index,power.draw,clocks.sm,temperature.gpu,utilization.gpu,memory.used "
    "--format=csv -l 1"
)
"""The command to tell people."""

_DEVICE_COLUMNS = ("gpu", "index", "gpu_index", "gpu_id", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id")  # best first
_TABLE = re.compile(r"^\|\s*NVIDIA-SMI\s|^=+NVSMI LOG=+|^\s*<nvidia_smi_log", re.MULTILINE)
_MONITOR = re.compile(  # the first column of each group of dmon, and that of pmon
    r"^#\s*(?:(?:Date|Time)[\s,]+){0,2}gpu[\s,]+(pwr|sm|mclk|pviol|fb|sbecc|rxpci|pid)\b", re.IGNORECASE
)
_WITHOUT_HEADER = re.compile(r"^[^,\n]*,.*?\b\d+ (?:MiB|%|W|MHz)\s*(?:,|$)", re.MULTILINE)
_COLUMN = re.compile(r"\s*([a-z0-9_.]*)\s*(?:\[[^\]]{0,20}\]?)?\s*")  # name [unit]
_TIMES = ("%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S", "%a %b %d %H:%M:%S %Y")


def recognises(head: Head) -> bool:
    """Tell whether a file is output of nvidia-smi, also of a form that `read` only names."""
    lines = head.text.splitlines()
    return (
        any(_is_query_header(line) or _MONITOR.match(line) for line in lines)
        or _TABLE.search(head.text) is not None
        or (bool(lines) and _WITHOUT_HEADER.match(lines[0]) is not None)
    )


def read(path: Path) -> Summary:
    """Read one log, plain or gzip-compressed.

    Returns:
        what "sensors", in long form and in the file's order: time_ns (int64, Unix; -1 where the file gives no time),
        device (its index, or its uuid or bus id where there is none; "" unknown), quantity (named as in
        records.schema.TELEMETRY where it is one of those, else after the column, with its unit), value (float64, in
        the quantity's unit). Facts: devices, names (by device), columns_left_out.

    Raises:
        InputError: the file holds no readings; the message says what it seems to be and which command makes them.
    """
    found = _Readings()
    columns: _Columns | None = None
    foreign = ""
    for line in log_lines(path):
        monitor = _MONITOR.match(line)
        if (monitor and monitor[1].lower() == "pid") or _TABLE.match(line):
            foreign, columns = ("pmon" if monitor else "table"), None
        elif monitor or _is_query_header(line):
            text = line.lstrip("# ").lower() if monitor else line
            columns = _Columns(text.split(",") if "," in text else text.split(), "," if "," in text else " ")
            found.seen(columns)
        elif columns is not None and line.strip() and not line.lstrip().startswith("#"):
            found.add(columns, line)
    if not found.headers:
        raise InputError("file-format", _no_readings(path, foreign))
    return found.summary()


class _Columns:
    """One header."""

    def __init__(self, names: list[str], delimiter: str) -> None:
        self.delimiter = delimiter
        self.names = [name.strip() for name in names]
        self.bare = [re.sub(r"\s*\[.*\]$", "", name).lower() for name in self.names]
        self.quantities = [quantity_of(name, bare) for name, bare in zip(self.names, self.bare, strict=True)]
        self.devices = sorted((_DEVICE_COLUMNS.index(n), i) for i, n in enumerate(self.bare) if n in _DEVICE_COLUMNS)
        self.name = self.bare.index("name") if "name" in self.bare else self._find("gpu_name")
        self.time = self._find("timestamp")
        self.date_and_clock = (self._find("date"), self._find("time"))

    def _find(self, name: str) -> int | None:
        return self.bare.index(name) if name in self.bare else None

    def split(self, line: str) -> list[str] | None:
        """Return the fields of a row; None where it is not one."""
        if self.delimiter == " ":
            return line.split()
        try:
            return [field.strip() for field in next(csv.reader([line], skipinitialspace=True), [])]
        except csv.Error:
            return None


class _Readings:
    """What was read so far, as columns: a log of days has millions of readings."""

    def __init__(self) -> None:
        self.headers = 0
        self.times, self.values = array("q"), array("d")
        self.device_codes, self.quantity_codes = array("i"), array("i")
        self.devices: dict[str, int] = {}
        self.quantities: dict[str, int] = {}
        self.names: dict[str, str] = {}
        self.indices: dict[str, set[str]] = {}
        self.odd_rows = self.no_zone = self.no_time = 0
        self.missing: dict[str, int] = {}
        self.left_out: dict[str, None] = {}

    def seen(self, columns: _Columns) -> None:
        self.headers += 1
        for name, quantity in zip(columns.bare, columns.quantities, strict=True):
            if quantity is None and name not in INFORMATION:
                self.left_out[name] = None

    def add(self, columns: _Columns, line: str) -> None:
        fields = columns.split(line)
        if fields is None or len(fields) != len(columns.names):
            self.odd_rows += 1
            return
        time_ns = self._time(columns, fields)
        device = fields[columns.devices[0][1]] if columns.devices else ""
        if len(columns.devices) > 1:
            self.indices.setdefault(device, set()).add(fields[columns.devices[1][1]])
        if columns.name is not None:
            self.names.setdefault(device, fields[columns.name])
        code = self.devices.setdefault(device, len(self.devices))
        for quantity, text in zip(columns.quantities, fields, strict=True):
            if quantity is not None:
                self._value(time_ns, code, quantity, text)

    def _value(self, time_ns: int, device: int, quantity: Quantity, text: str) -> None:
        value = reading(quantity, text)
        if value is None:
            self.missing[quantity.name] = self.missing.get(quantity.name, 0) + 1
            return
        self.times.append(time_ns)
        self.device_codes.append(device)
        self.quantity_codes.append(self.quantities.setdefault(quantity.name, len(self.quantities)))
        self.values.append(value)

    def _time(self, columns: _Columns, fields: list[str]) -> int:
        date, clock = columns.date_and_clock
        text = ""
        if columns.time is not None:
            text = fields[columns.time]
        elif date is not None and clock is not None:
            text = f"{fields[date][:4]}/{fields[date][4:6]}/{fields[date][6:]} {fields[clock]}"
        time_ns, has_zone = _unix_ns(text)
        self.no_time += time_ns < 0
        self.no_zone += time_ns >= 0 and not has_zone
        return time_ns

    def summary(self) -> Summary:
        import numpy as np
        import pandas as pd

        def texts(codes: "array[int]", names: Iterable[str]) -> Any:
            return pd.Categorical.from_codes(
                np.array(codes, dtype=np.int32), categories=pd.Index(list(names), dtype=str)
            )

        table = pd.DataFrame(
            {
                "time_ns": np.array(self.times, dtype=np.int64),
                "device": texts(self.device_codes, self.devices),
                "quantity": texts(self.quantity_codes, self.quantities),
                "value": np.array(self.values, dtype=np.float64),
            }
        )
        facts: dict[str, Any] = {
            "devices": len(self.devices), "names": self.names, "columns_left_out": tuple(self.left_out)
        }  # fmt: skip
        return Summary("sensors", "nvidia-smi readings", table, "nvidia-smi", facts, tuple(self._problems()))

    def _problems(self) -> Iterable[str]:
        if not len(self.values):
            yield "the table has a header but no readings"
        if self.odd_rows:
            yield f"{self.odd_rows} lines with another number of fields than the header were skipped"
        if self.no_time:
            yield f"{self.no_time} rows have no readable time: they count, but belong to no window"
        if self.no_zone:
            yield "the times have no time zone: UTC is assumed"
        for name, count in self.missing.items():
            yield f"{name} has no value in {count} rows (N/A or not a number): this GPU or driver may not report it"
        if len(self.indices) > 1 and len(set().union(*self.indices.values())) == 1:
            yield (
                "two columns name the GPU, and the second is constant, so the first is used; if the header "
                "was written by hand, check that its names fit the columns"
            )
        if self.left_out:
            yield f"columns without numbers were skipped: {', '.join(self.left_out)}"[:400]


def _is_query_header(line: str) -> bool:
    if "," not in line or len(line) > 10_000:
        return False
    names = [_COLUMN.fullmatch(name.lower()) for name in line.split(",")]
    return all(names) and any(name is not None and QUERIED.fullmatch(name[1]) for name in names)


def _unix_ns(text: str) -> tuple[int, bool]:
    """Return (Unix time in ns, whether a zone was given); -1 for what is no time."""
    if not text or len(text) > 40:
        return -1, False
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        for form in _TIMES:
            try:
                moment = datetime.strptime(text, form)
                break
            except ValueError:
                continue
        else:
            return _plain_number(text), True
    has_zone = moment.tzinfo is not None
    moment = moment if has_zone else moment.replace(tzinfo=UTC)
    try:
        elapsed = moment - datetime(1970, 1, 1, tzinfo=UTC)
    except OverflowError:
        return -1, False
    time_ns = (elapsed.days * 86400 + elapsed.seconds) * 1_000_000_000 + elapsed.microseconds * 1000
    return (time_ns if 0 <= time_ns < 2**63 else -1), has_zone


def _plain_number(text: str) -> int:
    """Unix seconds, as scripts write them with `date +%s`."""
    match = re.fullmatch(r"(\d{9,10})(?:\.(\d{1,9}))?", text, re.ASCII)
    return int(match[1]) * 1_000_000_000 + int((match[2] or "").ljust(9, "0")) if match else -1


def _no_readings(path: Path, foreign: str) -> str:
    if foreign == "pmon":
        return f"{path} is output of `nvidia-smi pmon`, which lists processes: record GPU readings with {QUERY}"
    if foreign == "table":
        return f"{path} is a table, -q or XML page of nvidia-smi: record readings with {QUERY}"
    return f"{path} has no header of nvidia-smi (noheader), so its columns have no names: record {QUERY}"
