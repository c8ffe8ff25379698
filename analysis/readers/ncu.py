"""CSV output of Nsight Compute (`ncu --csv`): the details page (a row per metric) and the raw page (a row per kernel).

The table may stand anywhere in a log: what the program printed before, and ncu's own ==PROF== lines, are passed over.
"""

import csv
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.counters import IDENTITY, KernelCounters
from analysis.readers.ncu_units import base_unit, number
from analysis.readers.packed import read_bytes
from common.errors import InputError

# Columns that say which kernel a row is about. What else the raw page has is a metric.
_ABOUT = {
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type",
    "Rule Description", "Estimated Speedup Type", "Estimated Speedup",
}  # fmt: skip
# Where a kernel's time and cycles are found, best first; the second form is the details page's.
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration_measured_user.sum", "gpu__time_duration.max",
             "GPU Speed Of Light Throughput: Duration")  # fmt: skip
_CYCLES = ("gpc__cycles_elapsed.max", "GPU Speed Of Light Throughput: Elapsed Cycles", "sm__cycles_elapsed.max",
           "sm__cycles_elapsed.avg")  # fmt: skip
_NAME, _MAJOR, _MINOR = (
    f"device__attribute_{what}" for what in ("display_name", "compute_capability_major", "compute_capability_minor")
)
_RECORD = re.compile(r'^\s*"?\d+"?\s*[,;\t]')
_TOOL_LINE = re.compile(r"^==(?:ERROR|WARNING)== *(.+)", re.MULTILINE)
_MOST_LINES_OF_A_RECORD = 50

Key = tuple[str, int, int]


def read(path: Path) -> KernelCounters:
    """Read one file, plain or gzip-compressed; several tables in one file are joined.

    Values are brought to base units (ns, byte, byte/s, hz). A metric of the details page is named
    "<section>: <metric>", unless its name is ncu's own ("dram__bytes.sum"), which is the same in every section.

    Raises:
        InputError: the file is damaged or holds no table of ncu; the message says what it seems to be.
    """
    text = _load(path)
    table = _Table()
    header: list[str] | None = None
    units: list[str] = []
    for line, record in _records(text):
        if record is None:
            continue
        if _is_header(record):
            header, units = record, []
        elif header is not None:
            wide = "Metric Name" not in header
            if wide and not record[0].strip():
                units = record
            elif len(record) > len(header):
                table.problem(f"line {line} has {len(record)} fields, the header has {len(header)}: it was left out")
            elif _RECORD.match(record[0] + ","):
                row = dict(zip(header, record, strict=False))
                table.add_kernel_row(row, line, dict(zip(header, units, strict=False)) if wide else None)
    if header is None:
        raise InputError(_no_table(path, text))
    return table.counters()


