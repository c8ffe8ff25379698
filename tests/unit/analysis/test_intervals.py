from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from analysis.intervals import (
    Nested,
    difference,
    inside_ns,
    intersection,
    merged,
    nesting,
    own_times,
    total_ns,
    union,
)

SPANS = st.lists(
    st.tuples(st.integers(-60, 60), st.integers(-3, 25)).map(lambda item: (item[0], sum(item))), max_size=25
)


def made(spans: list[tuple[int, int]]) -> np.ndarray:
    return merged([start for start, _ in spans], [end for _, end in spans])


def points(intervals) -> set[int]:
    return {point for start, end in intervals for point in range(start, end)}


def assert_is_a_set(intervals: np.ndarray) -> None:
    assert intervals.dtype == np.int64 and intervals.shape[1] == 2
    bounds = intervals.ravel().tolist()
    assert bounds == sorted(set(bounds)), "sorted, none empty, none touching another"


@given(SPANS)
def test_the_union_holds_every_covered_nanosecond_once(spans: list[tuple[int, int]]) -> None:
    found = made(spans)
    assert_is_a_set(found)
    assert points(found.tolist()) == points(spans)
    assert total_ns(found) == len(points(spans))


@pytest.mark.parametrize(
    ("combine", "expected"), [(union, set.union), (intersection, set.intersection), (difference, set.difference)]
)
@given(first=SPANS, second=SPANS)
def test_sets_of_intervals_agree_with_sets_of_points(
    combine: Any, expected: Any, first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    found = combine(made(first), made(second))
    assert_is_a_set(found)
    assert points(found.tolist()) == expected(points(first), points(second))


@given(SPANS, st.lists(st.tuples(st.integers(-90, 90), st.integers(0, 40)), max_size=8))
def test_lengths_inside_windows_agree_with_counting(
    spans: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    covered = points(spans)
    begins, ends = [begin for begin, _ in windows], [begin + length for begin, length in windows]
    found = inside_ns(made(spans), begins, ends).tolist()
    assert found == [len(covered & set(range(a, b))) for a, b in zip(begins, ends, strict=True)]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 10)), min_size=1, max_size=8))
def test_the_span_around_a_moment_is_the_one_that_began_last_of_those_open(rows: list[tuple[int, int, int]]) -> None:
    thread, start, length = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    nested, moments = Nested(thread, start, start + length), np.arange(-1, 25)
    for number in (0, 1):
        for moment, found in zip(moments, nested.around(np.full(len(moments), number), moments), strict=True):
            there = [row for row in rows if row[0] == number and row[1] <= moment < row[1] + row[2]]
            last = max(there, key=lambda row: (row[1], -row[2]), default=None)
            assert (None if found < 0 else rows[found]) == last


def by_stack(rows: list[tuple[int, int, int]]) -> list[tuple[int, bool]]:
    """Self time and outermost, one span after another."""
    order = sorted(range(len(rows)), key=lambda place: (rows[place][0], rows[place][1], -rows[place][2]))
    found: dict[int, list[Any]] = {}
    stack: list[int] = []
    for place in order:
        thread, start, end = rows[place]
        while stack and (rows[stack[-1]][0] != thread or rows[stack[-1]][2] <= start):
            stack.pop()
        found[place] = [end - start, not stack]
        if stack:
            above = found[stack[-1]]
            above[0] = max(0, above[0] - (min(end, rows[stack[-1]][2]) - start))
        stack.append(place)
    return [(found[place][0], found[place][1]) for place in range(len(rows))]


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 25)), max_size=40))
def test_self_time_equals_that_of_a_stack(rows: list[tuple[int, int, int]]) -> None:
    spans = [(thread, start, start + length) for thread, start, length in rows]
    table = np.array(spans, dtype=np.int64).reshape(-1, 3)
    self_ns, outermost = nesting(table[:, 0], table[:, 1], table[:, 2])
    assert list(zip(self_ns.tolist(), outermost.tolist(), strict=True)) == by_stack(spans)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 15), st.integers(0, 12)), min_size=1, max_size=10))
def test_own_times_count_every_covered_moment_of_a_thread_once(rows: list[tuple[int, int, int]]) -> None:
    thread, start, length = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    own = [0] * len(rows)
    for number in (0, 1):
        for moment in range(30):
            inside = [n for n, row in enumerate(rows) if row[0] == number and row[1] <= moment < row[1] + row[2]]
            if inside:
                own[max(inside, key=lambda n: (rows[n][1], -rows[n][2], n))] += 1
    assert own_times(thread, start, start + length).tolist() == own
