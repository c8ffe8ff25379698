"""predictions.jsonl: what is written is read back, and nothing that it holds is ever lost."""

import dataclasses
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

from common.errors import StorageError
from records.prediction import (
    Origin,
    Prediction,
    add_predictions,
    configuration_of,
    predictions_path,
    read_predictions,
)
from records.run import RunDirectory
from records.trial import Trial

MACHINE = {"device_name": "Example", "cpu": "Example", "cores": 8, "usable_cores": 8, "gpus": 0}


def predicted(value: float = 12.5, **fields: Any) -> Prediction:
    usual: dict[str, Any] = {
        "kind": "projection", "quantity": "step_time_ms", "low": 10.0, "high": 15.0, "machine": MACHINE,
        "trial": Trial(world_size=2, strategy_options='{"bucket_mib":5}'), "basis": "from 1 device",
        "origins": (Origin(trial_id="a", start_ns=7), Origin(trial_id="b")),
    }  # fmt: skip
    return Prediction(value=value, **{**usual, **fields})


def test_what_is_written_is_read_back_with_time_and_version(tmp_path: Path) -> None:
    run, wanted = (
        RunDirectory(tmp_path),
        [predicted(), predicted(3.0, kind="floor", low=None, high=None, bound="lower")],
    )
    assert add_predictions(run, wanted) == 2
    found, problems = read_predictions(run)
    assert problems == [] and [one.content for one in found] == [one.content for one in wanted]
    assert all(one.made.endswith("Z") and len(one.made) == 20 and one.version for one in found)
    assert json.loads(predictions_path(run).read_text().splitlines()[0])["unit"] == "ms"


def test_the_same_prediction_is_stored_once(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert add_predictions(run, [predicted(), predicted()]) == 1
    before = predictions_path(run).read_bytes()
    assert add_predictions(run, [predicted()]) == 0 and predictions_path(run).read_bytes() == before
    assert add_predictions(run, [predicted(12.6)]) == 1
    assert predictions_path(run).read_bytes().startswith(before)


@pytest.mark.parametrize(
    "damage",
    [
        b"{", b"[]", b"\xff\xfe", b'{"schema_version": 1}', b"1" * 5000, b"[" * 100_000,
        json.dumps({**predicted().to_json(), "kind": "horoscope"}).encode(),
        json.dumps({**predicted().to_json(), "value": "much"}).encode(),
        json.dumps({**predicted().to_json(), "value": 0}).encode(),
        json.dumps({**predicted().to_json(), "trial": {"seq_len": "long"}}).encode(),
        json.dumps({**predicted().to_json(), "trial": {**Trial().to_json(), "levers": []}}).encode(),
        json.dumps({**predicted().to_json(), "value": 10**400}).encode(),
        json.dumps({**predicted().to_json(), "origins": [3]}).encode(),
        json.dumps({**predicted().to_json(), "schema_version": 99}).encode(),
    ],
)  # fmt: skip
def test_a_damaged_line_is_skipped_with_its_number_and_kept(tmp_path: Path, damage: bytes) -> None:
    run = RunDirectory(tmp_path)
    add_predictions(run, [predicted()])
    with predictions_path(run).open("ab") as file:
        file.write(damage)  # cut short: without the end of its line
    add_predictions(run, [predicted(2.0)])
    found, (problem,) = read_predictions(run)
    assert [one.value for one in found] == [12.5, 2.0]
    assert str(predictions_path(run)) in problem and "line 2" in problem
    assert damage in predictions_path(run).read_bytes().split(b"\n")


def test_a_run_without_the_file_has_none_and_one_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert read_predictions(run) == ([], [])
    predictions_path(run).mkdir()
    found, (problem,) = read_predictions(run)
    assert found == [] and str(predictions_path(run)) in problem


def test_predictions_of_other_nodes_are_read_too(tmp_path: Path) -> None:
    add_predictions(RunDirectory(tmp_path), [predicted(1.0)])
    add_predictions(RunDirectory(tmp_path / "nodes" / "b"), [predicted(2.0)])
    assert [one.value for one in read_predictions(RunDirectory(tmp_path))[0]] == [1.0, 2.0]


def _add(folder: str, first: int) -> None:
    for number in range(first, first + 20):
        add_predictions(RunDirectory(Path(folder)), [predicted(float(number))])


def test_processes_that_store_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_add, args=(str(tmp_path), 1 + 20 * number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    found, problems = read_predictions(RunDirectory(tmp_path))
    assert sorted(one.value for one in found) == [float(number) for number in range(1, 61)] and problems == []
    assert [path.name for path in tmp_path.iterdir()] == [predictions_path(RunDirectory(tmp_path)).name]


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunDirectory(tmp_path)
    add_predictions(run, [predicted()])
    before = predictions_path(run).read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("common.atomic.os.fsync", full)
    with refused("disk-full", predictions_path(run), kind=StorageError):
        add_predictions(run, [predicted(2.0)])
    assert predictions_path(run).read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_rounds_probes_and_limits_are_one_configuration_and_batches_are_not() -> None:
    trial = Trial(micro_batch_size=4)
    same = dataclasses.replace(
        trial, kind="probe", round=2, start_iteration=1, stop_iteration=3, memory_limit_bytes=7, max_seconds=1.0
    )
    assert configuration_of(same) == configuration_of(trial) != configuration_of(Trial(micro_batch_size=5))


def test_repetitions_of_a_trial_are_different_origins_and_copies_the_same() -> None:
    first, copy, again = (Origin(trial_id="a", start_ns=start) for start in (1, 1, 2))
    assert first.is_of(copy) and not first.is_of(again) and not first.is_of(Origin(trial_id="b", start_ns=1))
    assert first.is_of(Origin(trial_id="a")), "without a time nothing distinguishes them"
