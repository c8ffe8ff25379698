"""Findings on what holds single kernels back, as ncu counted it: its rules, stalls of warps, hits in the caches."""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from analysis.counters import GLOBAL, KernelCounters, KernelRule
from analysis.diagnose.advice import Advice
from analysis.diagnose.finding import Finding
from analysis.diagnose.sentences import OF_KERNELS, short_name
from analysis.metrics.kernels.ncu_metrics import (
    L1,
    L2,
    hit_percents,
    launch_sizes,
    occupancy_limits,
    occupancy_percents,
    stall_cycles,
    warp_latency,
    waves,
)
from analysis.metrics.kernels.roofline import ISSUING
from analysis.wording import percent

if TYPE_CHECKING:
    import pandas as pd

# What warps wait for, by ncu's reason (Kernel Profiling Guide, "Warp Stall Reasons").
REASONS: Mapping[str, str] = {
    "barrier": "other warps at a barrier of the block",
    "branch_resolving": "the target of a branch",
    "dispatch_stall": "the dispatcher",
    "drain": "stores to memory at the end of the kernel",
    "gmma": "the tensor cores (asynchronous GEMM)",
    "imc_miss": "constants that are not in the cache",
    "lg_throttle": "the full queue of global and local memory",
    "long_scoreboard": "data from global, local or texture memory",
    "math_pipe_throttle": "a busy pipe",
    "membar": "a memory barrier",
    "mio_throttle": "the full queue of shared memory and special functions",
    "misc": "another reason",
    "no_instruction": "instructions that are not in the cache, or a jump",
    "no_instructions": "instructions that are not in the cache, or a jump",
    "not_selected": "nothing: another warp was chosen",
    "short_scoreboard": "data from shared memory or special functions",
    "sleeping": "the end of a sleep",
    "tex_throttle": "the full queue of texture memory",
    "wait": "a fixed latency of the pipeline",
    "warpgroup_arrive": "the other warps of its group",
}
LIMIT_ADVICE: Mapping[str, str] = {
    "registers": "fewer registers per thread",
    "shared memory": "less shared memory per block (smaller tiles, fewer stages)",
    "warps per block": "a block size that divides the warps of an SM",
    "blocks": "larger blocks",
    "barriers": "fewer barriers per block",
}
"""What lets more blocks run on an SM, by what limits them."""
# How ncu's rules begin to say what to do, and where to look: sentences that ask for a change come first.
_ACTS = re.compile(
    r"(?:Also|Assign|Avoid|Consider|If|Launch|Make|Reduce|To (?:reduce|increase|improve|further)|Try|Use|When|Whenever)"
    r"\b|.*\b(?:consider|recommended to)\b"
)
_LOOKS = re.compile(r"(?:Check|Consult|Find|Look|See|Start)\b")
_LIMITED = re.compile(r"occupancy \([\d.]+%\) is limited by (?:the )?([^.]*)")
_LIMIT_WORDS = {"registers": "registers", "shared memory": "shared memory", "warps within": "warps per block",
                "blocks that can fit": "blocks", "barriers": "barriers"}  # fmt: skip
_LONGEST_REMEDY = 300
_SHOWN = 3
"""Reasons that have columns."""
_SUGGESTS = ("optimization", "warning")
_KINDS = (*_SUGGESTS, "information", "error")
_SECTIONS = (
    "SpeedOfLight", "PmSampling", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "SchedulerStats",
    "WarpStateStats", "InstructionStats", "NumaAffinity", "LaunchStats", "Occupancy", "SourceCounters",
)  # fmt: skip
"""Sections of ncu's full set, in its order."""


def findings(counters: KernelCounters) -> list[Finding]:
    """Return kernel_rules, warp_stalls, occupancy and cache_hits: those whose data is in the file."""
    found = [rules(counters), stalls(counters), occupancy(counters), cache_hits(counters)]
    return [one for one in found if len(one.table)]


def rules(counters: KernelCounters) -> Finding:
    """Return kernel_rules: a row per kernel name and message of a rule, the largest estimated saving first.

    estimate_share is the mean over the launches with an estimate, by their time; saves_share, of global estimates
    alone, is the time that the kernel's launches would save of all counted time. remedy is what the message asks for.
    """
    import pandas as pd

    title = "Rules of Nsight Compute"
    shares = _shares(counters)
    names = counters.kernels["name"].tolist()
    groups: dict[tuple[str, str, int], list[KernelRule]] = {}
    places: dict[tuple[int, str], int] = {}
    for one in counters.rules:
        if one.kind not in _KINDS:
            continue
        place = places[one.row, one.rule] = places.get((one.row, one.rule), -1) + 1
        groups.setdefault((names[one.row], one.rule, place), []).append(one)
    rows = [_rule_row(name, own, shares) for (name, _, _), own in groups.items()]
    if not rows:
        return Finding("kernel_rules", title, pd.DataFrame())
    rows.sort(key=_order)
    table = pd.DataFrame(rows)
    table = (
        table if (table["estimate"] != "").any() else table.drop(columns=["estimate", "estimate_share", "saves_share"])
    )
    return Finding("kernel_rules", title, table, _rules_sentence(rows), tuple(_rules_advice(rows)))


