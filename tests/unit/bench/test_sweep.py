"""The run directory as the sweep keeps it."""

import csv
import json
from pathlib import Path

import pytest
from support.refusals import refused

from bench.cli.session import announce
from bench.machine.devices import Devices
from bench.run.supervise import LaunchOptions
from bench.sweep.sweep import (
    Session,
    finished_result,
    locked,
    record_request,
    result_rows,
    run_trials,
    tidy,
    write_results,
)
from common.errors import LockedError
from records.files import write_record
from records.run import RunDirectory
from records.trial import Trial


def put(run: RunDirectory, trial: Trial, status: str | None) -> None:
    directory = run.trial(trial.trial_id)
    write_record(directory.trial_json, trial.to_json())
    if status:
        write_record(directory.result_json, {"trial_id": trial.trial_id, "status": status, "samples_per_second": 3.5})


@pytest.mark.parametrize(
    ("status", "finished", "finished_when_retrying"),
    [
        ("ok", True, True),
        ("oom", True, False),
        ("crashed", True, False),
        ("interrupted", False, False),
        (None, False, False),
    ],
)
def test_what_is_run_again(tmp_path: Path, status: str | None, finished: bool, finished_when_retrying: bool) -> None:
    run, trial = RunDirectory(tmp_path), Trial()
    put(run, trial, status)
    assert (finished_result(run.trial(trial.trial_id)) is not None) is finished
    assert (finished_result(run.trial(trial.trial_id), retry_failed=True) is not None) is finished_when_retrying


def test_a_damaged_result_is_run_again(tmp_path: Path) -> None:
    run, trial = RunDirectory(tmp_path), Trial()
    put(run, trial, "ok")
    run.trial(trial.trial_id).result_json.write_text('{"schema_ver')
    assert finished_result(run.trial(trial.trial_id)) is None


def test_results_csv_has_a_row_per_finished_trial_with_its_configuration(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    put(run, Trial(micro_batch_size=4), "ok")
    put(run, Trial(micro_batch_size=8), "oom")
    put(run, Trial(micro_batch_size=16), None)
    write_results(run)
    with run.results_csv.open(newline="") as file:
        rows = {row["micro_batch_size"]: row for row in csv.DictReader(file)}
    assert {size: row["status"] for size, row in rows.items()} == {"4": "ok", "8": "oom"}
    assert rows["4"]["samples_per_second"] == "3.5" and rows["4"]["mfu"] == ""
    assert len(result_rows(run)) == 2


def test_a_lock_is_exclusive_and_given_back(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "new")
    with locked(run), refused("folder-locked", run.path, kind=LockedError), locked(run):
        pass
    with locked(run):
        pass


def test_the_request_is_kept_with_those_before_it(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for batch in (4, 4, 8):
        record_request(run, [Trial(micro_batch_size=batch)], {"batch": batch})
    kept = json.loads(run.sweep_json.read_text())
    assert kept["request"] == {"batch": 8} and kept["earlier"] == [{"batch": 4}]


def test_a_trial_with_an_impossible_value_is_left_out_of_the_table(tmp_path: Path) -> None:
    run, good, bad = RunDirectory(tmp_path), Trial(micro_batch_size=4), Trial(micro_batch_size=8)
    put(run, good, "ok")
    put(run, bad, "ok")
    path = run.trial(bad.trial_id).trial_json
    path.write_text(path.read_text().replace('"fp32"', '"fp3"').replace('"bf16"', '"bf1"'))
    assert [row["micro_batch_size"] for row in result_rows(run)] == [4]
    assert finished_result(run.trial(bad.trial_id)) is None


def test_a_trial_that_ran_out_of_time_is_tried_again_with_a_longer_limit(tmp_path: Path) -> None:
    run, trial = RunDirectory(tmp_path), Trial()
    put(run, trial, "timeout")
    directory = run.trial(trial.trial_id)
    write_record(directory.result_json, {"trial_id": trial.trial_id, "status": "timeout", "timeout_seconds": 60.0})
    assert finished_result(directory, timeout_seconds=60.0) is not None
    assert finished_result(directory, timeout_seconds=61.0) is None


def test_a_row_of_collectives_invents_no_shape_of_a_training(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    put(run, Trial(kind="comm", world_size=2, device="cpu"), "ok")
    put(run, Trial(micro_batch_size=4), "ok")
    rows = {row["kind"]: row for row in result_rows(run)}
    empty = ("task", "implementation", "strategy", "preset", "seq_len", "micro_batch_size", "grad_accum_steps")
    assert [rows["comm"][name] for name in empty] == [None] * len(empty)
    assert rows["comm"]["world_size"] == 2 and rows["throughput"]["micro_batch_size"] == 4


def test_a_sweep_begins_without_what_killed_ones_left_half_written(tmp_path: Path) -> None:
    run, trial = RunDirectory(tmp_path), Trial()
    put(run, trial, "ok")
    finished = sorted(tmp_path.rglob("*"))
    for folder in (run.path, run.trial(trial.trial_id).path):
        (folder / ".result.json.ab_d1234.tmp").touch()
    tidy(run)
    assert sorted(tmp_path.rglob("*")) == finished


def session(run: RunDirectory, options: LaunchOptions) -> Session:
    return Session(
        run=run, request={}, devices=Devices("cpu", (), 2), options=options, progress=lambda *rest: None,
        note=lambda text: None,
    )  # fmt: skip


@pytest.mark.parametrize(("limit", "said"), [(10.0, ""), (20.0, "1 trial to run"), (None, "1 trial to run")])
def test_a_trial_that_gets_more_time_now_is_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: float | None, said: str
) -> None:
    run, trial = RunDirectory(tmp_path), Trial()
    put(run, trial, None)
    write_record(
        run.trial(trial.trial_id).result_json, {"trial_id": trial.trial_id, "status": "timeout", "timeout_seconds": 10}
    )
    announce(session(run, LaunchOptions(timeout_seconds=limit)), [trial])
    assert capsys.readouterr().err.partition(",")[0] == said


def test_finished_trials_have_their_cost_at_the_price_of_this_call(tmp_path: Path) -> None:
    run, trials = RunDirectory(tmp_path), [Trial(), Trial(kind="input")]
    name, reasons = "cost_per_million_samples", ("no price was given (--price-per-hour)", "nothing was trained")
    for trial, reason in zip(trials, reasons, strict=True):
        put(run, trial, "ok")
        found = {"trial_id": trial.trial_id, "status": "ok", "samples_per_second": 4.0, "unknown": {name: reason}}
        write_record(run.trial(trial.trial_id).result_json, found)

    def costs(price: float | None) -> list[object]:
        results = run_trials(session(run, LaunchOptions(price_per_hour=price)), trials)
        assert results[1]["unknown"] == {name: reasons[1]}
        rows = {row["kind"]: row.get(name) for row in result_rows(run)}
        assert rows["throughput"] == results[0].get(name)
        return [rows["throughput"], rows["input"]]

    assert costs(None) == [None, None]
    assert costs(3.6) == [3.6 / 3600 / 4.0 * 1e6, None]
    assert costs(7.2) == [7.2 / 3600 / 4.0 * 1e6, None]
    assert costs(None) == [7.2 / 3600 / 4.0 * 1e6, None], "the last price that was given"
