"""Two recordings compared with each other: is a step slower, and which kinds of time and which kernels changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

import numpy as np

from analysis.metrics.kernels.modules import BETWEEN, module_rows
from analysis.metrics.kernels.tables import kernel_rows, operator_rows
from analysis.metrics.time.launches import before_recording
from analysis.metrics.time.temporal import temporal_breakdown
from analysis.timeline import Timeline, empty, lost_kernels
from common.errors import InputError, UsageError
from records.trial import Trial

if TYPE_CHECKING:
    import pandas as pd


By = Literal["name", "family", "path"]
COLUMNS = (
    "change",
    "calls_before",
    "calls_after",
    "before_ms",
    "after_ms",
    "delta_ms",
    "ratio",
    "change_share",
    "per",
)


def trace_diff(before: Sequence[Timeline], after: Sequence[Timeline], by: By = "name") -> "pd.DataFrame":
    """Return one row per kernel name, family or place in the model, the largest change first, whichever its sign.

    Sums over all ranks of a side are divided by its number of steps (ranks times marked steps), so that traces of
    different length and number of ranks compare. Where a side has no marked step, both sides are divided by their
    traces (ranks), and `per` says so. Without GPU work on either side, operators with their own time (less what they
    called) are compared.

    Columns: path (with by="path"), or name (with by="name") and family; change (added | removed | slower | faster |
    same), calls_before, calls_after (per step or trace), before_ms, after_ms, delta_ms (after less before), ratio
    (after / before, missing for added ones), change_share (of the sum of all absolute changes), per ("step" or
    "trace"). Places have their own time, without what they contain, so that the sum over delta_ms is the change of all
    work with any `by`; in addition total_delta_ms, with what they contain.

    Args:
        before: one timeline per rank of the first trace.
        after: those of the second.
        by: what a row is.
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
    tables = [_work(side, on_gpu[0], keys) for side in (before, after)]
    for side, table in zip(("first", "second"), tables, strict=True):
        if not len(table):
            raise InputError(
                "trace-without-work",
                f"the {side} trace has neither kernels nor operators in its steps: give a trace with work",
            )
    stepped = all(len(timeline.steps) for side in (before, after) for timeline in side)
    units = [sum(len(timeline.steps) for timeline in side) if stepped else len(side) for side in (before, after)]
    joined = pd.merge(tables[0], tables[1], on=keys, how="outer", suffixes=("_before", "_after")).fillna(0)
    found = joined[keys].copy()
    for place, number in zip(("before", "after"), units, strict=True):
        found[f"calls_{place}"] = joined[f"calls_{place}"] / number
    for place, number in zip(("before", "after"), units, strict=True):
        found[f"{place}_ms"] = joined[f"ns_{place}"] / 1e6 / number
    old, new = found["before_ms"], found["after_ms"]
    found["delta_ms"] = new - old
    found["ratio"] = np.where(old > 0, new / old.where(old > 0, 1.0), np.nan)
    total = float(found["delta_ms"].abs().sum())
    found["change_share"] = found["delta_ms"].abs() / total if total else 0.0
    found["per"] = "step" if stepped else "trace"
    found.insert(len(keys), "change", _change(found))
    order = found["delta_ms"].abs().sort_values(ascending=False, kind="stable").index
    totals = []
    if by == "path":
        totals = ["total_delta_ms"]
        found["total_delta_ms"] = _with_contents(found["path"].tolist(), found["delta_ms"].tolist())
    return found.loc[order, [*keys, *COLUMNS, *totals]].reset_index(drop=True)


def _with_contents(paths: Sequence[str], deltas: Sequence[float]) -> list[float]:
    sums: dict[str, float] = {}
    for path, delta in zip(paths, deltas, strict=True):
        names = path.split(BETWEEN)
        for depth in range(1, len(names) + 1):
            above = BETWEEN.join(names[:depth])
            sums[above] = sums.get(above, 0.0) + delta
    return [sums[path] for path in paths]


def _change(found: "pd.DataFrame") -> list[str]:
    columns = ("calls_before", "calls_after", "delta_ms")
    words = []
    for had, has, delta in zip(*(found[name].tolist() for name in columns), strict=True):
        moved = "slower" if delta > 0 else "faster" if delta < 0 else "same"
        words.append("added" if not had else "removed" if not has else moved)
    return words


def _work(side: Sequence[Timeline], on_gpu: bool, keys: list[str]) -> "pd.DataFrame":
    import pandas as pd

    parts = []
    if keys == ["path"]:
        places = module_rows(side)
        calls = places["calls"].where(places["calls"] > 0, places["kernels"])
        whole = (places["own_ms"] * len(side) * 1e6).round().astype("int64")
        return places[["path"]].assign(calls=calls, ns=whole).groupby(keys, sort=False).sum().reset_index()
    for timeline in side:
        if on_gpu:
            rows = kernel_rows(timeline)
            parts.append(rows[["name", "family", "calls"]].assign(ns=(rows["total_ms"] * 1e6).round().astype("int64")))
        else:
            parts.append(operator_rows(timeline).rename(columns={"self_ns": "ns"}))
    joined = pd.concat(parts) if parts else empty({"name": "str", "family": "str", "calls": "int64", "ns": "int64"})
    return joined.groupby(keys, sort=False)[["calls", "ns"]].sum().reset_index()


