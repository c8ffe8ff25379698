"""Pairs of sides, each of several processes, of which it is known whether one is slower; and what is said of them."""

from collections import Counter

import numpy as np
from support.known_series import LEVEL, Kind

from analysis.metrics.comparison.ratio import THRESHOLD, judged, ratio_interval

CHANGES = ("regression", "slower", "quicker", "improvement")
SLOWDOWNS = CHANGES[:2]


def verdicts(kind: Kind, between: float, slowdown: float, rounds: int, count: int, seed: int) -> Counter[str]:
    """Return how often `bertbench compare` says what of `count` pairs of runs.

    Args:
        kind: of the 40 steps of a process.
        between: standard deviation of the logarithm of the processes' levels: some are slow as a whole.
        slowdown: of the new side, 0.05 for steps that take 5 % longer.
        rounds: processes per side.
        count: pairs.
        seed: of the random numbers.
    """
    random = np.random.default_rng(seed)

    def side(level: float) -> list[np.ndarray]:
        levels = level * np.exp(between * random.normal(size=rounds))
        return [each * kind.draw(random, 40) / LEVEL for each in levels]

    said: Counter[str] = Counter()
    for _ in range(count):
        old, new = side(LEVEL), side(LEVEL * (1 + slowdown))
        said[judged(ratio_interval(old, new), rounds, rounds, THRESHOLD, None)[0]] += 1
    return said