def _rule_row(name: str, own: list[KernelRule], shares: "pd.Series[float]") -> dict[str, Any]:
    launches = [one.row for one in own]
    part = float(shares.iloc[launches].sum(skipna=False))
    estimated = [one for one in own if one.speedup is not None]
    weights = [float(shares.iloc[one.row]) for one in estimated]
    saved = sum(weight * (one.speedup or 0.0) for weight, one in zip(weights, estimated, strict=True))
    estimate = estimated[0].estimate if estimated else ""
    first = max(own, key=lambda one: _known(float(shares.iloc[one.row])))
    return {
        "rule": first.rule,
        "name": name,
        "launches": len(launches),
        "time_share": part,
        "estimate": estimate,
        "estimate_share": saved / sum(weights) if sum(weights) > 0 else math.nan,
        "saves_share": saved if estimate == GLOBAL else math.nan,
        "remedy": remedy(first),
        "kind": first.kind,
        "section": first.section,
        "message": first.text,
    }


def remedy(rule: KernelRule) -> str:
    """Return what a rule's message asks the reader to do, or else where to look; "" where it asks for nothing.

    A message about the occupancy names its limit alone: then it is what lifts that limit.
    """
    sentences = re.split(r"(?<=[.!]) +(?=[A-Z])", rule.text)
    limited = _LIMITED.search(rule.text)
    limits = [name for words, name in _LIMIT_WORDS.items() if limited and words in limited[1]]
    acts, looks = (next((one for one in sentences if kind.match(one)), "") for kind in (_ACTS, _LOOKS))
    return (acts or " or ".join(LIMIT_ADVICE[name] for name in limits) or looks)[:_LONGEST_REMEDY]


def _order(row: dict[str, Any]) -> tuple[float, float, bool, float, int, str]:
    """Sort by what is saved, by what is estimated, suggestions first, by the kernel's time, then as ncu shows them."""
    saves, estimate, share = (_known(row[name]) for name in ("saves_share", "estimate_share", "time_share"))
    place = next((place for place, name in enumerate(_SECTIONS) if row["section"].startswith(name)), len(_SECTIONS))
    return -saves, -estimate, row["kind"] not in _SUGGESTS, -share, place, row["section"]


def _rules_sentence(rows: list[dict[str, Any]]) -> str:
    suggestions = sum(row["kind"] in _SUGGESTS for row in rows)
    first = rows[0]
    if math.isfinite(first["saves_share"]):
        return (
            f"The largest estimate is of the rule {first['rule']} for {short_name(first['name'])}: "
            f"{percent(first['estimate_share'])} of its time, {percent(first['saves_share'])} of all kernels' time. "
            "Estimates of several rules for one kernel do not add up."
        )
    start = f"{suggestions} of {len(rows)} messages suggest a change"
    if first["estimate"]:
        return f"{start}; no rule estimates how much time a kernel would save, only the efficiency of single units."
    return f"{start}; none has an estimated speed-up, which Nsight Compute 2022 and older lack."


def _rules_advice(rows: list[dict[str, Any]]) -> list[Advice]:
    first = rows[0]
    if not math.isfinite(first["saves_share"]):
        return []
    seen = (
        f"the rule {first['rule']} of Nsight Compute estimates {percent(first['estimate_share'])} less time for "
        f"{short_name(first['name'])}"
    )
    asked = (
        first["remedy"].rstrip(".") or "read its message in the table kernel_rules, and change or replace that kernel"
    )
    return [Advice(cause="rules", seen=seen, remedy=asked, saves=min(1.0, first["saves_share"]), of=OF_KERNELS)]


def stalls(counters: KernelCounters) -> Finding:
    """Return warp_stalls: a row per kernel name, longest first, with what its warps wait for between instructions.

    The cycles are means over the launches by their time. The share of a reason is of all cycles between two
    instructions, as in ncu's rule CPIStall.
    """
    import pandas as pd

    cycles, latency = stall_cycles(counters), warp_latency(counters)
    means = _means(cycles, counters)
    totals = means.sum(axis=1, min_count=1)
    if latency is not None:
        totals = _means(latency.to_frame("all"), counters)["all"].fillna(totals)
    lengths: dict[str, float] = dict(zip(map(str, totals.index), totals.tolist(), strict=True))
    states = dict(zip(map(str, means.index), means.to_dict("records"), strict=True))
    rows = []
    for name, share in _by_name(counters):
        total = lengths[name]
        waits = [(float(value), str(key)) for key, value in states[name].items() if key != ISSUING and value > 0]
        waits.sort(reverse=True)
        if not (total > 0 and waits):
            continue
        row: dict[str, Any] = {"name": name, "time_share": share, "cycles_per_instruction": total}
        for place in range(_SHOWN):
            value, reason = waits[place] if place < len(waits) else (math.nan, "")
            row |= {f"stall_{place + 1}": reason, f"stall_{place + 1}_share": value / total}
        rows.append(row)
    sentence = ""
    if rows:
        first = rows[0]
        sentence = (
            f"A warp of {short_name(first['name'])} issues an instruction every "
            f"{first['cycles_per_instruction']:.1f} cycles; for {percent(first['stall_1_share'])} of them it waits for "
            f"{REASONS.get(first['stall_1'], first['stall_1'])}."
        )
    return Finding("warp_stalls", "What warps wait for", pd.DataFrame(rows), sentence)


