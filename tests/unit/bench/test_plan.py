"""From a sweep to its trials."""

import pytest

from bench.devices import Devices
from bench.plan import Sweep, expand
from common.errors import BertbenchError, UsageError

CPU = Devices("cpu", (), 4)


def test_every_combination_is_one_trial_with_an_id_of_its_own() -> None:
    sweep = Sweep(batch_sizes=(4, 8), devices=(1, 2), precisions=("fp32", "bf16"), implementations=("bertbench", "hf"))
    trials = expand(sweep, CPU)
    assert len(trials) == len({trial.trial_id for trial in trials}) == 16


def test_ids_do_not_change_between_calls() -> None:
    sweep = Sweep(batch_sizes=(4, 8))
    assert [t.trial_id for t in expand(sweep, CPU)] == [t.trial_id for t in expand(sweep, CPU)]


def test_competitors_take_turns_and_none_is_always_first() -> None:
    trials = expand(Sweep(implementations=("bertbench", "hf"), rounds=3, batch_sizes=(4, 8)), CPU)
    assert [trial.round for trial in trials] == [0] * 4 + [1] * 4 + [2] * 4
    assert [trial.implementation for trial in trials[0:2]] == ["bertbench", "hf"]
    assert [trial.implementation for trial in trials[4:6]] == ["hf", "bertbench"]
    assert trials[0].micro_batch_size == trials[1].micro_batch_size, "they stand next to each other"


def test_auto_strategy_is_single_alone_and_ddp_together() -> None:
    assert [trial.strategy for trial in expand(Sweep(devices=(1, 2)), CPU)] == ["single", "ddp"]


def test_more_devices_than_there_are_is_refused_with_the_number_there_is() -> None:
    with pytest.raises(UsageError, match="8 devices were asked for, this node offers 4"):
        expand(Sweep(devices=(8,)), CPU)


def test_the_rules_of_an_automatic_window_do_not_count_where_one_is_given() -> None:
    plain, changed = Sweep(start=1, stop=4), Sweep(start=1, stop=4, max_seconds=5.0, min_steps=3)
    assert [t.trial_id for t in expand(plain, CPU)] == [t.trial_id for t in expand(changed, CPU)]
    assert expand(Sweep(), CPU)[0].trial_id != expand(Sweep(max_seconds=5.0), CPU)[0].trial_id


@pytest.mark.parametrize(
    "options",
    [
        {"presets": ("huge",)},
        {"implementations": ("bert",)},
        {"precisions": ("fp8",)},
        {"batch_sizes": ()},
        {"rounds": 0},
        {"devices": (0,)},
        {"memory_limit_gib": 0.0},
        {"threads": 9},
        {"threads": 0},
        {"memory_limit_gib": float("nan")},
        {"precision_target": 0.0},
        {"min_steps": 20, "max_steps": 5},
        {"seq_lens": (1024,)},
        {"start": 3},
        {"start": 5, "stop": 5},
        {"batch_sizes": (0,)},
        {"data": "synthetic:banana"},
        {"data": "/no/such/folder"},
    ],
)
def test_what_cannot_run_is_refused_before_anything_does(options: dict[str, object]) -> None:
    with pytest.raises(BertbenchError):
        expand(Sweep(**options), CPU)  # type: ignore[arg-type]
