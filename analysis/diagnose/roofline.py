"""Findings from the roofline: what holds each kernel back, its rates by type, and the levels of the memory."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from analysis.diagnose.advice import LEAST, Advice, Context
from analysis.diagnose.finding import Finding
from analysis.diagnose.kernel_limits import LIMIT_ADVICE, REASONS
from analysis.diagnose.sentences import OF_KERNELS, sentence_of, short_name
from analysis.metrics.kernels.ceilings import LEVEL_KINDS, is_bandwidth
from analysis.metrics.kernels.ncu_metrics import DRAM_LEVEL, L1, L2, LEVELS, MEMORY
from analysis.metrics.kernels.roofline import COMPUTE, LATENCY, UNKNOWN, Roofline
from analysis.wording import flops, percent, short

if TYPE_CHECKING:
    import pandas as pd

_SHORT_MS = 0.01  # below it launch and tail are most of a kernel
_LONG_MS = 1.0  # above it no larger batch is needed to fill the GPU
_CONFLICTS = 0.1  # of the wavefronts of shared memory
_FEW_WARPS = 0.5  # of those an SM can hold
_NEAR = 0.8  # of a ceiling: ncu's rule SOLBottleneck calls a kernel near its limit there

_COMPUTE_ADVICE = {
    "tensor": "only fewer operations (no padding) or a lower precision help",
    "FMA": "a 16-bit type or tf32 (from Ampere on) on the tensor cores, or fewer operations",
    "fp32": "a 16-bit type or tf32 (from Ampere on) on the tensor cores, or fewer operations",
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
            " ".join([_family_sentence(found), *(sentence_of(text) for text in found.problems)]),
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
        sentence = f"{short_name(str(first['name']))} reaches {said}."
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
        said = [f"{short(moved[level] / dram)} in {level}" for level in (L2, L1) if dram > 0 and moved[level] >= 0]
        sentence = f"{short_name(str(first['name']))} moves {' and '.join(said)} for each byte of DRAM." if said else ""
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
        seen = f"{part} of the kernels' time is bound by {bound}, most of all {short_name(str(first['name']))}"
        cause = bound.partition(" (")[0].lower()
        yield Advice(cause=cause, seen=seen, remedy=advice(first, context), saves=saves, of=OF_KERNELS)


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
        text.append(
            f"{short_name(str(row['name']))} ({percent(row['time_share'])} of the time): {advice(row, context)}."
        )
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
    if bound == UNKNOWN:
        return f"The limit of {first['family']} is unknown: {why}."
    return f"{first['family']} {_bound_by(bound)}; what rate its intensity allows is unknown: {why}."
