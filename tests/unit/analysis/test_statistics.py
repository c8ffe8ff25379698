import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.metrics.statistics import (
    block_medians,
    median_interval,
    order_interval,
    relative_half_width,
    robust_deviation,
    steps_per_independent_one,
    time_per_sample,
    time_per_sample_interval,
    warmup_steps,
)

TIMES = st.lists(st.floats(0.01, 1e5, allow_nan=False), max_size=200)


def test_leading_steps_above_three_times_the_median_are_warmup_beside_other_outliers() -> None:
    assert warmup_steps([50.0, *[5.0] * 20]) == 1
    assert warmup_steps([50.0, 10.0, 10.0]) == 1
    rest = [80, 81, 79, 120, 80, 78, 60, 82, 79, 81, 80, 121, 79, 80, 59, 81, 80, 82, 78, 80]
    assert warmup_steps([4000, *rest]) == 1
    assert warmup_steps([4000, 245, *rest]) == 2, "245 is above three times 80"
    assert warmup_steps([80, 4000, *rest]) == 0, "only leading steps"


@pytest.mark.parametrize("size", [10, 40, 200])
def test_a_flat_noisy_series_gives_0_or_1_nearly_always(size: int) -> None:
    random = np.random.default_rng(1)
    found = [warmup_steps(10 + random.normal(0, 0.3, size)) for _ in range(400)]
    assert sum(steps > 1 for steps in found) <= 12


def test_a_step_change_is_found_where_it_is() -> None:
    random = np.random.default_rng(2)
    times = np.concatenate([np.full(10, 20.0), np.full(40, 10.0)]) + random.normal(0, 0.2, 50)
    assert warmup_steps(times) == 10


def test_a_slow_decay_is_cut_after_most_of_it() -> None:
    times = 10 + 20 * np.exp(-np.arange(100) / 5) + np.random.default_rng(4).normal(0, 0.3, 100)
    assert 12 <= warmup_steps(times) <= 40


@given(TIMES)
def test_never_more_than_half_is_warmup(times: list[float]) -> None:
    assert 0 <= warmup_steps(times) <= len(times) // 2


def test_one_value_or_none_has_no_interval() -> None:
    assert all(math.isnan(value) for value in median_interval([3.0]))
    assert all(math.isnan(value) for value in median_interval([]))
    assert relative_half_width([3.0]) == math.inf
    assert median_interval([2.0, 4.0]) == (2.0, 4.0)


def test_block_medians_are_medians_of_blocks_drawn_from_the_data() -> None:
    times = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])  # blocks of 2, so every sample has 4 blocks
    medians = block_medians(times, 500, np.random.default_rng(0))
    starts = np.random.default_rng(0).integers(0, 7, (500, 4))
    by_hand = [np.median(np.concatenate([times[s : s + 2] for s in row])) for row in starts]
    np.testing.assert_allclose(medians, by_hand)


def test_time_per_sample_by_hand_and_how_well_it_is_known() -> None:
    work = np.array([[2.0, 2.0, 2.0, 34.0], [100.0, 100.0, 100.0, 700.0]])
    assert time_per_sample(work) == 25
    proportional = np.array([[2.0, 6.0, 4.0, 3.0], [20.0, 60.0, 40.0, 30.0]])
    assert time_per_sample_interval(proportional) == pytest.approx((10, 10)), "unequal batches are no noise"
    assert all(math.isnan(value) for value in time_per_sample_interval(work[:, :1]))


@pytest.mark.parametrize("size", [4, 10, 60])
def test_the_interval_of_time_per_sample_covers_the_truth_about_as_often_as_it_says(size: int) -> None:
    random = np.random.default_rng(11)
    hits = 0
    for _ in range(300):
        samples = random.integers(1, 9, size).astype(float)
        low, high = time_per_sample_interval(
            np.array([samples, 5 * samples + random.normal(0, 2, size)]), resamples=200
        )
        hits += low <= 5 <= high
    assert 0.92 <= hits / 300 <= 1


def test_robust_deviation_equals_the_standard_deviation_of_normal_values_and_ignores_outliers() -> None:
    values = np.random.default_rng(11).normal(0, 2, 20000)
    assert robust_deviation(values) == pytest.approx(2, rel=0.05)
    values[:200] = 1e6
    assert robust_deviation(values) == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706), (2, 4.3027), (2.5, 3.5747), (4, 2.7764), (30, 2.0423)])
def test_students_quantile_is_that_of_the_tables(degrees: float, quantile: float) -> None:
    from analysis.metrics.statistics import student_quantile

    assert student_quantile(0.95, degrees) == pytest.approx(quantile, rel=1e-3)


@pytest.mark.parametrize(("size", "rank"), [(6, 1.0), (10, 2.0), (20, 6.0), (100, 40.0)])
def test_the_ranks_of_the_order_interval_are_those_of_the_binomial_distribution(size: int, rank: float) -> None:
    # The values 1 .. n in an order in which neighbours are not alike: an interpolated rank is the value itself.
    values = np.empty(size)
    values[0::2], values[1::2] = np.arange(1, size + 1)[: -(-size // 2)], np.arange(1, size + 1)[-(-size // 2) :]
    low, high = order_interval(values)
    fewer = sum(math.comb(size, below) for below in range(round(rank))) / 2**size
    assert 1 - 2 * fewer >= 0.95 > 1 - 2 * (fewer + math.comb(size, round(rank)) / 2**size) or rank == 1
    assert rank <= low < rank + 1 and low + high == pytest.approx(size + 1)


def test_steps_that_are_alike_count_for_fewer() -> None:
    random = np.random.default_rng(13)
    noise = random.normal(0, 1, 20001)
    walk = np.zeros(20001)
    for at in range(1, 20001):
        walk[at] = 0.6 * walk[at - 1] + noise[at]
    # 1 + 2 sum 2/pi asin(0.6^k) = 2.98
    assert steps_per_independent_one(walk[1:]) == pytest.approx(2.98, rel=0.06)
    assert steps_per_independent_one(noise) < 1.05
    assert steps_per_independent_one([1.0, 2.0] * 20) == 1.0
    assert steps_per_independent_one([5.0] * 20) == 1.0 and steps_per_independent_one([1.0, 2.0]) == 1.0
