"""`bertbench speedrun` in real processes: one seed until the target."""

import json
from pathlib import Path

from support.commands import document
from support.speedrun_cli import SpeedrunCli

from records.training import TrainRun, read_events


def test_a_seed_stops_at_the_first_evaluation_that_reaches_the_target(data: Path, tmp_path: Path) -> None:
    cli = SpeedrunCli(data, tmp_path / "out", target=4.25, steps=5000)
    done = cli.run("--seeds", "3", "--price-per-hour", "3.6", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (row,) = found["rows"]
    assert row["status"] == "reached" and row["steps"] < 5000 and row["steps"] % 4 == 0
    run = TrainRun(cli.out / "seed-3")
    (attempt,) = run.attempts()
    evaluated = {e["applied_steps"]: e["mlm_loss"] for e in read_events(attempt) if e["event"] == "evaluated"}
    assert evaluated[row["steps"]] == row["mlm_loss"] <= 4.25
    assert all(loss > 4.25 for steps, loss in evaluated.items() if steps < row["steps"])
    steps = attempt.read_steps(0)[: row["steps"]]
    assert abs(row["step_seconds"] - sum(step["step_time_ms"] for step in steps) / 1000) < 1e-6
    assert row["tokens"] == sum(step["real_tokens"] for step in steps)
    assert row["step_seconds"] < row["loop_seconds"] < row["total_seconds"]
    assert abs(row["cost"] - row["total_seconds"] / 1000) < 1e-9
    assert attempt.log.exists() and run.curve_csv.exists(), "every log is kept"
    assert dict(attempt.read_trial().training)["seed"] == 3 and attempt.read_trial().kind == "train"
    assert document("analyze", cli.out)["rows"] == found["rows"]
