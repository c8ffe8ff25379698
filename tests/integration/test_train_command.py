"""`bertbench train` in real processes: a run, its interruptions, its two phases, and what it refuses."""

import csv
import json
import os
import random
from pathlib import Path

import pytest
from support.cli import STEPS, TrainCli, bertbench, kill_all, run_to_end, wait_for_steps
from support.training_runs import shards

from records.schema import CURVE_COLUMNS
from records.training import TrainRun, read_events


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainCli:
    """A run of one rank that nothing interrupted."""
    cli = TrainCli(data, tmp_path_factory.mktemp("whole") / "run")
    done = cli.run()
    (cli.out / "stdout.txt").write_text(done.stdout)
    (cli.out / "stderr.txt").write_text(done.stderr)
    return cli


def test_a_run_leaves_curve_checkpoints_events_scalars_and_a_table(whole: TrainCli) -> None:
    table, log = (whole.out / "stdout.txt").read_text(), (whole.out / "stderr.txt").read_text()
    assert f"{STEPS} of {STEPS}" in table and "evaluation" in table and "--phase 2" in table and "finished" in table
    assert f"step {STEPS}/{STEPS}, loss" in log and "saved step-" in log
    rows = list(csv.DictReader(whole.curve().splitlines()))
    assert list(rows[0]) == list(CURVE_COLUMNS)
    assert [int(row["step"]) for row in rows] == list(range(STEPS))
    assert [int(row["samples"]) for row in rows] == [8 * (step + 1) for step in range(STEPS)]
    assert whole.checkpoints() == ["step-0000010", "step-0000015", "step-0000020", "step-0000024"], "and the best"
    assert whole.state()["best"]["checkpoint"] == "step-0000010" and "MLM loss" in table and "step-0000010" in table
    (attempt,) = TrainRun(whole.out).attempts()
    trial = attempt.read_trial()
    assert trial.kind == "train" and dict(trial.training)["steps"] == STEPS
    kinds = [event["event"] for event in read_events(attempt)]
    assert kinds.count("evaluated") == 3 and kinds.count("saved") == 5 and "progress" in kinds
    steps = attempt.read_steps(0)
    assert len(steps) == STEPS and all(row["loss"] and row["learning_rate"] is not None for row in steps)
    assert whole.state()["finished"] and whole.state()["checkpoint"] == "step-0000024"
    assert whole.result()["outcome"]["evaluation"]["samples"] == 20
    assert (
        attempt.env_json.exists() and attempt.telemetry_csv(0).exists() and "total_steps 24" in attempt.log.read_text()
    )


def test_tensorboard_reads_the_scalars(whole: TrainCli) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(whole.out / "tensorboard"))
    events.Reload()
    wanted = {"loss", "mlm_loss", "nsp_loss", "learning_rate", "percent_complete", "samples_per_second"}
    evaluated = {f"eval/{name}" for name in ("mlm_loss", "mlm_accuracy", "nsp_accuracy")}
    assert {f"train/{name}" for name in wanted} | evaluated == set(events.Tags()["scalars"])
    losses = [event.value for event in events.Scalars("train/loss")]
    rows = list(csv.DictReader(whole.curve().splitlines()))
    assert losses == pytest.approx([float(row["loss"]) for row in rows], rel=1e-6)
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, STEPS + 1))


@pytest.mark.slow
def test_killed_three_times_at_random_moments_the_curve_is_that_of_a_whole_run(
    whole: TrainCli, data: Path, tmp_path: Path
) -> None:
    cli = TrainCli(data, tmp_path / "run")
    seed = int(os.environ.get("KILL_SEED", random.randrange(1000)))
    chance = random.Random(seed)
    for number in range(1, 4):
        process = cli.start()
        wait_for_steps(cli, process, number, chance.randint(0, 8))
        kill_all(process)
    cli.run()
    assert cli.curve() == whole.curve(), f"KILL_SEED={seed}"
    assert cli.checkpoints() == whole.checkpoints()
    run_to_end(bertbench("report", cli.out))
    page = (cli.out / "report" / "report.html").read_text()
    assert "BERT-tiny was trained for 24 of 24 steps" in page and "Attempts" in page and "Evaluations" in page


def test_phase_2_begins_from_phase_1_and_refuses_an_unfinished_one(whole: TrainCli, tmp_path: Path) -> None:
    longer = shards(tmp_path / "data64", seq_len=64)
    cli = TrainCli(longer, tmp_path / "phase2", steps=6)
    words = ("--phase", "2", "--seq-len", "64", "--init", str(whole.out))
    done = cli.run(*words)
    assert "step-0000024" in done.stderr
    assert "bertbench convert" in done.stdout
    assert float(next(csv.DictReader(cli.curve().splitlines()))["learning_rate"]) < 2e-3, "the schedule begins anew"
    (whole.out / "unfinished").mkdir()
    (whole.out / "unfinished" / "train.json").write_text(
        json.dumps({**whole.state(), "finished": False, "applied_steps": 5})
    )
    done = TrainCli(longer, tmp_path / "other").run(*words[:-1], str(whole.out / "unfinished"), code=2)
    assert "step 5 of 24" in done.stderr
