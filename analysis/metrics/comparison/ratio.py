"""The ratio of two sides measured in several processes, its interval, and how many processes decide."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from analysis.load import Key, LoadedTrial, circumstances
from analysis.metrics.cautions import disturbance
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
# With fewer per side a bootstrap over processes is too narrow.
FEW_PROCESSES = 10


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two sides, or what is typical of one side, with its 95 % interval."""

    value: float
    low: float
    high: float


class _Level(NamedTuple):
    """How fast a process was, and the same of drawn blocks of its steps."""

    of: Callable[[np.ndarray], float]
    of_blocks: Callable[[np.ndarray, int, np.random.Generator], np.ndarray]
    interval: Callable[[np.ndarray], tuple[float, float]]


_STEP_TIME = _Level(lambda times: float(np.median(times)), block_medians, median_interval)
_TIME_PER_SAMPLE = _Level(time_per_sample, block_times_per_sample, time_per_sample_interval)


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


def measured_rate(trials: Sequence[LoadedTrial]) -> Ratio:
    """Return the typical samples per second over rounds with its 95 % interval; see `rate_ratio`."""
    time = _estimate(_TIME_PER_SAMPLE, ([trial.window_work() for trial in trials],))
    return Ratio(1000 / time.value, 1000 / time.high, 1000 / time.low)


def _estimate(level: _Level, given: Sequence[Sequence[np.ndarray]], resamples: int = 2000) -> Ratio:
    """The level of the first side, relative to that of the second where there is one."""
    sides = [[process for process in side if process.size] for side in given]
    if not all(sides):
        raise UsageError("run-incomplete", "a ratio needs measured steps on both sides")
    levels = [np.array([level.of(process) for process in side]) for side in sides]
    medians = [float(np.median(side)) for side in levels]
    value = medians[0] / medians[1] if len(sides) == 2 else medians[0]
    if len(sides) == len(sides[0]) == 1:
        low, high = level.interval(sides[0][0])
        return Ratio(value, low, high) if np.isfinite(low) else Ratio(value, value, value)
    random = np.random.default_rng(0)
    drawn = [_drawn(level, side, resamples, random) for side in sides]
    low, high = np.percentile(drawn[0] / drawn[1] if len(sides) == 2 else drawn[0], tails())
    counts = [len(side) for side in sides]
    if min(counts) < FEW_PROCESSES and max(counts) > 1:
        logs = [np.log(side) for side in levels]
        center = float(logs[0].mean()) - (float(logs[1].mean()) if len(sides) == 2 else 0.0)
        error, freedom = welch_error(logs)
        margin = student_quantile(CONFIDENCE, freedom) * error if error else 0.0
        low, high = min(low, np.exp(center - margin)), max(high, np.exp(center + margin))
    # A median of few may lie outside of an interval around their mean.
    return Ratio(value, min(value, float(low)), max(value, float(high)))


def _drawn(level: _Level, processes: Sequence[np.ndarray], resamples: int, random: np.random.Generator) -> np.ndarray:
    """Return [resamples] medians over drawn processes, each the level of drawn blocks of its steps."""
    levels = np.stack([level.of_blocks(process, resamples, random) for process in processes])
    count = len(processes)
    drawn = random.integers(0, count, (count, resamples))
    within = random.integers(0, resamples, (count, resamples))
    return np.asarray(np.median(levels[drawn, within], axis=0))


def run_spread(*runs: Sequence[LoadedTrial]) -> float | None:
    """Return the largest (slowest / quickest - 1) of equal trials repeated at least three times within a run."""
    repeated = [group for run in runs for group in by_key(run).values() if len(group) >= FEWEST_PROCESSES]
    times = [[float(trial.row["step_time_ms"]) for trial in group] for group in repeated]
    return max((max(group) / min(group) - 1 for group in times), default=None)


def by_key(
    trials: Sequence[LoadedTrial], without: Sequence[str] = (), kind: str = "throughput", failed: bool = False
) -> dict[Key, list[LoadedTrial]]:
    """Return the trials of a kind that repeat each other, by what they have in common; `failed` ones too."""
    groups: dict[Key, list[LoadedTrial]] = defaultdict(list)
    for trial in trials:
        if trial.trial.kind == kind and (trial.ok or failed):
            groups[(*circumstances(trial.row), *trial.key(without))].append(trial)
    return groups


def undecidable(a: int, b: int, change: float, spread: float | None) -> str | None:
    """Return why so few processes cannot decide, or None where they can."""
    if min(a, b) >= FEWEST_PROCESSES:
        return None
    rounds = "one round per side" if a == b == 1 else f"{min(a, b)} round(s) on one side"
    if spread is None:
        return f"{rounds} and no known run-to-run spread: run at least three rounds"
    if change <= spread:
        return f"{rounds}, and a difference within this machine's run-to-run spread of {100 * spread:.1f} %"
    return None


def disturbed_side(a: Sequence[LoadedTrial], b: Sequence[LoadedTrial]) -> str | None:
    """Return why two sides cannot be compared: at least half of the rounds of one of them alone were disturbed."""
    messages = []
    for side in (a, b):
        seen = [message for trial in side if (message := disturbance(trial.row.get("cautions") or []))]
        messages.append(seen[0] if seen and 2 * len(seen) >= len(side) else "")
    if all(messages) or not any(messages):
        return None
    return f"the machine was disturbed on one side only: {messages[0] or messages[1]}; measure both when it is idle"


def decision(a: int, b: int, ratio: Ratio, spread: float | None) -> tuple[str, str]:
    """Return what a ratio of two sides of so many processes decides, and why.

    yes: they differ | no: they are within EQUIVALENT of each other | cannot decide.
    """
    reason = undecidable(a, b, max(ratio.value, 1 / ratio.value) - 1, spread)
    if reason is not None:
        return "cannot decide", reason
    if ratio.low > 1 or ratio.high < 1:
        return "yes", "the 95 % interval excludes 1"
    if ratio.low > 1 - EQUIVALENT and ratio.high < 1 + EQUIVALENT:
        return "no", f"the whole 95 % interval is within {100 * EQUIVALENT:g} % of 1"
    return "cannot decide", f"the 95 % interval, {ratio.low:.2f} to {ratio.high:.2f}, contains 1; run more rounds"


def samples_seen(trials: Sequence[LoadedTrial]) -> bool:
    """Whether the samples of a step are known: those of a script are where its DataLoader shows them."""
    return all(trial.trial.kind != "measure" or trial.row.get("samples_per_step") for trial in trials)
