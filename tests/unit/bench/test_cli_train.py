"""What `bertbench train` makes of its options, and what it says and writes; nothing is trained."""

import dataclasses
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from support import squad_runs
from support.commands import result
from support.help_text import option_texts
from support.page import report_page
from support.refusals import check_refusal, refused
from support.training_runs import settings, shards

from bench.cli import train as command
from bench.cli.main import run
from bench.cli.train import _facts
from bench.cli.train_progress import TrainProgress, event_text
from bench.machine.devices import Devices
from bench.run.attempt import train_once
from bench.run.processes import StopRequest
from bench.sweep.starting_model import initial_weights
from bench.sweep.training import Plan, TrainOptions, check_continues, check_space, plan_training
from bert.checkpoints.model_config import to_our_json
from bert.model.config import PRESETS, ModelConfig, model_config, shape_in_words
from bert.model.memory import parameter_count
from bert.tasks import TASKS, given_options, make_task, resolve_options, task_data
from bert.train.settings import TrainSettings, phase_defaults, task_defaults
from common import scores as train_scores
from common.errors import Code, StorageError
from records.files import write_record
from records.run import TrialDirectory
from records.training import TrainRun, write_curve
from records.trial import Trial

CPU = Devices("cpu", (), 4)
GIVEN: dict[str, Any] = {"task": "pretrain", "devices": 1, "precision": "fp32"}


