"""Verdicts of compare on pairs of equal runs, and on pairs of which one is 5 % slower."""

import pytest
from support.known_pairs import CHANGES, SLOWDOWNS, verdicts
from support.known_series import Kind, in_processes
from support.truth_book import Book

from analysis.metrics.comparison.ratio import FEWEST_PROCESSES

PAIRS = {FEWEST_PROCESSES: 1000, 5: 400, 10: 300}
"""By the rounds of each side."""
STEPS = Kind("AR(1) 0.3", 0.01, 0.3)
BETWEEN = (0.002, 0.005, 0.01, 0.03)
"""Standard deviations of the levels of processes; a quiet machine has less than 0.01."""


def share(said: dict[str, int], names: tuple[str, ...]) -> float:
    return sum(said[name] for name in names) / sum(said.values())


@pytest.mark.parametrize("rounds", PAIRS)
def test_equal_sides_are_said_to_differ_in_under_5_percent(rounds: int, book: Book) -> None:
    cases = [(STEPS, between, 0.0, rounds, PAIRS[rounds], 17) for between in BETWEEN]
    for case, said in zip(cases, in_processes(verdicts, cases), strict=True):
        name = f"{rounds} rounds, processes differ by {100 * case[1]:g} %"
        book.between("comparing", f"equal, {name}: said to differ", share(said, CHANGES), 0.0, 0.05, 0.0)
        book.between("comparing", f"equal, {name}: regression (exit code 1)", share(said, CHANGES[:1]), 0.0, 0.05, 0.0)
    assert not book.failures()


@pytest.mark.parametrize("rounds", [FEWEST_PROCESSES, 5])
def test_a_slowdown_of_5_percent_is_found(rounds: int, book: Book) -> None:
    cases = [(STEPS, between, 0.05, rounds, PAIRS[rounds], 19) for between in BETWEEN]
    for case, said in zip(cases, in_processes(verdicts, cases), strict=True):
        name = f"5 % slower, {rounds} rounds, processes differ by {100 * case[1]:g} %"
        found, failed = share(said, SLOWDOWNS), share(said, SLOWDOWNS[:1])
        if case[1] <= 0.01:
            book.between("comparing", f"{name}: found", found, 0.9, 1.0, 1.0)
        else:
            book.state("comparing", f"{name}: found", found, "share", 1.0)
        book.state("comparing", f"{name}: regression (exit code 1)", failed, "share", 1.0)
    assert not book.failures()


def test_one_round_says_nothing(book: Book) -> None:
    for slowdown in (0.0, 0.05):
        said = verdicts(STEPS, 0.01, slowdown, 1, 50, 23)
        book.between(
            "comparing",
            f"1 round, {100 * slowdown:g} % slower: cannot decide",
            share(said, ("cannot decide",)),
            1.0,
            1.0,
            1.0,
        )
    assert not book.failures()
