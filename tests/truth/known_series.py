"""Series of step times whose median is known, and how often an interval holds it."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from analysis.metrics.statistics import median_interval, warmup_steps
from records.trial import Trial

Times = npt.NDArray[np.float64]

LEVEL = 100.0
"""The true median of every series, ms."""


@dataclass(frozen=True)
class Kind:
    """How the steps of a series differ."""

    name: str
    noise: float
    """Scale of the differences, relative to the level."""
    correlation: float = 0.0
    """Of neighbours, in an AR(1) process."""

    def draw(self, random: np.random.Generator, size: int) -> Times:
        """Return step times in ms whose true median is LEVEL."""
        if self.name == "lognormal":
            return LEVEL * np.exp(self.noise * random.normal(size=size))
        if self.name == "heavy-tailed":  # Student's t with 3 degrees of freedom
            return np.maximum(LEVEL * (1 + self.noise * random.standard_t(3, size)), 1.0)
        if self.name == "skewed":  # never much below the level, often far above
            return LEVEL * (1 + self.noise * (random.exponential(size=size) - np.log(2)))
        shocks = random.normal(size=size + 300) * np.sqrt(1 - self.correlation**2)
        return LEVEL * (1 + self.noise * lfilter([1.0], [1.0, -self.correlation], shocks)[300:])


INDEPENDENT = (Kind("normal", 0.02), Kind("lognormal", 0.1), Kind("heavy-tailed", 0.02), Kind("skewed", 0.1))
CORRELATED = tuple(Kind(f"AR(1) {rho:g}", 0.02, rho) for rho in (0.3, 0.6, 0.9))


def in_processes(work: Callable[..., Any], arguments: Iterable[Sequence[Any]]) -> list[Any]:
    """Return work(*each) for every element of `arguments`, on all cores."""
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        return list(pool.map(work, *zip(*arguments, strict=True)))


def held(kind: Kind, size: int, count: int, seed: int) -> tuple[int, float]:
    """Return how many of `count` series of fixed length have LEVEL in their interval, and its mean relative width."""
    random = np.random.default_rng(seed)
    hits, width = 0, 0.0
    for _ in range(count):
        low, high = median_interval(kind.draw(random, size))
        hits += low <= LEVEL <= high
        width += (high - low) / LEVEL
    return hits, width / count


def held_after_stopping(kind: Kind, count: int, seed: int, fewest: int = 10) -> tuple[int, int, float]:
    """Return, of `count` series that the suite's own rule ends: how many intervals hold LEVEL, how many were ended
    because the interval was narrow enough, and the mean number of steps.
    """
    from bench.run.clock import Window

    random = np.random.default_rng(seed)
    hits, narrow, steps = 0, 0, 0
    for _ in range(count):
        trial = Trial(min_steps=fewest, max_seconds=1e6)
        times = kind.draw(random, trial.max_steps)
        window = Window(trial, lambda: None, lambda values: values)
        step = 0
        while window.keep_going(step):
            window.record(float(times[step]))
            step += 1
        made = times[:step]
        low, high = median_interval(made[warmup_steps(made) :])
        hits += low <= LEVEL <= high
        narrow += window.stopped_because == "interval narrow enough"
        steps += step
    return hits, narrow, steps / count


def with_warmup(kind: Kind, random: np.random.Generator, size: int, slow: int, decays: bool) -> Times:
    """Return a series whose first `slow` steps take twice as long, or decay to the level with that time constant."""
    times = kind.draw(random, size)
    at = np.arange(size)
    return times + LEVEL * (np.exp(-at / slow) if decays else (at < slow))


def found_warmup(
    kind: Kind, size: int, slow: int, decays: bool, count: int, seed: int
) -> tuple[int, int, float, float]:
    """Return, of `count` series: how many ends of warm-up are exact, how many intervals hold LEVEL, and the mean of the
    relative error of the median and of the steps left out.
    """
    random = np.random.default_rng(seed)
    exact, hits, error, left_out = 0, 0, 0.0, 0
    for _ in range(count):
        times = with_warmup(kind, random, size, slow, decays)
        begin = warmup_steps(times)
        low, high = median_interval(times[begin:])
        exact += begin == slow
        hits += low <= LEVEL <= high
        error += float(np.median(times[begin:])) / LEVEL - 1
        left_out += begin
    return exact, hits, error / count, left_out / count
