"""Findings from counters of kernels: how busy the kinds of cores are, by kind of work, phase and kernel."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.counters import KernelCounters
from analysis.diagnose.advice import LEAST, Advice, Context, faster_gemms
from analysis.diagnose.finding import OF_KERNELS, Finding, joined
from analysis.diagnose.kernel_rules import rules
from analysis.diagnose.roofline import roofline_findings
from analysis.metrics.kernels.core_utilization import (
    FOUR,
    CoreUse,
    core_use,
    core_use_by,
    core_use_by_family,
    kernel_phases,
)
from analysis.metrics.kernels.ncu_metrics import PIPES
from analysis.metrics.kernels.roofline import roofline
from analysis.metrics.kernels.sampled_utilization import sampled_utilization
from analysis.names import family, precision
from analysis.timeline import Timeline
from analysis.wording import percent

if TYPE_CHECKING:
    import pandas as pd

NOT_IN_FILE = "not in this file"
"""Shown for a pipe that was not counted; never 0."""
_NO_TIMES = f"Kernel times are {NOT_IN_FILE}: rows are in order of their first run."
_IDLE = 1.0  # % of the peak


def findings(
    counters: KernelCounters,
    window_ns: float | None = None,
    measured: Mapping[str, float] | None = None,
    context: Context | None = None,
) -> list[Finding]:
    """Return core_utilization, ..._by_family, ..._by_phase (where there are ranges), kernels, roofline_findings, rules.

    Args:
        counters: what a reader returned.
        window_ns: length of the same iterations without the profiler: core_utilization gets the shares of it too, the
            tables by family, phase and kernel have them in place of those while kernels run.
        measured: measured ceilings, as for `roofline`.
        context: the profiled trial, where it is known.
    """
    context = context or Context()
    tables = [pipes(counters, window_ns, context), by_family(counters, window_ns)]
    tables += [one for one in (by_phase(counters, window_ns),) if len(one.table)]
    tables += [by_kernel(counters, window_ns), *roofline_findings(roofline(counters, measured), context)]
    return [*tables, *(one for one in (rules(counters),) if len(one.table))]


def pipes(counters: KernelCounters, window_ns: float | None = None, context: Context | None = None) -> Finding:
    """Return core_utilization: a row per pipe. The advice is for idle tensor cores: at most the time of the GEMMs."""
    import pandas as pd

    use = core_use(counters, window_ns)
    rows = []
    for name in PIPES:
        pipe = use.pipes[name]
        shares = {"utilization": _share(pipe.percent), "in_window_utilization": _share(pipe.in_window_percent)}
        note = pipe.reason if pipe.metric else f"{NOT_IN_FILE}: {pipe.reason}"
        rows.append({"pipe": name, **shares, "metric": pipe.metric, "note": note})
    table = pd.DataFrame(rows)
    table = table if table["in_window_utilization"].notna().any() else table.drop(columns="in_window_utilization")
    counted = {label: use.pipes[name].percent for name, label in FOUR.items()}
    four = ", ".join(f"{label} {percent_text(value)}" for label, value in counted.items() if value is not None)
    sentence = f"While kernels run: {four}."
    if not four:
        sentence = "No pipe was counted: collect them as `bertbench profile --profiler ncu` does."
    families, tensor = by_family(counters).table, use.pipes["tensor"].percent
    gemms = float(families.loc[families["family"] == "GEMM", _share_of(families)].sum()) if len(families) else 0.0
    remedy = faster_gemms([counters.device_name] if counters.device_name else [])
    advice: tuple[Advice, ...] = ()
    if tensor is not None and tensor < _IDLE and gemms >= LEAST and remedy:
        names = [str(name) for name in counters.kernels["name"].unique() if family(str(name)) == "GEMM"]
        narrow = any(precision(name) not in ("", "fp32", "fp64") for name in names)
        if not narrow and not (context and context.narrow):
            seen = f"the tensor cores are idle while GEMMs take {percent(gemms)} of the kernels' time"
            advice = (Advice(cause="precision", seen=seen, remedy=remedy, saves=gemms, of=OF_KERNELS),)
    return Finding("core_utilization", "Core utilization", table, sentence, advice)


def sampled_findings(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return sampled_utilization, a row per rank and step, where hardware counters were sampled into the traces."""
    table = joined([sampled_utilization(timeline) for timeline in timelines])
    if table is None:
        return []
    weights = table["samples"] / table["samples"].sum()
    sm, tensor = ((table[name] * weights).sum() for name in ("sm_utilization", "tensor_utilization"))
    sentence = f"By sampled counters, SMs are active {percent(sm)} and tensor pipes {percent(tensor)} of the time."
    return [Finding("sampled_utilization", "SM and tensor utilization over time", table, sentence)]


