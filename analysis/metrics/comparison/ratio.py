"""The ratio of two sides measured in several processes, its interval, what it decides, and which side is the fastest.

One rule for comparisons, searches, files, the terminal and the page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.metrics.statistics import (
    CONFIDENCE,
    block_medians,
    block_times_per_sample,
    median_interval,
    student_quantile,
    tails,
    time_per_sample,
    time_per_sample_interval,
    welch_error,
)
from common.errors import UsageError

# Measuring fewer processes than this per side decides nothing by itself.
FEWEST_PROCESSES = 3
# Two sides are called equally fast when the whole interval of their ratio is this near to 1.
EQUIVALENT = 0.05
# Relative change of the step time above which a change counts, unless another one is asked for.
THRESHOLD = 0.02
# With fewer per side a bootstrap over processes is too narrow.
FEW_PROCESSES = 10

_Level = tuple[
    Callable[[np.ndarray], Any],
    Callable[[np.ndarray, int, np.random.Generator], np.ndarray],
    Callable[[np.ndarray], tuple[float, float]],
]
"""How fast a process was, the same of drawn blocks of its steps, and the interval of one process."""
_STEP_TIME: _Level = (np.median, block_medians, median_interval)
_TIME_PER_SAMPLE: _Level = (time_per_sample, block_times_per_sample, time_per_sample_interval)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two sides, or what is typical of one side, with its 95 % interval."""

    value: float
    low: float
    high: float


