"""The kernels of a file of Nsight Compute: values in base units, and time and cycles of every launch."""

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from analysis.counters import IDENTITY, LABELS, KernelCounters, KernelRule

if TYPE_CHECKING:
    import pandas as pd

# ncu scales times and bytes by 1000 (Nsight Compute CLI, "Metrics and Units"); names of 2019 to 2025.
_TIMES = {"s": 1.0, "second": 1.0, "sec": 1.0, "ms": 1e-3, "msecond": 1e-3, "us": 1e-6, "usecond": 1e-6}
_TIMES |= {"ns": 1e-9, "nsecond": 1e-9}
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_UNIT = re.compile(r"([KkMGTP]?)(byte|hz|Hz|inst|sector|request|cycle)s?")
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")

# Where a kernel's time and cycles are found, best first; the second form is the details page's.
_DURATION = (
    "gpu__time_duration.sum",
    "gpu__time_duration_measured_user.sum",
    "gpu__time_duration.max",
    "GPU Speed Of Light Throughput: Duration",
    "GPU Speed Of Light: Duration",
)
_CYCLES = (
    "gpc__cycles_elapsed.max",
    "GPU Speed Of Light Throughput: Elapsed Cycles",
    "GPU Speed Of Light: Elapsed Cycles",
    "sm__cycles_elapsed.max",
    "sm__cycles_elapsed.avg",
)
# Cycles and their rate: time = cycles / rate, as NERSC's roofline scripts compute it (arXiv:2009.02449, section II).
_CYCLES_AND_RATE = (
    ("sm__cycles_elapsed.avg", "sm__cycles_elapsed.avg.per_second"),
    ("gpc__cycles_elapsed.max", "gpc__cycles_elapsed.avg.per_second"),
    ("GPU Speed Of Light Throughput: Elapsed Cycles", "GPU Speed Of Light Throughput: SM Frequency"),
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
    match = _UNIT.fullmatch(amount)
    factor, name = (_PREFIXES[match[1]], match[2].lower()) if match else (1.0, amount)
    if not slash:
        return factor, name
    if per in _TIMES:
        return (factor / _TIMES[per], "hz") if name == "cycle" else (factor / _TIMES[per], f"{name}/s")
    return factor, f"{name}/{per}"


def is_metric(name: str) -> bool:
    """Return whether a name of ncu is of a metric: not of an attribute of the device, nor of a list of metrics."""
    return ":" not in name and not name.startswith("device__attribute_")


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
    labels = [name for name in LABELS if rows and name in launches[0]]
    frame = pd.DataFrame({name: [one[name] for one in launches] for name in (*IDENTITY[:4], *labels)})
    frame = frame.astype({"process": "int64", "kernel_id": "int64", "device": "Int64"})
    frame.insert(len(IDENTITY) - 2, "duration_ns", duration)
    frame.insert(len(IDENTITY) - 1, "cycles", cycles)
    return KernelCounters(
        pd.concat([frame, values], axis=1),
        dict(units),
        next((one["device_name"] for one in launches if one.get("device_name")), None),
        capabilities[0] if capabilities else None,
        tuple(dict.fromkeys(problems)),
        tuple(rules),
    )
