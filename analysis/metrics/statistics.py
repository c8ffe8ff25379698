"""Statistics of step times: the end of warm-up, the median and how well it is known. Needs numpy only."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Times = Sequence[float] | FloatArray

CONFIDENCE = 0.95
"""Probability that an interval of the suite holds what it is of."""

# Leading steps this many times the median are warm-up, whatever else varies: compilation, allocation, caches.
_FAR_ABOVE_MEDIAN = 3.0
# A step this many robust standard deviations from the settled level does not belong to it.
_UNSETTLED_DEVIATIONS = 2.0
# Beyond twice that a step's size says nothing more: one long pause must not decide where warm-up ends.
_CLIP = 2.0
# A clock's own jitter: a series steadier than this, relative to its level, is treated as this steady.
_SMALLEST_RELATIVE_DEVIATION = 1e-3
# One long pause must not determine the correlation.
_CORRELATION_CLIP = 3.0
# Nearer to 1 a series is a walk, of which no length says where its median is.
_LARGEST_CORRELATION = 0.98


def warmup_steps(times_ms: Times) -> int:
    """Return how many leading steps are warm-up and have to be left out, at most half of them.

    Leading steps above three times the median of all are left out first. For the rest the rule is MSER (White 1997, "An
    effective truncation heuristic for bias reduction in simulation output", Simulation 69(6)): drop the first d steps,
    with the d that minimizes var(rest) / len(rest). Step times are clipped around the level of the second half (median
    and robust deviation), and d counts only if most of those d steps lie apart from that level, all on one side.
    """
    times = np.asarray(times_ms, dtype=np.float64)
    if len(times) == 0:
        return 0
    far_above = times > _FAR_ABOVE_MEDIAN * np.median(times)
    first = int(np.argmin(far_above))
    return first + _truncation(times[first:], len(times) // 2 - first)


def _truncation(times: FloatArray, most: int) -> int:
    """Return how many of the first `most` steps MSER leaves out."""
    if most <= 0:
        return 0
    settled = times[most:]
    level = float(np.median(settled))
    deviation = max(robust_deviation(settled), _SMALLEST_RELATIVE_DEVIATION * abs(level))
    if deviation == 0.0:
        return 0
    distances = (times - level) / deviation
    # The deviation of a few values is itself uncertain: ask for more before calling a step unsettled.
    apart = _UNSETTLED_DEVIATIONS * (1 + 3 / len(settled))
    scores = np.clip(distances, -_CLIP * apart, _CLIP * apart)
    left = len(times) - np.arange(most + 1)
    tail_sum = np.cumsum(scores[::-1])[::-1][: most + 1]
    tail_squares = np.cumsum(scores[::-1] ** 2)[::-1][: most + 1]
    # Rounding can take a variance of nought below it.
    error = np.maximum(tail_squares - tail_sum**2 / left, 0.0) / left.astype(np.float64) ** 2
    slow = np.cumsum(distances[:most] > apart)
    fast = np.cumsum(distances[:most] < -apart)
    allowed = np.concatenate(([True], 2 * np.maximum(slow, fast) > np.arange(1, most + 1)))
    # The error is flat near its minimum: of ends as good, up to one barely unsettled step, take the earliest.
    good = allowed & (error <= error[allowed].min() * (1 + _UNSETTLED_DEVIATIONS**2 / len(times)))
    return int(np.argmax(good))


def robust_deviation(values: Times) -> float:
    """Return an estimate of the standard deviation that outliers do not move.

    The larger of 1.4826 x the median absolute deviation and half the distance of the 16th and 84th percentile: the
    second one still sees a spread where most values are equal.
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) == 0:
        return 0.0
    low, middle, high = np.percentile(array, (15.87, 50.0, 84.13))
    return max(1.4826 * float(np.median(np.abs(array - middle))), float(high - low) / 2)


def block_medians(times: Times, resamples: int, random: np.random.Generator) -> FloatArray:
    """Return [resamples] medians of moving-block bootstrap samples of `times`, in their unit.

    Steps that follow each other are alike, so blocks of n^(1/3) steps are drawn (Kuensch 1989, "The jackknife and the
    bootstrap for general stationary observations", Annals of Statistics 17(3)).
    """
    array = np.asarray(times, dtype=np.float64)
    length, starts = _block_starts(len(array), resamples, random)
    drawn = array[starts[:, :, None] + np.arange(length)].reshape(resamples, -1)
    return np.asarray(np.median(drawn, axis=1), dtype=np.float64)


