"""When measuring stops."""

import itertools

import numpy as np
import torch

from analysis.records import Trial
from bench.window import FEWEST_STEPS, Window


def steps_made(trial: Trial, times: "itertools.chain[float] | itertools.repeat[float]") -> tuple[int, Window]:
    window = Window(trial, lambda: None, lambda values: values)
    step = 0
    while window.keep_going(step):
        window.record(next(times))  # type: ignore[arg-type]
        step += 1
    return step, window


def test_a_given_window_makes_exactly_stop_steps() -> None:
    step, window = steps_made(Trial(start_iteration=3, stop_iteration=7), itertools.repeat(1.0))
    assert step == 7 and window.stopped_because == "window given"


def test_steady_times_end_after_the_fewest_steps_asked_for() -> None:
    step, window = steps_made(Trial(min_steps=10), itertools.repeat(5.0))
    assert window.stopped_because == "interval narrow enough"
    assert 10 <= step <= 16


def test_noise_is_measured_longer_than_calm() -> None:
    random = np.random.default_rng(0)
    noisy = itertools.chain(random.normal(100, 20, 5000).tolist())
    calm = itertools.chain(random.normal(100, 2, 5000).tolist())
    trial = Trial(min_steps=10, max_seconds=60, relative_half_width=0.02)
    assert steps_made(trial, noisy)[0] > 3 * steps_made(trial, calm)[0]


def test_max_steps_ends_a_series_that_never_settles() -> None:
    random = np.random.default_rng(0)
    times = itertools.chain(random.exponential(100, 500).tolist())
    step, window = steps_made(Trial(max_steps=40, relative_half_width=1e-6), times)
    assert step == 40 and window.stopped_because == "max_steps reached"


def test_the_time_limit_leaves_at_least_three_steps() -> None:
    step, window = steps_made(Trial(max_seconds=1e-9), itertools.repeat(1.0))
    assert step == FEWEST_STEPS and window.stopped_because == "max_seconds reached"


def test_ranks_that_see_the_same_maximum_make_the_same_number_of_steps() -> None:
    random = np.random.default_rng(1)
    own = [random.normal(100, 5, 2000), random.normal(110, 5, 2000)]
    trial = Trial(min_steps=10, max_seconds=60)

    def run(rank: int) -> int:
        seen = 0

        def maximum(values: torch.Tensor) -> torch.Tensor:
            nonlocal seen
            count = len(values) - 1
            slowest = np.maximum(own[0][seen : seen + count], own[1][seen : seen + count])
            seen += count
            return torch.tensor([*slowest, 0.0], dtype=torch.float64)

        window = Window(trial, lambda: None, maximum)
        step = 0
        while window.keep_going(step):
            window.record(float(own[rank][step]))
            step += 1
        return step

    assert run(0) == run(1)
