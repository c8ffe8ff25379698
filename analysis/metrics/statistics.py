"""Statistics of step times: the end of warm-up, the median and how well it is known. Needs numpy only."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Times = Sequence[float] | FloatArray

# A step this many robust standard deviations from the settled level does not belong to it.
_UNSETTLED_DEVIATIONS = 2.0
# Beyond twice that a step's size says nothing more: one long pause must not decide where warm-up ends.
_CLIP = 2.0
# A clock's own jitter: a series steadier than this, relative to its level, is treated as this steady.
_SMALLEST_RELATIVE_DEVIATION = 1e-3


def warmup_steps(times_ms: Times) -> int:
    """Return how many leading steps are warm-up and have to be left out.

    The rule is MSER (White 1997, "An effective truncation heuristic for bias reduction in simulation output",
    Simulation 69(6)): leave out the d steps that minimise var(rest) / len(rest), the squared standard error of what
    is left. MSER alone follows outliers, so step times are clipped around the level of the second half (median and
    robust deviation), and d counts only if most of those d steps lie apart from that level, all on one side. A
    series that is flat but noisy thus gives 0 or 1 (1 when its first step is the odd one). Never more than half of
    the steps are left out: where warm-up is longer, the caller has too few steps and should say so.

    Args:
        times_ms: step times in order, any unit.
    """
    times = np.asarray(times_ms, dtype=np.float64)
    most = len(times) // 2
    if most == 0:
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

    The larger of 1.4826 x the median absolute deviation and half the distance of the 16th and 84th percentile; both
    equal the standard deviation of normal values. The second one still sees a spread where most values are equal.
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) == 0:
        return 0.0
    low, middle, high = np.percentile(array, (15.87, 50.0, 84.13))
    return max(1.4826 * float(np.median(np.abs(array - middle))), float(high - low) / 2)


def block_medians(times: Times, resamples: int, random: np.random.Generator) -> FloatArray:
    """Return `resamples` medians of moving-block bootstrap samples of `times`.

    Steps that follow each other are alike (clocks, neighbours on the machine), so blocks of steps are drawn, not
    steps: Kuensch 1989, "The jackknife and the bootstrap for general stationary observations", Annals of Statistics
    17(3). The block length is n^(1/3), the rate of that paper.

    Returns:
        [resamples] medians, in the unit of `times`.
    """
    array = np.asarray(times, dtype=np.float64)
    size = len(array)
    length = max(1, round(size ** (1 / 3)))
    blocks = -(-size // length)
    starts = random.integers(0, size - length + 1, (resamples, blocks))
    # How often each value is drawn is enough for a median, and counting is several times quicker than sorting.
    drawn = blocks * length
    count: type[np.signedinteger[Any]] = np.int16 if drawn < np.iinfo(np.int16).max else np.int32
    rows = np.arange(resamples)[:, None] * size
    opened = np.bincount((starts + rows).ravel(), minlength=resamples * size).reshape(resamples, size).astype(count)
    counts = np.cumsum(opened, axis=1, dtype=count)
    counts[:, length:] -= counts[:, :-length].copy()
    order = np.argsort(array, kind="stable")
    reached = np.cumsum(counts[:, order], axis=1, dtype=count)
    lower = np.count_nonzero(reached <= (drawn - 1) // 2, axis=1)
    upper = lower if drawn % 2 else np.count_nonzero(reached <= drawn // 2, axis=1)
    return np.asarray((array[order[lower]] + array[order[upper]]) / 2, dtype=np.float64)


def median_interval(
    times: Times, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Return the bootstrap interval (low, high) of the median, in the unit of `times`.

    Percentiles of `block_medians`; the same times and seed give the same interval. One value, or none, says nothing
    about spread: the interval is (nan, nan).
    """
    if len(times) < 2:
        return (float("nan"), float("nan"))
    medians = block_medians(times, resamples, np.random.default_rng(seed))
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(medians, (tail, 100.0 - tail))
    return (float(low), float(high))


def student_quantile(confidence: float, degrees: float) -> float:
    """Return t such that a Student t variable lies in [-t, t] with probability `confidence`.

    With x = sqrt(degrees) tan(angle) the density becomes cos(angle)^(degrees - 1), whose integral is inverted.
    """
    angles = np.linspace(0.0, np.pi / 2, 20001)
    density = np.cos(angles) ** (degrees - 1)
    mass = np.concatenate(([0.0], np.cumsum(density[1:] + density[:-1])))
    return float(np.sqrt(degrees) * np.tan(np.interp(confidence * mass[-1], mass, angles)))


def relative_half_width(times: Times, confidence: float = 0.95) -> float:
    """Return half the width of the interval of the median, relative to the median; inf for fewer than two values."""
    if len(times) < 2:
        return float("inf")
    low, high = median_interval(times, confidence)
    middle = float(np.median(np.asarray(times, dtype=np.float64)))
    return (high - low) / 2 / middle if middle > 0 else float("inf")


def percentile(values: Times, percent: float) -> float:
    """Return the percentile (0 to 100, linear between neighbours); nan for no values."""
    return float(np.percentile(np.asarray(values, dtype=np.float64), percent)) if len(values) else float("nan")


def describe(times: Times) -> dict[str, float]:
    """Return median, p5, p95, mean and std (n - 1; nan below two values) in the unit of `times`."""
    array = np.asarray(times, dtype=np.float64)
    return {
        "median": percentile(array, 50),
        "p5": percentile(array, 5),
        "p95": percentile(array, 95),
        "mean": float(array.mean()) if len(array) else float("nan"),
        "std": float(array.std(ddof=1)) if len(array) > 1 else float("nan"),
    }
