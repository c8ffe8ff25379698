"""Findings from counters of kernels: how busy the kinds of cores are, what holds each kernel back, and ncu's rules."""

import dataclasses
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.counters import GLOBAL, KernelCounters, joined
from analysis.diagnose.advice import OF_KERNELS, Advice, Context, advised, faster_gemms
from analysis.diagnose.finding import Finding, short_name
from analysis.metrics.kernels.core_utilization import FOUR, core_use, core_use_by, utilization_row
from analysis.metrics.kernels.ncu_metrics import DRAM_LEVEL, L1, L2, MEMORY
from analysis.metrics.kernels.roofline import COMPUTE, LATENCY, UNKNOWN, Roofline, roofline
from analysis.names import family, precision
from analysis.wording import percent

if TYPE_CHECKING:
    import pandas as pd

NOT_IN_FILE = "not in this file"
"""Shown for a pipe that was not counted; never 0."""
_IDLE = 1.0  # % of the peak


def findings(
    counters: KernelCounters,
    window_ns: float | None = None,
    context: Context | None = None,
) -> list[Finding]:
    """Return core_utilization, core_utilization_by_family, kernels, roofline, kernel_rules.

    Args:
        counters: what a reader returned.
        window_ns: length of the same iterations without the profiler: core_utilization gets the shares of it too, the
            tables by family and kernel have them in place of those while kernels run.
        context: the profiled trial, where it is known.
    """
    made = [pipes(counters, window_ns, context), by_family(counters, window_ns), by_kernel(counters, window_ns)]
    made += [per_kernel(roofline(counters)), rules(counters)]
    return [_of_steps(one, counters, window_ns) for one in made if len(one.table)]


def _of_steps(finding: Finding, counters: KernelCounters, window_ns: float | None) -> Finding:
    """Return a finding with its gain as a share of the steps' time, where their length is known."""
    frame = counters.kernels
    if window_ns is None or frame["duration_ns"].isna().any():
        return finding
    busy = min(1.0, frame["duration_ns"].sum() / window_ns / max(1, frame["process"].nunique()))
    advice = (advised(one.cause, one.seen, one.remedy, (one.saves or 0.0) * busy) for one in finding.advice)
    return dataclasses.replace(finding, advice=tuple(one for each in advice for one in each))


# ---- pipes ----


def pipes(counters: KernelCounters, window_ns: float | None = None, context: Context | None = None) -> Finding:
    """Return core_utilization: a row per pipe. The advice is for idle tensor cores: at most the time of the GEMMs."""
    import pandas as pd

    use = core_use(counters, window_ns)
    shares = {"utilization": use["percent"] / 100, "in_window_utilization": use["in_window_percent"] / 100}
    if shares["in_window_utilization"].isna().all():
        del shares["in_window_utilization"]
    note = use["reason"].where(use["metric"].notna(), f"{NOT_IN_FILE}: " + use["reason"])
    table = pd.DataFrame({**shares, "metric": use["metric"], "note": note}).rename_axis("pipe").reset_index()
    percents = [(label, use["percent"][name]) for name, label in FOUR.items()]
    four = ", ".join(f"{label} {value:.2f} %" for label, value in percents if value >= 0)
    sentence = f"While kernels run: {four}."
    if not four:
        sentence = "No pipe was counted: collect them as `bertbench profile --profiler ncu` does."
    families = by_family(counters).table
    gemms = float(families.loc[families["family"] == "GEMM", _share_of(families)].sum())
    types = {precision(name) for name in counters.kernels["name"].unique() if family(name) == "GEMM"}
    remedy = faster_gemms([counters.device_name] if counters.device_name else [])
    advice: tuple[Advice, ...] = ()
    if (
        use["percent"]["tensor"] < _IDLE
        and remedy
        and not types - {"", "fp32", "fp64"}
        and not (context or Context()).narrow
    ):
        seen = f"the tensor cores are idle while GEMMs take {percent(gemms)} of the kernels' time"
        advice = advised("precision", seen, remedy, gemms, OF_KERNELS)
    return Finding("core_utilization", "Core utilization", table, sentence, advice)


def by_family(counters: KernelCounters, window_ns: float | None = None) -> Finding:
    """Return core_utilization_by_family: a row per kind of work, longest first."""
    groups = core_use_by(counters, counters.kernels["name"].map(family).rename("family"), window_ns)
    table = _table(groups, counters, window_ns)
    return Finding("core_utilization_by_family", "Core utilization by kind of work", table, _longest(table))


def by_kernel(counters: KernelCounters, window_ns: float | None = None) -> Finding:
    """Return kernels: a row per kernel name, longest first, or in order of their first run without times."""
    table = _table(core_use_by(counters, counters.kernels["name"], window_ns), counters, window_ns)
    return Finding("kernels", "Kernels that take longest", table, _longest(table))


