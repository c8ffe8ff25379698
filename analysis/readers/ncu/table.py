"""The kernels of an ncu table while its rows are read: column by column, so that a large file needs little memory."""

import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from analysis.counters import (
    GLOBAL,
    IDENTITY,
    LABELS,
    LOCAL,
    RULE_CONFLICTS,
    RULE_STALLED,
    RULE_WAVEFRONTS,
    KernelCounters,
    KernelRule,
)
from common.errors import InputError

# ncu scales times and bytes by 1000 (Nsight Compute CLI, "Metrics and Units"); names of 2019 to 2025.
_TIMES = {
    "s": 1.0, "second": 1.0, "sec": 1.0, "ms": 1e-3, "msecond": 1e-3, "us": 1e-6, "usecond": 1e-6, "ns": 1e-9,
    "nsecond": 1e-9,
}  # fmt: skip
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SURELY_FINITE = 300
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def number(text: str) -> float | None:
    """Return the number that a field begins with; None for n/a, empty, text, and what is not finite.

    Commas separate thousands ("16,764,800,860,160.00"); "12,5", of a spreadsheet with decimal commas, is None rather
    than 125. Of "12 (3; 9)", a total with its instances, it is the total.
    """
    if text.isdecimal() and len(text) < _SURELY_FINITE:  # most values, and several times faster
        return float(text)
    words = text.strip()
    match = _NUMBER.match(words)
    if match is None or ((rest := words[match.end() :].lstrip()) and not rest.startswith(("(", "%"))):
        return None
    value = float(match[0].replace(",", ""))
    return value if math.isfinite(value) else None


@lru_cache(maxsize=4096)
def base_unit(unit: str) -> tuple[float, str]:
    """Return the factor that brings a value in `unit` to its base unit, and its name: ns, byte, byte/s, hz, inst."""
    unit = unit.strip()
    if unit in _TIMES:
        return _TIMES[unit] * 1e9, "ns"
    amount, slash, per = unit.partition("/")
    match = re.fullmatch(r"([KkMGTP]?)(byte|hz|Hz|inst|sector|request|cycle)s?", amount)
    factor, name = (_PREFIXES[match[1]], match[2].lower()) if match else (1.0, amount)
    if not slash:
        return factor, name
    if per in _TIMES:
        return (factor / _TIMES[per], "hz") if name == "cycle" else (factor / _TIMES[per], f"{name}/s")
    return factor, f"{name}/{per}"


PUSH_POP, START_STOP = "Push/Pop_Range", "Start/Stop_Range"
"""What the names of the two columns hold, "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
and "Id:Domain:Start/Stop_Range:..."."""
_AFTER_NAME = 6  # PL_Type, PL_Value, CLR_Type, Color, Msg_Type, Msg


@lru_cache(maxsize=65536)
def ranges_of(cell: str) -> tuple[str, ...]:
    """Return the ranges of a cell as "domain@name" (ncu's own way to write them), outermost first.

    A cell holds a thread or range number and, in quotes, each range as the column's name says. A name may hold colons.
    """
    quoted = re.findall(r'"([^"]*)"', cell)
    if not quoted:
        plain = re.sub(r"^\s*\d+\s+", "", cell).strip()
        quoted = [plain] if ":" in plain else []
    return tuple(found for found in map(_range, quoted) if found)


def _range(text: str) -> str | None:
    fields = text.split(":")
    if fields[0].isdigit() and len(fields) > 2 + _AFTER_NAME:
        fields = fields[1:]  # the number of a start/stop range
    domain, rest = fields[0], fields[1:]
    # The message may repeat the name, colons and all.
    length, odd = divmod(len(rest) - (_AFTER_NAME - 1), 2)
    if length > 0 and not odd and rest[:length] == rest[-length:]:
        name = ":".join(rest[:length])
    elif len(rest) > _AFTER_NAME:
        name = ":".join(rest[:-_AFTER_NAME])
        if name in ("", "none"):
            name = rest[-1]
    else:
        name = ":".join(rest)
    return f"{domain}@{name}" if name else None


