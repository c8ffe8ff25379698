"""Which of several configurations is the fastest, and which others the measurements do not tell from it.

One rule for searches, files, the terminal and the page.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.metrics.comparison.ratio import EQUIVALENT, FEWEST_PROCESSES, Ratio, decision, ratio_interval


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
    1. The choice is undecided by the first of the others that ratio.decision leaves open.
    """
    enough = min(FEWEST_PROCESSES, max(len(candidate.rates) for candidate in candidates))
    places = range(len(candidates))
    best = max((place for place in places if len(candidates[place].rates) >= enough), key=lambda p: candidates[p].rate)
    ahead = [
        place
        for place in places
        if candidates[place].rate > candidates[best].rate and apart(candidates[place], candidates[best])
    ]
    best = max(ahead, key=lambda place: candidates[place].rate, default=best)
    others = [place for place in places if place != best]
    close = [place for place in others if not apart(candidates[place], candidates[best])]
    close.sort(key=lambda place: -candidates[place].rate)
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