def by_batch(counters: Sequence[KernelCounters], sizes: Sequence[int], window_ns: float | None) -> Finding:
    """Return core_utilization_by_batch: a row per micro batch size, of tables of counters and the size of each."""
    import pandas as pd

    parts = {size: [part for part, of in zip(counters, sizes, strict=True) if of == size] for size in sorted(sizes)}
    rows = [{"micro_batch_size": size, **utilization_row(joined(each), window_ns)} for size, each in parts.items()]
    table = pd.DataFrame(rows)
    return Finding("core_utilization_by_batch", "Core utilization by batch size", table.dropna(axis=1, how="all"))


def _table(groups: "pd.DataFrame", counters: KernelCounters, window_ns: float | None) -> "pd.DataFrame":
    """Return a row per group without the pipes that are not in the file; timed where launches lack a time."""
    import pandas as pd

    frame, times = counters.kernels, bool(counters.kernels["duration_ns"].notna().any())
    columns = {"launches": groups["kernels"], "timed": groups["timed"], "time_ms": groups["kernel_time_ms"]}
    if times:
        columns["time_share"] = groups["kernel_time_ms"].fillna(0.0) * 1e6 / (frame["duration_ns"].sum() or math.nan)
    else:
        columns["cycle_share"] = groups["cycles"] / (frame["cycles"].sum() or math.nan)
    kind, source = ("", "percent") if window_ns is None else ("_window", "in_window_percent")
    columns |= {f"{name}{kind}_utilization": groups[f"{name}_{source}"] / 100 for name in FOUR}
    unknown = [name for name, values in columns.items() if values.isna().all() and "utilization" in name]
    unknown += [] if times else ["time_ms"]
    unknown += [] if times and (groups["timed"] < groups["kernels"]).any() else ["timed"]
    return pd.DataFrame(columns).drop(columns=unknown).reset_index()


def _share_of(table: "pd.DataFrame") -> str:
    return "cycle_share" if "cycle_share" in table else "time_share"


def _longest(table: "pd.DataFrame") -> str:
    share = table[_share_of(table)].head(1)
    if not share.notna().any():
        return f"Kernel times are {NOT_IN_FILE}: rows are in order of their first run."
    return f"{short_name(str(table.iloc[0, 0]))} takes {percent(share.iloc[0])} of the time."


# ---- roofline ----

_SHORT_MS = 0.01  # below it launch and tail are most of a kernel
_REMEDIES: Mapping[str, str] = {
    DRAM_LEVEL: "move fewer bytes: fuse elementwise kernels, use flash attention",
    L2: "reuse more in shared memory and registers (larger tiles, fusion) and coalesce accesses",
    L1: "make fewer and wider accesses (vectors, coalescing), avoid bank conflicts, keep values in registers",
    MEMORY: "see `ncu --section MemoryWorkloadAnalysis`: no level accounts for it alone",
    "tensor": "only fewer operations (no padding) or a lower precision help",
    **dict.fromkeys(("FMA", "fp32"), "run what is still in fp32 in a 16-bit type or tf32, on the tensor cores"),
    **dict.fromkeys(("FP64", "fp64"), "use fp32, which is much faster"),
}
"""What helps by the bound, or by how the name of its pipe begins."""
_SHOWN = (
    "name", "bound", "time_share", "compute_fraction", "l1_fraction", "l2_fraction", "dram_fraction",
    "memory_fraction", "occupancy_share", "flop_per_byte", "achieved_flops", "dram_gb_s", "attainable_fraction",
    "attainable_by", "attainable_flops", "fp32_flops", "fp64_flops", "fp16_flops", "tensor_flops",
    "l1_gb_s", "l1_flop_per_byte", "l2_gb_s", "l2_flop_per_byte",
)  # fmt: skip