def occupancy(counters: KernelCounters) -> Finding:
    """Return occupancy: a row per kernel name, longest first: warps on an SM, what limits them, what a launch asks for.

    Shares are of the warps that an SM can hold. Numbers are means over the launches by their time, the limit is the
    commonest.
    """
    import pandas as pd

    title = "Occupancy"
    shares = {f"{name}_share": values / 100 for name, values in occupancy_percents(counters).items()}
    if not shares or not len(counters.kernels):
        return Finding("occupancy", title, pd.DataFrame())
    filled = waves(counters)
    others = {**launch_sizes(counters), **({} if filled is None else {"waves": filled})}
    means = _means(pd.DataFrame({**shares, **others}), counters)
    limits = occupancy_limits(counters).groupby(counters.kernels["name"], sort=False).agg(_commonest)
    rows = [
        {"name": name, "time_share": share, **{key: means[key][name] for key in shares}, "limit": limits[name],
         **{key: means[key][name] for key in others}}
        for name, share in _by_name(counters)
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    table = table if (table["limit"] != "").any() else table.drop(columns="limit")
    return Finding("occupancy", title, table.dropna(axis="columns", how="all"), _occupancy_sentence(rows[0]))


def _occupancy_sentence(row: Mapping[str, Any]) -> str:
    achieved, possible = (float(row.get(f"{kind}_occupancy_share", math.nan)) for kind in ("achieved", "theoretical"))
    name, whole = short_name(str(row["name"])), "of the warps that an SM can hold"
    text = f"{name} keeps {percent(achieved)} {whole} active"
    text += f"; {percent(possible)} fit" if math.isfinite(possible) else ""
    text = text if math.isfinite(achieved) else f"{percent(possible)} {whole} fit in {name}"
    if limit := str(row["limit"]):
        help_ = " or ".join(LIMIT_ADVICE[name] for name in limit.split(" and "))
        return f"{text}, limited by {limit}: more fit with {help_}."
    return f"{text}."


def cache_hits(counters: KernelCounters) -> Finding:
    """Return cache_hits: a row per kernel name, longest first: hit rates of L1 and L2."""
    import pandas as pd

    title = "Hits in the caches"
    known = hit_percents(counters)
    hits = {f"{column}_hit_share": known[level] / 100 for level, column in ((L1, "l1"), (L2, "l2")) if level in known}
    if not hits or not len(counters.kernels):
        return Finding("cache_hits", title, pd.DataFrame())
    means = _means(pd.DataFrame(hits), counters)
    rows = [{"name": name, "time_share": share, **means.loc[name].to_dict()} for name, share in _by_name(counters)]
    shares = {level: float(rows[0].get(f"{level.lower()}_hit_share", math.nan)) for level in ("L1", "L2")}
    said = " and ".join(f"{percent(share)} in {level}" for level, share in shares.items() if math.isfinite(share))
    sentence = f"{short_name(rows[0]['name'])} finds {said} of the sectors it accesses there." if said else ""
    return Finding("cache_hits", title, pd.DataFrame(rows).dropna(axis="columns", how="all"), sentence)


def _commonest(values: "pd.Series[str]") -> str:
    return str(values.mode().iloc[0])


def _lengths(counters: KernelCounters) -> "pd.Series[float]":
    """Return how long each launch took: its time, or its cycles where the times are not all known."""
    frame = counters.kernels
    return frame["duration_ns"] if frame["duration_ns"].notna().all() else frame["cycles"]


def _shares(counters: KernelCounters) -> "pd.Series[float]":
    """Return the share of each launch in the time of all."""
    lengths = _lengths(counters)
    total = float(lengths.sum())
    return lengths / total if total > 0 else lengths * math.nan


def _by_name(counters: KernelCounters) -> list[tuple[str, float]]:
    """Return the name and the share of the time of every kernel, longest first."""
    shares = _shares(counters).groupby(counters.kernels["name"], sort=False).sum(min_count=1)
    return sorted(((str(name), float(share)) for name, share in shares.items()), key=lambda one: -_known(one[1]))


def _means(columns: "pd.DataFrame", counters: KernelCounters) -> "pd.DataFrame":
    """Return the means over the launches of each kernel name, by their time; without values where unknown.

    Launches of unknown length do not count, unless all of a name are: then each counts once.
    """
    names = counters.kernels["name"]
    weights = _lengths(counters).fillna(0.0)
    sums = columns.mul(weights, axis=0).groupby(names, sort=False).sum()
    total = columns.notna().mul(weights, axis=0).groupby(names, sort=False).sum()
    return (sums / total.where(total > 0)).fillna(columns.groupby(names, sort=False).mean())


def _known(value: float) -> float:
    return value if math.isfinite(value) else -1.0
