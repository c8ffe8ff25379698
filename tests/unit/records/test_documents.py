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
from records.documents import Environment, RankRecord, Result, wrong_field
from records.files import typed_rows, write_record
from records.run import RunDirectory
from records.schema import STEP_COLUMNS
from records.trial import Trial


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        (Environment, {"cpu": "x"}, "cpu"),
        (Environment, {"gpus": 1.5}, "gpus"),
        (Environment, {"gpus": [{"name": "a"}, 3]}, "gpus.1"),
        (Environment, {"libraries": {"torch": 2}}, "libraries.torch"),
        (RankRecord, {"peak_memory_bytes": 2**63}, "peak_memory_bytes"),
        (RankRecord, {"peak_memory_bytes": True}, "peak_memory_bytes"),
        (RankRecord, {"measured_peak": {"before": 10**400}}, "measured_peak.before"),
        (RankRecord, {"measured_peak": {"after": float("nan")}}, "measured_peak.after"),
        (Result, {"reason": ""}, "status"),
        (Result, {"status": "ok", "cautions": [{"code": "x", "message": "y"}]}, "cautions.0.remedy"),
        (Trial, {"implementation": 5}, "implementation"),
        (Trial, {"data_fingerprint": {"a": 1}}, "data_fingerprint"),
        (Trial, {"dropout": "0"}, "dropout"),
    ],
)
def test_the_wrong_field_is_named(kind: type, value: dict[str, Any], named: str) -> None:
    assert wrong_field(value, kind).startswith(f"{named} is ")


def test_unknown_fields_missing_fields_and_none_are_taken() -> None:
    assert not wrong_field({"later": object(), "cpu": None, "gpus": [{}]}, Environment)
    assert not wrong_field({"measured_peak": {"before": 3}}, RankRecord)
    assert not wrong_field({**ENVIRONMENT}, Environment) and not wrong_field(rank_record(), RankRecord)


@pytest.mark.parametrize(
    ("name", "cell"),
    [("step", "9" * 20), ("step", "9" * 400), ("step", "-" + "9" * 19), ("forward_ms", "inf"), ("model_flops", "nan")],
)
def test_numbers_of_tables_can_be_computed_with(tmp_path: Path, name: str, cell: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(f"loss,{name}\ninf,3\nnan,{cell}\n")
    with refused("file-damaged", path, "line 3"):
        list(typed_rows(path, STEP_COLUMNS))


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
@pytest.mark.parametrize("new", ["x", -1, [1], {"a": 1}, 10**400], ids=["text", "number", "list", "object", "huge"])
def test_a_changed_value_is_used_or_refused(tmp_path: Path, name: str, new: Any) -> None:
    for folder in ("good", "changed"):
        write_trial(RunDirectory(tmp_path / folder), Trial(), {0: step_rows([10.0] * 9, 8)}, ranks={
            0: {**rank_record(), "shards_read": {"samples": 3, "seconds": 1.0}, "levers": "unpad"}
        })  # fmt: skip
    good, changed = (RunDirectory(tmp_path / folder) for folder in ("good", "changed"))
    (directory,) = changed.trials()
    record = json.loads((directory.path / name).read_text())
    for path in _paths(record):
        (directory.path / name).write_text(json.dumps(_changed(record, path, new)))
        try:
            compare_runs(good, changed)
        except BertbenchError as error:
            assert str(path[0]) in str(error) or error.code == "run-mismatch"


def test_a_world_of_any_size_takes_no_memory_of_its_size(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for nodes in (1, 2):
        write_trial(run, Trial(world_size=2**62, nodes=nodes), {0: step_rows([10.0] * 9, 8)})
    rows = [trial.row for trial in load_run(run)]
    assert [row["status"] for row in rows] == ["ok", "ok"] and all(row["mfu"] is None for row in rows)
    assert any(
        f"{2**62 - 1} ranks" in row["unknown"]["step_time_ms"] for row in rows if "step_time_ms" in row["unknown"]
    )


def test_a_damaged_document_costs_its_trial_alone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for seed in (1, 2):
        write_trial(run, Trial(seed=seed), {0: step_rows([10.0] * 9, 8)})
    first = run.trials()[0]
    write_record(first.env_json, {"cpu": "x"})
    found = {trial.directory.path: trial.row for trial in load_run(run)}
    assert found[first.path]["status"] == DAMAGED and "cpu is 'x'" in found[first.path]["reason"]
    assert [row["status"] for path, row in found.items() if path != first.path] == ["ok"]
