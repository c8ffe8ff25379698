"""Learning-rate schedules, by numbers worked out by hand."""

import math
from typing import Any

import pytest
import torch
from support.refusals import refused

from bert.optim.schedule import PHASES, Phase, Schedule
from common.errors import Code


def rates(name: str, total_steps: int, warmup: float) -> list[float]:
    schedule = Schedule(name=name, learning_rate=1.0, total_steps=total_steps, warmup=warmup)
    return [schedule(applied) for applied in range(total_steps)]


def of_phase(phase: Phase) -> Schedule:
    return Schedule(learning_rate=phase.learning_rate, total_steps=phase.total_steps, warmup=phase.warmup)


def test_poly_climbs_from_one_step_and_falls_as_the_square_root_to_zero() -> None:
    # t = 1 ... 10, x = t / 10: below 0.4 x / 0.4, then sqrt(1 - x).
    expected = [0.25, 0.5, 0.75, *(math.sqrt(rest / 10) for rest in (6, 5, 4, 3, 2, 1, 0))]
    assert rates("poly", 10, 0.4) == pytest.approx(expected, abs=1e-7)


def test_linear_climbs_to_the_base_rate_and_falls_straight_to_zero() -> None:
    expected = [0.25, 0.5, 0.75, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]
    assert rates("linear", 10, 0.4) == pytest.approx(expected)


def test_constant_climbs_and_stays() -> None:
    assert rates("constant", 10, 0.4) == pytest.approx([0.25, 0.5, 0.75, *[1.0] * 7])


@pytest.mark.parametrize("half", [1, 3, 7, 40])
def test_cyclic_is_pytorchs_triangular_cycliclr(half: int) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=1.0)
    theirs = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.25, 1.0, step_size_up=half, cycle_momentum=False)
    found = []
    for _ in range(100):
        optimizer.step()
        theirs.step()
        found.append(optimizer.param_groups[0]["lr"])
    assert rates("cyclic", 100, half / 100) == pytest.approx(found)


def test_cyclic_without_a_half_cycle_of_at_least_one_step_is_refused() -> None:
    with refused("option-value", "--warmup 0.05", "--warmup 0.1 "):
        Schedule(name="cyclic", learning_rate=1.0, total_steps=10, warmup=0.05)


@pytest.mark.parametrize(("name", "end"), [("poly", 0.0), ("linear", 0.0), ("constant", 1.0)])
def test_beyond_the_last_step_the_rate_stays_where_it_ended(name: str, end: float) -> None:
    schedule = Schedule(name=name, learning_rate=1.0, total_steps=5, warmup=0.2)
    assert [schedule(applied) for applied in (4, 5, 100)] == [end] * 3


def test_the_phases_of_nvidia_end_their_warm_up_and_their_decay_where_published() -> None:
    # 0.2843 * 7038 = 2000.9: update 2000 still climbs, update 2001 is the first of the decay; 0.128 * 1563 = 200.06.
    one, two = of_phase(PHASES[1]), of_phase(PHASES[2])
    assert one(0) == pytest.approx(6e-3 / 2000.9034, rel=1e-9)
    assert one(1999) == pytest.approx(6e-3 * 2000 / 2000.9034, rel=1e-9)
    assert one(2000) == pytest.approx(6e-3 * math.sqrt(5037 / 7038), rel=1e-9)
    assert one(7036) == pytest.approx(6e-3 * math.sqrt(1 / 7038), rel=1e-9)
    assert one(7037) == 0.0
    assert two(199) == pytest.approx(4e-3 * 200 / 200.064, rel=1e-9)
    assert two(200) == pytest.approx(4e-3 * math.sqrt(1362 / 1563), rel=1e-9)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"name": "polly"}, "option-choice", "'poly'"),
        ({"learning_rate": -1.0}, "option-value", "--learning-rate -1.0"),
        ({"learning_rate": math.nan}, "option-value", "--learning-rate nan"),
        ({"total_steps": 0}, "option-value", "--steps 0"),
        ({"warmup": 1.0}, "option-value", "--warmup 1.0"),
        ({"warmup": -0.1}, "option-value", "--warmup -0.1"),
        ({"warmup": 200}, "option-value", "--warmup 200"),
    ],
    ids=str,
)
def test_settings_without_a_meaning_are_refused(options: dict[str, Any], code: Code, words: str) -> None:
    with refused(code, words):
        Schedule(**{"learning_rate": 1.0, "total_steps": 10, "warmup": 0.1, **options})
