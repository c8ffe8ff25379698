"""The ledger of predictions: what checks one, what never does, and the errors by hand."""

import csv
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fake_run
from support.commands import document, facts, result, text
from support.fake_run import SECOND, START_NS, noisy_times, rank_record, step_rows, write_trial
from support.refusals import refused
from support.rings import Machine, write_collectives

from analysis.diagnose.predictions import check_command
from analysis.load import load_run
from analysis.metrics.communication.projection import project, projections
from analysis.metrics.comparison.predictions import Check, Ledger, ledger_of
from analysis.render.tables import Table
from bench.cli.ledger import configuration, store_predictions
from bench.cli.throughput import ThroughputOptions
from bench.plan.trials import Sweep
from records.files import write_record
from records.prediction import (
    Origin,
    Prediction,
    add_predictions,
    configuration_of,
    machine_of,
    predictions_path,
    read_predictions,
)
from records.run import RunDirectory
from records.trial import Trial

BASE = Trial(preset="tiny", precision="fp32", strategy="single", micro_batch_size=8)
ON = machine_of(fake_run.ENVIRONMENT)


def predicted(value: float = 50.0, **fields: Any) -> Prediction:
    usual: dict[str, Any] = {"kind": "projection", "quantity": "step_time_ms", "trial": BASE, "machine": ON}
    return Prediction(value=value, **{**usual, **fields})


def measured(run: RunDirectory, trial: Trial = BASE, ms: float = 40.0, **fields: Any) -> Trial:
    """Write a trial whose steps all take `ms`."""
    rows = {rank: step_rows([ms] * 20, trial.micro_batch_size) for rank in range(trial.world_size)}
    return write_trial(run, trial, rows, **fields)


def projected(run: RunDirectory, size: int) -> list[dict[str, Any]]:
    """Project a run to more devices and store that, as `report --project` does."""
    trials = load_run(run)
    found = projections(trials, [size])
    assert store_predictions(run, trials, [], found) == []
    return [one.row for one in found]


def only(*runs: RunDirectory) -> Check:
    (check,) = ledger_of(runs).checks
    return check


def test_a_projection_is_stored_unchecked_and_then_checked_by_the_run_on_more_devices(tmp_path: Path) -> None:
    machine = Machine()
    for number, count in enumerate((1, 2, 4)):
        machine.write_steps(tmp_path, count, seed=number)
        if count > 1:
            write_collectives(tmp_path, count, machine.alpha_us, machine.bandwidth_gb_s, seed=number)
    run = RunDirectory(tmp_path)
    (row,) = projected(run, 8)
    projected(run, 8)  # the same is stored once
    ((stored,), _) = read_predictions(run)
    assert (stored.value, stored.low, stored.high) == tuple(
        row[name] for name in ("step_time_ms", "step_time_ms_low", "step_time_ms_high")
    )
    assert (stored.trial.world_size, stored.trial.strategy, stored.trial.micro_batch_size) == (8, "ddp", 8)
    assert {one.trial_id.split("-")[0] for one in stored.origins} == {"pretrain", "comm"}
    before = only(run)
    assert before.reason and before.error is None and " --devices 8 " in check_command(before)
    machine.write_steps(tmp_path, 8, seed=9)
    after = only(run)
    truth = float(np.median(machine.steps(8, 60, seed=9)[0]))
    assert after.measured == pytest.approx(truth) and after.measured_in == tmp_path
    assert after.error == pytest.approx(row["step_time_ms"] / truth - 1) and abs(after.error or 1) < 0.03
    assert after.inside is (row["step_time_ms_low"] <= truth <= row["step_time_ms_high"])


def test_a_projection_to_measured_devices_is_no_prediction(tmp_path: Path) -> None:
    machine = Machine()
    machine.write_steps(tmp_path, 2)
    write_collectives(tmp_path, 2, machine.alpha_us, machine.bandwidth_gb_s)
    (row,) = projected(RunDirectory(tmp_path), 2)
    assert row["reason"] == "" and not predictions_path(RunDirectory(tmp_path)).exists()


