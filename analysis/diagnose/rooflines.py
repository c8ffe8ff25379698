"""What holds kernels back, as two tables and the sentences on them: which level of the memory or pipe, what to do."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analysis.diagnose.finding import Finding
from analysis.metrics.kernels.ncu_metrics import DRAM_LEVEL, L1, L2, LEVELS, MEMORY
from analysis.metrics.kernels.roofline import COMPUTE, LATENCY, UNKNOWN, Roofline

if TYPE_CHECKING:
    import pandas as pd

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
    "FP64": "fp32 does these operations much faster",
    "fp64": "fp32 does these operations much faster",
    "SFU": "fewer exponentials, roots and conversions, or faster approximations of them",
    "ALU": "fewer integer and comparison instructions: simpler indices, several elements per thread",
    "LSU": "fewer and wider loads and stores (vectors, values kept in registers)",
    "issue slots": "fewer instructions: wider ones (vectors, tensor cores), less index arithmetic",
    "SM": "`ncu --section ComputeWorkloadAnalysis` names the pipe",
}
_LIMIT_ADVICE = {
    "registers": "fewer registers per thread",
    "shared memory": "less shared memory per block (smaller tiles, fewer stages)",
    "warps per block": "a block size that divides the warps of an SM",
    "blocks": "larger blocks",
    "barriers": "fewer barriers per block",
}


def roofline_findings(found: Roofline) -> list[Finding]:
    """Return roofline (per kernel) and roofline_by_family."""
    sentence = _bound_sentence(found)
    ceilings = "; ".join(
        f"{'DRAM' if kind == 'dram' else kind} {ceiling.rate / 1e9:,.0f} {'GB/s' if kind == 'dram' else 'GFLOP/s'} "
        f"({ceiling.source})"
        for kind, ceiling in sorted(found.ceilings.items())
        if kind == "dram" or kind in set(found.kernels["flop_type"])
    )
    sentence += f" Ceilings: {ceilings}." if ceilings else ""
    return [
        Finding("roofline", "Roofline of each kernel", _table(found.kernels, "name"), sentence),
        Finding(
            "roofline_by_family",
            "Roofline by kind of work",
            _table(found.families, "family"),
            " ".join([_family_sentence(found), *(_sentence(text) for text in found.problems)]),
        ),
    ]


def advice(row: Mapping[str, Any]) -> str:
    """Return what holds a kernel back and what helps, from one row of Roofline.kernels."""
    bound = str(row["bound"])
    if bound == UNKNOWN:
        return f"not known: {row['reason']}" if row["reason"] else "not known"
    if bound == LATENCY:
        return _latency_advice(row)
    if bound.startswith(COMPUTE):
        pipe = bound.removeprefix(f"{COMPUTE} (").removesuffix(")")
        known = next((text for name, text in _COMPUTE_ADVICE.items() if pipe.startswith(name)), "fewer operations")
        return f"{'the SM' if pipe == 'SM' else pipe} is at {_share(row['compute_fraction'])} of its peak: {known}"
    if bound == MEMORY:
        text = (
            f"its memory is at {_share(row['memory_fraction'])} of the peak, which none of {', '.join(LEVELS)} shows "
            "alone: `ncu --section MemoryWorkloadAnalysis` says where"
        )
        return text + _limits(row)
    column = {L1: "l1_fraction", L2: "l2_fraction", DRAM_LEVEL: "dram_fraction"}[bound]
    conflicts = _number(row, "bank_conflicts")
    if bound == L1 and conflicts >= _CONFLICTS:
        help_ = (
            f"{_share(conflicts)} of the wavefronts of shared memory are bank conflicts: pad or swizzle its layout, so "
            "that the threads of a warp use different banks"
        )
    else:
        help_ = _LEVEL_ADVICE[bound]
    return f"{bound} is at {_share(row[column])} of its peak: {help_}" + _limits(row)


_LEVEL_ADVICE = {
    L1: "fewer and wider accesses (vectors, coalescing), values kept in registers",
    L2: "reuse more in shared memory and registers (larger tiles, fusion) and coalesce accesses",
    DRAM_LEVEL: "move fewer bytes: fuse elementwise kernels, keep activations in bf16, use flash attention",
}


def _latency_advice(row: Mapping[str, Any]) -> str:
    """A larger batch and CUDA graphs help only what is too short or too small to fill the GPU."""
    each_ms = float(row["time_ms"]) / max(1, int(row["launches"]))
    filled, conflicts = _number(row, "waves"), _number(row, "bank_conflicts")
    small = filled < 1
    if each_ms < _SHORT_MS:
        grid = f" and its grid fills {filled:.2g} of a wave" if small else ""
        return (
            f"a launch takes {1e3 * each_ms:.1f} µs{grid}: give the GPU more at once, by a larger batch, fewer and "
            "larger kernels (fusion), CUDA graphs"
        )
    if small:
        batch = ", a larger batch" if each_ms < _LONG_MS else ""
        return f"its grid fills {filled:.2g} of a wave: launch more blocks (smaller tiles, split-K{batch})" + _limits(
            row
        )
    text = "no unit is busy: its warps wait"
    if conflicts >= _CONFLICTS:
        text += (
            f"; {_share(conflicts)} of the wavefronts of shared memory are bank conflicts (pad or swizzle its layout)"
        )
    limits = _limits(row)
    return text + (limits or "; `ncu --section WarpStateStats` names the reason")


def _limits(row: Mapping[str, Any]) -> str:
    """Say how few warps there are and why, where they are few."""
    achieved, theoretical = _number(row, "achieved_occupancy"), _number(row, "theoretical_occupancy")
    lowest = min((value for value in (achieved, theoretical) if not math.isnan(value)), default=math.nan)
    if not lowest < _FEW_WARPS:
        return ""
    limit = str(row["occupancy_limit"])
    text = f"; occupancy is {_share(lowest)}"
    if limit and not theoretical >= _FEW_WARPS:
        help_ = " or ".join(_LIMIT_ADVICE[name] for name in limit.split(" and "))
        return f"{text}, limited by {limit}: {help_}"
    if achieved < theoretical:
        return f"{text} where {_share(theoretical)} are possible: blocks or warps differ in work, or end early"
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


def _bound_sentence(found: Roofline) -> str:
    kernels = found.kernels
    shares = kernels.groupby("bound", sort=False)["time_share"].sum(min_count=1)
    known = {str(kind): float(share) for kind, share in shares.items() if math.isfinite(share) and share > 0}
    if not known:
        return "Without times no kernel can be placed under a roofline: collect gpu__time_duration.sum."
    order = sorted(known, key=lambda kind: -known[kind])
    said = ", ".join(f"{_share(known[kind])} {_bound_by(kind)}" for kind in order)
    text = [f"Of the kernels' time: {said}."]
    for kind in order[:2]:
        row = {str(key): value for key, value in kernels[kernels["bound"] == kind].iloc[0].items()}
        text.append(f"{_short(str(row['name']))} ({_share(row['time_share'])} of the time): {advice(row)}.")
    return " ".join(text)


def _bound_by(kind: str) -> str:
    if kind == UNKNOWN:
        return "is not known"
    return f"is bound by {kind}" + (" (no level of the memory and no pipe is busy)" if kind == LATENCY else "")


def _family_sentence(found: Roofline) -> str:
    if found.families.empty:
        return "No kernel was counted."
    first = {str(key): value for key, value in found.families.iloc[0].to_dict().items()}
    reached, bound = float(first["attainable_fraction"]), str(first["bound"])
    if math.isfinite(reached):
        text = f"{first['family']} reaches {_share(reached)} of what its intensity allows"
        if bound in (L1, L2, MEMORY):
            return f"{text} by DRAM and {first['flop_type']}; {bound}, which that leaves out, holds it back."
        near = {DRAM_LEVEL: float(first["dram_fraction"])}.get(bound, float(first["compute_fraction"]))
        little = reached >= _NEAR or (bound != LATENCY and near >= _NEAR)
        return f"{text}; {'little' if little else 'the rest'} is to be gained there."
    why = "no ceiling of its kind of operations is known"
    if not (math.isfinite(first["flop"]) and math.isfinite(first["dram_bytes"])):
        why = str(first["reason"]) or why
    elif float(first["flop"]) == 0:
        why = "it does no floating-point work"
    return f"What {first['family']} could reach is not known: {why}."


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def _share(share: float) -> str:
    percent = 100 * float(share)
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1f} %"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
