"""`bertbench train` with several trainings in real processes: one process against two, seeds, kills, targets."""

import csv
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.cli import Cli, kill_all
from support.commands import document
from support.refusals import check_refusal
from support.training_runs import SEQ_LEN

from records.training import TrainRun, read_events

STEPS = 6
SMALL = (
    "--preset", "tiny", "--seq-len", str(SEQ_LEN), "--device", "cpu", "--threads", "1", "--precision", "fp32",
    "--global-batch-size", "8", "--dropout", "0", "--log-every", "1",
)  # fmt: skip
TWO = ("--vary", "devices=1,2", "--profile-steps", "2", "--micro-batch-size", "2", "--eval-every", "3",
       "--steps", str(STEPS))  # fmt: skip
UNTIL = (
    "--until", "mlm_loss=4.45", "--steps", "400", "--eval-every", "2", "--micro-batch-size", "8", "--learning-rate",
    "1e-3", "--save-every", "1000", "--warmup", "0", "--optimizer", "adamw",
)  # fmt: skip


class TrainingsCli(Cli):
    """One folder, and the command with the options that all calls share."""

    def __init__(self, data: Path, out: Path, *words: str) -> None:
        super().__init__(out)
        self.words = ["train", "pretrain", *SMALL, *words, "--data", str(data), "--out", str(out)]

    def command(self, *more: str) -> list[str]:
        return self.argv(*self.words, *more)

    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.out / "trainings.json").read_text())
        return found


@pytest.fixture(scope="module")
def compared(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingsCli, str]:
    """A finished comparison and what it printed."""
    command = TrainingsCli(data, tmp_path_factory.mktemp("compare") / "out", *TWO)
    done = command.run()
    return command, done.stdout


def test_two_processes_have_the_losses_and_scores_of_one(compared: tuple[TrainingsCli, str]) -> None:
    command, _ = compared
    one, two = (TrainRun(command.out / name).read_curve() for name in ("devices-1", "devices-2"))
    assert [row["step"] for row in one] == [row["step"] for row in two] == list(range(STEPS))
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], abs=1e-4)
    assert [row["learning_rate"] for row in two] == [row["learning_rate"] for row in one]
    first, second = command.document()["rows"]
    assert second["greatest_loss_difference"] < 1e-4 and second["steps"] == STEPS
    assert second["score_mlm_loss"] == pytest.approx(first["score_mlm_loss"], abs=1e-3)


def test_the_comparison_says_what_two_processes_bring_and_what_all_reduce_costs(
    compared: tuple[TrainingsCli, str],
) -> None:
    command, printed = compared
    first, second = command.document()["rows"]
    assert [(row["strategy"], row["devices"], row["status"]) for row in (first, second)] == [
        ("single", 1, "finished"),
        ("ddp", 2, "finished"),
    ]
    assert first["samples"] == second["samples"] == 8 * STEPS
    assert 0 < second["all_reduce_share"] < 1 and first["all_reduce_share"] is None and second["profiled_steps"] == 2
    parts = second["all_reduce_exposed_share"] + second["all_reduce_hidden_share"]
    assert parts == pytest.approx(second["all_reduce_share"])
    for words in ("devices-1", "devices-2", "samples/s", "all-reduce", "memory"):
        assert words in " ".join(printed.split())
    rows = list(csv.DictReader((command.out / "trainings.csv").open(encoding="utf-8")))
    assert [row["strategy"] for row in rows] == ["single", "ddp"]
    assert (command.out / "trainings.png").stat().st_size > 20_000
    assert [row["variant"] for row in document("report", command.out)["trainings"]] == ["devices-1", "devices-2"]


def test_another_call_runs_nothing_again_and_refuses_other_settings(compared: tuple[TrainingsCli, str]) -> None:
    command, _ = compared
    before = sorted(command.out.glob("*/trials/*/result.json"))
    times = [path.stat().st_mtime_ns for path in command.out.glob("*-[12]/trials/*/result.json")]
    again = command.run("--json")
    assert again.stderr.count("already trained") == 2
    assert json.loads(again.stdout)["rows"] == command.document()["rows"]
    assert sorted(command.out.glob("*/trials/*/result.json")) == before and len(before) == 4
    assert [path.stat().st_mtime_ns for path in command.out.glob("*-[12]/trials/*/result.json")] == times
    other = command.run("--learning-rate", "0.5", code=2)
    check_refusal(other.stderr, "settings-changed", "learning_rate", "--out")


