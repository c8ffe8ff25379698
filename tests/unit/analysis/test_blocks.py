"""Work on long columns in blocks gives what work on whole columns gives."""

import numpy as np
import pytest

from analysis import blocks, spans


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROWS", 7)
    monkeypatch.setattr(spans, "ROWS", 7)


@pytest.mark.parametrize("rows", [0, 1, 6, 7, 8, 50])
def test_blocks_cover_every_row_once(rows: int) -> None:
    assert [row for part in blocks.blocks(rows) for row in range(rows)[part]] == list(range(rows))


def test_order_is_checked_across_blocks() -> None:
    values = np.arange(30)
    assert blocks.in_order(values) and blocks.in_order(values[:0])
    values[14:] -= 5  # the first row of a block is less than the last one before it
    assert not blocks.in_order(values)


def test_numbers_take_the_narrowest_type_that_holds_them() -> None:
    pairs = {(-128, 127): "int8", (-129, 0): "int16", (0, 2**15): "int32", (0, 2**31): "int64", (-(2**63), 0): "int64"}
    assert {pair: blocks.narrow(np.array(pair)).dtype.name for pair in pairs} == pairs
    assert blocks.narrow(np.array([-129, 40_000])).tolist() == [-129, 40_000]


def test_rows_are_taken_by_narrow_places() -> None:
    places = np.array([3, 0, 2] * 9, dtype=np.int8)
    assert blocks.taken(np.arange(4) * 10, places).tolist() == [30, 0, 20] * 9


@pytest.mark.parametrize("seed", range(20))
def test_set_operations_do_not_depend_on_blocks(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(seed)
    first, second = (
        spans.merged(begins := random.integers(0, 400, count), begins + random.integers(0, 9, count))
        for count in (60, 45)
    )
    found = [function(first, second).tolist() for function in (spans.intersection, spans.difference)]
    monkeypatch.setattr(spans, "ROWS", 1 << 17)
    assert found == [function(first, second).tolist() for function in (spans.intersection, spans.difference)]


@pytest.mark.parametrize("seed", range(20))
def test_levels_are_the_sum_of_what_is_open(seed: int) -> None:
    random = np.random.default_rng(seed)
    start = random.integers(0, 60, 40)
    end, height = start + random.integers(0, 9, 40), random.integers(1, 5, 40)
    times, level = (np.concatenate(parts) for parts in zip(*spans.levels(start, end, height), strict=True))
    assert times.tolist() == sorted({*start.tolist(), *end.tolist()})
    assert level.tolist() == [int(height[(start <= moment) & (moment < end)].sum()) for moment in times]
