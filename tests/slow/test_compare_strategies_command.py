"""`bertbench compare-strategies` in real processes: one process against two on the same data, and what can fail."""

import csv
import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from support.compare_cli import STEPS, Compare
from support.refusals import check_refusal

from records.training import TrainRun


@pytest.fixture(scope="module")
def compared(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Compare, str]:
    """A finished comparison and what it printed."""
    command = Compare(data, tmp_path_factory.mktemp("compare") / "out")
    done = command.run()
    assert done.returncode == 0, done.stderr
    return command, done.stdout


def test_two_processes_have_the_losses_and_scores_of_one(compared: tuple[Compare, str]) -> None:
    command, _ = compared
    one, two = (TrainRun(command.out / name).read_curve() for name in ("single-1", "ddp-2"))
    assert [row["step"] for row in one] == [row["step"] for row in two] == list(range(STEPS))
    assert [row["loss"] for row in two] == pytest.approx([row["loss"] for row in one], abs=1e-4)
    assert [row["learning_rate"] for row in two] == [row["learning_rate"] for row in one]
    first, second = command.document()["variants"]
    assert second["greatest_loss_difference"] < 1e-4 and second["compared_steps"] == STEPS
    assert second["scores"] == pytest.approx(first["scores"], abs=1e-3) and "mlm_loss" in first["scores"]


def test_the_comparison_says_what_two_processes_bring_and_what_all_reduce_costs(compared: tuple[Compare, str]) -> None:
    command, printed = compared
    first, second = command.document()["variants"]
    assert [(row["strategy"], row["devices"], row["status"]) for row in (first, second)] == [
        ("single", 1, "finished"),
        ("ddp", 2, "finished"),
    ]
    assert second["speedup"] == pytest.approx(second["samples_per_second"] / first["samples_per_second"])
    assert second["time_saved"] == pytest.approx(1 - second["step_seconds"] / first["step_seconds"])
    assert first["samples"] == second["samples"] == 8 * STEPS and second["threads_per_rank"] == 1
    assert 0 < second["all_reduce_share"] < 1 and first["all_reduce_share"] is None and second["profiled_steps"] == 2
    parts = second["all_reduce_exposed_share"] + second["all_reduce_hidden_share"]
    assert parts == pytest.approx(second["all_reduce_share"])
    for words in ("single x 1", "ddp x 2", "samples/s", "all-reduce", "8 = 2 x 2 x 2", "threads per process"):
        assert words in " ".join(printed.split())
    rows = list(csv.DictReader((command.out / "comparison.csv").open(encoding="utf-8")))
    assert [row["strategy"] for row in rows] == ["single", "ddp"]
    assert (command.out / "comparison.png").stat().st_size > 20_000


def test_another_call_runs_nothing_again_and_refuses_other_settings(compared: tuple[Compare, str]) -> None:
    command, _ = compared
    before = sorted(command.out.glob("*/trials/*/result.json"))
    times = [path.stat().st_mtime_ns for path in command.out.glob("*-[12]/trials/*/result.json")]
    again = command.run("--json")
    assert again.returncode == 0 and again.stderr.count("already trained") == 2
    assert json.loads(again.stdout)["variants"] == command.document()["variants"]
    assert sorted(command.out.glob("*/trials/*/result.json")) == before and len(before) == 4
    assert [path.stat().st_mtime_ns for path in command.out.glob("*-[12]/trials/*/result.json")] == times
    other = command.run("--learning-rate", "0.5")
    assert other.returncode == 2
    check_refusal(other.stderr, "settings-changed", "learning_rate", "--out")


@pytest.mark.soak
def test_a_variant_that_fails_is_named_with_its_log_and_the_other_is_shown(
    compared: tuple[Compare, str], data: Path, tmp_path: Path
) -> None:
    command = Compare(data, tmp_path / "out")
    shutil.copytree(compared[0].out / "single-1", command.out / "single-1")
    (command.out / "ddp-2").mkdir()
    (command.out / "ddp-2" / "checkpoints").write_text("in the way")
    done = command.run()
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "ddp x 2" in done.stderr and "log.txt" in done.stderr and "single x 1" in done.stdout
    first, second = command.document()["variants"]
    assert first["status"] == "finished" and first["samples_per_second"] > 0
    assert second["status"] != "finished" and second["reason"] and Path(second["log"]).is_file()
    assert not (command.out / "profile").exists(), "what could not be trained is not profiled"


@pytest.mark.soak
@pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="needs accelerate: pip install 'bertbench[hf]'"
)
def test_the_trainer_and_other_precisions_stand_in_one_table_with_ours(data: Path, tmp_path: Path) -> None:
    command = Compare(data, tmp_path / "out")
    axes = ("--implementations", "bertbench", "hf-trainer", "--precisions", "fp32", "bf16", "--optimizer", "adamw")
    done = command.run(*axes, "--devices", "2", "--profile-steps", "1", seconds=480)
    assert done.returncode == 0, done.stderr
    rows = {(row["implementation"], row["precision"]): row for row in command.document()["variants"]}
    assert len(rows) == 4
    ours, theirs = (rows[name, "fp32"] for name in ("bertbench", "hf-trainer"))
    assert theirs["greatest_loss_difference"] < 1e-4 and theirs["compared_steps"] == STEPS
    assert theirs["scores"] == pytest.approx(ours["scores"], abs=1e-3)
    assert 0 < theirs["parameters"] <= ours["parameters"] and theirs["peak_memory_kind"] == "resident set"
    for row in rows.values():
        assert row["backend"] == "gloo" and row["communication_exposed_ms"] > 0 and row["epoch_seconds"] > 0
    assert "hf-trainer ddp x 2 bf16" in done.stdout
    assert all(row["speedup"] > 0 and row["time_saved"] < 1 for row in rows.values())
    assert (command.out / "hf-trainer-ddp-2-bf16").is_dir() and (command.out / "comparison.png").exists()
