"""Findings from counters of kernels: how busy the kinds of cores are, and each kernel compared with its roofline."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.counters import KernelCounters
from analysis.diagnose.advice import LEAST, Advice, Context
from analysis.diagnose.finding import Finding
from analysis.diagnose.kernel_limits import LIMIT_ADVICE, REASONS
from analysis.metrics.kernels.ceilings import LEVEL_KINDS, is_bandwidth
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
from analysis.metrics.kernels.ncu_metrics import DRAM_LEVEL, L1, L2, LEVELS, MEMORY, PIPES
from analysis.metrics.kernels.roofline import COMPUTE, LATENCY, UNKNOWN, Roofline, roofline
from analysis.names import family, precision
from analysis.wording import flops, percent

if TYPE_CHECKING:
    import pandas as pd

NOT_IN_FILE = "not in this file"
"""Shown for a pipe that was not counted; never 0."""
_NO_TIMES = f"Kernel times are {NOT_IN_FILE}"

_IDLE, _BUSY, _LARGE = 1.0, 60.0, 0.3
_OF_KERNELS = "kernels' time"
_MOVES_DATA = ("elementwise", "copy", "norm", "dropout", "activation", "optimizer", "softmax and loss")


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
    said = f" {_sentence(NOT_IN_FILE)[:-1]}: {', '.join(lacking)}." if lacking else ""
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
    if tensor is None or tensor >= _IDLE or not gemm >= LEAST or _narrow_share(counters) or context.narrow:
        return
    seen = f"the tensor cores are idle while GEMMs take {percent(gemm)} of the kernels' time"
    remedy = "train in bf16, or let fp32 GEMMs use tf32 (torch.set_float32_matmul_precision('high'))"
    yield Advice(cause="precision", seen=seen, remedy=remedy, saves=gemm, of=_OF_KERNELS)


def _pipes_sentence(use: CoreUse, families: Mapping[str, CoreUse], counters: KernelCounters, context: Context) -> str:
    if not use.kernels:
        return "No kernel was counted: check that the window of the profile contains GPU work."
    known = {name: use.pipes[name].percent for name in FOUR if use.pipes[name].percent is not None}
    lacking = [FOUR[name] for name in FOUR if name not in known]
    said = ", ".join(f"{FOUR[name]} {percent_text(percent)}" for name, percent in known.items())
    start = f"While kernels run, utilization is: {said}." if known else ""
    if lacking:
        start += (
            f" {', '.join(lacking)}: {NOT_IN_FILE}; collect the metrics of profiling/ncu, as `bertbench profile` does."
        )
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
        return f"{start}: train in bf16, or let fp32 GEMMs use tf32 (torch.set_float32_matmul_precision('high'))."
    if tensor >= _BUSY:
        return f"{start} The tensor cores are near their limit: only fewer operations or a lower precision help."
    if max(value or 0.0 for value in known.values()) < 20:
        return f"{start} No kind of core is busy: see the roofline below for the limits of the kernels."
    return f"{start} See the table by kind of work below for what limits the tensor cores."


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
        return f"{start}: these kernels move data more than they compute; fuse them (torch.compile, fused optimizer)."
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


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


_SHORT_MS = 0.01  # below it launch and tail are most of a kernel
_LONG_MS = 1.0  # above it no larger batch is needed to fill the GPU
_CONFLICTS = 0.1  # of the wavefronts of shared memory
_FEW_WARPS = 0.5  # of those an SM can hold
_NEAR = 0.8  # of a ceiling: ncu's rule SOLBottleneck calls a kernel near its limit there
_LONGEST_NAME = 60

_COMPUTE_ADVICE = {
    "tensor": "only fewer operations (no padding) or a lower precision help",
    "FMA": "bf16 or tf32 on the tensor cores, or fewer operations",
    "fp32": "bf16 or tf32 on the tensor cores, or fewer operations",
    "FP64": "use fp32, which is much faster",
    "fp64": "use fp32, which is much faster",
    "SFU": "fewer exponentials, roots and conversions, or faster approximations",
    "ALU": "fewer integer and comparison instructions: simpler indices, several elements per thread",
    "LSU": "fewer and wider loads and stores (vectors, values kept in registers)",
    "issue slots": "fewer instructions: wider ones (vectors, tensor cores), less index arithmetic",
    "SM": "`ncu --section ComputeWorkloadAnalysis` names the pipe",
}


def roofline_findings(found: Roofline, context: Context | None = None) -> list[Finding]:
    """Return roofline (per kernel), roofline_by_family, and flop_rates and memory_levels where they were counted."""
    context = context or Context()
    sentence = _bound_sentence(found, context)
    labels = {kind: level for level, kind in LEVEL_KINDS.items()}
    ceilings = "; ".join(
        f"{labels.get(kind, kind)} {ceiling.rate / 1e9:,.0f} {'GB/s' if is_bandwidth(kind) else 'GFLOP/s'} "
        f"({ceiling.source})"
        for kind, ceiling in sorted(found.ceilings.items())
        if is_bandwidth(kind) or kind in set(found.kernels["flop_type"])
    )
    sentence += f" Ceilings: {ceilings}." if ceilings else ""
    return [
        Finding(
            "roofline",
            "Roofline of each kernel",
            _table(found.kernels, "name"),
            sentence,
            tuple(_roofline_advice(found, context)),
        ),
        Finding(
            "roofline_by_family",
            "Roofline by kind of work",
            _table(found.families, "family"),
            " ".join([_family_sentence(found), *(_sentence(text) for text in found.problems)]),
        ),
        *(one for one in (flop_rates(found), memory_levels(found)) if len(one.table)),
    ]


_RATES = ("fp32_flops", "fp64_flops", "fp16_flops", "tensor_flops")


def flop_rates(found: Roofline) -> Finding:
    """Return flop_rates: a row per kernel name that did floating-point work, longest first, with FLOP/s by type.

    attainable_fraction is of the lowest roof above the kernel, attainable_by what that roof is.
    """
    columns = ["name", "time_share", *_RATES, "attainable_fraction", "attainable_by"]
    kernels = found.kernels[found.kernels[list(_RATES)].gt(0).any(axis=1)]
    table = kernels[columns].replace("", None).dropna(axis="columns", how="all").reset_index(drop=True)
    sentence = ""
    if len(table):
        first = kernels.iloc[0]
        known = {name.removesuffix("_flops"): float(first[name]) for name in _RATES if first[name] > 0}
        said = ", ".join(
            f"{flops(rate)} in {'tensor cores' if kind == 'tensor' else kind}" for kind, rate in known.items()
        )
        sentence = f"{_short(str(first['name']))} reaches {said}."
    return Finding("flop_rates", "Floating-point rates by type", table, sentence)


def memory_levels(found: Roofline) -> Finding:
    """Return memory_levels: a row per kernel name, longest first, with intensity and bytes/s at L1/TEX, L2 and DRAM.

    There is no row where the bytes of neither L1/TEX nor L2 were counted.
    """
    names = {"intensity_flop_per_byte": "dram_flop_per_byte"}
    columns = ["name", "bound", "time_share", *(f"{kind}_gb_s" for kind in LEVEL_KINDS.values())]
    columns += [*(f"{kind}_flop_per_byte" for kind in LEVEL_KINDS.values()), "attainable_flops", "attainable_by"]
    kernels = found.kernels[found.kernels[["l1_bytes", "l2_bytes"]].notna().any(axis=1)].rename(columns=names)
    table = kernels[columns].replace("", None).dropna(axis="columns", how="all").reset_index(drop=True)
    sentence = ""
    if len(table):
        first = kernels.iloc[0]
        moved = {level: float(first[f"{kind}_bytes"]) for level, kind in LEVEL_KINDS.items()}
        dram = moved[DRAM_LEVEL]
        said = [f"{moved[level] / dram:.3g} in {level}" for level in (L2, L1) if dram > 0 and moved[level] >= 0]
        sentence = f"{_short(str(first['name']))} moves {' and '.join(said)} for each byte of DRAM." if said else ""
        if first["attainable_by"]:
            sentence += (
                f" Its lowest roof is that of {first['attainable_by']}: {flops(float(first['attainable_flops']))}."
            )
    return Finding("memory_levels", "Roofline by level of the memory", table, sentence.strip())


_FRACTIONS = ("compute_fraction", "memory_fraction")


def _roofline_advice(found: Roofline, context: Context) -> Iterator[Advice]:
    """Yield one piece of advice per kind of bound: what its kernels save if the busiest unit of each were always busy.

    The sum over the kernels of (share of the time) x (1 - share of its peak that the busiest unit reaches), which is
    how Nsight Compute's rule SOLBottleneck estimates a speedup. Kernels whose units were not counted do not count.
    """

    def lost(row: Mapping[str, Any]) -> float:
        busiest = max((row[name] for name in _FRACTIONS if math.isfinite(row[name])), default=1.0)
        share = float(row["time_share"]) * (1 - min(1.0, float(busiest)))
        return share if math.isfinite(share) else 0.0

    rows = [{str(key): value for key, value in row.items()} for row in found.kernels.to_dict("records")]
    for bound in dict.fromkeys(str(row["bound"]) for row in rows):
        bounded = [row for row in rows if row["bound"] == bound]
        saves = sum(map(lost, bounded))
        if bound == UNKNOWN or saves < LEAST:
            continue
        first = max(bounded, key=lost)
        part = percent(sum(float(row["time_share"]) for row in bounded if math.isfinite(row["time_share"])))
        seen = f"{part} of the kernels' time is bound by {bound}, most of all {_short(str(first['name']))}"
        cause = bound.partition(" (")[0].lower()
        yield Advice(cause=cause, seen=seen, remedy=advice(first, context), saves=saves, of=_OF_KERNELS)


def advice(row: Mapping[str, Any], context: Context | None = None) -> str:
    """Return what holds a kernel back and what helps, from one row of Roofline.kernels."""
    context = context or Context()
    bound = str(row["bound"])
    if bound == UNKNOWN:
        return f"unknown: {row['reason']}" if row["reason"] else "unknown"
    if bound == LATENCY:
        return _latency_advice(row)
    if bound.startswith(COMPUTE):
        pipe = bound.removeprefix(f"{COMPUTE} (").removesuffix(")")
        known = next((text for name, text in _COMPUTE_ADVICE.items() if pipe.startswith(name)), "fewer operations")
        known = _FULL_WIDTH.get(pipe, known) if context.narrow else known
        return f"{'the SM' if pipe == 'SM' else pipe} is at {percent(row['compute_fraction'])} of its peak: {known}"
    if bound == MEMORY:
        text = (
            f"its memory is at {percent(row['memory_fraction'])} of the peak, but none of {', '.join(LEVELS)} "
            "accounts for it alone: see `ncu --section MemoryWorkloadAnalysis`"
        )
        return text + _limits(row)
    conflicts = _number(row, "bank_conflicts")
    if bound == L1 and conflicts >= _CONFLICTS:
        help_ = (
            f"{percent(conflicts)} of the shared-memory wavefronts are bank conflicts: pad or swizzle the layout, so "
            "that the threads of a warp use different banks"
        )
    else:
        help_ = _LEVEL_ADVICE[bound].replace(_NARROWER if context.narrow else "", "")
    return f"{bound} is at {percent(row[f'{LEVEL_KINDS[bound]}_fraction'])} of its peak: {help_}" + _limits(row)


_NARROWER = " keep activations in bf16,"
_FULL_WIDTH = dict.fromkeys(("FMA", "fp32"), "fewer operations, or autocast for what still runs in fp32")
"""What replaces _COMPUTE_ADVICE in a trial that is in a 16-bit type already."""
_LEVEL_ADVICE = {
    L1: "fewer and wider accesses (vectors, coalescing), values kept in registers",
    L2: "reuse more in shared memory and registers (larger tiles, fusion) and coalesce accesses",
    DRAM_LEVEL: f"move fewer bytes: fuse elementwise kernels,{_NARROWER} use flash attention",
}


def _latency_advice(row: Mapping[str, Any]) -> str:
    """A larger batch and CUDA graphs help only what is too short or too small to fill the GPU."""
    each_ms = float(row["time_ms"]) / max(1, int(row["launches"]))
    filled, conflicts = _number(row, "waves"), _number(row, "bank_conflicts")
    small = filled < 1
    if each_ms < _SHORT_MS:
        grid = f" and its grid fills {filled:.2g} of a wave" if small else ""
        return (
            f"a launch takes {1e3 * each_ms:.1f} µs{grid}: give the GPU more work at once (a larger batch, "
            "fused kernels, CUDA graphs)"
        )
    if small:
        batch = ", a larger batch" if each_ms < _LONG_MS else ""
        return f"its grid fills {filled:.2g} of a wave: launch more blocks (smaller tiles, split-K{batch})" + _limits(
            row
        )
    text = "no unit is busy: its warps wait"
    if row["stall"]:
        text += f", {percent(row['stall_share'])} of the cycles for {REASONS.get(row['stall'], row['stall'])}"
    if conflicts >= _CONFLICTS:
        text += f"; {percent(conflicts)} of the shared-memory wavefronts are bank conflicts (pad or swizzle the layout)"
    limits = _limits(row)
    return text + (limits or ("" if row["stall"] else "; see `ncu --section WarpStateStats`"))


def _limits(row: Mapping[str, Any]) -> str:
    """Say how few warps there are and why, where they are few."""
    achieved, theoretical = _number(row, "achieved_occupancy"), _number(row, "theoretical_occupancy")
    lowest = min((value for value in (achieved, theoretical) if not math.isnan(value)), default=math.nan)
    if not lowest < _FEW_WARPS:
        return ""
    limit = str(row["occupancy_limit"])
    text = f"; occupancy is {percent(lowest)}"
    if limit and not theoretical >= _FEW_WARPS:
        help_ = " or ".join(LIMIT_ADVICE[name] for name in limit.split(" and "))
        return f"{text}, limited by {limit}: {help_}"
    if achieved < theoretical:
        return f"{text} of a possible {percent(theoretical)}: blocks or warps have unequal work, or end early"
    return text


def _number(row: Mapping[str, Any], column: str) -> float:
    return float(row[column])


def _table(table: "pd.DataFrame", label: str) -> "pd.DataFrame":
    """The columns that people read; `roofline` returns all."""
    names = {"intensity_flop_per_byte": "flop_per_byte", "achieved_occupancy": "occupancy_share"}
    names |= {"bank_conflicts": "bank_conflict_share"}
    shown = [label, "bound", "time_share", "compute_fraction", "l1_fraction", "l2_fraction", "dram_fraction"]
    shown += ["memory_fraction", "occupancy_share", "occupancy_limit", "bank_conflict_share", "flop_per_byte"]
    shown += ["achieved_flops", "dram_gb_s", "attainable_fraction", "waves"]
    found = table.rename(columns=names)[shown]
    if not (found["occupancy_limit"] != "").any():
        found = found.drop(columns="occupancy_limit")
    return found.dropna(axis="columns", how="all")


def _bound_sentence(found: Roofline, context: Context) -> str:
    kernels = found.kernels
    shares = kernels.groupby("bound", sort=False)["time_share"].sum(min_count=1)
    known = {str(kind): float(share) for kind, share in shares.items() if math.isfinite(share) and share > 0}
    if not known:
        return "The roofline needs kernel times: collect gpu__time_duration.sum."
    order = sorted(known, key=lambda kind: -known[kind])
    said = ", ".join(f"{percent(known[kind])} {_bound_by(kind)}" for kind in order)
    text = [f"Of the kernels' time: {said}."]
    for kind in order[:2]:
        row = {str(key): value for key, value in kernels[kernels["bound"] == kind].iloc[0].items()}
        text.append(f"{_short(str(row['name']))} ({percent(row['time_share'])} of the time): {advice(row, context)}.")
    return " ".join(text)


def _bound_by(kind: str) -> str:
    if kind == UNKNOWN:
        return "is of unknown bound"
    return f"is bound by {kind}" + (" (no memory level and no pipe is busy)" if kind == LATENCY else "")


def _family_sentence(found: Roofline) -> str:
    if found.families.empty:
        return "No kernel was counted."
    first = {str(key): value for key, value in found.families.iloc[0].to_dict().items()}
    reached, bound = float(first["attainable_fraction"]), str(first["bound"])
    if math.isfinite(reached):
        roof = "" if not first["attainable_by"] else f" (roof: {first['attainable_by']})"
        text = f"{first['family']} reaches {percent(reached)} of the rate that its intensity allows{roof}"
        kind = LEVEL_KINDS.get(bound, "")
        if bound == MEMORY or (kind and (kind not in found.ceilings or math.isnan(first[f"{kind}_bytes"]))):
            return f"{text}; {bound}, which that excludes, is the limit."
        near = float(first[f"{kind}_fraction" if kind else "compute_fraction"])
        little = reached >= _NEAR or (bound != LATENCY and near >= _NEAR)
        return f"{text}; {'little is left to gain' if little else 'the rest can be gained'} there."
    why = "the ceiling of its kind of operations is unknown"
    if not (math.isfinite(first["flop"]) and math.isfinite(first["dram_bytes"])):
        why = str(first["reason"]) or why
    elif float(first["flop"]) == 0:
        why = "it does no floating-point work"
    return f"The limit of {first['family']} is unknown: {why}."


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."
