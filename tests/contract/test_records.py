"""The run directory: what bench writes, analysis reads back, whatever happened in between."""

import csv
import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refused

from analysis.load import load_run
from common.errors import Code, InputError, SchemaError, UsageError
from records.files import SCHEMA_VERSION, read_record, write_record
from records.run import RunDirectory, TrialDirectory
from records.schema import RESULT_COLUMNS, STEP_COLUMNS
from records.trial import PRECISIONS, Trial

ROW: dict[str, Any] = {
    "step": 3,
    "start_ns": 1_700_000_000_123_456_789,
    "step_time_ms": 12.345678901234567,
    "data_wait_ms": 0.25,
    "forward_ms": 4.0,
    "backward_ms": 7.0,
    "communication_ms": None,
    "optimizer_ms": 1.0,
    "samples": 8,
    "real_tokens": 801,
    "padded_tokens": 1024,
    "predicted_positions": 120,
    "model_flops": 1.23e12,
    "loss": 10.5,
    "learning_rate": 1e-4,
}


def write_steps(directory: TrialDirectory, rank: int, rows: list[dict[str, Any]]) -> Path:
    from records.files import RowWriter

    path = directory.steps_csv(rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with RowWriter(path, STEP_COLUMNS) as writer:
        for row in rows:
            writer.write(row)
    return path


@given(
    st.builds(
        Trial,
        implementation=st.text(max_size=20),
        precision=st.sampled_from(PRECISIONS),
        seq_len=st.integers(1, 512),
        micro_batch_size=st.integers(1, 4096),
        world_size=st.integers(1, 64),
        dropout=st.floats(0, 0.9),
        data=st.text(max_size=20),
        memory_limit_bytes=st.none() | st.integers(1, 2**50),
        round=st.integers(0, 9),
    )
)
def test_a_trial_survives_its_json_and_keeps_its_id(trial: Trial) -> None:
    again = Trial.from_json(json.loads(json.dumps(trial.to_json())))
    assert again == trial and again.trial_id == trial.trial_id and hash(again) == hash(trial)


def test_every_field_decides_the_id() -> None:
    base = Trial()
    others = {bool: True, int: 7, float: 0.5, str: "fp32", tuple[str, Any]: (("steps", 7),)}
    hints = typing.get_type_hints(Trial)
    for field in dataclasses.fields(Trial):
        if field.name in ("start_iteration", "stop_iteration"):
            changed = dataclasses.replace(base, start_iteration=3, stop_iteration=9)
        else:
            kind = next(item for item in (typing.get_args(hints[field.name]) or (hints[field.name],)) if item in others)
            value: Any = "profile" if field.name == "kind" else others[kind]
            changed = dataclasses.replace(base, **{field.name: value})
        assert changed.trial_id != base.trial_id, field.name


@pytest.mark.parametrize(
    ("fields", "code", "facts"),
    [
        ({"kind": "other"}, "option-choice", ("kind='other'", "throughput")),
        ({"precision": "int8"}, "option-choice", ("precision='int8'", "fp32")),
        ({"micro_batch_size": 0}, "option-value", ("micro_batch_size=0", 1)),
        ({"dropout": 1.0}, "option-value", ("dropout=1.0", "[0, 1)")),
        ({"start_iteration": 3}, "option-missing", ("--start", "--stop")),
        ({"start_iteration": 5, "stop_iteration": 5}, "option-value", ("--start=5", "--stop 5")),
        ({"max_seconds": 0.0}, "option-value", ("max_seconds=0.0",)),
    ],
)
def test_what_cannot_run_is_refused(fields: dict[str, Any], code: Code, facts: tuple[object, ...]) -> None:
    with refused(code, *facts, kind=UsageError):
        Trial(**fields)


def test_what_the_recorder_writes_the_reader_returns_exactly(tmp_path: Path) -> None:
    directory = TrialDirectory(tmp_path)
    write_steps(directory, 0, [ROW, {**ROW, "step": 4, "loss": None}])
    assert directory.read_steps(0) == [ROW, {**ROW, "step": 4, "loss": None}]
    assert set(ROW) == set(STEP_COLUMNS)


def test_a_last_line_cut_short_at_any_byte_is_dropped(tmp_path: Path) -> None:
    directory = TrialDirectory(tmp_path)
    path = write_steps(directory, 0, [ROW, {**ROW, "step": 4}])
    whole = path.read_bytes()
    last = whole.rstrip(b"\r\n").rfind(b"\n") + 1
    for length in range(last, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert directory.read_steps(0) == [ROW]


@pytest.mark.parametrize("damaged", ["x3,1\n", "3,1\n", "," * len(STEP_COLUMNS) + "\n"])
def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path, damaged: str) -> None:
    directory = TrialDirectory(tmp_path)
    path = write_steps(directory, 0, [ROW, ROW, ROW])
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:2], damaged, *lines[3:]]))
    with refused("file-damaged", "steps-0.csv line 3", kind=SchemaError):
        directory.read_steps(0)


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
def test_another_schema_is_refused_with_both_numbers(tmp_path: Path, version: int) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"schema_version": version, "status": "ok"}))
    with refused("record-version", version, SCHEMA_VERSION, kind=SchemaError):
        read_record(path)