def test_one_cpu_rank_is_projected_only_with_its_own_threads_and_the_assumption_named(tmp_path: Path) -> None:
    machine = Machine()
    environment = {"cpu": {"physical_cores": 8}}
    write_collectives(tmp_path, 2, machine.alpha_us, machine.bandwidth_gb_s, device="cpu", environment=environment)
    machine.write_steps(tmp_path, 1, device="cpu")
    (all_cores,) = project(load_run(RunDirectory(tmp_path)), [2], no_interference=True)
    assert "--threads 1" in all_cores["reason"]
    shutil.rmtree(next(tmp_path.glob("trials/pretrain*")))
    machine.write_steps(tmp_path, 1, device="cpu", threads=1)
    (refusal,) = project(load_run(RunDirectory(tmp_path)), [2])
    assert "--no-interference" in refusal["reason"]
    (row,) = document("report", tmp_path, "--project", 2, "--no-interference")["projection"]
    assert row["reason"] == "" and "slow each other down" in row["assumption"]
    ((stored,), _) = read_predictions(RunDirectory(tmp_path))
    assert stored.value == row["step_time_ms"] and row["assumption"] in stored.basis
    with refused("option-missing", "--no-interference", "--project"):
        result("report", tmp_path, "--no-interference")


def test_a_trial_never_checks_what_was_computed_from_it_not_even_as_a_copy(tmp_path: Path) -> None:
    run, copy = RunDirectory(tmp_path / "a"), RunDirectory(tmp_path / "b")
    trial = measured(run)
    add_predictions(run, [predicted(origins=(Origin(trial_id=trial.trial_id, start_ns=START_NS),))])
    shutil.copytree(run.path, copy.path)
    check = only(run, copy)
    assert check.measured is None and check.reason
    measured(run, dataclasses.replace(BASE, round=1), ms=25.0)
    assert (only(run, copy).measured, only(run, copy).rounds) == (25.0, 1), "another round is independent of it"


def test_a_repetition_of_the_trial_checks_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, later = RunDirectory(tmp_path / "a"), RunDirectory(tmp_path / "b")
    trial = measured(run)
    add_predictions(run, [predicted(origins=(Origin(trial_id=trial.trial_id, start_ns=START_NS),))])
    monkeypatch.setattr(fake_run, "START_NS", START_NS + 60 * SECOND)
    measured(later, ms=100.0)
    check = only(run, later)
    assert check.error == pytest.approx(-0.5) and check.measured_in == later.path


@pytest.mark.parametrize(
    "other",
    [
        {"task": "squad"}, {"implementation": "hf"}, {"preset": "mini"}, {"seq_len": 64}, {"micro_batch_size": 4},
        {"precision": "bf16"}, {"strategy": "ddp"}, {"world_size": 2}, {"device": "cuda"}, {"levers": "none"},
        {"threads_per_rank": 1}, {"data_fingerprint": "1234"}, {"grad_accum_steps": 2}, {"nodes": 2},
        {"activation_checkpointing": True}, {"strategy_options": '{"bucket_mib":5}'}, {"kind": "probe"},
        {"model": "/models/a"}, {"model_fingerprint": "1234"},
    ],
)  # fmt: skip
def test_another_configuration_checks_nothing(tmp_path: Path, other: dict[str, Any]) -> None:
    run = RunDirectory(tmp_path)
    add_predictions(run, [predicted(kind="floor", bound="lower")])
    measured(run, dataclasses.replace(BASE, **other))
    assert only(run).measured is None
    measured(run)
    assert only(run).measured == 40.0


