"""What stretch of time a page or a terminal's output is of: said once, before everything else."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.diagnose.finding import Finding
from analysis.diagnose.sentences import number
from analysis.metrics.time.launches import before_recording
from analysis.metrics.time.temporal import analysis_window
from analysis.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd


def findings(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return window: rank, window ("steps" | "work"), first_step, last_step, steps, span_ms; nothing without events.

    Args:
        timelines: what readers returned, one per rank.
    """
    import pandas as pd

    rows = []
    for timeline in timelines:
        bounds, steps = analysis_window(timeline), timeline.steps["step"]
        if bounds is None:
            continue
        rows.append(
            {
                "rank": timeline.rank,
                "window": "steps" if len(steps) else "work",
                "first_step": int(steps.iloc[0]) if len(steps) else None,
                "last_step": int(steps.iloc[-1]) if len(steps) else None,
                "steps": len(steps),
                "span_ms": (bounds[1] - bounds[0]) / 1e6,
            }
        )
    if not rows:
        return []
    whole = {"rank": "Int64", "first_step": "Int64", "last_step": "Int64"}
    table = pd.DataFrame(rows).astype(whole)
    return [Finding("window", "Window of the tables below", table, _sentence(table, timelines))]


def lengths(ms: Sequence[float]) -> str:
    """Name a length, of several ranks the shortest and the longest."""
    ends = dict.fromkeys(number(value) for value in (min(ms), max(ms)))
    return f"{' to '.join(ends)} ms"


def _sentence(table: "pd.DataFrame", timelines: Sequence[Timeline]) -> str:
    span = lengths(table["span_ms"].tolist())
    on_gpu = any(len(timeline.work) for timeline in timelines)
    if len(table[["window", "first_step", "last_step", "steps"]].drop_duplicates()) > 1:
        what = f"the windows of the table, which differ between the ranks, {span}"
    elif table["window"].iloc[0] == "work":
        worked = on_gpu or any(len(timeline.operators) for timeline in timelines)
        what = "all work, from its first start to its last end" if worked else "all that was recorded"
        what += f", {span}"
    else:
        first, last, steps = (int(table[name].iloc[0]) for name in ("first_step", "last_step", "steps"))
        what = f"step {first}, {span}" if steps == 1 else f"the {steps} steps {first} to {last}, {span}"
    tables = "All tables of the trace are" if len(timelines) == 1 else "All tables of the traces are"
    said = f"{tables} of {what}, unless a sentence names another stretch"
    if not on_gpu or "steps" not in set(table["window"]):
        return f"{said}."
    early = sum(map(before_recording, timelines))
    left = f", less {early:,} that were launched before the recording began" if early else ""
    return f"{said}: times are of what ran in it, sums over kernels and copies of what was launched in it{left}."
