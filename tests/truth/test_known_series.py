"""The end of warm-up and the interval of the median, on series whose truth is known."""

from known_series import CORRELATED, INDEPENDENT, Kind, found_warmup, held, held_after_stopping, in_processes
from truth_book import Book

SIZES = (10, 20, 50, 100, 300)
# 95 +- 2 % is 4.1 standard errors of the share of 2,000 series.
SERIES = 2000
STOPPED = 500
LOW, HIGH = 0.93, 0.97


def test_the_interval_of_independent_steps_holds_the_median_in_95_percent_of_series(book: Book) -> None:
    cases = [(kind, size, SERIES, size) for kind in INDEPENDENT for size in SIZES]
    for (kind, size, count, _), (hits, _) in zip(cases, in_processes(held, cases), strict=True):
        book.between(f"{kind.name}, {size} steps", hits / count, LOW, HIGH, 0.95)
    assert not book.failures()


def test_the_interval_of_correlated_steps_is_stated(book: Book) -> None:
    cases = [(kind, size, SERIES, size) for kind in CORRELATED for size in SIZES]
    shares = {}
    for (kind, size, count, _), (hits, _) in zip(cases, in_processes(held, cases), strict=True):
        shares[kind.correlation, size] = hits / count
        book.state(f"{kind.name}, {size} steps", hits / count, "share", 0.95)
    assert shares[0.3, 100] > LOW and shares[0.6, 300] > LOW


def test_the_interval_after_stopping_by_the_suite_s_own_rule_is_stated(book: Book) -> None:
    kinds = [Kind("normal", 0.01), Kind("normal", 0.02), Kind("normal", 0.05), Kind("lognormal", 0.05)]
    kinds += [Kind("heavy-tailed", 0.02), *(Kind(kind.name, 0.01, kind.correlation) for kind in CORRELATED)]
    cases = [(kind, STOPPED, 7, fewest) for kind in kinds for fewest in (10, 30)]
    for (kind, count, _, fewest), (hits, narrow, steps) in zip(
        cases, in_processes(held_after_stopping, cases), strict=True
    ):
        name = f"{kind.name}, noise {100 * kind.noise:g} %, stopped at ±1 %"
        name += f" from {fewest} steps on ({steps:.0f} on average)"
        book.state(name, hits / count, "share", 0.95)
        assert narrow / count > 0.9 or kind.correlation


def test_the_end_of_warm_up_leaves_no_bias(book: Book) -> None:
    kinds = [Kind("normal", 0.02), Kind("lognormal", 0.05), Kind("AR(1) 0.6", 0.02, 0.6)]
    shapes = [(slow, False) for slow in (0, 1, 5, 20)] + [(5, True)]
    cases = [(kind, 100, slow, decays, 500, 11) for kind in kinds for slow, decays in shapes]
    for (kind, _, slow, decays, count, _), (exact, hits, error, left_out) in zip(
        cases, in_processes(found_warmup, cases), strict=True
    ):
        shape = f"decay over {slow} steps" if decays else f"{slow} steps at twice the time"
        name = f"{kind.name}, noise {100 * kind.noise:g} %, {shape}"
        book.check(f"{name}: mean of the median", 100.0, 100.0 * (1 + error), "ms")
        if not decays:
            book.state(f"{name}: end found exactly ({left_out:.1f} left out on average)", exact / count, "share")
        book.state(f"{name}: interval holds the median", hits / count, "share", 0.95)
    assert not book.failures()
