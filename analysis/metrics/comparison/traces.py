"""Two recordings compared with each other: is a step slower, and which kinds of time and which kernels changed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from analysis.metrics.comparison.runs import differing
from analysis.metrics.kernels.modules import BETWEEN, module_rows
from analysis.metrics.kernels.tables import kernel_rows, operator_rows
from analysis.metrics.time.temporal import temporal_breakdown
from analysis.timeline import Timeline, lost_kernels
from common.errors import InputError, UsageError
from records.trial import Trial

if TYPE_CHECKING:
    import pandas as pd


By = Literal["name", "family", "path"]
# Relative change of the step time above which a change counts, unless another one is asked for. One recording per side
# says nothing of how processes differ: more than of runs is asked for.
THRESHOLD = 0.05
_KINDS = ("span", "busy", "compute", "exposed_communication", "exposed_memory", "idle")
# Fields of a trial that change nothing of what a step does.
_NOT_THE_WORK = ("round", "min_steps", "max_steps", "max_seconds", "relative_half_width", "memory_limit_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceComparison:
    """What changed from a first recording to a second one."""

    per: str
    """What times are of: "step" (the median marked step, the slowest rank's), or "trace" where a side marks no step."""
    before_ms: float
    after_ms: float
    ratio: float
    threshold: float
    time: "pd.DataFrame"
    """kind of time, before_ms, after_ms, delta_ms, ratio: per step and rank, the mean over ranks."""
    families: "pd.DataFrame"
    kernels: "pd.DataFrame"
    places: "pd.DataFrame"
    """`trace_diff` by path."""
    differences: tuple[str, ...]
    """What else differs: settings, devices, ranks."""

    @property
    def verdict(self) -> str:
        """slower, faster or same, by the threshold."""
        if self.ratio > 1 + self.threshold:
            return "slower"
        return "faster" if self.ratio < 1 / (1 + self.threshold) else "same"


def compare_traces(
    before: Sequence[Timeline],
    after: Sequence[Timeline],
    threshold: float = THRESHOLD,
    trials: tuple[Trial | None, Trial | None] = (None, None),
) -> TraceComparison:
    """Compare two recordings of the same work, given by rank; settings of the trials that differ are named.

    One recording per side says what changed in it; a process can be slow as a whole, which only repeated runs show.

    Raises:
        InputError: a side has no work or no length, or one is of a GPU and the other of a CPU.
        UsageError: the threshold is not above 0.
    """
    if not threshold > 0:
        raise UsageError("option-value", f"--threshold {threshold} is not above 0: give a fraction such as 0.05")
    stepped = _stepped(before, after)
    old, new = (_length_ms(side, stepped) for side in (before, after))
    if not (old > 0 and new > 0):
        raise InputError("trace-without-work", "the steps or the work of a trace have zero duration: record it again")
    known = None not in trials
    facts = (_facts(side, trial if known else None) for side, trial in zip((before, after), trials, strict=True))
    return TraceComparison(
        per="step" if stepped else "trace",
        before_ms=old,
        after_ms=new,
        ratio=new / old,
        threshold=threshold,
        time=_time(before, after, stepped),
        families=trace_diff(before, after, "family"),
        kernels=trace_diff(before, after),
        places=trace_diff(before, after, "path"),
        differences=tuple(differing(facts)),
    )


def trace_diff(before: Sequence[Timeline], after: Sequence[Timeline], by: By = "name") -> "pd.DataFrame":
    """Return one row per kernel name, family or place in the model, the largest change first, whichever its sign.

    Sums over all ranks of a side are divided by its marked steps, or by its ranks where a side marks none.
    Without GPU work on either side, operators with their own time are compared.

    Columns: path, or name and family, or family; change (added | removed | slower | faster | same), calls_before,
    calls_after, before_ms, after_ms, delta_ms, ratio (missing for added ones). Places have their own time, and in
    addition total_delta_ms, with what they contain.
    """
    import pandas as pd

    on_gpu = [any(len(timeline.kernels) for timeline in side) for side in (before, after)]
    if on_gpu[0] != on_gpu[1]:
        lost = lost_kernels(after if on_gpu[0] else before)
        raise InputError(
            "run-mismatch",
            f"the {'second' if on_gpu[0] else 'first'} trace has no GPU work, the other one does: times of kernels and "
            f"of operators do not compare; {lost or 'record both on the same kind of device'}",
        )
    keys: list[str] = ["name", "family"] if by == "name" else [by]
    stepped, tables = _stepped(before, after), []
    for number, side in enumerate((before, after)):
        work = _work(side, on_gpu[0], by).groupby(keys, sort=False)[["calls", "ns"]].sum().reset_index()
        if not len(work):
            text = f"the {('first', 'second')[number]} trace has neither kernels nor operators in its steps"
            raise InputError("trace-without-work", f"{text}: give a trace with work")
        unit = sum(len(timeline.steps) for timeline in side) if stepped else len(side)
        tables.append(work[keys].assign(calls=work["calls"] / unit, ms=work["ns"] / 1e6 / unit))
    rows = pd.merge(tables[0], tables[1], on=keys, how="outer", suffixes=("_before", "_after")).fillna(0)
    rows = rows.rename(columns={"ms_before": "before_ms", "ms_after": "after_ms"})
    rows = rows[[*keys, "calls_before", "calls_after", "before_ms", "after_ms"]]
    old, new = rows["before_ms"], rows["after_ms"]
    rows["delta_ms"] = new - old
    rows["ratio"] = (new / old).where(old > 0)
    moved = np.select([rows["delta_ms"] > 0, rows["delta_ms"] < 0], ["slower", "faster"], "same")
    change = np.select([rows["calls_before"] == 0, rows["calls_after"] == 0], ["added", "removed"], moved)
    rows.insert(len(keys), "change", change.tolist())
    if by == "path":
        sums: dict[str, float] = {}
        for path, delta in zip(rows["path"], rows["delta_ms"].tolist(), strict=True):
            names = path.split(BETWEEN)
            for above in (BETWEEN.join(names[:depth]) for depth in range(1, len(names) + 1)):
                sums[above] = sums.get(above, 0.0) + delta
        rows["total_delta_ms"] = rows["path"].map(sums)
    order = rows["delta_ms"].abs().sort_values(ascending=False, kind="stable").index
    return rows.loc[order].reset_index(drop=True)


def _stepped(before: Sequence[Timeline], after: Sequence[Timeline]) -> bool:
    return all(len(timeline.steps) for timeline in (*before, *after))


def _work(side: Sequence[Timeline], on_gpu: bool, by: By) -> "pd.DataFrame":
    """Return calls and time, ns, of each piece of work."""
    import pandas as pd

    if by == "path":
        places = module_rows(side)
        calls = places["calls"].where(places["calls"] > 0, places["kernels"])
        return places[["path"]].assign(calls=calls, ns=(places["own_ms"] * len(side) * 1e6).round().astype("int64"))
    if not on_gpu:
        return pd.concat([operator_rows(timeline) for timeline in side]).rename(columns={"self_ns": "ns"})
    rows = pd.concat([kernel_rows(timeline)[["name", "family", "calls", "total_ms"]] for timeline in side])
    return rows.assign(ns=(rows["total_ms"] * 1e6).round().astype("int64"))


def _facts(side: Sequence[Timeline], trial: Trial | None) -> dict[str, str]:
    """What has to agree besides the work, by name."""
    values: dict[str, Any] = {
        "devices": sorted({name for timeline in side for name in timeline.devices.values()}),
        "ranks in the trace": len(side),
        "ranks of the job": sorted({str(timeline.world_size) for timeline in side}),
    }
    if trial is not None:
        alike = (*_NOT_THE_WORK, *(("data",) if trial.data_fingerprint else ()))
        values |= {field.name: getattr(trial, field.name) for field in fields(Trial) if field.name not in alike}
    texts = {name: " ".join(map(str, value)) if isinstance(value, list | tuple) else value
             for name, value in values.items()}  # fmt: skip
    return {name: "none" if text in (None, "") else str(text) for name, text in texts.items()}


def _length_ms(side: Sequence[Timeline], stepped: bool) -> float:
    """A step's time is the slowest rank's, the median over steps; without steps the longest span of a rank."""
    import pandas as pd

    if stepped:
        lengths = pd.concat([one.steps.assign(ns=one.steps["end"] - one.steps["start"]) for one in side])
        return float(np.median(lengths.groupby("step")["ns"].max())) / 1e6
    spans = [row.span_ns for timeline in side if (row := temporal_breakdown(timeline, "kernels")) is not None]
    return max(spans, default=0) / 1e6


def _time(before: Sequence[Timeline], after: Sequence[Timeline], stepped: bool) -> "pd.DataFrame":
    import pandas as pd

    columns: dict[str, Any] = {"time": [kind.replace("_", " ") for kind in _KINDS]}
    for name, side in (("before_ms", before), ("after_ms", after)):
        rows = [row for timeline in side if (row := temporal_breakdown(timeline, "steps" if stepped else "kernels"))]
        columns[name] = [
            sum(float(getattr(row, f"{kind}_ns")) / max(1, row.steps) / len(rows) for row in rows) / 1e6
            for kind in _KINDS
        ]
    frame = pd.DataFrame(columns)
    frame["delta_ms"] = frame["after_ms"] - frame["before_ms"]
    frame["ratio"] = frame["after_ms"] / frame["before_ms"].where(frame["before_ms"] > 0)
    return frame