_EACH: tuple[By, ...] = ("family", "name", "path")
# Relative change of the step time above which a change counts, unless another one is asked for. One recording per side
# says nothing of how processes differ: more than of runs is asked for.
THRESHOLD = 0.05
_KINDS = ("span", "busy", "compute", "exposed_communication", "exposed_memory", "idle")
# Fields of a trial that change nothing of what a step does.
_NOT_THE_WORK = ("round", "min_steps", "max_steps", "max_seconds", "relative_half_width", "memory_limit_bytes")


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """What changed from a first recording to a second one."""

    per: str
    """What times are of: "step" (the median marked step, the slowest rank's), or "trace" where a side marks no step."""
    before_ms: float
    """Time of one on the first side."""
    after_ms: float
    """Time of one on the second side."""
    ratio: float
    """after / before."""
    threshold: float
    time: "pd.DataFrame"
    """kind of time, before_ms, after_ms, delta_ms, ratio: per step and rank, the mean over ranks."""
    families: "pd.DataFrame"
    """trace_diff by family."""
    kernels: "pd.DataFrame"
    """trace_diff by name."""
    places: "pd.DataFrame"
    """trace_diff by path."""
    differences: tuple[str, ...]
    """What else differs: settings, devices, ranks; one sentence each. Then it is not the kernels alone that changed."""

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
    """Compare two recordings of the same work.

    One recording per side says what changed in it; a process can be slow as a whole, which only repeated runs show.

    Args:
        before: ranks of the first side.
        after: ranks of the second side.
        threshold: relative change of the step time above which a change counts.
        trials: what each is a recording of, where that is known: settings that differ are named.

    Raises:
        InputError: a side has no work or no length, or one is of a GPU and the other of a CPU.
        UsageError: the threshold is not above 0.
    """
    if not threshold > 0:
        raise UsageError("option-value", f"--threshold {threshold} is not above 0: give a fraction such as 0.05")
    families, kernels, places = (trace_diff(before, after, by) for by in _EACH)
    stepped = all(len(found.steps) for found in (*before, *after))
    old, new = (_step_ms(side) if stepped else _span_ms(side) for side in (before, after))
    if old <= 0 or new <= 0:
        raise InputError(
            "trace-without-work",
            "the marked steps of a trace have zero duration: record it again",
        )
    return TraceComparison(
        per="step" if stepped else "trace",
        before_ms=old,
        after_ms=new,
        ratio=new / old,
        threshold=threshold,
        time=_time(before, after, stepped),
        families=families,
        kernels=kernels,
        places=places,
        differences=(*_settings(*trials), *_differences(before, after)),
    )


def _settings(before: Trial | None, after: Trial | None) -> Iterator[str]:
    if before is None or after is None:
        return
    same_data = before.data_fingerprint and before.data_fingerprint == after.data_fingerprint
    for name in (field.name for field in fields(Trial)):
        one, other = getattr(before, name), getattr(after, name)
        if one != other and name not in _NOT_THE_WORK and not (name == "data" and same_data):
            yield f"{name}: {_shown(one)} and {_shown(other)}"


def _shown(value: object) -> str:
    values = value if isinstance(value, tuple) else (value,)
    return " ".join(str(each) for each in values if each is not None) or "none"


def _differences(before: Sequence[Timeline], after: Sequence[Timeline]) -> Iterator[str]:
    for what, facts in (
        ("devices", [sorted({name for found in side for name in found.devices.values()}) for side in (before, after)]),
        ("ranks in the trace", [[str(len(side))] for side in (before, after)]),
        (
            "kernels and copies launched before the recording (in the times above, not in the tables of kernels)",
            [[str(sum(map(before_recording, side)))] for side in (before, after)],
        ),
        ("ranks of the job", [sorted({str(found.world_size) for found in side}) for side in (before, after)]),
    ):
        one, other = (", ".join(names) or "not named" for names in facts)
        if one != other:
            yield f"{what}: {one} and {other}"


def _step_ms(side: Sequence[Timeline]) -> float:
    """A step's time is the slowest rank's; the median over steps."""
    import pandas as pd

    lengths = pd.concat([found.steps.assign(ns=found.steps["end"] - found.steps["start"]) for found in side])
    return float(np.median(lengths.groupby("step")["ns"].max())) / 1e6


def _span_ms(side: Sequence[Timeline]) -> float:
    spans = [found.span_ns for timeline in side if (found := temporal_breakdown(timeline, "kernels")) is not None]
    if not spans or max(spans) <= 0:
        raise InputError("trace-without-work", "a trace marks no step and its work has zero duration: record it again")
    return max(spans) / 1e6


def _time(before: Sequence[Timeline], after: Sequence[Timeline], stepped: bool) -> "pd.DataFrame":
    import pandas as pd

    sides = []
    for side in (before, after):
        found = [row for timeline in side if (row := temporal_breakdown(timeline, "steps" if stepped else "kernels"))]
        sums = dict.fromkeys(_KINDS, 0.0)
        for row in found:
            for kind in _KINDS:
                sums[kind] += float(getattr(row, f"{kind}_ns")) / max(1, row.steps) / len(found)
        sides.append(sums)
    old, new = ([sums[kind] / 1e6 for kind in _KINDS] for sums in sides)
    frame = pd.DataFrame({"time": [kind.replace("_", " ") for kind in _KINDS], "before_ms": old, "after_ms": new})
    frame["delta_ms"] = frame["after_ms"] - frame["before_ms"]
    frame["ratio"] = frame["after_ms"] / frame["before_ms"].where(frame["before_ms"] > 0)
    return frame
