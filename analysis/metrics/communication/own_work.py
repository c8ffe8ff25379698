"""The own work of devices in measured steps, and that of the slowest of more devices than were measured.

Own work is the time of a step less exposed communication. A step waits for the slowest of N devices: if they vary
independently, the median of the largest of N works is the 0.5^(1/N) quantile of one device's.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from analysis.load import LoadedTrial
from analysis.metrics.comparison.ratio import Spread, by_key
from analysis.metrics.statistics import drawn_blocks

FloatArray = npt.NDArray[np.float64]

_DRAWS_AT_ONCE = 100
# Whatever the distribution, half of the estimates are too low: Hyndman and Fan 1996, "Sample quantiles in statistical
# packages", American Statistician 50(4), number 8. The usual one lies too low in the tails of few steps.
_QUANTILE: Final = "median_unbiased"


class Base:
    """The measured steps of a configuration: rounds of it on one number of devices."""

    def __init__(self, members: Sequence[LoadedTrial]) -> None:
        self.ranks = members[0].trial.world_size
        self.works = [_works(trial) for trial in members]
        """[steps, ranks] of each round, in ms."""
        self.steps = [trial.window_times() for trial in members]
        """[steps] of each round, in ms."""
        self.samples = float(np.median([trial.row["samples_per_step"] for trial in members])) / self.ranks
        """Samples of a step, per device."""
        self.levels = np.array([np.median(work) for work in self.works])
        """Typical own work of each round, in ms."""

    @property
    def typical(self) -> float:
        """Typical own work: the median over rounds."""
        return float(np.median(self.levels))

    @property
    def step_ms(self) -> float:
        """Typical step: the median over rounds."""
        return float(np.median([np.median(times) for times in self.steps]))

    def slower(self, size: int) -> float:
        """How many times as long as a typical device the slowest of `size` takes, by their steps within a round."""
        pooled = np.concatenate([(work / np.median(work)).ravel() for work in self.works])
        return float(np.quantile(pooled, _place(size), method=_QUANTILE))


def _place(size: int) -> float:
    """Of which quantile of one device's work the median of the largest of `size` is."""
    return float(0.5 ** (1 / size))


def drawn_works(
    base: Base, size: int, count: int, between: Spread | None, random: np.random.Generator
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """[count] each: typical work in ms, how much slower the slowest is, and the step of the base in ms.

    Blocks of steps are drawn within each round. Rounds differ as a whole too: with several, their mean is uncertain as
    Student's t says; with one, by what equal trials elsewhere in the run differ, where there are any.
    """
    rounds = len(base.works)
    slower, levels, step_ms = np.empty(count), np.empty(count), np.empty(count)
    for begin in range(0, count, _DRAWS_AT_ONCE):
        number = min(_DRAWS_AT_ONCE, count - begin)
        pooled, medians, steps = [], [], []
        for work, times in zip(base.works, base.steps, strict=True):
            rows = drawn_blocks(min(len(work), len(times)), number, random)
            drawn = work[rows].reshape(number, -1)
            medians.append(np.median(drawn, axis=1))
            steps.append(np.median(times[rows], axis=1))
            pooled.append(drawn / medians[-1][:, None])
        part = slice(begin, begin + number)
        smooth = _smoothed(np.concatenate(pooled, axis=1), random)
        slower[part] = np.quantile(smooth, _place(size), axis=1, method=_QUANTILE)
        levels[part], step_ms[part] = np.median(medians, axis=0), np.median(steps, axis=0)
    own = Spread.of([base.levels]) if rounds > 1 else between
    if own is not None:
        # One machine, one process: the base would have been as much slower or faster.
        factor = np.exp(own.deviation / np.sqrt(rounds) * random.standard_t(own.degrees, count))
        levels, step_ms = levels * factor, step_ms * factor
    return levels, slower, step_ms


def _smoothed(values: FloatArray, random: np.random.Generator) -> FloatArray:
    """Return [draws, values] with normal noise added and the spread of each draw kept.

    No sample holds anything beyond its largest value, which the slowest of many devices may well reach: a smoothed
    bootstrap, whose bandwidth is Silverman's (1986, "Density Estimation", 3.31 and 6.4.1).
    """
    mean, deviation = values.mean(axis=1, keepdims=True), values.std(axis=1, keepdims=True)
    low, high = np.percentile(values, (25, 75), axis=1)
    bandwidth = 0.9 * np.minimum(deviation, (high - low)[:, None] / 1.34) * values.shape[1] ** -0.2
    kept = deviation / np.maximum(np.hypot(deviation, bandwidth), np.finfo(float).tiny)
    noise = bandwidth * random.standard_normal(values.shape)
    return np.asarray(mean + (values - mean + noise) * kept, dtype=np.float64)


def between_processes(trials: Sequence[LoadedTrial], like: LoadedTrial) -> Spread | None:
    """How equal trials on this device differ; None where none was repeated."""
    groups = by_key([trial for trial in trials if trial.trial.device == like.trial.device]).values()
    levels = [np.array([np.median(trial.window_times()) for trial in rounds]) for rounds in groups]
    repeated = [rounds for rounds in levels if len(rounds) > 1]
    return Spread.of(repeated) if repeated else None


def _works(trial: LoadedTrial) -> FloatArray:
    """[steps, ranks]: own work in ms of each rank in each step of the window."""
    start, stop = trial.row["window_start"], trial.row["window_stop"]
    columns = []
    for rank in trial.directory.ranks():
        rows = [row for row in trial.directory.read_steps(rank) if start <= row["step"] < stop]
        columns.append([row["step_time_ms"] - (row["communication_ms"] or 0.0) for row in rows])
    shortest = min(map(len, columns))
    return np.array([column[:shortest] for column in columns], dtype=np.float64).T
