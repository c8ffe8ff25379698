"""The search for the fastest configuration, on cost functions whose optimum is known."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

from bench.machine.devices import Devices
from bench.plan import autotune, autotune_trials
from bench.plan.autotune import Asked, Measured, Outcome, Space, divisions, grid_size, label, search
from bench.plan.variants import explore
from records.files import read_record
from records.run import RunDirectory
from records.trial import Trial

GIB = 2**30
DDP = (("ddp", ""),)


def memory(point: Trial) -> int:
    per_sample = GIB // 16 if point.activation_checkpointing else GIB // 4
    return GIB + point.micro_batch_size * per_sample


def rate(point: Trial) -> float:
    """Saturates, falls beyond 24; recomputation costs a quarter; 50 MiB are the best buckets."""
    size = point.micro_batch_size
    speed = 1000 * size / (size + 8) - max(0, size - 24) * 12
    speed *= {"": 1.0, '{"bucket_mib":50}': 1.05, '{"bucket_mib":100}': 1.02}.get(point.strategy_options, 0.95)
    return speed * (0.75 if point.activation_checkpointing else 1) * (0.8 if point.strategy == "fsdp" else 1)


def sized(size: int) -> Trial:
    return Trial(micro_batch_size=size)


class Machine:
    """Runs points in no time."""

    def __init__(
        self, limit: int | None = None, speed: Callable[[Trial], float] = rate, refuses: tuple[str, ...] = ()
    ) -> None:
        self.limit, self.speed, self.refuses = limit, speed, refuses
        self.ran: list[Trial] = []
        self.said: dict[Trial, tuple[int | None, int | None]] = {}

    def measure(self, asked: Asked) -> Measured:
        point = asked.trial
        self.ran.append(point)
        self.said[point] = asked.predicted_bytes, asked.expected_bytes
        values = {field.name: getattr(asked, field.name) for field in dataclasses.fields(Asked)}
        if point.strategy in self.refuses:
            return Measured(
                **values, status="refused", samples_per_second=None, peak_memory_bytes=None, reason="not installed"
            )
        if self.limit is not None and memory(point) > self.limit:
            return Measured(**values, status="oom", samples_per_second=None, peak_memory_bytes=None)
        return Measured(**values, status="ok", samples_per_second=self.speed(point), peak_memory_bytes=memory(point))

    def search(self, space: Space) -> Outcome:
        found = explore(search(space, Trial()), self.measure)
        assert found is not None
        return found


@pytest.fixture(autouse=True)
def known_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "predicted_bytes", memory)


def test_the_optimum_is_found_with_far_fewer_trials_than_the_grid_has() -> None:
    machine, space = Machine(), Space(strategies=DDP, last_batch=256, rounds=0)
    found = machine.search(space)
    assert found.best is not None
    best = max(
        (Trial(strategy_options=options, micro_batch_size=size) for size in range(1, 257)
         for options in ("", '{"bucket_mib":50}')), key=rate,
    )  # fmt: skip
    assert found.best.trial.strategy_options == best.strategy_options and found.best.rate >= 0.99 * rate(best)
    assert len(machine.ran) < 0.25 * grid_size(space) and len(machine.ran) == len(set(machine.ran))


def test_growth_stops_where_samples_per_second_fall_and_recomputing_is_not_tried_then() -> None:
    machine = Machine()
    found = machine.search(Space(strategies=DDP, last_batch=4096, buckets_mib=(), rounds=0))
    assert max(point.micro_batch_size for point in machine.ran) == 64
    assert not any(point.activation_checkpointing for point in machine.ran)
    assert dict(found.left_out)["ddp checkpointing"].startswith("memory did not limit")


def test_where_memory_ends_the_growth_recomputing_goes_on_from_there() -> None:
    linear = Machine(
        limit=5 * GIB, speed=lambda point: point.micro_batch_size * (0.75 if point.activation_checkpointing else 1.0)
    )
    found = linear.search(Space(strategies=DDP, limit_bytes=5 * GIB, buckets_mib=(), rounds=0))
    assert (
        found.best is not None and found.best.trial.activation_checkpointing and found.best.trial.micro_batch_size == 64
    )
    again = [point.micro_batch_size for point in linear.ran if point.activation_checkpointing]
    assert min(again) == 32, "smaller ones are slower than without it"


def test_what_is_expected_not_to_fit_is_never_run() -> None:
    machine = Machine(limit=5 * GIB, speed=lambda point: float(point.micro_batch_size))
    machine.search(Space(strategies=DDP, limit_bytes=5 * GIB, recompute=(False,), buckets_mib=(), rounds=0))
    assert all(memory(point) <= 5 * GIB for point in machine.ran)
    assert max(point.micro_batch_size for point in machine.ran) == 16


def test_measured_memory_sets_a_wrong_prediction_right(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(limit=5 * GIB, speed=lambda point: float(point.micro_batch_size))
    space = Space(strategies=DDP, limit_bytes=5 * GIB, recompute=(False,), buckets_mib=(), rounds=0)
    monkeypatch.setattr(autotune, "predicted_bytes", lambda point: 3 * GIB + point.micro_batch_size)
    found = machine.search(space)
    assert found.best is not None and found.best.trial.micro_batch_size == 16
    predicted, expected = machine.said[sized(16)]
    assert predicted == 3 * GIB + 16 and expected == pytest.approx(memory(sized(16)))
    assert max(point.micro_batch_size for point in machine.ran) == 16, "that 18 would not fit is known by then"


def test_without_a_prediction_two_measured_sizes_bound_the_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(limit=5 * GIB, speed=lambda point: float(point.micro_batch_size))
    monkeypatch.setattr(autotune, "predicted_bytes", lambda point: None)
    machine.search(Space(strategies=DDP, limit_bytes=5 * GIB, recompute=(False,), buckets_mib=(), rounds=0))
    assert [machine.said[sized(size)][1] for size in (1, 2)] == [None, None]
    assert machine.said[sized(4)][1] == pytest.approx(memory(sized(4)))
    assert max(point.micro_batch_size for point in machine.ran) == 16


def test_a_trial_out_of_memory_bounds_what_is_tried_after_it() -> None:
    machine = Machine(limit=4 * GIB, speed=lambda point: float(point.micro_batch_size))
    found = machine.search(Space(strategies=DDP, recompute=(False,), buckets_mib=(), rounds=0))
    assert found.best is not None and found.best.trial.micro_batch_size == 12
    assert [point.micro_batch_size for point in machine.ran].count(16) == 1


def test_a_strategy_that_is_refused_is_left_out_and_said() -> None:
    machine = Machine(refuses=("deepspeed",))
    space = Space(strategies=(("deepspeed", ""), *DDP, ("fsdp", "")), buckets_mib=(), last_batch=64, rounds=0)
    found = machine.search(space)
    assert found.best is not None and found.best.trial.strategy == "ddp"
    assert dict(found.left_out)["deepspeed, micro batch 1"] == "refused: not installed"
    started = [point.micro_batch_size for point in machine.ran if point.strategy == "fsdp"]
    assert started[0] > 1, "others begin near the best so far"


def test_no_size_outside_the_bounds_is_tried() -> None:
    machine = Machine()
    machine.search(Space(strategies=DDP, first_batch=8, last_batch=16, buckets_mib=(), rounds=0))
    assert {point.micro_batch_size for point in machine.ran} <= set(range(8, 17))


def test_nothing_that_runs_has_no_best() -> None:
    found = Machine(limit=0).search(Space(strategies=DDP))
    assert found.best is None and found.rate == 0 and found.measured


def test_the_global_batch_stays_the_same() -> None:
    machine = Machine()
    space = Space(strategies=DDP, accumulation=divisions(48, 2), buckets_mib=(), rounds=0)
    machine.search(space)
    assert {point.micro_batch_size * point.grad_accum_steps * 2 for point in machine.ran} == {48}
    assert divisions(48, 2)(16) is None and divisions(None, 2)(16) == 1


def test_a_lucky_trial_does_not_win() -> None:
    def lucky(point: Trial) -> float:
        return 2000.0 if (point.micro_batch_size, point.round) == (8, 0) else rate(point)

    machine = Machine(speed=lucky)
    found = machine.search(Space(strategies=DDP, buckets_mib=(), rounds=2))
    assert found.best is not None and found.best.trial.micro_batch_size != 8
    assert found.rate == pytest.approx(rate(dataclasses.replace(found.best.trial, round=0)))


def rounds_of(machine: Machine, size: int) -> int:
    return sum(point.micro_batch_size == size for point in machine.ran)


def test_steady_rounds_leave_nothing_to_decide() -> None:
    machine = Machine()
    found = machine.search(Space(strategies=DDP, buckets_mib=(), rounds=2))
    assert found.close == () and len(machine.ran) == len(set(machine.ran))
    assert [rounds_of(machine, size) for size in (24, 28)] == [3, 3], "the fastest two, and no round more"
    again = Machine()
    again.search(Space(strategies=DDP, buckets_mib=(), rounds=0))
    assert max(point.round for point in again.ran) == 0, "--rounds 0 measures nothing again"


# By size: 1 is measured at 100; 2 and 4 look faster at first, and are 90 and 80 in truth.
FLATTERED = {1: (100.0,) * 60, 2: (104.0, *(90.0,) * 59), 3: (50.0,) * 60, 4: (106.0, *(80.0,) * 59)}


def test_what_beats_the_finalists_is_measured_again_and_wins() -> None:
    machine = Machine(speed=lambda point: FLATTERED[point.micro_batch_size][point.round])
    found = machine.search(Space(strategies=DDP, last_batch=4, buckets_mib=(), rounds=2, decide_trials=60))
    assert found.best is not None and found.best.trial == sized(1) and found.rate == 100.0
    # Medians of 106, 80, 80 and 104, 90, 90 are 80 and 90: size 1 beats them with one round, and is measured until
    # that is decided.
    assert rounds_of(machine, 1) >= 3 and found.close == ()


def test_without_trials_to_decide_it_is_named_close_and_the_best_is_one_measured_three_times() -> None:
    machine = Machine(speed=lambda point: FLATTERED[point.micro_batch_size][point.round])
    found = machine.search(Space(strategies=DDP, last_batch=4, buckets_mib=(), rounds=2, decide_trials=0))
    assert found.best is not None and found.best.trial == sized(2) and found.rate == 90.0
    assert found.close[0][0] == sized(1) and found.close[0][1].rates == (100.0,)
    assert found.undecided


def test_two_that_are_equally_fast_are_both_named_and_cost_no_more_than_was_allowed() -> None:
    # 1 and 2 differ by less than their rounds do, by +-8 %, from a fixed list: nothing decides between them.
    swing = (1.0, 1.08, 0.92, 1.05, 0.95, 1.08, 0.92, 1.04, 0.96, 1.0)

    def unsteady(point: Trial) -> float:
        return {1: 100.0, 2: 101.5, 3: 50.0, 4: 60.0}[point.micro_batch_size] * swing[point.round]

    for allowed in (0, 4, 7):
        machine = Machine(speed=unsteady)
        space = Space(strategies=DDP, last_batch=4, buckets_mib=(), rounds=2, decide_trials=allowed)
        found = machine.search(space)
        assert [point for point, _ in found.close] == [sized(1)] and found.best is not None
        assert found.best.trial == sized(2)
        assert rounds_of(machine, 1) == rounds_of(machine, 2) == 3 + allowed // 2, "in turns"


def test_a_contender_that_fails_when_it_is_measured_again_is_left_at_that() -> None:
    def measure(asked: Asked) -> Measured:
        point = asked.trial
        values: dict[str, Any] = {"trial": point, "predicted_bytes": 1, "expected_bytes": 1, "peak_memory_bytes": 1}
        if point.micro_batch_size == 1 and point.round:
            return Measured(**values, status="crashed", samples_per_second=None)
        rate = FLATTERED[point.micro_batch_size][point.round]
        return Measured(**values, status="ok", samples_per_second=rate)

    found = explore(search(Space(strategies=DDP, last_batch=4, buckets_mib=(), rounds=2), Trial()), measure)
    assert found is not None
    failed = [item for item in found.measured if item.status == "crashed"]
    assert len(failed) == 1 and found.best is not None and found.best.trial == sized(2)
    assert found.close[0][0] == sized(1), "what it once showed is not explained away"


def test_a_search_over_finished_trials_repeats_itself() -> None:
    first, second = Machine(), Machine()
    space = Space(strategies=DDP)
    assert first.search(space) == second.search(space) and first.ran == second.ran


def test_points_are_named_by_what_differs() -> None:
    trial = Trial(strategy_options='{"bucket_mib":5}', grad_accum_steps=4, activation_checkpointing=True)
    assert label(trial) == "ddp bucket_mib=5 checkpointing, micro batch 8 x 4"


def test_trials_that_were_refused_are_not_run_again_at_the_end(tmp_path: Path) -> None:
    ran: list[Trial] = []

    def refused(trial: Trial) -> dict[str, Any]:
        ran.append(trial)
        return {"status": "refused", "reason": "not here"}

    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    runner = autotune_trials.Runner(run, Trial(), {"command": "autotune"}, refused)
    assert runner.measure(Asked(trial=sized(2), predicted_bytes=1, expected_bytes=1)).status == "refused"
    runner.finish()
    assert ran == [sized(2)] and read_record(run.sweep_json)["trials"] == [ran[0].trial_id]


def state_of(run: RunDirectory, base: Trial, **request: Any) -> None:
    document = {"request": request, "base": base.to_json(), "limit_bytes": 7 << 20, "trials": []}
    autotune_trials.write_state(run, document)


def test_a_search_keeps_the_limit_that_it_found_and_takes_over_none_that_was_given(tmp_path: Path) -> None:
    devices = Devices("cpu", (), 2)
    free, given = RunDirectory(tmp_path / "free"), RunDirectory(tmp_path / "given")
    state_of(free, Trial(), memory_limit_gib=None)
    state_of(given, Trial(), memory_limit_gib=0.25)
    assert autotune_trials.memory_limit(free, None, devices, 2) == 7 << 20
    assert autotune_trials.memory_limit(given, 0.25, devices, 2) == 2**28
    for run, limit, facts in (
        (free, 0.25, (0.25, "--out")),
        (given, None, (0.25,)),
    ):
        with refused("settings-changed", "--memory-limit-gib", *facts):
            autotune_trials.memory_limit(run, limit, devices, 2)
    assert (autotune_trials.memory_limit(RunDirectory(tmp_path / "new"), None, devices, 2) or 0) > 7 << 20


def test_a_folder_holds_one_search(tmp_path: Path) -> None:
    run, base = RunDirectory(tmp_path), Trial(preset="tiny", world_size=2, strategy="ddp")
    autotune_trials.check_same_search(run, base)
    state_of(run, base)
    autotune_trials.check_same_search(run, base)
    autotune_trials.check_same_search(run, dataclasses.replace(base, micro_batch_size=2, strategy="fsdp"))
    for other, facts in (
        ({"preset": "base"}, ("--preset tiny", "base", "--out")),
        ({"world_size": 4}, ("--devices 2", 4)),
    ):
        with refused("settings-changed", tmp_path, *facts):
            autotune_trials.check_same_search(run, dataclasses.replace(base, **other))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1, "request": 5, "base": [], "limit_bytes": "x"}'])
def test_a_damaged_state_is_as_none(tmp_path: Path, text: str) -> None:
    run = RunDirectory(tmp_path)
    (tmp_path / autotune_trials.STATE_FILE).write_text(text)
    assert (autotune_trials.memory_limit(run, None, Devices("cpu", (), 2), 2) or 0) > 0
    assert autotune_trials.memory_limit(run, 0.25, Devices("cpu", (), 2), 2) == 2**28
    autotune_trials.check_same_search(run, Trial())