def planned(given: dict[str, Any], phase: int | None = 1) -> Plan:
    return plan_training(TrainOptions(phase=phase, **given), CPU)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return shards(tmp_path / "data")


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        ([], "option-missing", ["bertbench train --help"]),
        (["squat"], "option-choice", ["'squat'"]),
        (["pretrain"], "option-missing", ["--data FOLDER"]),
        (["pretrain", "--data", "nowhere"], "path-missing", ["nowhere"]),
        (["pretrain", "--data", "DATA"], "data-mismatch", ["32 tokens", "phase 1", 128, "--seq-len 32"]),
        (["pretrain", "--data", "DATA", "--phase", "3"], "option-choice", ["--phase 3"]),
        (["pretrain", "--data", "DATA", "--max-seconds", "0"], "option-value", ["--max-seconds 0.0"]),
        (["pretrain", "--data", "DATA", "--model", "m", "--init", "w"], "option-conflict", ["--init"]),
        (["pretrain", "--data", "DATA", "--model", "m", "--dropout", "0"], "option-conflict", ["--dropout"]),
        (
            ["pretrain", "--data", "DATA", "--model", "m", "--implementation", "bertbench"],
            "unsupported-combination",
            ["--implementation hf-trainer"],
        ),
        (["squad", "--data", "DATA", "--model", "m"], "option-not-applicable", ["squad"]),
        (["pretrain", "--data", "DATA", "--trust-remote-code"], "option-missing", ["--model"]),
        (["pretrain", "--data", "DATA", "--seq-len", "32", "--model", "./no where"], "path-missing", ["./no where"]),
        (["pretrain", "--data", "DATA", "--seq-len", "32", "--init", "nowhere"], "path-missing", ["--init", "nowhere"]),
        (["pretrain", "--data", "DATA", "--seq-len", "32", "--optimizer", "sgd"], "option-choice", ["sgd"]),
        (["pretrain", "--data", "DATA", "--seq-len", "32", "--devices", "999"], "device-missing", ["999"]),
        (
            ["pretrain", "--data", "DATA", "--seq-len", "32", "--global-batch-size", "10", "--micro-batch-size", "4"],
            "batch-size-mismatch", ["4 x 1 = 4", "8 or 12"],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_one_message_and_exit_code_2(
    data: Path, tmp_path: Path, words: list[str], code: Code, facts: list[object]
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
        assert (found.preset, found.shape) == (label, shape)
        assert model_config(found).num_layers == config.num_layers and found.vocab_size == 67
    assert planned({**given, "init": weights, "preset": "mini"}).settings.preset == "mini"
    with refused("weights-mismatch", "--preset tiny", weights, "num_layers=4"):
        planned({**given, "init": weights, "preset": "tiny"})
    (weights / "config.json").write_text(json.dumps(to_our_json(odd.replace(max_positions=16))))
    with refused("data-mismatch", weights, 16, 32):
        planned({**given, "init": weights})
    (weights / "config.json").unlink()
    with refused("option-missing", "config.json", weights, "--preset"):
        planned({**given, "init": weights})
    assert planned({**given, "init": weights, "preset": "tiny"}).settings.preset == "tiny"


def test_the_best_checkpoint_is_told_by_a_score_that_is_found(data: Path) -> None:
    given = {**GIVEN, "data": str(data), "seq_len": 32, "preset": "tiny", "eval_every": 2}
    assert planned({**given, "best_by": "nsp_loss"}).settings.best_by == "nsp_loss"
    assert planned(given).settings.best_by is None
    with refused("option-choice", "'f1'", "mlm_loss, mlm_accuracy, nsp_loss"):
        planned({**given, "best_by": "f1"})
    with refused("option-not-applicable", "--best-by nsp_loss", "--eval-every"):
        planned({**given, "best_by": "nsp_loss", "eval_every": 0})
    with refused("option-not-applicable", "--best-by nsp_loss", "--data"):
        planned({**given, "best_by": "nsp_loss", "data": "synthetic"})


def test_every_score_and_part_of_a_task_has_a_label_and_others_are_shown_too() -> None:
    for name in TASKS:
        made_up = task_data(name).inspect("synthetic")
        task = make_task(name, resolve_options(name, given_options(name, {}), made_up))
        assert {*task.scores, *task.parts} <= train_scores.KNOWN.keys()
        assert task.deciding_score in task.scores
    found = {"event": "evaluated", "time_ns": 1, "applied_steps": 3, "seconds": 0.5, "best": True, "samples": 1200,
             "mlm_loss": 3.0, "nsp_loss": 0.7, "mlm_accuracy": None, "mood": 0.25, "guesses": 7}  # fmt: skip
    assert list(train_scores.scores_in(found)) == ["mlm_loss", "nsp_loss", "mlm_accuracy", "mood"]
    text = "MLM loss 3.0000, MLM accuracy not finite, mood 0.2500, on 1,200 samples"
    assert train_scores.evaluation_text(found) == text
    assert train_scores.in_words("f1", 88.4376) == "F1 88.44"
    assert train_scores.parts_text({"mlm_loss": 1.5, "nsp_loss": None}) == "1.5000 MLM, not finite NSP"


def test_what_was_not_loaded_is_told_by_its_first_names() -> None:
    event = {"event": "resumed", "path": "x", "applied_steps": 0, "new_phase": True, "moments": False,
             "missing": ["a", "b"], "unused": ["c", "d", "e", "f", "g"]}  # fmt: skip
    first, missing, unused = event_text(event).splitlines()
    assert " x" in first and "optimizer" in first
    assert missing.startswith("  2 weights ") and missing.endswith(": a, b")
    assert unused.startswith("  5 weights ") and unused.endswith(": c, d, e, f, ...")
    assert "weights" not in event_text({**event, "missing": [], "unused": []})


def test_what_a_fine_tuning_cannot_use_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, other = squad_runs.features(tmp_path), squad_runs.features(tmp_path / "other", lower_case=False)
    words = ["train", "squad", "--data", str(files["training"]), "--device", "cpu", "--out", str(tmp_path / "run")]
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"")
    vocabulary = (tmp_path / "vocab.txt").read_text()

    def check(code: Code, *facts: object, more: tuple[str, str]) -> None:
        assert run([*words, *more]) == 2
        assert not (tmp_path / "run").exists()
        check_refusal(capsys.readouterr().err, code, *facts)

    def model(**changes: Any) -> None:
        shape = {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "intermediate_size": 16, "vocab_size": 500}
        (weights / "config.json").write_text(json.dumps(to_our_json(ModelConfig(**{**shape, **changes}))))

    check("option-missing", "--eval-data", more=("--eval-every", "2"))
    needed = "bertbench data squad --input DEV.json"
    check("data-unprepared", needed, more=("--eval-data", str(tmp_path / "none")))
    check("data-mismatch", files["training"], "training", more=("--eval-data", str(files["training"])))
    check("vocabulary-mismatch", other["evaluation"], more=("--eval-data", str(other["evaluation"])))
    model(max_positions=16)
    check("data-mismatch", 16, "`bertbench data squad ", more=("--init", str(weights)))
    model(vocab_size=15)
    check("vocabulary-mismatch", weights, 15, more=("--init", str(weights)))
    model()
    (weights / "vocab.txt").write_text(vocabulary + "unknown\n")
    check("vocabulary-mismatch", weights / "vocab.txt", more=("--init", str(weights)))


def test_init_takes_a_finished_run_or_any_folder(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    assert initial_weights(weights, best=False) == weights
    finished = TrainRun(tmp_path / "run")
    write_record(finished.state_json, {"finished": True, "applied_steps": 9, "total_steps": 9})
    assert initial_weights(finished.path, best=False) == initial_weights(finished.path, best=True)
    assert initial_weights(finished.path, best=False) == finished.checkpoints
    best = {"checkpoint": "step-0000003", "applied_steps": 3, "score": "f1", "value": 80.0}
    write_record(finished.state_json, {"finished": True, "applied_steps": 9, "total_steps": 9, "best": best})
    assert initial_weights(finished.path, best=True) == finished.checkpoints, "the best one is gone"
    (finished.checkpoints / "step-0000003").mkdir(parents=True)
    assert initial_weights(finished.path, best=True) == finished.checkpoints / "step-0000003"
    assert initial_weights(finished.path, best=False) == finished.checkpoints, "the next phase of pretraining"
    write_record(finished.state_json, {"finished": False, "applied_steps": 4, "total_steps": 9})
    with refused("run-incomplete", finished.path, "4 of 9"):
        initial_weights(finished.path, best=False)
    with refused("path-missing", tmp_path / "nothing"):
        initial_weights(tmp_path / "nothing", best=False)


def begun(place: Path, data: Path, **changes: Any) -> TrainRun:
    """A run directory with two checkpoints, of which the second one's state is cut short."""
    found = TrainRun(place)
    wanted = settings(data, micro_batch_size=8, **changes)
    for step, text in ((3, json.dumps({"settings": wanted.to_json()})), (6, "{")):
        folder = found.checkpoints / f"step-{step:07d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(text)
    return found


def test_a_folder_goes_on_with_a_batch_size_that_was_asked_for_and_with_no_other_length(
    data: Path, tmp_path: Path
) -> None:
    place = begun(tmp_path / "run", data)

    def check(**changes: Any) -> None:
        given = {**GIVEN, "data": str(data), "seq_len": 32, "preset": "tiny", **changes}
        check_continues(place, planned(given))

    check(global_batch_size=8)
    check(global_batch_size=16, micro_batch_size=8)
    check(micro_batch_size=2, grad_accum_steps=2)
    with refused("settings-changed", "phase 1", 65536, "--global-batch-size 8"):
        check()
    with refused("settings-changed", "--global-batch-size 8"):
        check(micro_batch_size=8)
    with refused("settings-changed", 32, 64, f"--init {place.path}"):
        check(seq_len=64, data=str(shards(tmp_path / "longer", seq_len=64)), global_batch_size=8)
    given = {**GIVEN, "data": str(data), "seq_len": 32}
    check_continues(TrainRun(tmp_path / "new"), planned(given))


@pytest.mark.parametrize(("status", "exit_code"), [("refused", 2), ("crashed", 3)])
def test_a_training_that_fails_ends_its_message_with_the_code_of_its_rank(
    status: str, exit_code: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def attempted(trial: Trial, directory: TrialDirectory, *rest: Any) -> dict[str, Any]:
        write_record(directory.trial_json, trial.to_json())
        directory.log.write_text("why", encoding="utf-8")
        result = {"status": status, "reason": "model 7 is cut short", "code": "file-truncated"}
        write_record(directory.result_json, result)
        return result

    monkeypatch.setattr("bench.run.attempt.run_trial", attempted)
    monkeypatch.setattr("bench.run.attempt.capture", lambda devices: {})
    monkeypatch.setattr("bench.run.attempt.write_results", lambda folder: None)
    words = ["train", "pretrain", "--data", str(data), "--seq-len", "32", "--preset", "tiny", "--device", "cpu"]
    assert run([*words, "--devices", "1", "--out", str(tmp_path / "run")]) == exit_code
    said = capsys.readouterr().err
    check_refusal(said, "file-truncated", "model 7 is cut short", *(["log.txt"] if status == "crashed" else []))
    assert said.endswith("[file-truncated]\n")


def test_a_refused_call_leaves_a_finished_run_finished(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TrainRun(tmp_path / "run")
    given = {**GIVEN, "data": str(data), "seq_len": 32, "preset": "tiny", "global_batch_size": 8}
    results: list[tuple[str, list[dict[str, Any]]]] = []

    def attempted(trial: Trial, directory: TrialDirectory, *rest: Any) -> dict[str, Any]:
        status, events = results.pop(0)
        write_record(directory.trial_json, trial.to_json())
        write_record(directory.result_json, {"status": status, "reason": "why"})
        (directory.path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        return {"status": status}

    monkeypatch.setattr("bench.run.attempt.run_trial", attempted)
    monkeypatch.setattr("bench.run.attempt.capture", lambda devices: {})
    monkeypatch.setattr("bench.run.attempt.write_results", lambda folder: None)

    def attempt(phase: int, steps: int, status: str, *events: dict[str, Any]) -> dict[str, Any]:
        results.append((status, list(events)))
        plan = planned({**given, "steps": steps}, phase)
        train_once(place, plan, CPU, TrainProgress(StopRequest()))
        return place.read_state() or {}

    assert not attempt(1, 9, "refused")["finished"]
    saved = [{"event": "saved", "applied_steps": step, "path": f"step-{step:07d}"} for step in (6, 9)]
    assert attempt(1, 9, "ok", *saved)["finished"]
    after = attempt(2, 20, "refused")
    assert after["finished"] and after["status"] == "refused" and len(after["attempts"]) == 3
    assert (after["phase"], after["total_steps"], after["request"]["steps"]) == (1, 9, 9)
    assert initial_weights(place.path, best=False) == place.checkpoints
    assert not attempt(1, 12, "crashed")["finished"]
    results.append(("refused", []))
    before = place.read_state(), [attempt.path for attempt in place.attempts()]
    plan = planned({**given, "steps": 30})
    directory, _ = train_once(place, plan, CPU, TrainProgress(StopRequest()), keep_refused=False)
    assert not directory.path.exists()
    assert before == (place.read_state(), [attempt.path for attempt in place.attempts()]), "as if it had not been made"
    back = {"event": "resumed", "applied_steps": 6, "path": "x/step-0000006", "new_phase": False, "moments": True}
    after = attempt(1, 9, "crashed", back)
    assert (after["finished"], after["applied_steps"], after["checkpoint"]) == (False, 6, "step-0000006")
    others = planned({**given, "implementation": "hf-trainer"})
    with refused("settings-changed", place.path, "--implementation bertbench", "hf-trainer"):
        check_continues(place, others)
    with refused("option-choice", "'hf'", "hf-trainer"):
        planned({**given, "implementation": "hf"})


def test_the_configuration_of_an_attempt_is_kept_whole_and_names_it(data: Path) -> None:
    wanted = settings(data)
    trial = Trial(kind="train", training=tuple(sorted(wanted.to_json().items())))
    again = Trial.from_json(json.loads(json.dumps(trial.to_json())))
    assert again == trial and again.trial_id == trial.trial_id
    assert type(wanted).from_json(dict(again.training)) == wanted
    assert replace(trial, round=1).trial_id != trial.trial_id
    old = {name: value for name, value in Trial().to_json().items() if name != "training"}
    assert Trial.from_json(old).trial_id == Trial().trial_id, "trials made before keep their ids"
    with pytest.raises(msgspec.ValidationError):
        Trial.from_json({**old, "training": "abc"})


def test_the_defaults_that_the_help_names_are_those_of_the_phases_and_of_every_task() -> None:
    meanings = option_texts(command.TrainOptions)
    fields = {field.name: field for field in dataclasses.fields(TrainSettings)}
    for name, meaning in meanings.items():
        told = [word.rstrip(",;.") for word in meaning.partition("default ")[2].split()]
        numbers = {float(word) for word in told if re.fullmatch(r"[\d.]+(e-\d+)?", word)}
        tasks = [task_defaults(name) for name in TASKS if name != "pretrain"]
        for defaults in (phase_defaults(1), phase_defaults(2), *tasks) if numbers else ():
            known = {**{field: fields[field].default for field in fields}, **defaults}
            if name not in ("epochs", "phase") or name in known:
                assert float(known[name]) in numbers, (name, defaults)
    assert "pretrain: lamb" in meanings["optimizer"] and "pretrain: large" in meanings["preset"]


def test_the_next_command_is_phase_2_then_a_conversion(data: Path, tmp_path: Path) -> None:
    options = command.TrainOptions(task="pretrain", preset="tiny")
    plan = planned({**GIVEN, "data": str(data), "seq_len": 32, "preset": "tiny"})
    place = TrainRun(tmp_path / "my run")
    words = ["pretrain", "--out", "my run"]
    assert command.next_command(options, words, place, plan, False) == "bertbench train pretrain --out 'my run'"
    following = command.next_command(options, words, place, plan, True)
    assert "--phase 2" in following and f"--init '{place.path}'" in following and "--preset tiny" in following
    assert "--data FOLDER_OF_512_TOKENS" in following
    given = replace(options, data="synthetic", global_batch_size=16, optimizer="adamw", steps=7, learning_rate=1e-3)
    following = command.next_command(given, words, place, plan, True)
    assert "--data synthetic" in following and "--global-batch-size 16 --optimizer adamw" in following
    assert "--steps" not in following, "phase 2 has its own"
    assert "--learning-rate 0.001" in following, "the phase's own rate is LAMB's, for large batches"
    following = command.next_command(replace(given, learning_rate=None), words, place, plan, True)
    assert "--learning-rate" not in following, "phase 2 has its own"
    write_record(place.state_json, {"checkpoint": "step-0000009"})
    second = command.next_command(options, words, place, replace(plan, phase=2), True)
    assert second.startswith("bertbench convert") and "step-0000009" in second


def test_the_report_of_a_training_shows_one_curve_and_names_damage(tmp_path: Path, data: Path) -> None:
    place = TrainRun(tmp_path / "run")
    for number in range(2):
        trial = Trial(kind="train", preset="tiny", round=number, training=tuple(settings(data).to_json().items()))
        directory = place.run.trial(trial.trial_id)
        write_record(directory.trial_json, trial.to_json())
        if number:
            (directory.path / "events.jsonl").write_text(
                '{"event": "resumed", "applied_steps": 3, "new_phase": false, "moments": true, "path": "x"}\n'
            )
    rows = [{"step": n, "applied_steps": n + 1, "samples": n, "loss": 3.0, "learning_rate": 0.1} for n in range(5)]
    write_curve(place.curve_csv, rows)
    page = report_page(place.run).read_text()
    assert "BERT-tiny was trained for 5 of 8 steps" in page and "Attempts" in page
    assert (place.run.report / "loss.png").stat().st_size > 1000
    place.curve_csv.write_text("step,loss\nx,1\n")
    with refused("file-damaged", "curve.csv line 2"):
        report_page(place.run)


def test_a_training_whose_checkpoint_would_not_fit_is_refused_before_it_begins(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {**GIVEN, "data": str(data), "seq_len": 32, "preset": "tiny"}
    plan = planned(given)
    parameters = parameter_count(model_config(plan.settings), "pretrain")
    run_directory = TrainRun(tmp_path / "new" / "run")
    for implementation, size in (("bertbench", 12 * parameters), ("hf-trainer", 4 * parameters)):
        own = planned({**given, "implementation": implementation})
        for free in (size, size - 1):
            usage = SimpleNamespace(free=free)
            monkeypatch.setattr("bench.sweep.training.shutil.disk_usage", lambda place, usage=usage: usage)
            if free == size:
                check_space(run_directory, own)
                continue
            with refused("disk-full", f"{parameters:,}", run_directory.path, kind=StorageError):
                check_space(run_directory, own)
    words = ["train", "pretrain", "--data", str(data), "--seq-len", "32", "--preset", "tiny", "--device", "cpu"]
    assert run([*words, "--devices", "1", "--out", str(tmp_path / "out")]) != 0
    check_refusal(capsys.readouterr().err, "disk-full", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_training_reports_that_the_machine_was_disturbed(tmp_path: Path) -> None:
    outcome: dict[str, Any] = dict.fromkeys(("loss", "evaluation", "checkpoint", "best"))
    outcome |= dict.fromkeys(
        ("skipped_steps", "applied_steps", "total_steps", "steps_made", "samples_seen", "samples"), 1
    )
    cautions = [{"code": code, "message": f"{code} machine", "remedy": ""} for code in ("noisy", "loaded")]
    for kinds, rows in ((cautions, ["machine disturbed: loaded machine"]), (cautions[:1], [])):
        facts = _facts(TrainRun(tmp_path), {"cautions": kinds}, outcome)
        assert [value for name, value in facts if name == "caution"] == rows
