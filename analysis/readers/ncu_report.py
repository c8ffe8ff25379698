"""Reports of Nsight Compute (.ncu-rep), through NVIDIA's Python package ncu-report, and what they share with its CSVs:
values in base units, and time and cycles of every launch.

Reports hold what the raw page of `ncu --import FILE --csv` prints, unrounded, and what ncu's rules say. The package
does not say which process a kernel is of: it is 0.
"""

import importlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.counters import GLOBAL, IDENTITY, LABELS, LOCAL, KernelCounters, KernelRule
from common.errors import InputError, MissingToolError

if TYPE_CHECKING:
    import pandas as pd

MAGIC = b"NVR\x00"
"""What a report begins with."""
PACKAGE = "ncu_report"
_REMEDY = (
    "pip install 'bertbench[ncu]' (NVIDIA's package ncu-report), or run "
    "`ncu --import FILE --csv --page raw > FILE.csv` where Nsight Compute is installed and give that file"
)
_URL, _LINK = re.compile(r"@url:([^:@]*):([^@]*)@"), re.compile(r"@(?:section|sass|source):[^@]*?([^:@]*)@")
"""Links in messages, to pages and other places; shown as "Guide (https://...)", as `ncu --csv` does, and by name."""
_ATTRIBUTE = "device__attribute_"
_RULE_KINDS = {"OPTIMIZATION": "optimization", "WARNING": "warning", "OK": "information", "ERR": "error"}
# Values in a report are in base units. The package names none for a GPU that it does not know.
_UNITS = {
    r"gpu__time_duration(_measured_\w+)?\.(sum|max|min|avg)": "ns",
    r"\w+__cycles_(elapsed|active)\.(sum|max|min|avg)": "cycle",
    r"\w+__cycles_(elapsed|active)\.(sum|max|min|avg)\.per_second": "hz",
}
# ncu scales times and bytes by 1000 (Nsight Compute CLI, "Metrics and Units"); names of 2019 to 2025.
_TIMES = {"s": 1.0, "second": 1.0, "sec": 1.0, "ms": 1e-3, "msecond": 1e-3, "us": 1e-6, "usecond": 1e-6}
_TIMES |= {"ns": 1e-9, "nsecond": 1e-9}
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SCALED = re.compile(r"([KkMGTP]?)(byte|hz|Hz|inst|sector|request|cycle)s?")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")

# Where a kernel's time and cycles are found, best first; the second form is the details page's.
_DURATION = (
    "gpu__time_duration.sum",
    "gpu__time_duration_measured_user.sum",
    "gpu__time_duration.max",
    "GPU Speed Of Light Throughput: Duration",
)
_CYCLES = (
    "gpc__cycles_elapsed.max",
    "GPU Speed Of Light Throughput: Elapsed Cycles",
    "sm__cycles_elapsed.max",
    "sm__cycles_elapsed.avg",
)
# Cycles and their rate: time = cycles / rate, as NERSC's roofline scripts compute it (arXiv:2009.02449, section II).
_CYCLES_AND_RATE = (
    ("sm__cycles_elapsed.avg", "sm__cycles_elapsed.avg.per_second"),
    ("gpc__cycles_elapsed.max", "gpc__cycles_elapsed.avg.per_second"),
    ("GPU Speed Of Light Throughput: Elapsed Cycles", "GPU Speed Of Light Throughput: SM Frequency"),
)


def read_report(report: Path, given: Path) -> KernelCounters:
    """Read an unpacked report: the kernels and values of the raw page, and the messages of the rules."""
    import pandas as pd

    try:
        package = importlib.import_module(PACKAGE)
    except (ImportError, OSError) as error:  # OSError: a library of it that this system cannot load
        raise MissingToolError(
            "package-missing", f"{given} is a report of Nsight Compute and needs ncu-report ({error}): {_REMEDY}"
        ) from error
    launches: list[dict[str, Any]] = []
    values: list[dict[str, float]] = []
    units: dict[str, str] = {}
    rules: list[KernelRule] = []
    for row, action in enumerate(action for group in package.load_report(str(report)) for action in group):
        rules += _rules(package, action.rule_results(), row)
        values.append(_metrics(action, units))
        launches.append(_launch(action, row))
    if not launches:  # the package takes a report that is cut short for one without results
        raise InputError(
            "trace-without-work",
            f"{given} has no results: nothing was profiled, or the report is cut short; copy it again, or record again",
        )
    return counters(launches, pd.DataFrame(values), units, rules, ())


def _launch(action: Any, number: int) -> dict[str, Any]:
    names = [name for name in map(str, action.metric_names()) if name.startswith(_ATTRIBUTE)]
    attributes = {name.removeprefix(_ATTRIBUTE): action[name].value() for name in names}
    major, minor = (attributes.get(f"compute_capability_{part}") for part in ("major", "minor"))
    index = attributes.get("device_index")
    return {
        "process": 0,
        "kernel_id": number,
        "name": action.name(action.NameBase_DEMANGLED) or action.name(),
        "device": None if index is None else int(index),
        "device_name": attributes.get("display_name"),
        "capability": None if major is None or minor is None else (int(major), int(minor)),
        **_ranges(action.nvtx_state()),
    }


def _metrics(action: Any, units: dict[str, str]) -> dict[str, float]:
    """Return every metric with a number, in base units; of one with instances it is their total."""
    values = {}
    for name in sorted(filter(is_metric, map(str, action.metric_names()))):
        metric = action.metric_by_name(name)
        value = metric.value() if metric.has_value() else None
        if isinstance(value, int | float) and math.isfinite(value):
            unit = metric.unit() or next((unit for pattern, unit in _UNITS.items() if re.fullmatch(pattern, name)), "")
            factor, base = base_unit(unit)
            units.setdefault(name, base)
            values[name] = value * factor
    return values


