"""When measuring stops."""

import itertools

import numpy as np
import pytest
import torch

from bench.run.clock import Window
from records.trial import Trial


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
    assert step == 10


@pytest.mark.parametrize(("step_ms", "fewest"), [(4.0, 500), (100.0, 20), (500.0, 10)])
def test_a_gpu_is_measured_long_enough_for_its_sensors(step_ms: float, fewest: int) -> None:
    step, window = steps_made(Trial(min_steps=10, device="cuda"), itertools.repeat(step_ms))
    assert window.stopped_because == "interval narrow enough"
    assert fewest <= step <= 1.3 * fewest + 3


def test_noise_is_measured_longer_than_calm() -> None:
    random = np.random.default_rng(0)
    noisy = itertools.chain(random.normal(100, 20, 5000).tolist())
    calm = itertools.chain(random.normal(100, 2, 5000).tolist())
    trial = Trial(min_steps=10, max_seconds=60, relative_half_width=0.02)
    assert steps_made(trial, noisy)[0] > 3 * steps_made(trial, calm)[0]


UP_TO_27 = [3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27]  # each a quarter later than the one before


@pytest.mark.parametrize(
    ("times_ms", "options", "checks", "reason"),
    [
        ((5, 10, 15), {}, [*UP_TO_27, 33, 40], "max_steps reached"),
        # The median step takes 300 ms: three of them are about a second.
        ((100, 300, 500), {}, [*UP_TO_27[:9], 18, 21, 24, 27, 30, 33, 36, 39, 40], "max_steps reached"),
        # At step 33 1.92 s have passed since the first one ended: there is time for one more, and then for none.
        ((60, 60, 60), {"max_seconds": 2.0, "min_steps": 40}, [*UP_TO_27, 33, 34, 35], "max_seconds reached"),
    ],
    ids=["quick", "slow", "limited"],
)
def test_times_are_looked_at_a_quarter_or_a_second_of_steps_later_and_never_past_the_limit(
    times_ms: tuple[int, ...], options: dict[str, float], checks: list[int], reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    now_ms, step, looked = 0, 0, []
    monkeypatch.setattr("bench.run.clock.time.perf_counter", lambda: now_ms / 1000)
    trial = Trial(**{"max_steps": 40, "max_seconds": 60.0, "relative_half_width": 1e-9, **options})  # type: ignore[arg-type]
    window = Window(trial, lambda: looked.append(step), lambda values: values)
    while window.keep_going(step):
        time_ms = times_ms[step % 3]
        window.record(time_ms)
        now_ms += time_ms
        step += 1
    assert looked == [1, *checks] and (step, window.stopped_because) == (checks[-1], reason)


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