def ratio_columns(name: str, ratio: Ratio | None) -> dict[str, float | None]:
    """Return a ratio as NAME, NAME_low and NAME_high of a row, all None without one."""
    values = (None, None, None) if ratio is None else (ratio.value, ratio.low, ratio.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def ratio_interval(a: Sequence[np.ndarray], b: Sequence[np.ndarray], resamples: int = 2000) -> Ratio:
    """Return b's typical step time relative to a's, with its 95 % interval, of a hierarchical bootstrap.

    Processes are resampled first, and blocks of steps within each drawn process second (Kalibera and Jones 2013,
    "Rigorous benchmarking in reasonable time", ISMM). A side's value is the median of its processes' medians.

    Below FEW_PROCESSES per side the interval also holds Welch's t interval of the difference of the mean logs of the
    processes' medians (statistics.welch_error). With one process per side it holds the noise within a run only.
    """
    return _estimate(_STEP_TIME, (b, a), resamples)


def rate_ratio(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> Ratio:
    """Return b's samples per second relative to a's, as `ratio_interval` does; a process is [2, steps]: samples, times.

    The rate of a process is its samples / their time, and that of a side the one of its median time per sample.
    """
    return _estimate(_TIME_PER_SAMPLE, (a, b))


def typical_time(processes: Sequence[np.ndarray]) -> Ratio:
    """Return the typical step time over processes with its 95 % interval, in the unit of the times.

    Of one process it is statistics.median_interval, and of one step its time. Raises UsageError without a step.
    """
    return _estimate(_STEP_TIME, (processes,))


def measured_rate(processes: Sequence[np.ndarray]) -> Ratio:
    """Return the typical samples per second over processes with its 95 % interval; see `rate_ratio`."""
    time = _estimate(_TIME_PER_SAMPLE, (processes,))
    return Ratio(1000 / time.value, 1000 / time.high, 1000 / time.low)


def _estimate(level: _Level, given: Sequence[Sequence[np.ndarray]], resamples: int = 2000) -> Ratio:
    """The level of the first side, relative to that of the second where there is one."""
    level_of, drawn_blocks, interval = level
    sides = [[process for process in side if process.size] for side in given]
    if not all(sides):
        raise UsageError("run-incomplete", "a ratio needs measured steps on both sides")
    levels = [np.array([level_of(process) for process in side], dtype=float) for side in sides]
    medians = [float(np.median(side)) for side in levels]
    value = medians[0] / medians[1] if len(sides) == 2 else medians[0]
    if len(sides) == len(sides[0]) == 1:
        low, high = interval(sides[0][0])
        return Ratio(value, low, high) if np.isfinite(low) else Ratio(value, value, value)
    random = np.random.default_rng(0)
    draws = []
    for side in sides:
        blocks = np.stack([drawn_blocks(process, resamples, random) for process in side])
        processes = random.integers(0, len(side), (len(side), resamples))
        within = random.integers(0, resamples, (len(side), resamples))
        draws.append(np.median(blocks[processes, within], axis=0))
    low, high = np.percentile(draws[0] / draws[1] if len(sides) == 2 else draws[0], tails())
    counts = [len(side) for side in sides]
    if min(counts) < FEW_PROCESSES and max(counts) > 1:
        logs = [np.log(side) for side in levels]
        center = float(logs[0].mean()) - (float(logs[1].mean()) if len(sides) == 2 else 0.0)
        error, freedom = welch_error(logs)
        margin = student_quantile(CONFIDENCE, freedom) * error if error else 0.0
        low, high = min(low, np.exp(center - margin)), max(high, np.exp(center + margin))
    # A median of few may lie outside of an interval around their mean.
    return Ratio(value, min(value, float(low)), max(value, float(high)))


def _undecidable(a: int, b: int, ratio: Ratio, spread: float | None, unit: str) -> str:
    """Return why so few processes cannot decide, "" where they can."""
    if min(a, b) >= FEWEST_PROCESSES:
        return ""
    rounds = f"one {unit} per side" if a == b == 1 else f"{min(a, b)} {unit}(s) on one side"
    if spread is None:
        return f"{rounds} and no known run-to-run spread: run at least three {unit}s"
    if max(ratio.value, 1 / ratio.value) - 1 <= spread:
        return f"{rounds}, and a difference within this machine's run-to-run spread of {100 * spread:.1f} %"
    return ""


def decision(a: int, b: int, ratio: Ratio, spread: float | None, unit: str = "round") -> tuple[str, str]:
    """Return what a ratio of two sides of so many processes decides, and why.

    yes: they differ | no: they are within EQUIVALENT of each other | cannot decide. `spread` is the known run-to-run
    spread of the machine, relative; `unit` is what a process is called where more are needed.
    """
    if reason := _undecidable(a, b, ratio, spread, unit):
        return "cannot decide", reason
    if ratio.low > 1 or ratio.high < 1:
        return "yes", "the 95 % interval excludes 1"
    if ratio.low > 1 - EQUIVALENT and ratio.high < 1 + EQUIVALENT:
        return "no", f"the whole 95 % interval is within {100 * EQUIVALENT:g} % of 1"
    return "cannot decide", f"the 95 % interval, {ratio.low:.2f} to {ratio.high:.2f}, contains 1; run more {unit}s"


def judged(ratio: Ratio, before: int, after: int, threshold: float, spread: float | None) -> tuple[str, str]:
    """Return verdict and reason of a ratio of step times, new / old, of so many processes before and after.

    regression: the 95 % interval is wholly above 1 + threshold; improvement: wholly below 1 - threshold; no change:
    wholly between; slower, quicker: it excludes 1 and reaches across the threshold; cannot decide: anything else.
    """
    percent = f"{100 * threshold:g} %"
    if reason := _undecidable(before, after, ratio, spread, "round"):
        return "cannot decide", reason
    if ratio.low > 1 + threshold:
        return "regression", f"slower by more than {percent}"
    if ratio.high < 1 - threshold:
        return "improvement", f"quicker by more than {percent}"
    if 1 - threshold <= ratio.low and ratio.high <= 1 + threshold:
        return "no change", f"within {percent}"
    if ratio.low > 1 or ratio.high < 1:
        reason = f"whether by more than {percent} is unknown; run more rounds to narrow the interval"
        return "slower" if ratio.low > 1 else "quicker", reason
    span = f"{100 * (ratio.low - 1):+.1f} to {100 * (ratio.high - 1):+.1f} %"
    reason = f"the change in step time, {span}, reaches across the threshold of {percent}; run more rounds"
    return "cannot decide", reason


@dataclass(frozen=True, slots=True)
class Candidate:
    """How fast a configuration was."""

    rates: tuple[float, ...]
    """Samples per second of each round (process) that ended well; at least one."""
    low: float
    """Lower end of the 95 % interval of samples/s, as far as one process shows it."""
    high: float

    @property
    def rate(self) -> float:
        """Typical samples per second, of `typical_rate`."""
        return typical_rate(self.rates)


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, by its place among the candidates."""

    best: int
    close: tuple[int, ...]
    """Others that may be as fast, the fastest first."""
    undecided: str
    """Why the choice of `best` is not conclusive; "" where it is."""


def typical_rate(rates: Sequence[float]) -> float:
    """Return the samples per second of the median time per sample, over rounds with these rates (at least one)."""
    return float(1 / np.median(1 / np.array(rates)))


def choose(candidates: Sequence[Candidate]) -> Choice:
    """Return the fastest candidate of at least one, and those that may be as fast: all that `apart` does not tell from
    it.

    The best has the highest rate among those with FEWEST_PROCESSES rounds (or as many as any has): a lucky round does
    not win against three. One with fewer rounds is the best only where the interval of its ratio to that one excludes
    1. The choice is undecided by the first of the others that `decision` leaves open.
    """
    enough = min(FEWEST_PROCESSES, max(len(candidate.rates) for candidate in candidates))
    places = sorted(range(len(candidates)), key=lambda place: -candidates[place].rate)
    best = next(place for place in places if len(candidates[place].rates) >= enough)
    ahead = places[: places.index(best)]
    best = next((place for place in ahead if apart(candidates[place], candidates[best])), best)
    close = [place for place in places if place != best and not apart(candidates[place], candidates[best])]
    others = [place for place in range(len(candidates)) if place != best]
    repeated = [one.rates for one in candidates if len(one.rates) >= FEWEST_PROCESSES]
    spread = max((max(rates) / min(rates) - 1 for rates in repeated), default=None)
    decisions = (_decision(candidates[best], candidates[place], spread) for place in (*close, *others))
    undecided = next((reason for verdict, reason in decisions if verdict == "cannot decide"), "")
    return Choice(best, tuple(close), undecided)


def apart(one: Candidate, other: Candidate) -> bool:
    """Return whether two candidates differ: the interval of their ratio over processes excludes 1.

    Of one process each, their own intervals must not overlap and their rates must be further apart than EQUIVALENT.
    """
    if len(one.rates) == len(other.rates) == 1:
        far = max(one.rate, other.rate) > (1 + EQUIVALENT) * min(one.rate, other.rate)
        return far and (one.high < other.low or other.high < one.low)
    ratio = _ratio(one, other)
    return ratio.low > 1 or ratio.high < 1


def decided(one: Candidate, other: Candidate) -> bool:
    """Return whether more rounds of both would say nothing new: they differ, or are equally fast."""
    return _decision(one, other, None)[0] != "cannot decide"


def _decision(one: Candidate, other: Candidate, spread: float | None) -> tuple[str, str]:
    return decision(len(one.rates), len(other.rates), _ratio(one, other), spread)


def _ratio(one: Candidate, other: Candidate) -> Ratio:
    times = [[np.array([1 / rate]) for rate in side.rates] for side in (one, other)]
    return ratio_interval(times[0], times[1])
