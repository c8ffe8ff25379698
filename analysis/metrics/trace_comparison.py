"""Two recordings held against each other: is a step slower, and which kinds of time and which kernels changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from analysis.metrics.temporal import temporal_breakdown
from analysis.metrics.trace_diff import trace_diff
from analysis.timeline import Timeline
from common.errors import InputError, UsageError
from records.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

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
    """Relative change that counts."""
    time: "pd.DataFrame"
    """kind of time, before_ms, after_ms, delta_ms, ratio: per step and rank, the mean over ranks."""
    families: "pd.DataFrame"
    """trace_diff by family."""
    kernels: "pd.DataFrame"
    """trace_diff by name."""
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
    families, kernels = trace_diff(before, after, "family"), trace_diff(before, after, "name")
    stepped = all(len(found.steps) for found in (*before, *after))
    old, new = (_step_ms(side) if stepped else _span_ms(side) for side in (before, after))
    if old <= 0 or new <= 0:
        raise InputError(
            "trace-without-work",
            "the marked steps of a trace have no length: there is no time to compare; record it again",
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
        raise InputError(
            "trace-without-work", "a trace marks no step and its work has no length: there is no time to compare"
        )
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
