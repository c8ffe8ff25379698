"""Training that is ended at many moments and in many ways: what is on disk carries on, and the curve stays the same."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.cli import ROOT, STEPS, TrainCli, run_to_end, send_to_all, tree, wait_for_steps
from support.refusals import check_refusal
from support.training_runs import shards


@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("evaluating and saving", signal.SIGTERM),
        pytest.param("starting", signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param("the ranks alone", signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param("Ctrl+C", signal.SIGINT, marks=pytest.mark.soak),
    ],
)
def test_a_signal_saves_whenever_it_comes(data: Path, tmp_path: Path, when: str, number: signal.Signals) -> None:
    cli = TrainCli(data, tmp_path / "run", ranks=2)
    # Evaluating and saving after every update: a signal is likely to come meanwhile.
    often = ("--eval-every", "1", "--save-every", "1") if when.startswith("evaluating") else ()
    process = cli.start("--steps", "100000", *often)
    if when == "starting":
        while len(tree(process)) < 4 and process.poll() is None:  # harness, launcher, two ranks that import
            time.sleep(0.01)
    else:
        wait_for_steps(cli, process, 1, 3)
    if when == "the ranks alone":
        for member in tree(process)[1:]:
            member.send_signal(signal.SIGTERM)
    else:
        send_to_all(process, number)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == (130 if number == signal.SIGINT else 0), errors
    made = cli.state()["applied_steps"]
    assert "stopped by" in output and "bertbench train pretrain" in output
    assert cli.checkpoints() == [] if made == 0 else cli.checkpoints()[-1] == f"step-{made:07d}"
    assert made > 0 or when == "starting"
    assert not cli.processes()


def test_a_second_signal_ends_at_once_and_the_run_goes_on_later(data: Path, tmp_path: Path) -> None:
    cli = TrainCli(data, tmp_path / "run", ranks=2)
    process = cli.start("--steps", "100000")
    wait_for_steps(cli, process, 1, 7)
    ranks = tree(process)[2:]
    for rank in ranks:
        rank.suspend()  # they will never save
    last = cli.checkpoints()[-1]
    process.send_signal(signal.SIGTERM)
    time.sleep(1.0)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130 and "interrupted" in errors
    assert cli.result()["status"] == "interrupted" and not cli.processes()
    done = cli.run()
    assert f"resumes after step {int(last.removeprefix('step-'))}" in done.stderr


def test_a_rank_that_dies_is_a_failed_run_with_its_log_named(data: Path, tmp_path: Path) -> None:
    cli = TrainCli(data, tmp_path / "run", ranks=2)
    process = cli.start("--steps", "100000")
    wait_for_steps(cli, process, 1, 7)
    tree(process)[-1].kill()
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 3
    check_refusal(errors, "rank-failed", "SIGKILL", "log.txt")
    assert cli.state()["status"] == "crashed" and cli.state()["checkpoint"] == "step-0000005"


@pytest.mark.soak
def test_a_loss_that_is_not_finite_stops_with_step_rate_and_checkpoint(data: Path, tmp_path: Path) -> None:
    cli = TrainCli(data, tmp_path / "run", steps=200)
    words = ("--optimizer", "adamw", "--max-grad-norm", "1e30", "--warmup", "0", "--schedule", "constant")
    done = cli.run(*words, "--learning-rate", "1e38", "--save-every", "1", code=3)
    assert "learning rate 1e+38" in done.stderr and "checkpoint" in done.stderr and "Traceback" not in done.stderr


def test_the_script_makes_both_phases_and_stops_between_them_when_told(tmp_path: Path) -> None:
    shards(tmp_path / "data" / "hdf5_lower_case_1_seq_len_128_x", seq_len=128, sizes=(16, 12, 4))
    shards(tmp_path / "data" / "hdf5_lower_case_1_seq_len_512_x", seq_len=512, sizes=(16, 12, 4))
    out = tmp_path / "my runs"
    variables = {
        "DATA": str(tmp_path / "data"), "OUT": str(out), "PRESET": "tiny", "PRECISION": "fp32",
        "BATCH_SIZE": "4", "BATCH_SIZE_PHASE2": "4", "STEPS": "4", "STEPS_PHASE2": "3", "CUDA_VISIBLE_DEVICES": "",
        "EVAL_EVERY": "2",
    }  # fmt: skip

    def call(code: int = 0, **more: str) -> "subprocess.CompletedProcess[str]":
        return run_to_end(["bash", ROOT / "bert/run_pretraining.sh"], code, cwd=tmp_path, **{**variables, **more})

    call(2, DATA="")
    call(STEPS="100000", MAX_SECONDS="6")
    assert not (out / "phase2").exists()
    done = call(OUT=str(out) + "-2")
    assert (tmp_path / "my runs-2" / "phase2" / "checkpoints" / "step-0000003").is_dir()
    named = [line for line in done.stderr.splitlines() if "phase1/checkpoints/step-0000004" in line]
    assert [line for line in named if not line.startswith("saved")], "phase 2 says what it starts from: " + done.stderr
    assert "bertbench convert" in done.stdout


def test_two_ranks_stopped_by_a_batch_system_and_resumed_give_the_same_curve(data: Path, tmp_path: Path) -> None:
    reference = TrainCli(data, tmp_path / "whole", ranks=2)
    reference.run()
    cli = TrainCli(data, tmp_path / "run", ranks=2)
    first = cli.start()
    wait_for_steps(cli, first, 1, 3)
    ranks = tree(first)[2:]
    for rank in ranks:
        rank.suspend()  # else they may be through before the other call begins
    other = cli.run(code=2)
    check_refusal(other.stderr, "folder-locked", cli.out)
    for rank in ranks:
        rank.resume()
    send_to_all(first, signal.SIGTERM)
    output, errors = first.communicate(timeout=120)
    assert first.returncode == 0, errors
    if not cli.state()["finished"]:
        made = cli.state()["applied_steps"]
        assert f"stopped by SIGTERM after step {made} of {STEPS}" in output and "to resume: bertbench" in output
        assert cli.checkpoints()[-1] == f"step-{made:07d}"
        assert cli.result()["status"] == "ok" and "stopped on request" in cli.result()["reason"]
    assert len(tree(first)) == 0
    cli.run()
    assert cli.curve() == reference.curve()
