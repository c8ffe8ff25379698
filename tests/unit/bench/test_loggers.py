"""Scalars reach the loggers that are asked for, and no training fails by one that gets lost."""

import importlib.util
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import MagicMock, call

import pytest
from support.cli import wait_for
from support.refusals import refused

from bench.loggers import VARIABLE, Loggers, chosen_loggers
from common.errors import MissingToolError
from records.training import TrainRun

VALUES: dict[str, float | None] = {"eval/f1": 81.5, "train/loss": None, "train/loss_scale": float("inf")}
SENT = [("eval/f1", 81.5, 7)]
"""What of VALUES is known: name, value, step."""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("WANDB_", "MLFLOW_")):
            monkeypatch.delenv(name)
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """The client of an MLflow server, whose package need not be installed."""
    made = MagicMock()
    made.get_experiment_by_name.return_value = None
    made.create_run.return_value.info.run_id = "own-run"
    entities = types.SimpleNamespace(
        Metric=lambda name, value, now, step: (name, value, step), Param=lambda name, value: (name, value)
    )
    monkeypatch.setitem(sys.modules, "mlflow", MagicMock(MlflowClient=MagicMock(return_value=made), __spec__=None))
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)  # type: ignore[arg-type]
    return made


def log(
    folder: Path,
    names: str,
    monkeypatch: pytest.MonkeyPatch,
    values: Mapping[str, float | None] = VALUES,
    finished: bool = True,
    run_ids: dict[str, str] | None = None,
) -> list[str]:
    """What an attempt does; returns the warnings, and adds the ids of its runs to `run_ids`."""
    warnings: list[str] = []
    run_ids = {} if run_ids is None else run_ids
    monkeypatch.setenv(VARIABLE, names)
    monkeypatch.setattr(TrainRun, "logger_runs", lambda self: dict(run_ids))
    loggers = Loggers(warnings.append)
    opened = loggers.open(TrainRun(folder), 0, {"learning_rate": 3e-5, "init": None})
    run_ids |= {name: run_id for name, run_id in opened.items() if run_id is not None}
    loggers.log(7, values)
    loggers.flush()
    loggers.close(finished)
    return warnings


def test_a_run_of_mlflow_that_waits_gets_known_values_under_their_names(
    client: MagicMock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:///nowhere")
    monkeypatch.setenv("MLFLOW_RUN_ID", "the-run")
    assert chosen_loggers(()) == ("tensorboard", "mlflow")
    assert log(tmp_path, "mlflow", monkeypatch) == []
    assert client.mock_calls == [call.log_batch("the-run", metrics=SENT)]  # and is not ended: somebody else began it


def test_a_run_of_our_own_names_the_settings_and_goes_on_after_a_stop(
    client: MagicMock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_ids: dict[str, str] = {}
    log(tmp_path / "fast", "mlflow", monkeypatch, finished=False, run_ids=run_ids)
    log(tmp_path / "fast", "mlflow", monkeypatch, run_ids=run_ids)
    sys.modules["mlflow"].MlflowClient.assert_called_with(f"sqlite:///{tmp_path}/fast/mlflow.db")
    assert client.mock_calls == [
        call.get_experiment_by_name("bertbench"),
        call.create_experiment("bertbench"),
        call.create_run(client.create_experiment.return_value, run_name="fast"),
        call.log_batch("own-run", params=[("learning_rate", "3e-05")]),
        call.log_batch("own-run", metrics=SENT),
        call.set_terminated("own-run", "KILLED"),
        call.update_run("own-run", status="RUNNING"),
        call.log_batch("own-run", metrics=SENT),
        call.set_terminated("own-run", "FINISHED"),
    ]


def test_a_logger_that_fails_leaves_the_others_and_warns_once(
    client: MagicMock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client.log_batch.side_effect = ConnectionError("no server at https://host")
    (warned,) = log(tmp_path, "mlflow tensorboard", monkeypatch)
    assert "mlflow" in warned and "ConnectionError" in warned
    monkeypatch.setitem(sys.modules, "mlflow", None)
    (warned,) = log(tmp_path, "mlflow tensorboard", monkeypatch)
    assert "mlflow" in warned and "ModuleNotFoundError" in warned
    assert len(list((tmp_path / "tensorboard").glob("events.out.*"))) > 0


def test_loggers_are_chosen_by_name_and_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_loggers(()) == chosen_loggers(["tensorboard", "tensorboard"]) == ("tensorboard",)
    assert chosen_loggers(["none"]) == ()
    for wrong in (["tensorbord"], ["none", "tensorboard"]):
        with refused("option-choice", wrong[0]):
            chosen_loggers(wrong)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("mlflow", "wandb") else find(name))
    for name in ("mlflow", "wandb"):
        with refused("package-missing", f"--log-to {name}", f"bertbench[{name}]", kind=MissingToolError):
            chosen_loggers([name])


def test_a_real_wandb_keeps_the_scalars_in_the_run_directory_without_a_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run_ids: dict[str, str] = {}
    for finished, values in ((False, {"train/loss": 1.625}), (True, VALUES)):
        assert log(tmp_path / "fast", "wandb", monkeypatch, values, finished, run_ids) == []
    files = sorted((tmp_path / "fast/wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime)
    assert [path.name for path in files] == [f"run-{run_ids['wandb']}.wandb"] * 2  # one run, continued
    for path, words in zip(files, ((b"train/loss", b"1.625"), (b"eval/f1", b"81.5")), strict=True):
        for word in (*words, b"applied_steps", b"learning_rate", b"bertbench"):
            wait_for(lambda path=path, word=word: word in path.read_bytes(), f"{word!r} in {path.name}", 30)
