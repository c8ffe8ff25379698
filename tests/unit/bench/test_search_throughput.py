"""The search for the fastest configuration, on cost functions whose optimum is known."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from bench.machine.devices import Devices
from bench.search.throughput import Search, lanes
from bench.sweep.trials import Sweep
from records.trial import Trial

DDP = Trial(strategy="ddp", micro_batch_size=1)


def rate(trial: Trial) -> float:
    """Saturates, falls beyond 24; recomputation costs a quarter; 50 MiB are the best buckets."""
    size = trial.micro_batch_size
    speed = 1000 * size / (size + 8) - max(0, size - 24) * 12
    speed *= {"": 1.0, '{"bucket_mib":50}': 1.05, '{"bucket_mib":100}': 1.02}.get(trial.strategy_options, 0.95)
    return speed * (0.75 if trial.activation_checkpointing else 1) * (0.8 if trial.strategy == "fsdp" else 1)


class Machine:
    """Measures trials in no time."""

    def __init__(self, speed: Callable[[Trial], float] = rate, largest: int = 10**6, fails: str = "") -> None:
        self.speed, self.largest, self.fails = speed, largest, fails
        self.ran: list[Trial] = []

    def __call__(self, trial: Trial) -> Mapping[str, Any]:
        self.ran.append(trial)
        if trial.strategy == self.fails:
            return {"status": "refused", "reason": "not installed"}
        if trial.micro_batch_size > self.largest * (4 if trial.activation_checkpointing else 1):
            return {"status": "oom", "reason": "no memory"}
        return {"status": "ok", "samples_per_second": self.speed(trial)}

    def search(self, *first: Trial, rounds: int = 1, last: int = 4096, whole: int | None = None) -> Search:
        found = Search(lanes=first or [DDP], last_batch=last, global_batch_size=whole, rounds=rounds, measure=self)
        found.run()
        return found

    def sizes(self, **fields: Any) -> list[int]:
        return [one.micro_batch_size for one in self.ran if all(getattr(one, name) == fields[name] for name in fields)]


def test_the_optimum_takes_a_few_trials_each_run_once() -> None:
    machine = Machine()
    best = machine.search().choice()[0][0]
    every = [replace(DDP, strategy_options=options, micro_batch_size=size)
             for size in range(1, 257) for options in ("", '{"bucket_mib":50}')]  # fmt: skip
    assert rate(best) >= 0.99 * max(map(rate, every)) and best.strategy_options == '{"bucket_mib":50}'
    assert len(machine.ran) == len(set(machine.ran)) < 20 and max(machine.sizes()) == 64


def test_checkpointing_is_tried_only_where_memory_ended_the_growth_and_from_there() -> None:
    assert not any(one.activation_checkpointing for one in Machine().search().results)
    machine = Machine(lambda one: one.micro_batch_size * (0.75 if one.activation_checkpointing else 1.0), largest=20)
    best = machine.search().choice()[0][0]
    assert best.activation_checkpointing and best.micro_batch_size == 80
    assert min(machine.sizes(activation_checkpointing=True)) == 32


def test_a_trial_out_of_memory_is_a_row_and_ends_its_lane() -> None:
    machine = Machine(lambda one: float(one.micro_batch_size), largest=12)
    found = machine.search(last=16)
    rows = {one.micro_batch_size: result["status"] for one, result in found.results.items()
            if not one.activation_checkpointing}  # fmt: skip
    assert rows[16] == "oom" and rows[8] == "ok" and 32 not in rows
    assert found.choice()[0][0] == replace(DDP, micro_batch_size=16, activation_checkpointing=True)


def test_a_strategy_that_fails_is_a_row_and_later_ones_begin_near_the_fastest() -> None:
    machine = Machine(fails="deepspeed")
    found = machine.search(replace(DDP, strategy="deepspeed"), DDP, replace(DDP, strategy="fsdp"), last=64)
    assert found.choice()[0][0].strategy == "ddp" and machine.sizes(strategy="deepspeed") == [1]
    assert machine.sizes(strategy="fsdp")[0] > 1


def test_nothing_that_runs_has_no_best_and_the_global_batch_stays_the_same() -> None:
    assert Machine(largest=0).search().choice() == ([], "")
    machine = Machine()
    machine.search(replace(DDP, world_size=2), whole=48)
    assert {one.micro_batch_size * one.grad_accum_steps * 2 for one in machine.ran} == {48}
    assert Machine().search(replace(DDP, world_size=2), whole=7).results == {}


def test_a_lucky_trial_does_not_win() -> None:
    machine = Machine(lambda one: 2000.0 if (one.micro_batch_size, one.round) == (8, 0) else rate(one))
    found = machine.search(replace(DDP, strategy="fsdp"), rounds=6)
    best = found.choice()[0][0]
    assert best.micro_batch_size != 8 and found.candidates()[best].rate == pytest.approx(rate(best))


@pytest.mark.parametrize(("most", "last"), [(1, 0), (2, 1), (6, 2)])
def test_three_rounds_decide_between_steady_configurations(most: int, last: int) -> None:
    machine = Machine()
    found = machine.search(rounds=most)
    assert max(one.round for one in machine.ran) == last and bool(found.choice()[1]) == (most < 3)


def test_auto_tries_every_installed_strategy_with_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = Devices("cpu", (), 4)
    sweep = Sweep(devices=(2,), batch_sizes=(1,))
    for installed, expected in ((False, ["ddp", "fsdp"]), (True, ["ddp", "fsdp", *["deepspeed"] * 4])):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, there=installed: there)
        found = lanes(sweep, devices)
        assert [one.strategy for one in found] == expected and {one.micro_batch_size for one in found} == {1}
    assert [one.strategy for one in lanes(replace(sweep, devices=(1,)), devices)] == ["single"]