# Columns that say which kernel a row is about. What else the raw page has is a metric.
_ABOUT = {
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Type",
    "Rule Description", "Estimated Speedup Type", "Estimated Speedup",
}  # fmt: skip
# Where a kernel's time and cycles are found, best first; the second form is the details page's.
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration_measured_user.sum", "gpu__time_duration.max",
             "GPU Speed Of Light Throughput: Duration", "GPU Speed Of Light: Duration")  # fmt: skip
_CYCLES = ("gpc__cycles_elapsed.max", "GPU Speed Of Light Throughput: Elapsed Cycles",
           "GPU Speed Of Light: Elapsed Cycles", "sm__cycles_elapsed.max", "sm__cycles_elapsed.avg")  # fmt: skip
# Cycles and their rate: time = cycles / rate, as NERSC's roofline scripts compute it (arXiv:2009.02449, section II).
_CYCLES_AND_RATE = (
    ("sm__cycles_elapsed.avg", "sm__cycles_elapsed.avg.per_second"),
    ("gpc__cycles_elapsed.max", "gpc__cycles_elapsed.avg.per_second"),
    ("GPU Speed Of Light Throughput: Elapsed Cycles", "GPU Speed Of Light Throughput: SM Frequency"),
)
_NAME, _MAJOR, _MINOR = (
    f"device__attribute_{what}" for what in ("display_name", "compute_capability_major", "compute_capability_minor")
)
_INDEX = "device__attribute_device_index"
# The rule SharedMemoryConflicts, whose metrics the details page leaves out.
_CONFLICTS = re.compile(
    r"results in ([\d,]+) bank conflicts,\s+which represent [\d.]+% of the overall ([\d,]+) wavefronts for "
    r"shared (loads|stores)"
)
# The rule CPIStall, whose metrics are not on the details page either, and what it calls each reason in 2020 to 2025.
_STALLED = re.compile(
    r"each warp of this \w+ spends ([\d,.]+) cycles being stalled ((?:after|due|for|on|waiting)\b[^.]*)"
)
_REASONS: tuple[tuple[str, str], ...] = (
    ("sibling warps", "barrier"), ("branch target", "branch_resolving"), ("dispatch stall", "dispatch_stall"),
    ("after EXIT", "drain"), ("after an EXIT", "drain"), ("immediate constant", "imc_miss"),
    ("memory barrier", "membar"), ("dependency on a L1TEX", "long_scoreboard"),
    ("dependency on a MIO", "short_scoreboard"), ("dependency on an MIO", "short_scoreboard"),
    ("local and global", "lg_throttle"), ("local/global", "lg_throttle"), ("for texture", "tex_throttle"),
    ("L1TEX instruction queue", "tex_throttle"), ("MIO", "mio_throttle"), ("math execution", "math_pipe_throttle"),
    ("execution pipe", "math_pipe_throttle"), ("instruction fetched", "no_instruction"),
    ("instruction cache miss", "no_instruction"), ("not being selected", "not_selected"),
    ("micro scheduler", "not_selected"), ("sleep state", "sleeping"), ("fixed latency", "wait"),
    ("miscellaneous", "misc"),
)  # fmt: skip
_MOST_NUMBER = 2.0**53
_MOST_VALUE = 1e60  # sums and multiples of such values stay finite
_MOST_PROBLEMS = 60
_MOST_RULES = 500_000
_LONGEST_TEXT = 4000
_KINDS = {"OPT": "optimization", "WRN": "warning", "INF": "information", "ERR": "error"}
_MOST_VALUES = 100_000_000
# Every kernel of a real file has about the same metrics; a table with this many holes is no output of ncu.
_MOST_HOLES = 50

Key = tuple[str, int, int]