def block_times_per_sample(work: FloatArray, resamples: int, random: np.random.Generator) -> FloatArray:
    """Return [resamples] times per sample of blocks drawn as those of `block_medians`; `work` is [2, steps]: samples,
    times.
    """
    length, starts = _block_starts(work.shape[1], resamples, random)
    sums = np.concatenate((np.zeros((2, 1)), np.cumsum(work, axis=1)), axis=1)
    samples, times = (sums[:, starts + length] - sums[:, starts]).sum(axis=2)
    with np.errstate(divide="ignore"):  # blocks without a sample
        return np.asarray(times / samples, dtype=np.float64)


def _block_starts(size: int, resamples: int, random: np.random.Generator) -> tuple[int, npt.NDArray[np.int64]]:
    """Length of a block, and [resamples, blocks] where they begin."""
    length = max(1, round(size ** (1 / 3)))
    return length, random.integers(0, size - length + 1, (resamples, -(-size // length)))


def median_interval(times: Times, resamples: int = 1000) -> tuple[float, float]:
    """Return the 95 % interval (low, high) of the median, in the unit of `times`; (nan, nan) below two values.

    It holds the percentiles of `block_medians`, which alone are too narrow for few steps, and `order_interval`.
    """
    if len(times) < 2:
        return (float("nan"), float("nan"))
    medians = block_medians(times, resamples, np.random.default_rng(0))
    low, high = np.percentile(medians, tails())
    lowest, highest = order_interval(times)
    return (min(float(low), lowest), max(float(high), highest))


def time_per_sample(work: FloatArray) -> float:
    """Return total time / total samples, of [2, steps]: samples and time of each step."""
    samples, time = work.sum(axis=1)
    return float(time / samples)


def time_per_sample_interval(work: FloatArray, resamples: int = 1000) -> tuple[float, float]:
    """Return the 95 % interval (low, high) of `time_per_sample`; (nan, nan) of one step.

    It holds the percentiles of `block_times_per_sample`, which alone are too narrow for few steps, and Student's t
    interval of the logarithm: the variance of a ratio of sums is that of the residuals time - ratio x samples (Cochran
    1977, "Sampling techniques", chapter 6), over as many steps as are independent.
    """
    size = work.shape[1]
    if size < 2:
        return (float("nan"), float("nan"))
    low, high = np.percentile(block_times_per_sample(work, resamples, np.random.default_rng(0)), tails())
    ratio = time_per_sample(work)
    residuals = work[1] - ratio * work[0]
    correlation = _neighbour_correlation(residuals)
    independent = max(size * (1 - correlation) / (1 + correlation), 2.0)
    deviation = float(residuals.std(ddof=1)) / float(work[1].mean())
    margin = student_quantile(CONFIDENCE, independent - 1) * deviation / np.sqrt(independent)
    return (min(float(low), ratio * float(np.exp(-margin))), max(float(high), ratio * float(np.exp(margin))))


def tails() -> tuple[float, float]:
    """Return the percentiles between which CONFIDENCE of all draws lie."""
    tail = 50.0 * (1.0 - CONFIDENCE)
    return tail, 100.0 - tail


def order_interval(times: Times) -> tuple[float, float]:
    """Return the 95 % interval of the median between two of the sorted values (at least one), in their unit.

    How many of n independent values lie below their median is binomial; between adjacent ranks Hettmansperger and
    Sheather interpolate (1986, "Confidence intervals based on interpolated order statistics", Statistics & Probability
    Letters 4(2)). The ranks' distance from the middle grows by the root of `steps_per_independent_one`. Below 6 values
    even their smallest and largest do not reach 95 %.
    """
    ordered = np.sort(np.asarray(times, dtype=np.float64))
    size = len(ordered)
    middle = (size + 1) / 2
    reach = (middle - _outer_rank(size)) * np.sqrt(steps_per_independent_one(times))
    low, high = np.interp((middle - reach, middle + reach), np.arange(1, size + 1), ordered)
    return (float(low), float(high))


def _outer_rank(size: int) -> float:
    """Return the rank, from 1 and between whole ones, from which to the same rank from the end the interval reaches."""
    if size < 2:
        return 1.0
    ranks = np.arange(1, size // 2 + 1)
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, size + 1)))))
    # P(fewer than `rank` of `size` values lie below the median), and the same above it.
    fewer = np.cumsum(np.exp(logs[size] - logs[ranks - 1] - logs[size - ranks + 1] - size * np.log(2.0)))
    held = 1.0 - 2.0 * fewer
    rank = max(1, int(np.count_nonzero(held >= CONFIDENCE)))
    if held[rank - 1] < CONFIDENCE or rank == len(held):
        return float(rank)
    share = (held[rank - 1] - CONFIDENCE) / (held[rank - 1] - held[rank])
    return float(rank + (size - rank) * share / (rank + (size - 2 * rank) * share))