def by_family(counters: KernelCounters, window_ns: float | None = None) -> Finding:
    """Return core_utilization_by_family: a row per kind of work, longest first."""
    groups = core_use_by_family(counters, window_ns)
    table = _table([{"family": name} for name in groups], list(groups.values()), counters, window_ns)
    return Finding("core_utilization_by_family", "Core utilization by kind of work", table, _longest(table, "family"))


def by_phase(counters: KernelCounters, window_ns: float | None = None) -> Finding:
    """Return core_utilization_by_phase: a row per phase, then per part of the model in it; no row without ranges.

    Kernels without a range that follow forward count as backward: PyTorch launches them from another thread.
    """
    import pandas as pd

    name, title = "core_utilization_by_phase", "Core utilization by phase of the step"
    phases = kernel_phases(counters)
    if phases is None:
        sentence = f"Phases are {NOT_IN_FILE}: record with `bertbench profile --profiler ncu`, or with `ncu --nvtx`."
        return Finding(name, title, pd.DataFrame(), sentence)
    groups = core_use_by(counters, phases["phase"], window_ns)
    inside = phases["part"] != ""
    within = core_use_by(counters, phases["phase"].where(inside) + "\n" + phases["part"], window_ns)
    labels = [{"phase": phase, "part": ""} for phase in groups]
    labels += [dict(zip(("phase", "part"), both.split("\n"), strict=True)) for both in within]
    table = _table(labels, [*groups.values(), *within.values()], counters, window_ns)
    return Finding(name, title, table, _longest(table, "phase"))


def by_kernel(counters: KernelCounters, window_ns: float | None = None) -> Finding:
    """Return kernels: a row per kernel name, longest first, or in order of their first run without times."""
    groups = core_use_by(counters, counters.kernels["name"], window_ns)
    table = _table([{"name": name} for name in groups], list(groups.values()), counters, window_ns)
    share = float(table[_share_of(table)].head(5).sum()) if len(table) else 0.0
    sentence = f"{min(5, len(table))} of {len(table)} kernels take {percent(share)} of the time."
    return Finding("kernels", "Kernels that take longest", table, sentence if share else _NO_TIMES)


def percent_text(value: float | None) -> str:
    """Return "12.34 %", or NOT_IN_FILE."""
    return NOT_IN_FILE if value is None else f"{value:.2f} %"


def _table(
    labels: Sequence[Mapping[str, str]], uses: Sequence[CoreUse], counters: KernelCounters, window_ns: float | None
) -> "pd.DataFrame":
    """Return a row per group without the pipes that are not in the file; timed where launches lack a time."""
    import pandas as pd

    frame = counters.kernels
    times = bool(frame["duration_ns"].notna().any())
    total = float(frame["duration_ns" if times else "cycles"].sum())
    rows = []
    for label, use in zip(labels, uses, strict=True):
        part = (use.kernel_time_ms or 0.0) * 1e6 if times else _number(use.cycles)
        row: dict[str, Any] = {
            **label,
            "launches": use.kernels,
            "timed": use.timed,
            "time_ms": _number(use.kernel_time_ms),
        }
        row["time_share" if times else "cycle_share"] = part / total if total > 0 else math.nan
        for name in FOUR:
            pipe = use.pipes[name]
            row[f"{name}_utilization"] = _share(pipe.percent if window_ns is None else pipe.in_window_percent)
        rows.append(row)
    table = pd.DataFrame(rows)
    if not rows:
        return table
    unknown = [name for name in table if str(name).endswith("_utilization") and table[name].isna().all()]
    unknown += [] if times else ["time_ms"]
    # With a window names would have no room on a terminal.
    unknown += ["timed"] if not times or (table["timed"] == table["launches"]).all() else []
    unknown += [] if window_ns is None else [name for name in ("launches", "time_ms") if name not in unknown]
    table = table.drop(columns=unknown)
    return table if window_ns is None else table.rename(columns=lambda name: name.replace("_util", "_window_util"))


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _share(value: float | None) -> float:
    return _number(value) / 100


def _share_of(table: "pd.DataFrame") -> str:
    return "time_share" if "time_share" in table else "cycle_share"


def _longest(table: "pd.DataFrame", label: str) -> str:
    if not len(table) or not math.isfinite(table[_share_of(table)].iloc[0]):
        return _NO_TIMES
    first = table.iloc[0]
    tensor = next((first[str(name)] for name in table if str(name).startswith("tensor_")), math.nan)
    with_tensor = f", with tensor cores at {percent(tensor)}" if math.isfinite(tensor) else ""
    return f"{first[label]} takes {percent(first[_share_of(table)])} of the time{with_tensor}."