def test_a_newer_trial_makes_the_whole_run_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    directory = run.trial("t")
    directory.path.mkdir(parents=True)
    directory.trial_json.write_text(json.dumps({**Trial().to_json(), "schema_version": SCHEMA_VERSION + 1}))
    with refused("record-version", SCHEMA_VERSION + 1, "bertbench", kind=SchemaError):
        load_run(run)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "file-damaged"),
        ("{", "file-damaged"),
        ("[]", "record-foreign"),
        ('{"schema_version": 1, "kind": "other"}', "file-damaged"),
        ('{"schema_version": 1, "seq_len": "x"}', "file-damaged"),
        ('{"schema_version": 1, "max_seconds": null}', "file-damaged"),
    ],
)
def test_a_damaged_trial_is_named_and_the_others_are_read(tmp_path: Path, text: str, code: Code) -> None:
    run = RunDirectory(tmp_path)
    for name in ("bad", "good"):
        directory = run.trial(name)
        directory.path.mkdir(parents=True)
        write_record(directory.trial_json, Trial().to_json())
    run.trial("bad").trial_json.write_text(text)
    loaded = load_run(run)
    assert [trial.directory.path.name for trial in loaded] == ["good"]
    assert len(loaded.problems) == 1 and "trial bad" in loaded.problems[0]
    run.trial("good").trial_json.write_text(text)
    with refused(code, run.path, "trial bad", kind=InputError):
        load_run(run)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "file-damaged"),
        ("{", "file-damaged"),
        ("[]", "record-foreign"),
        ('{"status": "ok"}', "record-foreign"),
        ('{"schema_version": true}', "record-foreign"),
        ('{"schema_version": "1"}', "record-foreign"),
    ],
)
def test_what_is_no_record_is_named(tmp_path: Path, text: str, code: Code) -> None:
    path = tmp_path / "trial.json"
    path.write_text(text)
    with refused(code, path, kind=SchemaError):
        read_record(path)


def test_a_record_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_record(path, {"status": "ok", "file": "\udce9"})  # a byte of a file name that is not UTF-8
    with pytest.raises(ValueError):
        write_record(path, {"status": float("nan")})
    assert read_record(path)["file"] == "\udce9" and [item.name for item in tmp_path.iterdir()] == ["result.json"]


def test_results_csv_has_the_contracts_columns_in_order(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_results([{"trial_id": "t", "status": "oom", "reason": 'a,"b"\nc', "mfu": None, "extra": 1}])
    with run.results_csv.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(RESULT_COLUMNS)
    assert rows[0]["reason"] == 'a,"b"\nc' and rows[0]["mfu"] == ""


def test_a_folder_that_is_no_run_says_what_to_give(tmp_path: Path) -> None:
    with refused("run-incomplete", tmp_path, kind=InputError):
        RunDirectory(tmp_path).require()
    with refused("path-missing", tmp_path / "gone", kind=InputError):
        RunDirectory(tmp_path / "gone").require()