def test_another_machine_checks_nothing(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    add_predictions(run, [predicted()])
    measured(run, environment={**fake_run.ENVIRONMENT, "device_name": "Example CPU 1"})
    assert only(run).measured is None


def test_settings_of_the_measurement_make_no_difference(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    add_predictions(run, [predicted()])
    measured(run, dataclasses.replace(BASE, seed=7, start_iteration=2, stop_iteration=18, max_seconds=1.0))
    assert only(run).error == pytest.approx(0.25)


def test_the_own_run_comes_first_and_then_the_nearest_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, early, late = (RunDirectory(tmp_path / name) for name in ("own", "early", "late"))
    own.path.mkdir()
    add_predictions(own, [predicted(made="2023-11-15T22:13:20Z")])  # START_NS plus one day
    for run, days, ms in ((early, 0.4, 10.0), (late, 1.5, 20.0)):
        monkeypatch.setattr(fake_run, "START_NS", START_NS + int(days * 86_400) * SECOND)
        measured(run, ms=ms)
    assert only(own, early, late).measured == 20.0
    monkeypatch.setattr(fake_run, "START_NS", START_NS)
    measured(own, ms=30.0)
    assert only(own, early, late).measured == 30.0


def test_peak_memory_is_the_highest_of_all_rounds_and_probes(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    add_predictions(run, [predicted(3e9, kind="memory", quantity="peak_memory_bytes")])
    for number, (kind, peak) in enumerate((("throughput", 10**9), ("probe", 2 * 10**9), ("profile", 9 * 10**9))):
        trial = dataclasses.replace(BASE, kind=kind, round=number)
        measured(run, trial, ranks={0: rank_record(memory=peak)})
    check = only(run)
    assert (check.measured, check.rounds, check.error) == (2e9, 2, pytest.approx(0.5))


def test_what_ran_out_of_memory_is_unchecked_with_its_limit(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    add_predictions(run, [predicted(1e9, kind="memory", quantity="peak_memory_bytes")])
    write_trial(run, dataclasses.replace(BASE, memory_limit_bytes=2**30), status="oom", reason="too large")
    check = only(run)
    assert check.measured is None and "oom" in check.reason and "1.00 GiB, not as predicted" in check.reason
    add_predictions(run, [predicted(2e9, kind="memory", quantity="peak_memory_bytes")])
    assert "1.00 GiB, as predicted" in ledger_of([run]).checks[1].reason


def test_a_floor_is_stored_and_holds_or_not(tmp_path: Path) -> None:
    from test_speed_of_light import write_trial as write_components

    directory = write_components(tmp_path, strategy_options="")
    write_record(directory.env_json, fake_run.ENVIRONMENT)
    run = RunDirectory(tmp_path)
    measured(run, dataclasses.replace(directory.read_trial(), kind="throughput"), ms=50.0)
    result("analyze", tmp_path)
    check = next(one for one in ledger_of([run]).checks if one.prediction.kind == "floor")
    # 41 ms by hand in test_speed_of_light; the 100 ms of its own step are not what checks it.
    assert (check.prediction.value, check.measured, check.held) == (pytest.approx(41.0), 50.0, True)
    broken = dataclasses.replace(check, measured=40.0)
    assert broken.held is False and broken.inside is None


def test_an_expected_gain_is_checked_by_the_configuration_that_its_command_measures(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    trial = dataclasses.replace(BASE, strategy="ddp", world_size=2, max_predictions=20)
    rows = {rank: step_rows(noisy_times(40.0, 40, rank), 8, communication=10.0) for rank in range(2)}
    write_trial(run, trial, rows)
    (answer,) = document("analyze", run.path)["answers"]
    advice = next(one for one in (answer["do_first"], *answer["then"]) if one["cause"] == "communication")
    stored = [one for one in read_predictions(run)[0] if one.kind == "what_if"]
    check = next(one for one in ledger_of([run]).checks if one.prediction.trial.grad_accum_steps == 4)
    assert check.prediction in stored and check.prediction.bound == "lower" and check.reason
    # 16 samples a step on two ranks: the gain is a share of the time per sample.
    per_sample = 1e3 / answer["samples_per_second"]
    assert check.prediction.value == pytest.approx((1 - advice["saves_share"]) * per_sample)
    assert configuration_of(dataclasses.replace(trial, grad_accum_steps=4)) == check.prediction.trial
    four = dataclasses.replace(trial, grad_accum_steps=4)
    write_trial(run, four, {rank: step_rows([128.0] * 20, 32, communication=10.0) for rank in range(2)})
    again = next(one for one in ledger_of([run]).checks if one.prediction == check.prediction)
    assert again.measured == pytest.approx(128.0 / 64) and again.held is (check.prediction.value <= 2.0)
    before = len(read_predictions(run)[0])
    document("analyze", run.path)
    new = read_predictions(run)[0][before:]
    assert all(one.trial.grad_accum_steps != 4 for one in new), "what is measured is not predicted again"


def test_a_run_directory_that_nobody_can_write_is_read_with_a_note(tmp_path: Path) -> None:
    trial = dataclasses.replace(BASE, strategy="ddp", world_size=2)
    rows = {rank: step_rows([40.0] * 20, 8, communication=10.0) for rank in range(2)}
    write_trial(RunDirectory(tmp_path), trial, rows)
    predictions_path(RunDirectory(tmp_path)).mkdir()
    found = result("analyze", tmp_path)
    assert any(str(predictions_path(RunDirectory(tmp_path))) in text for text in found.notes) and found.code == 0


def test_the_distribution_of_errors_by_hand() -> None:
    def check(value: float, real: float | None, low: float | None = None, high: float | None = None) -> Check:
        own = predicted(value, low=low, high=high)
        return Check(prediction=own, run=Path("a"), measured=real, reason="" if real else "not measured")

    floor = Check(prediction=predicted(9.0, kind="floor", bound="lower"), run=Path("a"), measured=10.0)
    checks = (check(110, 100, 90, 120), check(80, 100, 70, 90), check(150, 100), check(1, None, 1, 2), floor)
    rows = {row["kind"]: row for row in Ledger(checks, ()).errors()}
    # Absolute errors 10, 20 and 50 %: the 90th percentile is 0.8 of the way from the second to the third.
    assert rows["projection"] == {
        "kind": "projection", "predictions": 4, "checked": 3, "unchecked": 1, "median_error": pytest.approx(0.2),
        "p90_error": pytest.approx(0.44), "bias": pytest.approx(0.4 / 3), "intervals": 2, "inside": 1, "bounds": 0,
        "held": 0,
    }  # fmt: skip
    assert (rows["floor"]["bounds"], rows["floor"]["held"], rows["floor"]["bias"]) == (1, 1, pytest.approx(-0.1))
    (nothing,) = Ledger((check(1, None),), ()).errors()
    assert nothing["median_error"] is None and nothing["bias"] is None


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"levers": "none"}, {"strategy": "ddp", "world_size": 2, "threads_per_rank": 1}, {"grad_accum_steps": 4},
        {"strategy": "ddp", "world_size": 2, "threads_per_rank": 1, "strategy_options": '{"bucket_mib":5}'},
        {"task": "squad", "seq_len": 384, "padding": "fixed"}, {"dropout": 0.0, "seed": 7}, {"precision": "bf16"},
        {"activation_checkpointing": True}, {"allocator": "keep"}, {"implementation": "hf"},
    ],
)  # fmt: skip
def test_the_command_measures_what_was_predicted(tmp_path: Path, fields: dict[str, Any]) -> None:
    task = fields.get("task", "pretrain")
    (base,) = _expanded(task)
    trial = configuration_of(dataclasses.replace(base, **fields))
    command = check_command(Check(prediction=predicted(trial=trial, machine={**ON, "usable_cores": 2}), run=tmp_path))
    found = configuration(command)
    assert found is not None and configuration_of(found) == trial


def _expanded(task: str) -> list[Trial]:
    from bench.machine.devices import Devices
    from bench.plan.trials import expand

    sweep = Sweep(task=task, presets=("tiny",), precisions=("fp32",), devices=(1,), rounds=1)
    return expand(ThroughputOptions(sweep=sweep).sweep, Devices("cpu", (), 2))


def test_more_devices_than_the_machine_has_need_a_launcher(tmp_path: Path) -> None:
    trial = dataclasses.replace(BASE, world_size=64, strategy="ddp")
    command = check_command(Check(prediction=predicted(trial=trial, machine={**ON, "usable_cores": 8}), run=tmp_path))
    assert command.startswith("bertbench launch") and " --devices 64 " in command


def test_the_command_shows_values_errors_and_how_to_check_the_rest(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    measured(run)
    other = dataclasses.replace(BASE, micro_batch_size=16)
    add_predictions(run, [predicted(50.0, low=45.0, high=55.0), predicted(70.0, trial=other)])
    with predictions_path(run).open("a") as file:
        file.write('{"cut short')
    found = result("history", run.path, "--predictions", "--out", tmp_path / "out")
    shown = text(found.blocks)
    assert "50.0 ms" in shown and "40.0 ms" in shown and "+25.0 %" in shown and "outside" in shown
    (command,) = [value for _, value in facts(found.blocks) if value.startswith("bertbench")]
    assert "--batch-sizes 16" in command and found.code == 0
    (problem,) = found.problems
    assert "line 3" in problem
    with (tmp_path / "out" / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["predicted"], row["measured"]) for row in rows] == [("50.0", "40.0"), ("70.0", "")]
    assert json.loads(json.dumps(document("history", run.path, "--predictions")))["errors"][0]["checked"] == 1


def test_runs_from_before_the_ledger_have_no_predictions(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    measured(run)
    found = result("history", run.path, "--predictions")
    assert found.document == {"predictions": [], "errors": [], "problems": []} and len(found.blocks) == 1
    assert found.code == 0 and not found.problems and not predictions_path(run).exists()


def test_long_ledgers_show_the_largest_errors_and_say_so(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    measured(run)
    add_predictions(run, [predicted(40.0 + number / 10) for number in range(60)])
    other = [dataclasses.replace(BASE, micro_batch_size=100 + number) for number in range(50)]
    add_predictions(run, [predicted(1.0, trial=trial) for trial in other])
    found = result("history", run.path, "--predictions")
    (table,) = [block for block in found.blocks if isinstance(block, Table) and block.name == "predictions"]
    assert len(table.rows) == 40 and table.rows[-1][3].text == "45.9 ms" and table.rows[0][3].text == "42.0 ms"
    commands = [value for _, value in facts(found.blocks) if value.startswith("bertbench")]
    assert len(commands) == 40 and len(found.document["predictions"]) == 110
    shown = " ".join(text(found.blocks).split())
    assert "40 largest errors of 60" in shown and "40 of 50 commands" in shown
