"""Findings from the roofline: what holds each kernel back, its rates by type, and the levels of the memory."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analysis.diagnose.advice import LEAST, Advice, Context
from analysis.diagnose.finding import OF_KERNELS, Finding, short_name
from analysis.metrics.kernels.ceilings import LEVEL_KINDS
from analysis.metrics.kernels.ncu_metrics import DRAM_LEVEL, L1, L2, MEMORY
from analysis.metrics.kernels.roofline import COMPUTE, LATENCY, UNKNOWN, Roofline
from analysis.wording import flops, percent, short

if TYPE_CHECKING:
    import pandas as pd

_SHORT_MS = 0.01  # below it launch and tail are most of a kernel
_LONG_MS = 1.0  # above it no larger batch is needed to fill the GPU
_CONFLICTS = 0.1  # of the wavefronts of shared memory
_FEW_WARPS = 0.5  # of those an SM can hold
_FULL_WIDTH = "use a 16-bit type or tf32 (from Ampere on) on the tensor cores"
_REMEDIES: Mapping[str, str] = {
    DRAM_LEVEL: "move fewer bytes: fuse elementwise kernels, keep activations in bf16, use flash attention",
    L2: "reuse more in shared memory and registers (larger tiles, fusion) and coalesce accesses",
    L1: "make fewer and wider accesses (vectors, coalescing), keep values in registers",
    MEMORY: "see `ncu --section MemoryWorkloadAnalysis`: no level accounts for it alone",
    "tensor": "only fewer operations (no padding) or a lower precision help",
    "FMA": _FULL_WIDTH,
    "fp32": _FULL_WIDTH,
    "FP64": "use fp32, which is much faster",
    "fp64": "use fp32, which is much faster",
    "SFU": "use fewer exponentials, roots and conversions, or faster approximations",
    "ALU": "use simpler indices, several elements per thread",
    "LSU": "make fewer and wider loads and stores (vectors, values kept in registers)",
    "issue slots": "use wider instructions (vectors, tensor cores) and less index arithmetic",
    "SM": "see `ncu --section ComputeWorkloadAnalysis`, which names the pipe",
}
"""What helps by the bound, or by how the name of its pipe begins."""
_NARROW_REMEDIES = {
    DRAM_LEVEL: "move fewer bytes: fuse elementwise kernels, use flash attention",
    **dict.fromkeys(("FMA", "fp32"), "use autocast for what still runs in fp32"),
}
"""The same in a trial that is in a 16-bit type already."""
_LIMITS: Mapping[str, str] = {
    "registers": "use fewer registers per thread",
    "shared memory": "use less shared memory per block (smaller tiles, fewer stages)",
    "warps per block": "use a block size that divides the warps of an SM",
    "blocks": "use larger blocks",
    "barriers": "use fewer barriers per block",
}


def roofline_findings(found: Roofline, context: Context | None = None) -> list[Finding]:
    """Return roofline (per kernel), and flop_rates, memory_levels, kernel_limits where counted."""
    tables = (flop_rates(found), memory_levels(found), kernel_limits(found))
    return [per_kernel(found, context or Context()), *(one for one in tables if len(one.table))]


def per_kernel(found: Roofline, context: Context) -> Finding:
    """Return roofline: a row per kernel name, longest first.

    The advice is for the bound whose kernels would save most if the busiest unit of each were always busy: the sum of
    (share of the time) x (1 - share of its peak), which is how ncu's rule SOLBottleneck estimates a speedup.
    """
    kernels = found.kernels
    shares = kernels.groupby("bound", sort=False)["time_share"].sum(min_count=1).dropna()
    sentence = "The roofline needs kernel times: collect gpu__time_duration.sum."
    if len(shares):
        bound = str(shares.idxmax())
        sentence = f"{percent(shares[bound])} of the kernels' time is bound by {bound}."
        if bound == UNKNOWN and found.problems:
            sentence = f"{found.problems[0][:1].upper()}{found.problems[0][1:]}."
    busiest = kernels[["compute_fraction", "memory_fraction"]].max(axis=1).fillna(1.0).clip(upper=1.0)
    lost = (kernels["time_share"] * (1 - busiest)).where(kernels["bound"] != UNKNOWN).fillna(0.0)
    savings = lost.groupby(kernels["bound"], sort=False).sum()
    advice: tuple[Advice, ...] = ()
    if len(savings) and (saves := float(savings.max())) >= LEAST:
        bound = str(savings.idxmax())
        place = int(lost.where(kernels["bound"] == bound, -1.0).to_numpy().argmax())
        row = {str(name): value for name, value in kernels.iloc[place].items()}
        part = percent(shares[bound])
        seen = f"{part} of the kernels' time is bound by {bound}, most of all {short_name(str(row['name']))}"
        cause = bound.partition(" (")[0].lower()
        advice = (Advice(cause=cause, seen=seen, remedy=remedy(row, context), saves=saves, of=OF_KERNELS),)
    return Finding("roofline", "Roofline of each kernel", _table(kernels), sentence, advice)


def flop_rates(found: Roofline) -> Finding:
    """Return flop_rates: a row per kernel name that did floating-point work, longest first, with FLOP/s by type.

    attainable_fraction is of the lowest roof above the kernel, attainable_by what that roof is.
    """
    rates = ["fp32_flops", "fp64_flops", "fp16_flops", "tensor_flops"]
    kernels = found.kernels[found.kernels[rates].gt(0).any(axis=1)]
    sentence = ""
    if len(kernels):
        first = kernels.iloc[0]
        known = ", ".join(f"{flops(first[name])} in {name[:-6]}" for name in rates if first[name] > 0)
        sentence = f"{short_name(str(first['name']))} reaches {known}."
    table = _shown(kernels, ["name", "time_share", *rates, "attainable_fraction", "attainable_by"])
    return Finding("flop_rates", "Floating-point rates by type", table, sentence)


def memory_levels(found: Roofline) -> Finding:
    """Return memory_levels: a row per kernel name, longest first, with intensity and bytes/s at L1/TEX, L2 and DRAM.

    There is no row where the bytes of neither L1/TEX nor L2 were counted.
    """
    kernels = found.kernels[found.kernels[["l1_bytes", "l2_bytes"]].notna().any(axis=1)]
    kernels = kernels.rename(columns={"intensity_flop_per_byte": "dram_flop_per_byte"})
    columns = ["name", "bound", "time_share", *(f"{kind}_gb_s" for kind in LEVEL_KINDS.values())]
    columns += [*(f"{kind}_flop_per_byte" for kind in LEVEL_KINDS.values()), "attainable_flops", "attainable_by"]
    sentence = ""
    if len(kernels) and kernels.iloc[0]["dram_bytes"] > 0:
        first = kernels.iloc[0]
        moved = {level: first[f"{LEVEL_KINDS[level]}_bytes"] / first["dram_bytes"] for level in (L2, L1)}
        parts = " and ".join(f"{short(ratio)} in {level}" for level, ratio in moved.items() if ratio >= 0)
        sentence = f"{short_name(str(first['name']))} moves {parts} for each byte of DRAM."
    return Finding("memory_levels", "Roofline by level of the memory", _shown(kernels, columns), sentence)


def kernel_limits(found: Roofline) -> Finding:
    """Return kernel_limits: a row per kernel name, longest first: occupancy and its limit, waves of blocks, what warps
    wait for most (by ncu's name), hits in the caches, bank conflicts."""
    names = {f"{name}_occupancy": f"{name}_occupancy_share" for name in ("achieved", "theoretical")}
    names |= {"bank_conflicts": "bank_conflict_share", "l1_hit": "l1_hit_share", "l2_hit": "l2_hit_share"}
    limits = [*names.values(), "occupancy_limit", "waves", "stall", "stall_share"]
    table = _shown(found.kernels.rename(columns=names), ["name", "bound", "time_share", *limits])
    known = [name for name in limits if name in table]
    table, sentence = table.dropna(subset=known, how="all") if known else table.head(0), ""
    if len(table):
        first = table.iloc[0]
        occupancy, stall = first.get("achieved_occupancy_share"), first.get("stall")
        parts = [] if occupancy is None else [f"its occupancy is {percent(occupancy)}"]
        parts += [f"warps wait most for {stall} ({percent(first['stall_share'])})"] if stall else []
        sentence = f"{short_name(str(first['name']))}: {', '.join(parts)}." if parts else ""
    return Finding("kernel_limits", "What limits each kernel", table, sentence)


def remedy(row: Mapping[str, Any], context: Context | None = None) -> str:
    """Return what helps a kernel, from one row of Roofline.kernels."""
    bound, narrow = str(row["bound"]), context is not None and bool(context.narrow)
    if bound == LATENCY:
        each_ms = float(row["time_ms"]) / max(1, int(row["timed"]))
        if each_ms < _SHORT_MS:
            return "give the GPU more work at once: a larger batch, fused kernels, CUDA graphs"
        if row["waves"] < 1:
            return "launch more blocks: smaller tiles, split-K" + (", a larger batch" if each_ms < _LONG_MS else "")
        limits = [_LIMITS[name] for name in str(row["occupancy_limit"]).split(" and ") if name]
        if limits and row["theoretical_occupancy"] < _FEW_WARPS:
            return " or ".join(limits)
        return "see in kernel_limits what its warps wait for" if row["stall"] else "see `ncu --section WarpStateStats`"
    if bound == L1 and row["bank_conflicts"] >= _CONFLICTS:
        return "pad or swizzle the layout of shared memory, so that the threads of a warp use different banks"
    pipe = bound.removeprefix(f"{COMPUTE} (").removesuffix(")")
    remedies = {**_REMEDIES, **(_NARROW_REMEDIES if narrow else {})}
    return next((text for name, text in remedies.items() if pipe.startswith(name)), "do fewer operations")


def _shown(table: "pd.DataFrame", columns: list[str]) -> "pd.DataFrame":
    return table[columns].replace("", None).dropna(axis="columns", how="all").reset_index(drop=True)


def _table(table: "pd.DataFrame") -> "pd.DataFrame":
    """Return the columns that people read; `roofline` returns all."""
    names = {"intensity_flop_per_byte": "flop_per_byte", "achieved_occupancy": "occupancy_share"}
    names |= {"bank_conflicts": "bank_conflict_share"}
    shown = ["name", "bound", "time_share", "compute_fraction", "l1_fraction", "l2_fraction", "dram_fraction"]
    shown += ["memory_fraction", "occupancy_share", "occupancy_limit", "bank_conflict_share", "flop_per_byte"]
    shown += ["achieved_flops", "dram_gb_s", "attainable_fraction", "waves"]
    return _shown(table.rename(columns=names), shown)