class _Table:
    """The kernels found so far."""

    def __init__(self) -> None:
        self.kernels: dict[Key, dict[str, Any]] = {}
        self.units: dict[str, str] = {}
        self.device_name: str | None = None
        self.capability: tuple[int, int] | None = None
        self._problems: dict[str, None] = {}

    def problem(self, text: str) -> None:
        self._problems[text] = None

    def add_kernel_row(self, row: Mapping[str, str], line: int, units: Mapping[str, str] | None) -> None:
        """Take in one row: of one metric, or, where `units` are given, of all metrics of a kernel."""
        process, kernel = number(row.get("Process ID", "0")), number(row["ID"])
        if process is None or kernel is None:
            self.problem(f"line {line} names no kernel (ID {row['ID']!r}): it was left out")
            return
        key = (row.get("Host Name", ""), int(process), int(kernel))
        entry = self.kernels.setdefault(
            key, {"process": key[1], "kernel_id": key[2], "name": row.get("Kernel Name", ""), "device": None}
        )
        device = number(row.get("Device") or row.get("device__attribute_device_index", ""))
        if device is not None:
            entry["device"] = int(device)
        self._about_device(row)
        if units is not None:
            for name, value in row.items():
                if name not in _ABOUT and ":" not in name and not name.startswith("device__attribute_"):
                    self._add_value(entry, name, value, units.get(name, ""))
        elif row.get("Metric Name"):
            name = row["Metric Name"]
            full = name if "__" in name or "." in name else f"{row.get('Section Name', '')}: {name}"
            if "Metric Value" not in row:
                self.problem(f"line {line} ends before the value of {full}: the file is cut short")
                return
            self._add_value(entry, full, row["Metric Value"], row.get("Metric Unit", ""))

    def _about_device(self, row: Mapping[str, str]) -> None:
        match = re.fullmatch(r"(\d+)\.(\d+)", row.get("CC", "").strip())
        major, minor = number(row.get(_MAJOR, "")), number(row.get(_MINOR, ""))
        found = None
        if match:
            found = (int(match[1]), int(match[2]))
        elif major is not None and minor is not None:
            found = (int(major), int(minor))
        if found and self.capability and found != self.capability:
            self.problem("the file has kernels of GPUs of different compute capability: the first one is named")
        self.capability = self.capability or found
        self.device_name = self.device_name or row.get(_NAME, "").strip() or None

    def _add_value(self, entry: dict[str, Any], name: str, text: str, unit: str) -> None:
        value = number(text)
        if value is None:
            if "n/a" in text.lower():
                self.problem(f"{name} is {text.strip()} for some kernels: this GPU or this ncu cannot count it")
            return
        factor, base = base_unit(unit)
        known = self.units.setdefault(name, base)
        if known != base:
            self.problem(f"{name} has the units {known!r} and {base!r}: only values in {known!r} are kept")
            return
        value *= factor
        before = entry.setdefault(name, value)
        if abs(before - value) > 0.01 * max(abs(before), abs(value)):
            self.problem(f"{name} has two values for one kernel ({before:g} and {value:g}): the first is kept")

    def counters(self) -> KernelCounters:
        import pandas as pd

        rows = list(self.kernels.values())
        metrics = [name for name in self.units if any(name in row for row in rows)]
        values = {name: [row.get(name, math.nan) for row in rows] for name in metrics}
        columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in IDENTITY[:4]}
        for name, sources, unit in (("duration_ns", _DURATION, "ns"), ("cycles", _CYCLES, "cycle")):
            columns[name] = self._first(values, sources, unit, len(rows))
            missing = sum(math.isnan(value) for value in columns[name])
            if missing:
                self.problem(f"{name} of {missing} of {len(rows)} kernels is not in the file")
        if not rows:
            self.problem("the table holds no kernel: nothing was profiled")
        types = {"process": "int64", "kernel_id": "int64", "device": "Int64"}
        types |= dict.fromkeys(("duration_ns", "cycles", *metrics), "float64")
        frame = pd.DataFrame({**columns, **values}).astype(types)
        units = {name: self.units[name] for name in metrics}
        return KernelCounters(frame, units, self.device_name, self.capability, tuple(self._problems))

    def _first(self, values: Mapping[str, list[float]], names: tuple[str, ...], unit: str, rows: int) -> list[float]:
        """Return, per kernel, the first of these metrics that has a value in this unit."""
        found = [math.nan] * rows
        for name in names:
            if self.units.get(name) == unit and name in values:
                found = [new if math.isnan(old) else old for old, new in zip(found, values[name], strict=True)]
        return found


def _load(path: Path) -> str:
    raw = read_bytes(path, "table")
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):  # a redirect in PowerShell
        return raw.decode("utf-16", errors="replace")
    for encoding in ("utf-8-sig", "cp949"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    return raw.decode("utf-8-sig", errors="replace")


def _records(text: str) -> Iterator[tuple[int, list[str] | None]]:
    """Yield (line number, fields) of every row that can belong to a table.

    Rows are told from what a program printed by how they begin, so that a lone quote in its output spoils nothing.
    """
    lines = re.split(r"\r\n|\n|\r", text)
    delimiter = ","
    wait_for_units = False
    position = 0
    while position < len(lines):
        start, line = position + 1, lines[position]
        position += 1
        if "Kernel Name" in line:
            delimiter = max(",;\t", key=line.count)
            fields = next(csv.reader([line], delimiter=delimiter), [])
            wait_for_units = _is_header(fields)
            yield start, fields if wait_for_units else None
        elif _RECORD.match(line):
            wait_for_units = False
            while line.count('"') % 2 and position < min(len(lines), start + _MOST_LINES_OF_A_RECORD):
                if _RECORD.match(lines[position]):
                    break
                line += "\n" + lines[position]
                position += 1
            yield start, next(csv.reader([line], delimiter=delimiter), None)
        elif wait_for_units and re.match(r'^(?:""|)[,;\t]', line):
            wait_for_units = False
            yield start, next(csv.reader([line], delimiter=delimiter), None)


def _is_header(fields: list[str]) -> bool:
    return "ID" in fields and "Kernel Name" in fields


def _no_table(path: Path, text: str) -> str:
    said = _TOOL_LINE.findall(text)
    if said:
        return f"{path} holds no table: ncu failed; it said: {' '.join(said)[:600]}"
    if "Invocations" in text:
        return f"{path} is a summary of ncu (--print-summary), without the single kernels: export it without that"
    if not text.strip():
        return f"{path} is empty: nothing was profiled, or the disk was full; record again"
    return f"{path} holds no table of ncu (no line with the columns ID and Kernel Name): give what `ncu --csv` wrote"
