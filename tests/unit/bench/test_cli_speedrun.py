"""`bertbench speedrun` before anything trains: its recipe, what it refuses, and what it records of a command."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.commands import result
from support.fake_run import write_events
from support.refusals import refused
from support.training_runs import SEQ_LEN, shards

from bench.cli.speedrun import SpeedrunOptions, _command, _TargetProgress, read_words
from bench.cli.train import TrainingsCall
from bench.machine.devices import Devices
from bench.plan.speedrun import BATCH, EVALUATIONS, RECIPE, SpeedrunPlan, document, plan_speedrun, with_recipe
from bench.run.processes import StopRequest
from records.files import write_record
from records.speedrun import Speedrun, read_speedrun
from records.training import TrainRun


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards(tmp_path_factory.mktemp("shards"))


def call(*words: object) -> TrainingsCall[SpeedrunOptions]:
    return read_words([str(word) for word in words], "bertbench speedrun")


def planned(out: Path, *words: object) -> SpeedrunPlan:
    found = call("--target-mlm-loss", 4, "--seq-len", SEQ_LEN, "--preset", "tiny", *words)
    options = found.options
    return plan_speedrun(
        found.base, Speedrun(out), Devices("cpu", (), 2), seeds=options.seeds, target=options.target_mlm_loss,
        price_per_hour=options.price_per_hour, command="",
    )  # fmt: skip


def settings(plan: SpeedrunPlan, seed: int) -> Any:
    return plan.seeds[seed].plan.settings


def test_the_recipe_fills_in_what_no_option_says(folder: Path, tmp_path: Path) -> None:
    plan = planned(tmp_path, "--data", folder, "--seeds", 5, 7)
    assert list(plan.seeds) == [5, 7] and [settings(plan, seed).seed for seed in (5, 7)] == [5, 7]
    found = settings(plan, 5)
    for name in ("optimizer", "learning_rate", "schedule", "warmup", "dropout", "steps", "keep"):
        assert getattr(found, name) == RECIPE[name]
    assert found.global_batch_size == BATCH and found.eval_every == RECIPE["steps"] // EVALUATIONS
    assert found.init is None and plan.held_out["held_out_samples"] == 20
    batches = ("--micro-batch-size", 4, "--global-batch-size", 8)
    own = settings(planned(tmp_path, "--data", folder, "--steps", 120, *batches, "--learning-rate", "1e-3"), 1)
    assert (own.steps, own.eval_every, own.micro_batch_size, own.grad_accum_steps) == (120, 3, 4, 2)
    assert own.learning_rate == 1e-3 and own.optimizer == RECIPE["optimizer"]
    assert with_recipe(call("--target-mlm-loss", 4).base).preset == RECIPE["preset"]


def test_nothing_but_random_weights_real_shards_and_evaluations_will_do(folder: Path, tmp_path: Path) -> None:
    with refused("option-not-applicable", "--init"):
        planned(tmp_path, "--data", folder, "--init", folder)
    with refused("option-not-applicable", "--eval-every 0"):
        planned(tmp_path, "--data", folder, "--eval-every", 0)
    with refused("option-not-applicable", "synthetic"):
        planned(tmp_path, "--data", "synthetic")
    with refused("option-not-applicable", "--epochs"):
        planned(tmp_path, "--data", folder, "--epochs", 2)
    with refused("option-missing", "--data"):
        planned(tmp_path)
    without = shutil.copytree(folder, tmp_path / "shards")
    next(without.glob("*test*")).unlink()
    with refused("data-missing", without):
        planned(tmp_path / "out", "--data", without)


def test_impossible_goals_and_seeds_are_refused() -> None:
    with refused("option-missing"):
        call("--data", "x")
    for target in ("0", "-1", "nan", "inf"):
        with refused("option-value", "--target-mlm-loss"):
            call("--target-mlm-loss", target)
    for seeds in ((), (1, 1), (-1,)):
        with refused("option-value", "seed"):
            call("--target-mlm-loss", 4, "--seeds", *seeds)
    with refused("option-value", "--price-per-hour"):
        call("--target-mlm-loss", 4, "--price-per-hour", 0)
    with refused("option-not-applicable", "--seeds"):
        call("--target-mlm-loss", 4, "--seed", 3)


def test_a_folder_keeps_its_target_its_seeds_and_its_data(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    plan = planned(out, "--data", folder, "--seeds", 1, 2)
    write_record(plan.place.document, document(plan))
    assert [row["status"] for row in read_speedrun(out)["rows"]] == ["not begun"] * 2
    assert list(planned(out, "--data", folder, "--seeds", 1, 2, 3).seeds) == [1, 2, 3], "seeds may be added"
    with refused("settings-changed", "seeds 1 2", out):
        planned(out, "--data", folder, "--seeds", 2)
    with refused("settings-changed", "5", "4", out):
        planned(out, "--data", folder, "--seeds", 1, 2, "--target-mlm-loss", 5)
    other = shards(tmp_path / "other", seed=7)
    with refused("data-mismatch", "held_out_fingerprint", out):
        planned(out, "--data", other, "--seeds", 1, 2)
    with refused("data-mismatch", "held_out_samples", 20, 8):
        planned(out, "--data", folder, "--seeds", 1, 2, "--eval-samples", 8)


def test_the_record_names_no_path_and_what_was_asked(folder: Path, tmp_path: Path) -> None:
    plan = planned(tmp_path / "run", "--data", folder, "--price-per-hour", 2)
    found = document(plan)
    assert str(tmp_path) not in str(found) and str(folder) not in str(found)
    assert found["target"] == {"score": "mlm_loss", "value": 4.0} and found["price_per_hour"] == 2.0
    assert found["data"]["samples"] == 88 and found["data"]["fingerprint"] and found["data"]["held_out_fingerprint"]
    assert found["settings"]["preset"] == "tiny" and "seed" not in found["settings"]
    words = [
        "--data",
        str(folder),
        "--out",
        "/some/where",
        "--json",
        "--seeds",
        "1",
        "2",
        "--out=/x",
        f"--data={folder}",
    ]
    assert _command(words) == f"bertbench speedrun --data {folder.name} --seeds 1 2 --data={folder.name}"


def test_a_folder_of_something_else_is_left_alone(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "curve.csv").write_text("step\n")
    with refused("folder-occupied", tmp_path):
        planned(tmp_path, "--data", folder)
    with refused("path-kind"):
        result("speedrun", "--target-mlm-loss", 4, "--data", folder, "--out", tmp_path / "curve.csv")


@pytest.mark.parametrize(("losses", "reached"), [((7.0, None, 6.6), False), ((7.0, 6.5), True), ((6.4, 7.0), True)])
def test_a_training_is_asked_to_stop_once_an_evaluation_is_at_or_below_the_target(
    losses: tuple[float | None, ...], reached: bool, tmp_path: Path
) -> None:
    directory = TrainRun(tmp_path).run.trial("a")
    directory.path.mkdir(parents=True)
    with StopRequest() as stop:
        progress = _TargetProgress(stop, 6.5)
        progress.begin(directory)
        progress.look()
        assert not progress.stop_wanted()
        saved = {"event": "saved", "path": "step-1", "applied_steps": 1, "size_bytes": 1, "seconds": 0.1}
        evaluated = [
            {"event": "evaluated", "applied_steps": number, "samples": 3, "mlm_loss": loss}
            for number, loss in enumerate(losses)
        ]
        write_events(directory, saved, *evaluated)
        progress.end()
        assert progress.stop_wanted() is reached
