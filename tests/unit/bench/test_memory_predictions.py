"""Peak memory that is predicted before a trial runs, stored with the run."""

from pathlib import Path
from typing import Any

import pytest
from support.fake_run import rank_record, step_rows, write_trial

from analysis.metrics.comparison.predictions import ledger_of
from bench.cluster.inside import run_trial_inside
from bench.cluster.world import World
from bench.machine.devices import Devices
from bench.machine.environment import capture
from bench.plan import autotune_trials, sweep
from bench.plan.autotune import Asked
from bench.run.launch import LaunchOptions
from bert.model.memory import predict_memory
from records.prediction import Origin, configuration_of, machine_of, predictions_path, read_predictions
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial

CPU = Devices("cpu", (), 2)
TINY = Trial(preset="tiny", strategy="single", precision="fp32", micro_batch_size=4)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Trial, int]]:
    """The trials that ran, and how many predictions were stored when each began."""
    found: list[tuple[Trial, int]] = []

    def runner(trial: Trial, directory: TrialDirectory, *rest: Any) -> dict[str, Any]:
        run = RunDirectory(directory.path.parents[1])
        found.append((trial, len(read_predictions(run)[0])))
        memory = {0: rank_record(memory=600 * 2**20)}
        environment = {"schema_version": 1, **capture(CPU)}
        write_trial(run, trial, {0: step_rows([20.0] * 12, 4)}, ranks=memory, environment=environment)
        return {"trial_id": trial.trial_id, "status": "ok", "reason": "", "samples_per_second": 200.0}

    monkeypatch.setattr(sweep, "run_trial", runner)
    return found


def measure(run: RunDirectory, *trials: Trial) -> list[str]:
    """Run trials as a sweep does; return the notes."""
    notes: list[str] = []
    with sweep.locked(run):
        session = sweep.Session(
            run=run, request={}, devices=CPU, options=LaunchOptions(), progress=lambda *rest: None, note=notes.append
        )
        sweep.run_trials(session, trials)
    return notes


def test_every_trial_of_our_model_is_predicted_before_it_runs_and_checked_afterwards(
    tmp_path: Path, ran: list[tuple[Trial, int]]
) -> None:
    run = RunDirectory(tmp_path)
    rounds = [TINY, Trial.from_json({**TINY.to_json(), "round": 1}), Trial.from_json({**TINY.to_json(), "seq_len": 64})]
    assert measure(run, *rounds) == []
    assert [count for _, count in ran] == [1, 1, 2], "a second round is the same configuration"
    found, _ = read_predictions(run)
    for prediction, trial in zip(found, (rounds[0], rounds[2]), strict=True):
        assert prediction.trial == configuration_of(trial) and prediction.origins == ()
        assert prediction.value == predict_memory(trial, "cpu").total
        assert prediction.machine == machine_of(capture(CPU))
    checks = ledger_of([run]).checks
    assert [check.measured for check in checks] == [600 * 2**20] * 2
    assert checks[0].error == pytest.approx(found[0].value / (600 * 2**20) - 1)


def test_models_that_the_formulas_do_not_describe_and_profiles_are_not_predicted(
    tmp_path: Path, ran: list[tuple[Trial, int]]
) -> None:
    run = RunDirectory(tmp_path)
    others = [{"implementation": "hf"}, {"kind": "profile", "profiler": "torch"}, {"kind": "input"}]
    measure(run, *(Trial.from_json({**TINY.to_json(), **other}) for other in others))
    assert len(ran) == 3 and not predictions_path(run).exists()


def test_a_sweep_runs_where_predictions_cannot_be_stored(tmp_path: Path, ran: list[tuple[Trial, int]]) -> None:
    run = RunDirectory(tmp_path)
    predictions_path(run).mkdir(parents=True)
    (note,) = measure(run, TINY)
    assert str(predictions_path(run)) in note and len(ran) == 1


def test_the_first_rank_of_a_launched_world_stores_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("bench.run.worker.run_rank", lambda directory, trial: None)
    monkeypatch.setattr("bench.cluster.inside.finish", lambda *_: {"status": "ok"})
    run, trial = RunDirectory(tmp_path), Trial(preset="tiny", world_size=2)
    for rank in (1, 0):
        run_trial_inside(run, trial, {}, CPU, World(rank, rank, 2, 2, 1), LaunchOptions())
    ((prediction,), problems) = read_predictions(run)
    assert prediction.trial == configuration_of(trial) and problems == []


def test_a_search_stores_what_measured_trials_let_it_expect(tmp_path: Path, ran: list[tuple[Trial, int]]) -> None:
    run = RunDirectory(tmp_path)
    two, four = (Trial.from_json({**TINY.to_json(), "micro_batch_size": size}) for size in (2, 4))
    runner = autotune_trials.Runner(run, TINY, {}, lambda trial: measured(run, trial))
    for trial, expected in ((two, 100), (four, 200)):
        runner.measure(Asked(trial=trial, predicted_bytes=100, expected_bytes=expected))
    runner.measure(Asked(trial=Trial.from_json({**four.to_json(), "round": 1}), predicted_bytes=1, expected_bytes=2))
    (prediction,) = [one for one in read_predictions(run)[0] if one.kind == "memory_corrected"]
    assert (prediction.value, prediction.trial) == (200, configuration_of(four))
    start = run.trial(two.trial_id).read_steps(0)[0]["start_ns"]
    assert prediction.origins == (Origin(trial_id=two.trial_id, start_ns=start),)
    (check,) = [one for one in ledger_of([run]).checks if one.prediction.kind == "memory_corrected"]
    assert check.measured == 600 * 2**20 and check.rounds == 2


def test_what_a_search_predicts_of_a_given_model_is_stored_with_its_machine(
    tmp_path: Path, ran: list[tuple[Trial, int]]
) -> None:
    run = RunDirectory(tmp_path)
    given = {"model": "/models/a", "model_fingerprint": "1234", "implementation": "hf", "preset": "a"}
    trial = Trial.from_json({**TINY.to_json(), **given})
    assert measure(run, trial) == [] and not predictions_path(run).exists(), "a sweep does not build the model"
    runner = autotune_trials.Runner(run, trial, {}, lambda trial: measured(run, trial))
    runner.measure(Asked(trial=trial, predicted_bytes=700 * 2**20, expected_bytes=700 * 2**20))
    moved = Trial.from_json({**trial.to_json(), "model": "/elsewhere/a", "round": 1})
    measure(run, moved)
    (check,) = ledger_of([run]).checks
    assert check.prediction.machine == machine_of(capture(CPU)) and check.prediction.origins == ()
    assert (check.measured, check.rounds, check.error) == (600 * 2**20, 2, pytest.approx(1 / 6))


def measured(run: RunDirectory, trial: Trial) -> dict[str, Any]:
    measure(run, trial)
    return {"status": "ok", "samples_per_second": 200.0, "peak_memory_bytes": 600 * 2**20}
