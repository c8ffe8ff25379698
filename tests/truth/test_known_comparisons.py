"""Verdicts of compare on pairs of equal runs, and on pairs of which one is 5 % slower."""

from collections import Counter

import numpy as np
import pytest
from known_series import LEVEL, Kind, in_processes
from truth_book import Book

from analysis.metrics.comparison.ratio import FEWEST_PROCESSES, THRESHOLD, judged, ratio_interval

PAIRS = {FEWEST_PROCESSES: 1000, 5: 400, 10: 300}
"""By the rounds of each side."""
STEPS = Kind("AR(1) 0.3", 0.01, 0.3)
BETWEEN = (0.002, 0.005, 0.01, 0.03)
"""Standard deviations of the levels of processes; a quiet machine has less than 0.01."""
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


def share(said: dict[str, int], names: tuple[str, ...]) -> float:
    return sum(said[name] for name in names) / sum(said.values())


@pytest.mark.parametrize("rounds", PAIRS)
def test_equal_sides_are_said_to_differ_in_under_5_percent(rounds: int, book: Book) -> None:
    cases = [(STEPS, between, 0.0, rounds, PAIRS[rounds], 17) for between in BETWEEN]
    for case, said in zip(cases, in_processes(verdicts, cases), strict=True):
        name = f"{rounds} rounds, processes differ by {100 * case[1]:g} %"
        book.between(f"equal, {name}: said to differ", share(said, CHANGES), 0.0, 0.05, 0.0)
        book.between(f"equal, {name}: regression (exit code 1)", share(said, CHANGES[:1]), 0.0, 0.05, 0.0)
    assert not book.failures()


@pytest.mark.parametrize("rounds", [FEWEST_PROCESSES, 5])
def test_a_slowdown_of_5_percent_is_found(rounds: int, book: Book) -> None:
    cases = [(STEPS, between, 0.05, rounds, PAIRS[rounds], 19) for between in BETWEEN]
    for case, said in zip(cases, in_processes(verdicts, cases), strict=True):
        name = f"5 % slower, {rounds} rounds, processes differ by {100 * case[1]:g} %"
        found, failed = share(said, SLOWDOWNS), share(said, SLOWDOWNS[:1])
        if case[1] <= 0.01:
            book.between(f"{name}: found", found, 0.9, 1.0, 1.0)
        else:
            book.state(f"{name}: found", found, "share", 1.0)
        book.state(f"{name}: regression (exit code 1)", failed, "share", 1.0)
    assert not book.failures()


def test_one_round_says_nothing(book: Book) -> None:
    for slowdown in (0.0, 0.05):
        said = verdicts(STEPS, 0.01, slowdown, 1, 50, 23)
        book.between(
            f"1 round, {100 * slowdown:g} % slower: cannot decide",
            share(said, ("cannot decide",)),
            1.0,
            1.0,
            1.0,
        )
    assert not book.failures()
