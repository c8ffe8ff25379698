"""The ratio of two sides measured in several processes, its interval, and how many processes decide."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.load import Key, LoadedTrial
from analysis.metrics.statistics import block_medians
from common.errors import UsageError

# Measuring fewer processes than this per side decides nothing by itself.
FEWEST_PROCESSES = 3


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two medians with its 95 % interval."""

    value: float
    """Median over b's processes of their median, divided by the same of a."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""


def ratio_interval(
    a: Sequence[np.ndarray],
    b: Sequence[np.ndarray],
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Ratio:
    """Return b's typical step time relative to a's, with a hierarchical bootstrap interval.

    A process may be fast or slow as a whole, so processes are resampled first and blocks of steps within each drawn
    process second (Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time", ISMM; the blocks are those of
    statistics.block_medians). A side's value is the median of its processes' medians. With one process per side the
    interval holds the noise within a run only.

    Args:
        a: step times of each process of the reference side, any unit.
        b: likewise of the other side, in the same unit.

    Raises:
        UsageError: a side has no process with a step.
    """
    a, b = [x for x in a if len(x)], [x for x in b if len(x)]
    if not a or not b:
        raise UsageError("a ratio needs measured steps on both sides")
    random = np.random.default_rng(seed)
    ratios = _side(b, resamples, random) / _side(a, resamples, random)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(ratios, (tail, 100.0 - tail))
    value = np.median([np.median(x) for x in b]) / np.median([np.median(x) for x in a])
    return Ratio(float(value), float(low), float(high))


def _side(processes: Sequence[np.ndarray], resamples: int, random: np.random.Generator) -> np.ndarray:
    """[resamples] medians over drawn processes."""
    medians = np.stack([block_medians(times, resamples, random) for times in processes])
    count = len(processes)
    drawn = random.integers(0, count, (count, resamples))
    within = random.integers(0, resamples, (count, resamples))
    return np.asarray(np.median(medians[drawn, within], axis=0))


def run_spread(*runs: Sequence[LoadedTrial]) -> float | None:
    """Return the largest (slowest / quickest - 1) of equal trials repeated at least three times within a run."""
    spreads = []
    for run in runs:
        for trials in by_key(run).values():
            medians = [float(trial.row["step_time_ms"]) for trial in trials]
            if len(medians) >= FEWEST_PROCESSES:
                spreads.append(max(medians) / min(medians) - 1)
    return max(spreads, default=None)


def by_key(trials: Sequence[LoadedTrial], without: Sequence[str] = ()) -> dict[Key, list[LoadedTrial]]:
    """Return the measured throughput trials that repeat each other, by what they have in common."""
    groups: dict[Key, list[LoadedTrial]] = defaultdict(list)
    for trial in trials:
        if trial.ok and trial.trial.kind == "throughput":
            groups[(*circumstances(trial), *trial.key(without))].append(trial)
    return groups


def circumstances(trial: LoadedTrial) -> Key:
    """What else has to agree within a run: a folder may hold several sweeps."""
    values = trial.trial
    return (
        values.data,
        values.data_fingerprint,
        values.max_predictions,
        values.vocab_size,
        values.dropout,
        values.seed,
        values.threads_per_rank,
        values.start_iteration,
        values.stop_iteration,
    )


def undecidable(a: int, b: int, change: float, spread: float | None) -> str | None:
    """Return why so few processes cannot decide, or None where they can."""
    if min(a, b) >= FEWEST_PROCESSES:
        return None
    rounds = "one round per side" if a == b == 1 else f"{min(a, b)} round(s) on one side"
    if spread is None:
        return f"{rounds}, and this machine's run-to-run spread is not known; three rounds or more decide"
    if change <= spread:
        return f"{rounds}, and the difference is within this machine's run-to-run spread of {100 * spread:.1f} %"
    return None


def typical_time(processes: Sequence[np.ndarray], resamples: int = 2000, seed: int = 0) -> Ratio:
    """Return the typical step time over processes with its 95 % interval, in the unit of the times.

    The same hierarchical bootstrap as `ratio_interval`, of one side. Raises UsageError where no process has a step.
    """
    return ratio_interval([np.ones(1)], processes, resamples=resamples, seed=seed)
