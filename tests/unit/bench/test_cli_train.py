"""What `bertbench train` makes of its options, and what it says and writes; nothing is trained."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.commands import result
from support.refusals import check_refusal, refused
from support.training_runs import settings, shards

from bench.cli.main import run
from bench.cli.progress import TrainProgress
from bench.machine.devices import Devices
from bench.run.processes import StopRequest
from bench.sweep.training import Plan, TrainOptions, check_continues, initial_weights, plan_training, train_once
from bert.checkpoints.model_config import to_our_json
from bert.model.config import PRESETS, ModelConfig, model_config, shape_in_words
from common.errors import Code
from records.documents import TrainState
from records.files import write_record
from records.run import TrialDirectory
from records.training import TrainRun
from records.trial import Trial

CPU = Devices("cpu", (), 4)
GIVEN: dict[str, Any] = {"task": "pretrain", "devices": 1, "precision": "fp32"}


def planned(given: dict[str, Any], phase: int | None = 1) -> Plan:
    return plan_training(TrainOptions(phase=phase, **given), CPU)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return shards(tmp_path / "data")


REAL = ("pretrain", "--data", "DATA", "--seq-len", "32")


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        ((), "option-missing", ["bertbench train --help"]),
        (("pretrain",), "option-missing", ["--data FOLDER"]),
        (("pretrain", "--data", "nowhere"), "path-missing", ["nowhere"]),
        (("pretrain", "--data", "DATA"), "data-mismatch", ["32 tokens", 128, "--seq-len 32"]),
        ((*REAL, "--model", "m", "--init", "w"), "option-conflict", ["--init"]),
        ((*REAL, "--model", "m", "--implementation", "bertbench"), "unsupported-combination", ["hf-trainer"]),
        ((*REAL, "--devices", "999"), "device-missing", ["999"]),
        ((*REAL, "--global-batch-size", "10", "--micro-batch-size", "4"), "batch-size-mismatch", ["4 x 1 = 4"]),
    ],
)
def test_what_cannot_be_trained_is_one_message_and_exit_code_2(
    data: Path, tmp_path: Path, words: tuple[str, ...], code: Code, facts: list[object]
) -> None:
    given = [str(data) if word == "DATA" else word for word in words]
    with refused(code, *facts):
        result("train", *given, *(["--device", "cpu", "--out", str(tmp_path / "run")] if words else []))
    assert not (tmp_path / "run" / "trials").exists()


def test_accumulation_follows_from_the_batch_sizes_and_the_phase_gives_the_rest(data: Path) -> None:
    given = {**GIVEN, "data": str(data), "seq_len": 32, "global_batch_size": 64, "micro_batch_size": 4, "devices": 2}
    plan = planned(given)
    assert plan.settings.grad_accum_steps == 8 and plan.settings.strategy == "ddp"
    assert (plan.settings.steps, plan.settings.learning_rate, plan.settings.optimizer) == (7038, 6e-3, "lamb")
    assert plan.settings.vocab_size == plan.source.vocab_size and Path(plan.settings.data).is_absolute()
    second = planned({**given, "preset": "base"}, 2)
    assert (second.settings.steps, second.settings.warmup, second.settings.preset) == (1563, 0.128, "base")


def test_the_shape_is_that_of_the_initial_model_and_a_preset_only_checks_it(data: Path, tmp_path: Path) -> None:
    given = {**GIVEN, "data": str(data), "seq_len": 32}
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"")
    odd = ModelConfig(num_layers=3, hidden_size=48, num_heads=4, intermediate_size=96, vocab_size=67)
    for config, label, shape in ((odd, "3x48", shape_in_words(odd)), (PRESETS["mini"], "mini", "")):
        (weights / "config.json").write_text(json.dumps(to_our_json(config)))
        found = planned({**given, "init": weights}).settings
        assert (found.preset, found.shape, model_config(found).num_layers) == (label, shape, config.num_layers)
    assert planned({**given, "init": weights, "preset": "mini"}).settings.preset == "mini"
    with refused("weights-mismatch", "--preset tiny", weights, "num_layers=4"):
        planned({**given, "init": weights, "preset": "tiny"})
    (weights / "config.json").unlink()
    with refused("option-missing", "config.json", weights, "--preset"):
        planned({**given, "init": weights})
    assert planned({**given, "init": weights, "preset": "tiny"}).settings.preset == "tiny"


def test_init_takes_a_finished_run_or_any_folder(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    assert initial_weights(weights, best=False) == weights
    finished = TrainRun(tmp_path / "run")
    write_record(finished.state_json, {"finished": True, "applied_steps": 9, "total_steps": 9})
    assert initial_weights(finished.path, best=True) == finished.checkpoints
    best = {"checkpoint": "step-0000003", "applied_steps": 3, "score": "f1", "value": 80.0}
    write_record(finished.state_json, {"finished": True, "applied_steps": 9, "total_steps": 9, "best": best})
    (finished.checkpoints / "step-0000003").mkdir(parents=True)
    assert initial_weights(finished.path, best=True) == finished.checkpoints / "step-0000003"
    assert initial_weights(finished.path, best=False) == finished.checkpoints, "the next phase of pretraining"
    write_record(finished.state_json, {"finished": False, "applied_steps": 4, "total_steps": 9})
    with refused("run-incomplete", finished.path, "4 of 9"):
        initial_weights(finished.path, best=False)


def test_a_run_is_not_continued_by_another_implementation(data: Path, tmp_path: Path) -> None:
    place = TrainRun(tmp_path / "run")
    training = tuple(sorted(settings(data, micro_batch_size=8).to_json().items()))
    trial = Trial(kind="train", preset="tiny", training=training)
    write_record(place.run.trial(trial.trial_id).trial_json, trial.to_json())
    given = {**GIVEN, "data": str(data), "seq_len": 32, "preset": "tiny"}
    check_continues(place, planned(given))
    with refused("settings-changed", place.path, "hf-trainer"):
        check_continues(place, planned({**given, "implementation": "hf-trainer"}))


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[dict[str, Any]]]]:
    """Status and events of each attempt to come, in place of training."""
    coming: list[tuple[str, list[dict[str, Any]]]] = []

    def attempted(trial: Trial, directory: TrialDirectory, *rest: Any) -> dict[str, Any]:
        status, events = coming.pop(0)
        write_record(directory.trial_json, trial.to_json())
        directory.log.write_text("why", encoding="utf-8")
        result = {"status": status, "reason": "model 7 is cut short", "code": "file-truncated"}
        write_record(directory.result_json, result)
        (directory.path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        return result

    monkeypatch.setattr("bench.sweep.training.run_trial", attempted)
    monkeypatch.setattr("bench.sweep.training.capture", lambda devices: {})
    monkeypatch.setattr("bench.sweep.training.write_results", lambda folder: None)
    return coming


@pytest.mark.parametrize(("status", "exit_code"), [("refused", 2), ("crashed", 3)])
def test_a_training_that_fails_ends_its_message_with_the_code_of_its_rank(
    status: str, exit_code: int, data: Path, tmp_path: Path, results: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    results.append((status, []))
    words = ["train", *REAL, "--preset", "tiny", "--device", "cpu", "--devices", "1", "--out", str(tmp_path / "run")]
    assert run([str(data) if word == "DATA" else word for word in words]) == exit_code
    message = capsys.readouterr().err
    check_refusal(message, "file-truncated", "model 7 is cut short", *(["log.txt"] if status == "crashed" else []))
    assert message.endswith("[file-truncated]\n")


def test_a_refused_call_leaves_a_finished_run_finished(data: Path, tmp_path: Path, results: Any) -> None:
    place = TrainRun(tmp_path / "run")
    given = {**GIVEN, "data": str(data), "seq_len": 32, "preset": "tiny", "global_batch_size": 8}

    def attempt(phase: int, steps: int, status: str, *events: dict[str, Any]) -> TrainState:
        results.append((status, list(events)))
        plan = planned({**given, "steps": steps}, phase)
        train_once(place, plan, CPU, TrainProgress(StopRequest()))
        return place.read_state()

    assert not attempt(1, 9, "refused").finished
    saved = [{"event": "saved", "applied_steps": step, "path": f"step-{step:07d}"} for step in (6, 9)]
    assert attempt(1, 9, "ok", *saved).finished
    after = attempt(2, 20, "refused")
    assert after.finished and after.status == "refused" and len(after.attempts) == 3
    assert (after.phase, after.total_steps, after.request["steps"]) == (1, 9, 9)
    back = {"event": "resumed", "applied_steps": 6, "path": "x/step-0000006", "new_phase": False, "moments": True}
    after = attempt(1, 9, "crashed", back)
    assert (after.finished, after.applied_steps, after.checkpoint) == (False, 6, "step-0000006")