@pytest.mark.soak
@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="needs accelerate: pip install 'bertbench[hf]'"
)
def test_the_trainer_and_other_precisions_stand_in_one_table_with_ours(data: Path, tmp_path: Path) -> None:
    command = TrainingsCli(data, tmp_path / "out", *TWO[2:])
    axes = ("--vary", "implementation=bertbench,hf-trainer", "precision=fp32,bf16", "--optimizer", "adamw")
    command.run(*axes, "--devices", "2", "--profile-steps", "1", timeout=480)
    rows = {(row["implementation"], row["precision"]): row for row in command.document()["rows"]}
    assert len(rows) == 4
    ours, theirs = (rows[name, "fp32"] for name in ("bertbench", "hf-trainer"))
    assert theirs["steps"] == STEPS, "its losses are means of the ranks' means, ours are not"
    assert theirs["peak_memory_kind"] == ours["peak_memory_kind"] == "resident set"
    for row in rows.values():
        assert row["backend"] == "gloo" and row["communication_exposed_ms"] > 0 and row["epoch_seconds"] > 0
    assert all(row["speedup"] > 0 and row["time_saved"] < 1 for row in rows.values())
    assert (command.out / "hf-trainer-bf16").is_dir() and (command.out / "trainings.png").exists()


def test_a_seed_stops_at_the_first_evaluation_that_reaches_the_target(data: Path, tmp_path: Path) -> None:
    cli = TrainingsCli(data, tmp_path / "out", *UNTIL)
    done = cli.run("--seed", "3", "--price-per-hour", "3.6", "--json")
    (row,) = json.loads(done.stdout)["rows"]
    assert row["status"] == "reached" and row["steps"] < 400 and row["steps"] % 2 == 0
    run = TrainRun(cli.out / "seed-3")
    (attempt,) = run.attempts()
    evaluated = {e["applied_steps"]: e["mlm_loss"] for e in read_events(attempt) if e["event"] == "evaluated"}
    assert evaluated[row["steps"]] == row["score_mlm_loss"] <= 4.45
    assert all(loss > 4.45 for steps, loss in evaluated.items() if steps < row["steps"])
    steps = attempt.read_steps(0)[: row["steps"]]
    assert abs(row["step_seconds"] - sum(step["step_time_ms"] for step in steps) / 1000) < 1e-6
    assert row["tokens"] == sum(step["real_tokens"] for step in steps)
    assert row["step_seconds"] < row["total_seconds"]
    assert abs(row["cost"] - row["total_seconds"] / 1000) < 1e-9
    assert attempt.log.exists() and run.curve_csv.exists(), "every log is kept"
    assert dict(attempt.read_trial().training)["seed"] == 3 and attempt.read_trial().kind == "train"


@pytest.mark.soak
def test_after_kill_9_the_same_command_trains_the_seeds_that_are_missing(data: Path, tmp_path: Path) -> None:
    cli = TrainingsCli(data, tmp_path / "out", *UNTIL, "--seed", "1")
    process = cli.start("--seeds", "3")
    second = cli.out / "seed-2"
    deadline = time.monotonic() + 120
    while not list(second.glob("trials/*/steps-0.csv")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    kill_all(process)
    first = cli.document()["rows"][0]
    assert first["status"] == "reached"
    done = cli.run("--seeds", "3")
    assert done.stderr.count("already trained") >= 1 and "3 of 3" in done.stdout
    found = cli.document()
    assert [row["status"] for row in found["rows"]] == ["reached"] * 3 and found["rows"][0] == first
    (summary,) = found["variants"]
    assert summary["step_seconds_low"] < summary["step_seconds"] < summary["step_seconds_high"]
    before = json.dumps(found["rows"])
    again = cli.run("--seeds", "4")
    assert again.stderr.count("already trained") == 3, again.stderr
    assert json.dumps(cli.document()["rows"][:3]) == before and len(cli.document()["rows"]) == 4
    other = cli.run("--seeds", "4", "--learning-rate", "5e-4", code=2)
    check_refusal(other.stderr, "settings-changed", "learning_rate")
