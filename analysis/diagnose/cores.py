"""Findings from counters of kernels: how busy the kinds of cores are."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.counters import KernelCounters
from analysis.diagnose.advice import LEAST, Advice, Context
from analysis.diagnose.finding import Finding, joined
from analysis.diagnose.roofline import roofline_findings
from analysis.diagnose.sentences import OF_KERNELS, faster_gemms, sentence_of
from analysis.metrics.kernels.core_utilization import (
    BY_ORDER,
    FOUR,
    NO_PHASE,
    CoreUse,
    core_use,
    core_use_by,
    core_use_by_family,
    kernel_phases,
)
from analysis.metrics.kernels.ncu_metrics import PIPES
from analysis.metrics.kernels.roofline import roofline
from analysis.metrics.kernels.sampled_utilization import sampled_utilization
from analysis.names import MOVES_MEMORY, family, precision
from analysis.timeline import Timeline
from analysis.wording import percent

if TYPE_CHECKING:
    import pandas as pd

NOT_IN_FILE = "not in this file"
"""Shown for a pipe that was not counted; never 0."""
_NO_TIMES = f"Kernel times are {NOT_IN_FILE}"

_IDLE, _BUSY, _LARGE = 1.0, 60.0, 0.3
_MOVES_DATA = (*MOVES_MEMORY, "optimizer", "softmax and loss")


def findings(
    counters: KernelCounters,
    window_ns: float | None = None,
    measured: Mapping[str, float] | None = None,
    context: Context | None = None,
) -> list[Finding]:
    """Return core_utilization, ..._by_family, ..._by_phase (where there are ranges), kernels, and roofline_findings.

    Args:
        counters: what a reader returned.
        window_ns: length of the same iterations without the profiler: core_utilization gets the shares of it too, the
            tables by family, phase and kernel have them in place of those while kernels run.
        measured: measured ceilings, as for `roofline`.
        context: the profiled trial, where it is known.
    """
    context = context or Context()
    whole = core_use(counters, window_ns)
    families = core_use_by_family(counters, window_ns)
    found = [
        Finding(
            "core_utilization",
            "Core utilization",
            _pipes_table(whole),
            _pipes_sentence(whole, families, counters, context),
            tuple(_precision_advice(whole, families, counters, context)),
        ),
        by_family(counters, window_ns),
    ]
    phases = by_phase(counters, window_ns)
    found += [phases] if len(phases.table) else []
    found += [by_kernel(counters, window_ns), *roofline_findings(roofline(counters, measured), context)]
    return found


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
    table, lacking = _groups_table([{"family": name} for name in groups], groups.values(), counters, window_ns)
    sentence = _longest_sentence(groups) + lacking
    return Finding("core_utilization_by_family", "Core utilization by kind of work", table, sentence)


def by_phase(counters: KernelCounters, window_ns: float | None = None) -> Finding:
    """Return core_utilization_by_phase: a row per phase, then per part of the model in it; no row without ranges."""
    import pandas as pd

    title = "Core utilization by phase of the step"
    phases = kernel_phases(counters)
    if phases is None:
        sentence = (
            f"Phases are {NOT_IN_FILE}. They need the NVTX ranges of `bertbench profile --profiler ncu`, or `ncu "
            "--nvtx` of a program with forward, backward and optimizer ranges in the domain bertbench."
        )
        return Finding("core_utilization_by_phase", title, pd.DataFrame(), sentence)
    groups = core_use_by(counters, phases["phase"], window_ns)
    labels, uses = [{"phase": name, "part": ""} for name in groups], list(groups.values())
    inside = phases["part"] != ""
    if inside.any():
        within = phases["phase"].where(inside) + "\n" + phases["part"]
        for name, use in core_use_by(counters, within, window_ns).items():
            phase, _, part = name.partition("\n")
            labels.append({"phase": phase, "part": part})
            uses.append(use)
    table, lacking = _groups_table(labels, uses, counters, window_ns)
    sentence = _longest_sentence(groups) + lacking
    ordered = int((phases["told_by"] == BY_ORDER).sum())
    if ordered:
        sentence += (
            f" {ordered:,} of {len(phases):,} kernels count as backward because they follow forward (PyTorch launches "
            "them from a thread without ranges)."
        )
    return Finding("core_utilization_by_phase", title, table, sentence)


def by_kernel(counters: KernelCounters, window_ns: float | None = None) -> Finding:
    """Return kernels: a row per kernel name, longest first."""
    groups = core_use_by(counters, counters.kernels["name"], window_ns)
    table, lacking = _groups_table([{"name": name} for name in groups], groups.values(), counters, window_ns)
    sentence, title = "No kernel was counted.", "Kernels that take longest"
    share = (
        float(table[next(name for name in table if str(name).endswith("_share"))].head(5).sum()) if len(table) else 0
    )
    if len(table) and not share:
        title = "Kernels, in the order in which they first ran"
        sentence = f"{_NO_TIMES}, so which of these {len(table)} kernels take longest is unknown."
    elif len(table):
        most = min(5, len(table))
        sentence = f"{most} of {len(table)} kernels take {percent(share)} of the time: start with these."
        sentence = "There is one kernel." if len(table) == 1 else sentence
    return Finding("kernels", title, table, sentence + lacking)


def percent_text(percent: float | None) -> str:
    """Return "12.34 %", or NOT_IN_FILE."""
    return NOT_IN_FILE if percent is None else f"{percent:.2f} %"


def _pipes_table(use: CoreUse) -> "pd.DataFrame":
    import pandas as pd

    rows = []
    for name in PIPES:
        pipe = use.pipes[name]
        note = f"{NOT_IN_FILE}: {pipe.reason}" if pipe.metric is None else pipe.reason
        rows.append(
            {
                "pipe": name,
                "utilization": _share(pipe.percent),
                "in_window_utilization": _share(pipe.in_window_percent),
                "metric": pipe.metric,
                "note": note,
            }
        )
    table = pd.DataFrame(rows)
    return table if table["in_window_utilization"].notna().any() else table.drop(columns="in_window_utilization")


def _groups_table(
    labels: Sequence[Mapping[str, str]], uses: Collection[CoreUse], counters: KernelCounters, window_ns: float | None
) -> "tuple[pd.DataFrame, str]":
    """Return a row per group, and a sentence that names the pipes without a column: those not in the file."""
    import pandas as pd

    rows = [_group_row(about, use, counters, window_ns) for about, use in zip(labels, uses, strict=True)]
    table = pd.DataFrame(rows)
    pipes = [str(name) for name in table if str(name).endswith("_utilization") and table[name].isna().all()]
    known = {name for use in uses for name in FOUR if use.pipes[name].metric is not None}
    lacking = [FOUR[name] for name in FOUR if rows and name not in known]
    said = f" {sentence_of(NOT_IN_FILE)[:-1]}: {', '.join(lacking)}." if lacking else ""
    return table.drop(columns=pipes), said


def _group_row(
    labels: Mapping[str, str], use: CoreUse, counters: KernelCounters, window_ns: float | None
) -> dict[str, Any]:
    frame = counters.kernels
    known = frame["duration_ns"].notna().all()
    total = float(frame["duration_ns" if known else "cycles"].sum())
    part = (use.kernel_time_ms or 0.0) * 1e6 if known else (use.cycles if use.cycles is not None else math.nan)
    row: dict[str, Any] = dict(labels)
    if window_ns is None:  # else names would have no room on a terminal
        row |= {"launches": use.kernels, **({"time_ms": use.kernel_time_ms} if known else {})}
    row["time_share" if known else "cycle_share"] = part / total if total > 0 else math.nan
    for name in FOUR:
        pipe = use.pipes[name]
        if window_ns is None:
            row[f"{name}_utilization"] = _share(pipe.percent)
        else:
            row[f"{name}_window_utilization"] = _share(pipe.in_window_percent)
    return row


def _share(percent: float | None) -> float:
    return math.nan if percent is None else percent / 100


def _precision_advice(
    use: CoreUse, families: Mapping[str, CoreUse], counters: KernelCounters, context: Context
) -> Iterator[Advice]:
    """Yield what tensor cores could save where they are idle: at most the time of the GEMMs."""
    tensor, gemm = use.pipes["tensor"].percent, _time_share(families.get("GEMM"), families)
    if tensor is None or tensor >= _IDLE or not gemm >= LEAST:
        return
    if context.narrow or _narrow_share(counters) or not (remedy := _faster_gemms(counters)):
        return
    seen = f"the tensor cores are idle while GEMMs take {percent(gemm)} of the kernels' time"
    yield Advice(cause="precision", seen=seen, remedy=remedy, saves=gemm, of=OF_KERNELS)


def _pipes_sentence(use: CoreUse, families: Mapping[str, CoreUse], counters: KernelCounters, context: Context) -> str:
    if not use.kernels:
        return "No kernel was counted: check that the window of the profile contains GPU work."
    known = {name: use.pipes[name].percent for name in FOUR if use.pipes[name].percent is not None}
    lacking = [FOUR[name] for name in FOUR if name not in known]
    said = ", ".join(f"{FOUR[name]} {percent_text(percent)}" for name, percent in known.items())
    start = f"While kernels run, utilization is: {said}." if known else ""
    if lacking:
        start += f" {', '.join(lacking)}: {NOT_IN_FILE}; collect them as `bertbench profile --profiler ncu` does."
    start = start.strip()
    tensor = known.get("tensor")
    product = _time_share(families.get("GEMM"), families)
    if tensor is None:
        return start
    if tensor < _IDLE and product > _LARGE:
        start += f" The tensor cores are idle while GEMMs take {percent(product)} of the time"
        if narrow := _narrow_share(counters):
            return f"{start}, although {percent(narrow)} of that runs in narrower types, by their names."
        if context.narrow:
            return f"{start}, although the trial is in {context.narrow}: check which GEMMs autocast leaves in fp32."
        remedy = _faster_gemms(counters)
        return f"{start}: {remedy}." if remedy else f"{start}."
    if tensor >= _BUSY:
        return f"{start} The tensor cores are near their limit: only fewer operations or a lower precision help."
    if max(value or 0.0 for value in known.values()) < 20:
        return f"{start} No kind of core is busy: see the roofline below for the limits of the kernels."
    return f"{start} See the table by kind of work below for what limits the tensor cores."


def _faster_gemms(counters: KernelCounters) -> str:
    return faster_gemms([counters.device_name] if counters.device_name else [])


def _narrow_share(counters: KernelCounters) -> float:
    """Return the share of the GEMMs' time in types that tensor cores multiply, by the kernels' names."""
    frame = counters.kernels
    products = frame[[family(name) == "GEMM" for name in frame["name"]]]
    lengths = products["duration_ns" if frame["duration_ns"].notna().all() else "cycles"]
    narrow = [precision(name) not in ("", "fp32", "fp64") for name in products["name"]]
    total = float(lengths.sum())
    return float(lengths[narrow].sum()) / total if total > 0 else 0.0


def _longest_sentence(groups: Mapping[str, CoreUse]) -> str:
    if not groups:
        return "No kernel was counted."
    name, use = next(iter(groups.items()))
    name = "Work outside every phase" if name == NO_PHASE else name
    share = _time_share(use, groups)
    if not math.isfinite(share):
        return f"{_NO_TIMES}, so which kind takes longest is unknown."
    start = f"{name} takes {percent(share)} of the time"
    known = {pipe: use.pipes[pipe].percent for pipe in ("tensor", "fma")}
    said = [f"{FOUR[pipe]} at {value:.1f} %" for pipe, value in known.items() if value is not None]
    start += f", with {' and '.join(said)}" if said else ""
    if name in _MOVES_DATA:
        return f"{start}: these kernels move data more than they compute; fuse them (torch.compile, fused norms)."
    tensor = known["tensor"]
    if tensor is not None and tensor < _IDLE and name in ("GEMM", "attention"):
        return f"{start}: it runs without tensor cores."
    return f"{start}."


def _time_share(use: CoreUse | None, groups: Mapping[str, CoreUse]) -> float:
    if use is None:
        return 0.0
    for field in ("kernel_time_ms", "cycles"):
        parts = [getattr(group, field) for group in groups.values()]
        if all(part is not None for part in parts) and sum(parts) > 0:
            return float(getattr(use, field) / sum(parts))
    return math.nan
