"""The run directory as the sweep keeps it."""

import csv
import json
from pathlib import Path

import pytest
from support.refusals import refused

from bench.sweep.options import check_same_request
from bench.sweep.sweep import (
    expected_seconds,
    finished_result,
    locked,
    record_request,
    result_rows,
    write_results,
)
from records.files import write_record
from records.run import RunDirectory
from records.trial import Trial


def put(run: RunDirectory, trial: Trial, status: str | None, **more: object) -> None:
    directory = run.trial(trial.trial_id)
    write_record(directory.trial_json, trial.to_json())
    if status:
        found = {"trial_id": trial.trial_id, "status": status, "samples_per_second": 3.5, **more}
        write_record(directory.result_json, found)


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


def test_a_trial_that_ran_out_of_time_is_tried_again_with_a_longer_limit(tmp_path: Path) -> None:
    run, trial = RunDirectory(tmp_path), Trial()
    put(run, trial, "timeout", timeout_seconds=60.0)
    assert finished_result(run.trial(trial.trial_id), timeout_seconds=60.0) is not None
    assert finished_result(run.trial(trial.trial_id), timeout_seconds=61.0) is None


def test_a_damaged_trial_is_run_again_and_left_out_of_the_table(tmp_path: Path) -> None:
    run, good, cut, impossible = RunDirectory(tmp_path), *(Trial(micro_batch_size=size) for size in (4, 8, 16))
    for trial in (good, cut, impossible):
        put(run, trial, "ok")
    run.trial(cut.trial_id).result_json.write_text('{"schema_ver')
    path = run.trial(impossible.trial_id).trial_json
    path.write_text(path.read_text().replace('"bf16"', '"bf1"'))
    assert [row["micro_batch_size"] for row in result_rows(run)] == [4]
    assert finished_result(run.trial(cut.trial_id)) is finished_result(run.trial(impossible.trial_id)) is None


def test_results_csv_has_a_row_per_finished_trial_with_its_configuration(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    put(run, Trial(micro_batch_size=4), "ok")
    put(run, Trial(micro_batch_size=8), "oom")
    put(run, Trial(micro_batch_size=16), None)
    put(run, Trial(kind="comm", world_size=2, device="cpu"), "ok")
    write_results(run)
    with run.results_csv.open(newline="") as file:
        rows = {row["micro_batch_size"]: row for row in csv.DictReader(file)}
    assert {size: row["status"] for size, row in rows.items()} == {"4": "ok", "8": "oom", "": "ok"}
    assert rows["4"]["samples_per_second"] == "3.5" and rows["4"]["mfu"] == ""
    assert rows[""]["world_size"] == "2" and not rows[""]["task"], "collectives have no shape of a training"


def test_the_request_is_kept_with_those_before_it(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for batch in (4, 4, 8):
        record_request(run, [Trial(micro_batch_size=batch)], {"batch": batch})
    kept = json.loads(run.sweep_json.read_text())
    assert kept["request"] == {"batch": 8} and kept["earlier"] == [{"batch": 4}]


def test_another_request_is_refused_with_both_values_of_the_first_difference(tmp_path: Path) -> None:
    before = {"steps": 9, "seed": 7}
    check_same_request(tmp_path, before, {"seed": 7, "steps": 9})
    check_same_request(tmp_path, {}, before)
    for now, values in (({"steps": 6, "seed": 42}, ["steps 9", 6]), ({"steps": 9}, ["seed 7", None])):
        with refused("settings-changed", tmp_path, *values, "--out"):
            check_same_request(tmp_path, before, now)


def test_a_sweep_that_is_asked_to_end_leaves_no_file_half_written(tmp_path: Path) -> None:
    run, trial = RunDirectory(tmp_path), Trial()
    put(run, trial, "ok")
    (run.path / ".lock").touch()
    finished = sorted(tmp_path.rglob("*"))
    with pytest.raises(KeyboardInterrupt), locked(run):
        for folder in (run.path, run.trial(trial.trial_id).path):
            (folder / ".result.json.ab_d1234.tmp").touch()
        raise KeyboardInterrupt
    assert sorted(tmp_path.rglob("*")) == finished


def test_the_time_of_a_sweep_is_estimated_from_finished_trials_of_the_kind(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    put(run, Trial(), "ok", wall_seconds=20.0)
    assert (
        expected_seconds(run, [Trial(micro_batch_size=2), Trial(preset="large", max_seconds=5.0)]) == 20.0 + 8.0 + 5.0
    )
    assert expected_seconds(run, [Trial(preset="large", start_iteration=1, stop_iteration=3)]) is None