def is_metric(name: str) -> bool:
    """Return whether a name of ncu is of a metric: not of an attribute of the device, nor of a list of metrics."""
    return ":" not in name and not name.startswith("device__attribute_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """One kernel of a report, as Table.add_launch takes it."""

    host: str
    process: int
    kernel: int
    """Its number in the report."""
    name: str
    attributes: Mapping[str, float | str]
    """Of the device, by ncu's names."""
    ranges: tuple[tuple[str, ...], tuple[str, ...]] | None
    """NVTX ranges of Push/Pop and Start/Stop, "domain@name"; None where none were recorded."""
    metrics: Iterable[tuple[str, float, str]]
    """Name, value and unit."""
    rules: Iterable[KernelRule]
    """Their `row` is set by the table."""


@dataclass(slots=True)
class Header:
    """One header line: where its columns stand."""

    names: list[str]
    at: dict[str, int]
    """Where each column of a name stands; the first of several of one name."""
    wide: bool
    """Whether a row is a kernel (raw page) and not a metric of it (details page)."""
    metrics: list[tuple[int, str]]
    scales: list[tuple[float, str]] = field(default_factory=list)
    """Factor and base unit of each of them, from the row of units."""

    @classmethod
    def of(cls, names: list[str]) -> "Header":
        """Look through a header line."""
        at: dict[str, int] = {}
        for position, name in enumerate(names):
            at.setdefault(name, position)
            for label in (PUSH_POP, START_STOP):
                if label in name:
                    at.setdefault(label, position)
        wide = "Metric Name" not in at or "Metric Value" not in at
        metrics = [
            (position, name)
            for position, name in enumerate(names)
            if wide and name and name not in _ABOUT and is_metric(name)
        ]
        return cls(names, at, wide, metrics, [(1.0, "")] * len(metrics))

    def set_units(self, units: Sequence[str]) -> None:
        """Take in the row of units below the header of a raw page."""
        self.scales = [base_unit(units[at]) if at < len(units) else (1.0, "") for at, _ in self.metrics]

    def get(self, record: Sequence[str], name: str, default: str = "") -> str:
        """Return a field by the name of its column; `default` where the row or the table lacks it."""
        position = self.at.get(name)
        return record[position] if position is not None and position < len(record) else default


def _rule(header: Header, record: Sequence[str]) -> KernelRule:
    """Return the message of a rule in a row of the details page, where an estimate is in percent."""
    speedup = number(header.get(record, "Estimated Speedup"))
    estimate = header.get(record, "Estimated Speedup Type").strip().lower()
    return KernelRule(
        row=-1,
        rule=header.get(record, "Rule Name"),
        section=header.get(record, "Section Name"),
        kind=_KINDS.get(header.get(record, "Rule Type").strip().upper(), ""),
        text=header.get(record, "Rule Description"),
        estimate=estimate if estimate in (GLOBAL, LOCAL) and speedup is not None else "",
        speedup=None if speedup is None else speedup / 100,
    )


class Table:
    """The kernels found so far."""

    def __init__(self) -> None:
        """Begin with none."""
        self._rows: dict[Key, int] = {}
        self._about: list[dict[str, Any]] = []
        self._values: dict[str, array[float]] = {}
        self._units: dict[str, str] = {}
        self._count = 0
        self._ranges = False
        self._device_name: str | None = None
        self._capability: tuple[int, int] | None = None
        self._problems: dict[str, None] = {}
        self._rules: list[KernelRule] = []

    def problem(self, text: str) -> None:
        """Note what could not be read; of very many the first ones are kept."""
        if len(self._problems) < _MOST_PROBLEMS:
            self._problems[text[:600]] = None
        elif len(self._problems) == _MOST_PROBLEMS:
            self._problems["further problems are not listed"] = None

    def add(self, header: Header, record: Sequence[str], line: int) -> None:
        """Take in one row: of one metric, or of all metrics of a kernel."""
        process, kernel = number(header.get(record, "Process ID", "0")), number(header.get(record, "ID"))
        if process is None or kernel is None or max(abs(process), abs(kernel)) > _MOST_NUMBER:
            self.problem(f"line {line} names no kernel (ID {header.get(record, 'ID')[:40]!r}) and was skipped")
            return
        key = (header.get(record, "Host Name"), int(process), int(kernel))
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = len(self._about)
            self._about.append(self._describe(header, record, key))
            self._check_size()
        if header.wide:
            for (position, name), (factor, base) in zip(header.metrics, header.scales, strict=True):
                if position < len(record):
                    self._add_value(row, name, record[position], factor, base)
            return
        name = header.get(record, "Metric Name")
        if not name:
            self._add_rule(row, _rule(header, record))
            return
        full = name if "__" in name or "." in name else f"{header.get(record, 'Section Name')}: {name}"
        if header.at["Metric Value"] >= len(record):
            self.problem(f"line {line} ends before the value of {full}: the file is truncated")
            return
        factor, base = base_unit(header.get(record, "Metric Unit"))
        self._add_value(row, full, record[header.at["Metric Value"]], factor, base)

    def add_launch(self, launch: Launch) -> None:
        """Take in one kernel of a report, with all its metrics and rules."""
        row = len(self._about)
        self._rows[launch.host, launch.process, launch.kernel] = row
        self._ranges = self._ranges or launch.ranges is not None
        index, major, minor = (launch.attributes.get(name) for name in (_INDEX, _MAJOR, _MINOR))
        if isinstance(major, int | float) and isinstance(minor, int | float) and max(abs(major), abs(minor)) < 1000:
            self._see_capability((int(major), int(minor)))
        self._device_name = self._device_name or str(launch.attributes.get(_NAME) or "").strip() or None
        about: dict[str, Any] = {"process": launch.process, "kernel_id": launch.kernel, "name": launch.name}
        about["device"] = int(index) if isinstance(index, int | float) and abs(index) < _MOST_NUMBER else None
        about |= zip(LABELS, launch.ranges or ((), ()), strict=True)
        self._about.append(about)
        for name, value, unit in launch.metrics:
            factor, base = base_unit(unit)
            if math.isfinite(value):
                self._store(row, name, value * factor, base)
            else:
                self._not_counted(name, "not a number")
        for rule in launch.rules:
            self._add_rule(row, rule)
        self._check_size()

    def _add_rule(self, row: int, rule: KernelRule) -> None:
        """Take in a rule, and what only its text says: bank conflicts and stalls."""
        if rule.rule and rule.text:
            if len(self._rules) < _MOST_RULES:
                self._rules.append(replace(rule, row=row, text=rule.text[:_LONGEST_TEXT]))
            else:
                self.problem(f"the file has more than {_MOST_RULES:,} messages of rules: the others were skipped")
        if found := _CONFLICTS.search(rule.text):
            conflicts, wavefronts, operation = found.groups()
            self._add_value(row, RULE_CONFLICTS.format(operation), conflicts, 1.0, "")
            self._add_value(row, RULE_WAVEFRONTS.format(operation), wavefronts, 1.0, "")
        if found := _STALLED.search(rule.text):
            reason = next((name for words, name in _REASONS if words in found[2]), "")
            if reason:
                self._add_value(row, RULE_STALLED.format(reason), found[1], 1.0, "cycle")

    def _describe(self, header: Header, record: Sequence[str], key: Key) -> dict[str, Any]:
        device = number(header.get(record, "Device") or header.get(record, _INDEX))
        match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", header.get(record, "CC").strip())
        major, minor = number(header.get(record, _MAJOR)), number(header.get(record, _MINOR))
        found = None
        if match:
            found = (int(match[1]), int(match[2]))
        elif major is not None and minor is not None and max(abs(major), abs(minor)) < 1000:
            found = (int(major), int(minor))
        if found:
            self._see_capability(found)
        self._device_name = self._device_name or header.get(record, _NAME).strip() or None
        about: dict[str, Any] = {
            "process": key[1],
            "kernel_id": key[2],
            "name": header.get(record, "Kernel Name"),
            "device": int(device) if device is not None and abs(device) < _MOST_NUMBER else None,
        }
        for label, column in zip(LABELS, (PUSH_POP, START_STOP), strict=True):
            self._ranges = self._ranges or column in header.at
            about[label] = ranges_of(header.get(record, column))
        return about

    def _see_capability(self, found: tuple[int, int]) -> None:
        if self._capability and found != self._capability:
            self.problem("the file has kernels of GPUs of different compute capability; the first is shown")
        self._capability = self._capability or found

    def _not_counted(self, name: str, said: str) -> None:
        self.problem(f"{name} is {said} for some kernels: this GPU or version of ncu cannot count it")

    def _add_value(self, row: int, name: str, text: str, factor: float, base: str) -> None:
        value = number(text)
        if value is None:
            if text and "n/a" in text.lower():
                self._not_counted(name, text.strip()[:40])
            elif text and text[0].isdigit() and "," in text:
                self.problem(f"{name} has values such as {text.strip()[:40]!r}, which is not a number in ncu's format")
            return
        self._store(row, name, value * factor, base)

    def _store(self, row: int, name: str, value: float, base: str) -> None:
        column = self._values.get(name)
        known = self._units[name] if column is not None else self._units.setdefault(name, base)
        if known != base:
            self.problem(f"{name} has the units {known!r} and {base!r}: only values in {known!r} are kept")
            return
        if abs(value) > _MOST_VALUE:
            self.problem(f"{name} has the value {value:g}, which is out of range, and was skipped")
            return
        if column is None:
            column = self._values[name] = array("d")
            self._check_size()
        if row == len(column):
            column.append(value)
            self._count += 1
            return
        if row > len(column):
            column.extend([math.nan] * (row + 1 - len(column)))
        before = column[row]
        if math.isnan(before):
            column[row] = value
            self._count += 1
        elif abs(before - value) > 0.01 * max(abs(before), abs(value)):
            self.problem(f"{name} has two values for one kernel ({before:g} and {value:g}): the first is kept")

    def _check_size(self) -> None:
        values = len(self._about) * len(self._values)
        if values > _MOST_VALUES or (values > 1_000_000 and values > _MOST_HOLES * self._count):
            raise InputError(
                "file-limit",
                f"the table has {len(self._about):,} kernels and {len(self._values):,} metrics with "
                f"{self._count:,} values, which is above the limit: export fewer metrics or fewer kernels",
            )

    def counters(self) -> KernelCounters:
        """Return all that was found."""
        import numpy as np
        import pandas as pd

        rows = len(self._about)
        for column in self._values.values():
            column.extend([math.nan] * (rows - len(column)))
        values = {name: np.frombuffer(column) if rows else np.empty(0) for name, column in self._values.items()}
        columns: dict[str, Any] = {name: [about[name] for about in self._about] for name in IDENTITY[:4]}
        columns["duration_ns"] = self._duration(values, rows)
        columns["cycles"] = self._first(values, _CYCLES, "cycle", rows)
        for name in ("duration_ns", "cycles"):
            missing = int(np.isnan(columns[name]).sum())
            if missing:
                self.problem(f"the file has no {name} for {missing} of {rows} kernels")
        if not rows:
            self.problem("the table has no kernels: nothing was profiled")
        if self._ranges:
            columns |= {name: [about[name] for about in self._about] for name in LABELS}
        frame = pd.DataFrame(columns).astype({"process": "int64", "kernel_id": "int64", "device": "Int64"})
        frame = pd.concat([frame, pd.DataFrame(values)], axis=1) if values else frame
        units = {name: self._units[name] for name in values}
        problems, rules = tuple(self._problems), tuple(self._rules)
        return KernelCounters(frame, units, self._device_name, self._capability, problems, rules)

    def _first(self, values: Mapping[str, Any], names: tuple[str, ...], unit: str, rows: int) -> Any:
        import numpy as np

        found = np.full(rows, math.nan)
        for name in names:
            if self._units.get(name) == unit and name in values:
                found = np.where(np.isnan(found), values[name], found)
        return found

    def _duration(self, values: Mapping[str, Any], rows: int) -> Any:
        import numpy as np

        found = self._first(values, _DURATION, "ns", rows)
        for cycles, rate in _CYCLES_AND_RATE:
            if cycles in values and rate in values and self._units.get(rate) == "hz":
                with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                    derived = values[cycles] / values[rate] * 1e9
                found = np.where(np.isnan(found) & np.isfinite(derived), derived, found)
        return found