def _ranges(state: Any) -> dict[str, tuple[str, ...]]:
    """Return the ranges that were open in the launching thread: Push/Pop, Start/Stop; none without NVTX."""
    if state is None:
        return {}
    ranges: dict[str, list[str]] = {label: [] for label in LABELS}
    for domain in map(state.domain_by_id, state.domains()):
        opened = {
            LABELS[0]: map(domain.push_pop_range, range(len(domain.push_pop_ranges()))),
            LABELS[1]: map(domain.start_end_range, range(len(domain.start_end_ranges()))),
        }
        for label, one in ((label, one) for label, ones in opened.items() for one in ones):
            unnamed = one.name() in ("", "none") and one.has_attributes()
            if name := one.message() if unnamed else one.name():
                ranges[label].append(f"{domain.name()}@{name}")
    return {label: tuple(names) for label, names in ranges.items()}


def _rules(package: Any, results: Any, row: int) -> Iterator[KernelRule]:
    kinds = {getattr(package, f"MsgType_{name}"): kind for name, kind in _RULE_KINDS.items()}
    estimates = {package.SpeedupType_GLOBAL: GLOBAL, package.SpeedupType_LOCAL: LOCAL}
    for result in filter(lambda result: result.has_rule_message(), results):
        message = result.rule_message()
        estimated = result.speedup_estimation() if result.has_speedup_estimation() else {}
        estimate = estimates.get(estimated.get("type"), "")
        yield KernelRule(
            row=row,
            rule=result.rule_identifier(),
            section=result.section_identifier(),
            kind=kinds.get(message["type"], ""),
            text=_LINK.sub(r"\1", _URL.sub(r"\1 (\2)", message["message"])),
            estimate=estimate,
            speedup=float(estimated["speedup"]) / 100 if estimate else None,  # in percent there
        )


def number(text: str) -> float:
    """Return the number that a field begins with; NaN for n/a, empty, text, and what is not finite.

    Commas separate thousands ("16,764,800,860,160.00"); "12,5", of a spreadsheet with decimal commas, is NaN rather
    than 125. Of "12 (3; 9)", a total with its instances, it is the total.
    """
    words = text.strip()
    match = _NUMBER.match(words)
    if match is None or ((rest := words[match.end() :].lstrip()) and not rest.startswith(("(", "%"))):
        return math.nan
    value = float(match[0].replace(",", ""))
    return value if math.isfinite(value) else math.nan


@lru_cache(maxsize=4096)
def base_unit(unit: str) -> tuple[float, str]:
    """Return the factor that brings a value in `unit` to its base unit, and its name: ns, byte, byte/s, hz, inst."""
    unit = unit.strip()
    if unit in _TIMES:
        return _TIMES[unit] * 1e9, "ns"
    amount, slash, per = unit.partition("/")
    match = _SCALED.fullmatch(amount)
    factor, name = (_PREFIXES[match[1]], match[2].lower()) if match else (1.0, amount)
    if not slash:
        return factor, name
    if per in _TIMES:
        return (factor / _TIMES[per], "hz") if name == "cycle" else (factor / _TIMES[per], f"{name}/s")
    return factor, f"{name}/{per}"


def is_metric(name: str) -> bool:
    """Return whether a name of ncu is of a metric: not of an attribute of the device, nor of a list of metrics."""
    return ":" not in name and not name.startswith(_ATTRIBUTE)


def counters(
    launches: Sequence[Mapping[str, Any]],
    values: "pd.DataFrame",
    units: Mapping[str, str],
    rules: Sequence[KernelRule],
    problems: Sequence[str],
) -> KernelCounters:
    """Return the kernels of a file.

    Launches have IDENTITY without duration_ns and cycles, LABELS where the file has ranges, and, where it says them,
    device_name and capability. Values are a column per metric, in the base units of `units`.
    """
    import pandas as pd

    problems = list(problems)
    rows = len(launches)

    def first(names: Sequence[str], unit: str) -> "pd.Series[float]":
        known = pd.Series(math.nan, index=range(rows), dtype="float64")
        for name in names:
            known = known.fillna(values[name]) if units.get(name) == unit else known
        return known

    duration, cycles = first(_DURATION, "ns"), first(_CYCLES, "cycle")
    for count, rate in _CYCLES_AND_RATE:
        if count in values and units.get(rate) == "hz":
            duration = duration.fillna((values[count] / values[rate] * 1e9).where(values[rate] > 0))
    for name, column in (("duration_ns", duration), ("cycles", cycles)):
        if missing := int(column.isna().sum()):
            problems.append(f"the file has no {name} for {missing} of {rows} kernels")
    if not rows:
        problems.append("the table has no kernels: nothing was profiled")
    capabilities = list(dict.fromkeys(one["capability"] for one in launches if one.get("capability")))
    if len(capabilities) > 1:
        problems.append("the file has kernels of GPUs of different compute capability; the first is shown")
    frame = pd.DataFrame({name: [one[name] for one in launches] for name in IDENTITY[:4]})
    frame = frame.astype({"process": "int64", "kernel_id": "int64", "device": "Int64"})
    frame = frame.assign(duration_ns=duration, cycles=cycles)
    for label in LABELS:
        if any(label in one for one in launches):
            frame[label] = [one.get(label, ()) for one in launches]
    return KernelCounters(
        pd.concat([frame, values], axis=1),
        dict(units),
        next((one["device_name"] for one in launches if one.get("device_name")), None),
        capabilities[0] if capabilities else None,
        tuple(dict.fromkeys(problems)),
        tuple(rules),
    )
