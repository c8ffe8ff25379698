"""What a small profile shows: time of each step, the operators that take most, shares by phase and family.

On a GPU trace the work is the kernels, on a CPU trace the operators' self time (their own, less what they called),
which adds up over all threads.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.metrics.intervals import union_ns
from analysis.names import OTHER, family
from analysis.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

PHASE_PREFIX = "bertbench:"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """What one rank's profile shows."""

    rank: int | None
    """Rank, None where the trace does not say."""
    source: str
    """What was added up: "GPU kernels" or "CPU operators"."""
    steps: list[dict[str, Any]]
    """step, wall_ms, busy_ms (union of GPU kernels, or of outermost CPU operators), busy_share."""
    operators: list[dict[str, Any]]
    """name, family, calls, total_ms, share: those that take most, first."""
    phases: list[dict[str, Any]]
    """phase, total_ms, share of the steps' wall time."""
    families: list[dict[str, Any]]
    """family, total_ms, share of all work."""


def breakdown(timeline: Timeline, top: int = 15) -> Breakdown:
    """Return the tables of one rank. Work outside the marked steps is left out where steps are marked.

    Args:
        timeline: what a reader returned.
        top: operators to list.
    """
    on_gpu = len(timeline.kernels) > 0
    work = _work(timeline)
    if len(timeline.steps):
        begin, end = timeline.steps["start"].min(), timeline.steps["end"].max()
        work = work[(work["start"] < end) & (work["end"] > begin)]
    total = float(work["work_ns"].sum()) or 1.0
    sums: dict[str, list[float]] = {}
    for name, value in zip(work["name"], work["work_ns"], strict=True):
        sums.setdefault(str(name), []).append(float(value))
    ordered = sorted(sums.items(), key=lambda item: -sum(item[1]))
    operators = [
        {
            "name": name,
            "family": family(name),
            "calls": len(values),
            "total_ms": sum(values) / 1e6,
            "share": sum(values) / total,
        }
        for name, values in ordered[:top]
    ]
    by_family: dict[str, float] = {}
    for name, values in ordered:
        by_family[family(name)] = by_family.get(family(name), 0.0) + sum(values)
    families = [
        {"family": name, "total_ms": value / 1e6, "share": value / total}
        for name, value in sorted(by_family.items(), key=lambda item: -item[1])
    ]
    source = "GPU kernels" if on_gpu else "CPU operators"
    return Breakdown(timeline.rank, source, _steps(timeline), operators, _phases(timeline), families)


def _work(timeline: Timeline) -> "pd.DataFrame":
    if len(timeline.kernels):
        frame = timeline.kernels[["name", "start", "end"]].copy()
        frame["work_ns"] = frame["end"] - frame["start"]
        return frame
    return timeline.operators[["name", "start", "end", "self_ns"]].rename(columns={"self_ns": "work_ns"})


def _steps(timeline: Timeline) -> list[dict[str, Any]]:
    busy = timeline.kernels if len(timeline.kernels) else timeline.operators[timeline.operators["outermost"]]
    starts, ends = busy["start"].to_numpy(), busy["end"].to_numpy()
    rows = []
    table = timeline.steps
    for number, begin, end in zip(*(table[name].tolist() for name in ("step", "start", "end")), strict=True):
        inside = (starts < end) & (ends > begin)
        clipped = list(zip(starts[inside].clip(begin), ends[inside].clip(max=end), strict=True))
        busy_ns = union_ns([(int(a), int(b)) for a, b in clipped])
        wall = end - begin
        rows.append(
            {
                "step": number,
                "wall_ms": wall / 1e6,
                "busy_ms": busy_ns / 1e6,
                "busy_share": busy_ns / wall if wall else None,
            }
        )
    return rows


def _phases(timeline: Timeline) -> list[dict[str, Any]]:
    """Host time of the loop's phases; the model's own phases (layer.3.attention) lie inside forward."""
    wall = float((timeline.steps["end"] - timeline.steps["start"]).sum())
    if not wall:
        return []
    loop = {PHASE_PREFIX + name: name for name in ("data", "forward", "backward", "communication", "optimizer")}
    sums: dict[str, float] = {}
    table = timeline.ranges
    for name, start, end in zip(*(table[column].tolist() for column in ("name", "start", "end")), strict=True):
        if name in loop:
            sums[loop[name]] = sums.get(loop[name], 0.0) + float(end - start)
    if not sums:
        return []
    sums[OTHER] = max(0.0, wall - sum(sums.values()))
    return [{"phase": name, "total_ms": value / 1e6, "share": value / wall} for name, value in sums.items()]
