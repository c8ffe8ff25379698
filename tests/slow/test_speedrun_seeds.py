"""`bertbench speedrun` in real processes: one seed, several, kills, more seeds, a target that is never reached."""

import json
import signal
import time
from pathlib import Path

import pytest
from support.commands import result
from support.refusals import check_refusal
from support.speedrun_cli import SpeedrunCli
from support.train_cli import kill_all

from records.training import TrainRun, read_events


def test_a_seed_stops_at_the_first_evaluation_that_reaches_the_target(data: Path, tmp_path: Path) -> None:
    cli = SpeedrunCli(data, tmp_path / "out", target=4.45, steps=400)
    done = cli.run("--seeds", "3", "--price-per-hour", "3.6", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (row,) = found["rows"]
    assert row["status"] == "reached" and row["steps"] < 400 and row["steps"] % 2 == 0
    run = TrainRun(cli.out / "seed-3")
    (attempt,) = run.attempts()
    evaluated = {e["applied_steps"]: e["mlm_loss"] for e in read_events(attempt) if e["event"] == "evaluated"}
    assert evaluated[row["steps"]] == row["mlm_loss"] <= 4.45
    assert all(loss > 4.45 for steps, loss in evaluated.items() if steps < row["steps"])
    steps = attempt.read_steps(0)[: row["steps"]]
    assert abs(row["step_seconds"] - sum(step["step_time_ms"] for step in steps) / 1000) < 1e-6
    assert row["tokens"] == sum(step["real_tokens"] for step in steps)
    assert row["step_seconds"] < row["loop_seconds"] < row["total_seconds"]
    assert abs(row["cost"] - row["total_seconds"] / 1000) < 1e-9
    assert attempt.log.exists() and run.curve_csv.exists(), "every log is kept"
    assert dict(attempt.read_trial().training)["seed"] == 3 and attempt.read_trial().kind == "train"


@pytest.mark.soak
def test_after_kill_9_the_same_command_trains_the_seeds_that_are_missing(data: Path, tmp_path: Path) -> None:
    cli = SpeedrunCli(data, tmp_path / "out", target=4.45, steps=400)
    process = cli.start("--seeds", "1", "2", "3")
    second = cli.out / "seed-2"
    deadline = time.monotonic() + 120
    while not list(second.glob("trials/*/steps-0.csv")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    kill_all(process)
    first = cli.document()["rows"][0]
    assert first["status"] == "reached"
    done = cli.run("--seeds", "1", "2", "3")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("already trained") >= 1 and "3 of 3 seeds" in done.stdout
    found = cli.document()
    assert [row["status"] for row in found["rows"]] == ["reached"] * 3 and found["rows"][0] == first
    summary = found["summary"]["step_seconds"]
    assert summary["low"] < summary["mean"] < summary["high"]
    before = json.dumps(found["rows"])
    again = cli.run("--seeds", "1", "2", "3", "4")
    assert again.returncode == 0 and again.stderr.count("already trained") == 3, again.stderr
    assert json.dumps(cli.document()["rows"][:3]) == before and len(cli.document()["rows"]) == 4
    other = cli.run("--seeds", "1", "2", "3", "4", "--learning-rate", "5e-4")
    assert other.returncode == 2
    check_refusal(other.stderr, "settings-changed", "learning_rate")
    assert result("compare", cli.out, cli.out).code == 4


@pytest.mark.soak
def test_seeds_that_make_all_steps_without_reaching_the_target_are_reported(data: Path, tmp_path: Path) -> None:
    cli = SpeedrunCli(data, tmp_path / "out", target=0.5, steps=8)
    done = cli.run("--seeds", "1", "2")
    assert done.returncode == 0 and "0 of 2 seeds" in done.stdout, done.stderr
    rows = cli.document()["rows"]
    assert [(row["status"], row["steps"]) for row in rows] == [("not reached", 8)] * 2
    assert cli.document()["summary"]["step_seconds"] is None
    again = cli.run("--seeds", "1", "2")
    assert again.returncode == 0 and again.stderr.count("already trained") == 2


@pytest.mark.soak
def test_a_stop_saves_the_seed_and_the_same_command_resumes_it(data: Path, tmp_path: Path) -> None:
    cli = SpeedrunCli(data, tmp_path / "out", target=0.5, steps=400, every=200)
    process = cli.start("--seeds", "1", "2")
    deadline = time.monotonic() + 120
    while not any(path.read_text().count("\n") > 5 for path in cli.out.glob("seed-1/trials/*/steps-0.csv")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0 and "run the same command to resume" in said, said
    rows = cli.document()["rows"]
    assert [row["status"] for row in rows] == ["stopped", "not begun"] and rows[0]["steps"] < 400
    done = cli.run("--seeds", "1", "2")
    assert done.returncode == 0, done.stderr
    rows = cli.document()["rows"]
    assert [(row["status"], row["steps"], row["attempts"]) for row in rows] == [
        ("not reached", 400, 2),
        ("not reached", 400, 1),
    ]
    steps = [entry["step"] for entry in TrainRun(cli.out / "seed-1").read_curve()]
    assert steps == list(range(400)), "no step is missing or repeated"
