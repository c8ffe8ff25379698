"""Reports of Nsight Compute (.ncu-rep), through NVIDIA's Python package ncu-report.

They hold what the raw page of `ncu --import FILE --csv` prints, unrounded, and what ncu's rules say. The package does
not say which process a kernel is of: it is 0.
"""

import importlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analysis.counters import GLOBAL, LABELS, LOCAL, KernelCounters, KernelRule
from analysis.readers.ncu.table import base_unit, counters, is_metric
from common.errors import InputError, MissingToolError

MAGIC = b"NVR\x00"
"""What a report begins with."""
PACKAGE = "ncu_report"
_REMEDY = (
    "pip install 'bertbench[ncu]' (NVIDIA's package ncu-report), or run "
    "`ncu --import FILE --csv --page raw > FILE.csv` where Nsight Compute is installed and give that file"
)
_LINK = re.compile(r"@(url|section|sass|source):([^@]*)@")
_ATTRIBUTE = "device__attribute_"
# Values in a report are in base units. The package names none for a GPU that it does not know.
_UNITS = {
    r"gpu__time_duration(_measured_\w+)?\.(sum|max|min|avg)": "ns",
    r"\w+__cycles_(elapsed|active)\.(sum|max|min|avg)": "cycle",
    r"\w+__cycles_(elapsed|active)\.(sum|max|min|avg)\.per_second": "hz",
}


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
    try:
        for action in (action for group in package.load_report(str(report)) for action in group):
            rules += _rules(package, action.rule_results(), len(launches))
            values.append(_metrics(package.IMetric, action, units))
            launches.append(_launch(action, len(launches)))
    except Exception as error:  # whatever the package raises
        raise InputError(
            "file-damaged",
            f"ncu-report cannot read {given} ({error}): the report is damaged, or of a newer Nsight Compute; copy it "
            "again, or install a newer ncu-report",
        ) from error
    if not launches:  # the package takes a report that is cut short for one without results
        raise InputError(
            "trace-without-work",
            f"{given} has no results: nothing was profiled, or the report is cut short; copy it again, or record again",
        )
    if any(LABELS[0] in one for one in launches):
        launches = [{**dict.fromkeys(LABELS, ()), **one} for one in launches]
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


def _metrics(kinds: Any, action: Any, units: dict[str, str]) -> dict[str, float]:
    """Return every metric with a number, in base units; of one with instances it is their total."""
    floats, integers = (kinds.ValueKind_DOUBLE, kinds.ValueKind_FLOAT), (kinds.ValueKind_UINT32, kinds.ValueKind_UINT64)
    values = {}
    for name in sorted(filter(is_metric, map(str, action.metric_names()))):
        metric = action.metric_by_name(name)
        if metric.kind() not in (*floats, *integers) or not metric.has_value():
            continue
        unit = metric.unit() or next((unit for pattern, unit in _UNITS.items() if re.fullmatch(pattern, name)), "")
        factor, base = base_unit(unit)
        value = metric.as_double() if metric.kind() in floats else metric.as_uint64()
        if math.isfinite(value):
            units.setdefault(name, base)
            values[name] = value * factor
    return values


def _ranges(state: Any) -> dict[str, tuple[str, ...]]:
    """Return the ranges that were open in the launching thread: Push/Pop, Start/Stop; none without NVTX."""
    if state is None:
        return {}
    ranges: dict[str, list[str]] = {label: [] for label in LABELS}
    for domain in (state.domain_by_id(identifier) for identifier in state.domains()):
        for names, count, one in (
            (ranges[LABELS[0]], len(domain.push_pop_ranges()), domain.push_pop_range),
            (ranges[LABELS[1]], len(domain.start_end_ranges()), domain.start_end_range),
        ):
            for opened in map(one, range(count)):
                name = opened.name()
                name = opened.message() if name in ("", "none") and opened.has_attributes() else name
                names += [f"{domain.name()}@{name}"] if name else []
    return {label: tuple(names) for label, names in ranges.items()}


def _rules(package: Any, results: Any, row: int) -> Iterator[KernelRule]:
    kinds = {
        package.MsgType_OPTIMIZATION: "optimization",
        package.MsgType_WARNING: "warning",
        package.MsgType_OK: "information",
        package.MsgType_ERR: "error",
    }
    estimates = {package.SpeedupType_GLOBAL: GLOBAL, package.SpeedupType_LOCAL: LOCAL}
    for result in results:
        if not result.has_rule_message():
            continue
        message = result.rule_message()
        estimated = result.speedup_estimation() if result.has_speedup_estimation() else {}
        estimate = estimates.get(estimated.get("type"), "")
        yield KernelRule(
            row=row,
            rule=result.rule_identifier(),
            section=result.section_identifier(),
            kind=kinds.get(message["type"], ""),
            text=_LINK.sub(_link_text, message["message"]),
            estimate=estimate,
            speedup=float(estimated["speedup"]) / 100 if estimate else None,  # in percent there
        )


def _link_text(link: re.Match[str]) -> str:
    """Return a link as `ncu --csv` prints it: "Guide (https://...)" for one to a page, else its text."""
    kind, rest = link[1], link[2]
    if kind == "url":
        text, _, address = rest.partition(":")
        return f"{text} ({address})" if address else text
    return rest.rpartition(":")[2] if kind == "source" else rest.partition(":")[2]