def steps_per_independent_one(times: Times) -> float:
    """Return how many successive values say as much about the median as one independent one, at least 1.

    With lag-1 correlation r of an AR(1) process the variance of the number of normal values below the median grows by 1
    + 2 sum over k of 2 / pi asin(r^k).
    """
    powers = _neighbour_correlation(times) ** np.arange(1, len(times))
    return 1.0 + 4.0 / np.pi * float(np.arcsin(powers).sum())


def _neighbour_correlation(values: Times) -> float:
    """Return the lag-1 correlation, at least 0, of the values clipped at 3 robust standard deviations.

    The bias of short series, (1 + 3 r) / n, is put back (Marriott and Pope 1954, "Bias in the estimation of
    autocorrelations", Biometrika 41).
    """
    array = np.asarray(values, dtype=np.float64)
    deviation = robust_deviation(array)
    if len(array) < 3 or deviation == 0.0:
        return 0.0
    scores = np.clip((array - np.median(array)) / deviation, -_CORRELATION_CLIP, _CORRELATION_CLIP)
    scores -= scores.mean()
    lag = float(scores[1:] @ scores[:-1]) / float(scores @ scores)
    return max(0.0, min(lag + (1.0 + 3.0 * max(lag, 0.0)) / len(array), _LARGEST_CORRELATION))


def student_quantile(confidence: float, degrees: float) -> float:
    """Return t such that a Student t variable lies in [-t, t] with probability `confidence`.

    With x = sqrt(degrees) tan(angle) the density becomes cos(angle)^(degrees - 1), whose integral is inverted.
    """
    angles = np.linspace(0.0, np.pi / 2, 20001)
    density = np.cos(angles) ** (degrees - 1)
    mass = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    return float(np.sqrt(degrees) * np.tan(np.interp(confidence * mass[-1], mass, angles)))


def welch_error(sides: Sequence[Times]) -> tuple[float, float]:
    """Return the standard error of one mean or of the difference of two, and its degrees of freedom (nan of an error of
    0).

    Welch 1947, "The generalization of Student's problem when several different population variances are involved",
    Biometrika 34. A side of one value is taken to vary as the other does.
    """
    known = [float(np.var(side, ddof=1)) for side in sides if len(side) > 1]
    spread = [float(np.var(side, ddof=1)) if len(side) > 1 else known[0] for side in sides]
    parts = [one / len(side) for one, side in zip(spread, sides, strict=True)]
    variance = sum(parts)
    if variance == 0:
        return 0.0, float("nan")
    if len(known) < len(sides):  # one variance stands for both sides
        return float(np.sqrt(variance)), float(max(len(side) for side in sides) - 1)
    freedom = variance**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True))
    return float(np.sqrt(variance)), freedom


def mean_interval(values: Times) -> tuple[float, float, float]:
    """Return the mean and its 95 % interval (low, high) by Student's t; unknown ones are nan."""
    array = np.asarray(values, dtype=np.float64)
    mean = float(array.mean()) if len(array) else float("nan")
    if len(array) < 2:
        return mean, float("nan"), float("nan")
    margin = student_quantile(CONFIDENCE, len(array) - 1) * float(array.std(ddof=1)) / float(np.sqrt(len(array)))
    return mean, mean - margin, mean + margin


def relative_half_width(times: Times) -> float:
    """Return half the width of `median_interval`, relative to the median; inf for fewer than two values."""
    if len(times) < 2:
        return float("inf")
    low, high = median_interval(times)
    middle = float(np.median(np.asarray(times, dtype=np.float64)))
    return (high - low) / 2 / middle if middle > 0 else float("inf")


def percentile(values: Times, percent: float) -> float:
    """Return the percentile (0 to 100, linear interpolation); nan for no values."""
    return float(np.percentile(np.asarray(values, dtype=np.float64), percent)) if len(values) else float("nan")