def per_kernel(lines: Roofline) -> Finding:
    """Return roofline: a row per kernel name, longest first.

    The advice is for the bound whose kernels would save most if the busiest unit of each were always busy: the sum of
    (share of the time) x (1 - share of its peak), which is how ncu's rule SOLBottleneck estimates a speedup.
    """
    kernels = lines.kernels
    shares = kernels.groupby("bound", sort=False)["time_share"].sum(min_count=1).dropna()
    sentence = "The roofline needs kernel times: collect gpu__time_duration.sum."
    if len(shares):
        bound = str(shares.idxmax())
        sentence = f"{percent(shares[bound])} of the kernels' time is bound by {bound}."
        if bound == UNKNOWN:
            sentence = f"What bounds most kernels is {NOT_IN_FILE}: collect `ncu --section SpeedOfLight`."
    busiest = kernels[["compute_fraction", "memory_fraction"]].max(axis=1).fillna(1.0).clip(upper=1.0)
    lost = (kernels["time_share"] * (1 - busiest)).where(kernels["bound"] != UNKNOWN).fillna(0.0)
    savings = lost.groupby(kernels["bound"], sort=False).sum()
    advice: tuple[Advice, ...] = ()
    if len(savings):
        bound = str(savings.idxmax())
        place = int(lost.where(kernels["bound"] == bound, -1.0).to_numpy().argmax())
        row = {str(name): value for name, value in kernels.iloc[place].items()}
        seen = f"{percent(shares.get(bound))} of the kernels' time is bound by {bound}, most of all "
        seen += short_name(str(row["name"]))
        advice = advised(bound.partition(" (")[0].lower(), seen, remedy(row), float(savings.max()), OF_KERNELS)
    table = kernels.rename(columns={"dram_flop_per_byte": "flop_per_byte"})[[*_SHOWN]]
    table = table.replace("", None).dropna(axis="columns", how="all")
    return Finding("roofline", "Roofline of each kernel", table, sentence, advice)


def remedy(row: Mapping[str, Any]) -> str:
    """Return what helps a kernel, from one row of Roofline.kernels."""
    bound = str(row["bound"])
    if bound == LATENCY:
        if float(row["time_ms"]) < _SHORT_MS * max(1, int(row["timed"])):
            return "give the GPU more work at once: a larger batch, fused kernels, CUDA graphs"
        return "launch more blocks, or more warps per SM: see `ncu --section Occupancy --section WarpStateStats`"
    pipe = bound.removeprefix(f"{COMPUTE} (").removesuffix(")")
    details = "see `ncu --section ComputeWorkloadAnalysis`: what the pipe executes"
    return next((text for name, text in _REMEDIES.items() if pipe.startswith(name)), details)


# ---- ncu's rules ----

_SUGGESTS = ("optimization", "warning")
_LONGEST_REMEDY = 300
_RULES = ("rule", "name", "launches", "time_share", "estimate", "estimate_share", "saves_share", "section", "message")


def rules(counters: KernelCounters) -> Finding:
    """Return kernel_rules: a row per kernel name and suggestion of a rule, the largest estimated saving first.

    estimate_share is the mean over the launches with an estimate, by their time; saves_share, of global estimates
    alone, is the time that the kernel's launches would save of all kernels' time. Estimates do not add up.
    """
    import pandas as pd

    frame, title, keys = counters.kernels, "Rules of Nsight Compute", ["name", "rule", "place"]
    each = pd.DataFrame([one for one in counters.rules if one.kind in _SUGGESTS])
    if not len(each):
        return Finding("kernel_rules", title, each)
    lengths = frame["duration_ns" if frame["duration_ns"].notna().any() else "cycles"].fillna(0.0)
    each = each.rename(columns={"text": "message"}).astype({"speedup": "float64"})
    each["estimate"] = each["estimate"].where(each["estimate"] != "")
    each["name"] = frame["name"].to_numpy()[each["row"]]
    each["time_share"] = (lengths / (lengths.sum() or math.nan)).to_numpy()[each["row"]]
    each["place"] = each.groupby(["row", "rule"]).cumcount()
    each["weight"] = each["time_share"].where(each["speedup"].notna())
    each["saved"] = each["time_share"] * each["speedup"]
    groups = each.groupby(keys, sort=False)
    longest = each.sort_values("time_share", ascending=False, kind="stable").groupby(keys)
    table = groups[["time_share", "weight", "saved"]].sum().assign(launches=groups.size())
    table = table.join(longest[["estimate", "section", "message"]].first().fillna("")).reset_index()
    table["estimate_share"] = table["saved"] / table["weight"].where(table["weight"] > 0)
    table["saves_share"] = table["saved"].where(table["estimate"] == GLOBAL)
    table = table.sort_values(["saves_share", "estimate_share", "time_share"], ascending=False, ignore_index=True)
    first, table = table.iloc[0], table[[*_RULES]]
    if not table["estimate"].any():
        table = table.drop(columns=["estimate", "estimate_share", "saves_share"])
    if not math.isfinite(first["saves_share"]):
        return Finding("kernel_rules", title, table, f"None of {len(table)} suggestions estimates the time it saves.")
    seen = f"{first['rule']} estimates {percent(first['estimate_share'])} less time for {short_name(first['name'])}"
    change = textwrap.shorten(first["message"], _LONGEST_REMEDY).rstrip(".")
    advice = advised("rules", f"ncu's rule {seen}", change, min(1.0, first["saves_share"]), OF_KERNELS)
    return Finding("kernel_rules", title, table, f"{seen}.", advice)
