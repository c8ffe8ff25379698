"""Values of other types in the JSON documents of a run are refused by name, never met later."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_run import ENVIRONMENT, rank_record, step_rows, write_trial
from support.refusals import refused

from analysis.load import DAMAGED, load_run
from analysis.metrics.comparison.runs import compare_runs
from common.errors import BertbenchError
from records.documents import Environment, RankRecord, Result
from records.files import read_record, typed_rows, write_record
from records.run import RunDirectory
from records.schema import STEP_COLUMNS
from records.trial import Trial


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        (Environment, {"cpu": "x"}, "cpu"),
        (Environment, {"gpus": [{"name": "a"}, 3]}, "gpus[1]"),
        (RankRecord, {"peak_memory_bytes": True}, "peak_memory_bytes"),
        (Result, {"reason": ""}, "status"),
        (Result, {"status": "ok", "cautions": [3]}, "cautions[0]"),
    ],
)
def test_the_wrong_field_is_named(tmp_path: Path, kind: type, value: dict[str, Any], named: str) -> None:
    write_record(tmp_path / "record.json", value)
    with refused("file-damaged", named, "record.json"):
        read_record(tmp_path / "record.json", kind)


def test_unknown_fields_missing_fields_and_none_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for kind, value in (
        (Environment, {"later": [1], "cpu": None, "gpus": [{}]}),
        (RankRecord, {"measured_peak": {"before": 3}}),
        (Environment, ENVIRONMENT),
        (RankRecord, rank_record()),
    ):
        write_record(path, value)
        assert {**read_record(path, kind), "schema_version": 1} == {**value, "schema_version": 1}


@pytest.mark.parametrize(
    ("name", "cell"),
    [("start_ns", "9" * 9999), ("start_ns", "x"), ("forward_ms", "fast")],
)
def test_numbers_of_tables_can_be_computed_with(tmp_path: Path, name: str, cell: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(f"step,loss,{name}\n0,inf,3\n1,nan,{cell}\n")
    with refused("file-damaged", path, "line 3"):
        typed_rows(path, STEP_COLUMNS)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for part in value if isinstance(value, dict) else range(len(value)):
            yield from _paths(value[part], (*path, part))


def _changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    whole = json.loads(json.dumps(value))
    inner = whole
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = new
    return whole


@pytest.mark.parametrize("name", ["trial.json", "env.json", "result.json", "rank-0.json"])
@pytest.mark.parametrize("new", ["x", -1, [1], {"a": 1}], ids=["text", "number", "list", "object"])
def test_a_changed_value_is_used_or_refused(tmp_path: Path, name: str, new: Any) -> None:
    for folder in ("good", "changed"):
        write_trial(RunDirectory(tmp_path / folder), Trial(), {0: step_rows([10.0] * 9, 8)}, ranks={
            0: {**rank_record(), "shards_read": {"samples": 3, "seconds": 1.0}, "step_lacks": "Triton"}
        })  # fmt: skip
    good, changed = (RunDirectory(tmp_path / folder) for folder in ("good", "changed"))
    (directory,) = changed.trials()
    record = json.loads((directory.path / name).read_text())
    for path in _paths(record):
        (directory.path / name).write_text(json.dumps(_changed(record, path, new)))
        try:
            compare_runs(good, changed)
        except BertbenchError as error:
            assert error.code in ("file-damaged", "record-foreign", "record-version", "run-mismatch")


def test_a_damaged_document_costs_its_trial_alone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for seed in (1, 2):
        write_trial(run, Trial(seed=seed), {0: step_rows([10.0] * 9, 8)})
    first = run.trials()[0]
    write_record(first.env_json, {"cpu": "x"})
    found = {trial.directory.path: trial.row for trial in load_run(run)}
    assert found[first.path]["status"] == DAMAGED and "$.cpu" in found[first.path]["reason"]
    assert [row["status"] for path, row in found.items() if path != first.path] == ["ok"]
