"""What a sweep must survive, done for real: real processes, real signals, a real full disk."""

import csv
import signal
from pathlib import Path

import pytest
from support.cli import ENDLESS, SHORT, Cli, bertbench, run_to_end, wait_for
from support.refusals import check_refusal


def table(cli: Cli) -> list[dict[str, str]]:
    with (cli.out / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_out_of_memory_is_a_row_and_the_sweep_goes_on(cli: Cli) -> None:
    done = cli.run(*SHORT, "--batch-sizes", "20000", "2", "--memory-limit-gib", "2", code=3)
    large, small = cli.results()
    assert large["status"] == "oom" and "rank 0" in str(large["reason"])
    assert small["status"] == "ok"
    assert {row["status"] for row in table(cli)} == {"oom", "ok"}
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_rank_that_dies_by_a_signal_is_a_row_that_names_rank_and_signal(cli: Cli) -> None:
    sweep = cli.start(*ENDLESS, "--batch-sizes", "2", "--devices", "2")
    wait_for(lambda: cli.steps_written(1) > 2, "steps of rank 1")
    victim = next(p for p in cli.workers() if p.environ()["RANK"] == "1")
    victim.send_signal(signal.SIGSEGV)
    output, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 3, errors
    (result,) = cli.results()
    assert result["status"] == "crashed"
    assert "rank 1" in str(result["reason"]) and "SIGSEGV" in str(result["reason"])
    assert not cli.processes()
    assert "crashed" in output


@pytest.mark.slow
def test_a_trial_that_hangs_is_ended_with_its_whole_process_group(cli: Cli) -> None:
    sweep = cli.start(*ENDLESS, "--batch-sizes", "2", "--devices", "2", "--timeout-seconds", "25")
    wait_for(lambda: cli.steps_written(1) > 2, "steps of rank 1")
    next(p for p in cli.workers() if p.environ()["RANK"] == "1").suspend()  # rank 0 now waits for it for ever
    _, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 3, errors
    (result,) = cli.results()
    assert result["status"] == "timeout" and "25 s" in str(result["reason"])
    assert not cli.processes()
    log = next(cli.out.glob("trials/*/log.txt")).read_text()
    assert "Current thread" in log or "Thread 0x" in log, "the ranks say where they hang"


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_an_interrupt_ends_the_children_and_keeps_what_was_measured(cli: Cli, number: signal.Signals) -> None:
    cli.run(*SHORT, "--batch-sizes", "2")
    sweep = cli.start(*ENDLESS, "--batch-sizes", "4")
    wait_for(lambda: cli.steps_written() > 2 and len(cli.workers()) == 1, "steps")
    sweep.send_signal(number)
    _, errors = sweep.communicate(timeout=30)
    assert sweep.returncode == 128 + number
    assert "interrupted" in errors and "Traceback" not in errors
    assert not cli.processes()
    (result,) = cli.results()
    assert result["status"] == "interrupted"
    assert sorted(row["status"] for row in table(cli)) == ["interrupted", "ok"]
    assert cli.steps_written() > 2, "the steps made so far are kept"


@pytest.mark.slow
def test_kill_9_of_the_sweep_leaves_no_process_and_a_rerun_continues(cli: Cli) -> None:
    options = ["--batch-sizes", "2", "4", "--start", "1", "--stop", "100"]
    sweep = cli.start(*options)
    wait_for(lambda: len(list(cli.out.glob("trials/*/steps-0.csv"))) == 2 and cli.steps_written() > 2, "trial 2")
    first = next(cli.out.glob("trials/*-b2-*/result.json"))
    before = first.stat().st_mtime_ns
    sweep.kill()
    sweep.communicate(timeout=30)
    wait_for(lambda: not cli.processes(), "the children to die with the sweep", seconds=10)
    assert not list(cli.out.glob("trials/*-b4-*/result.json"))
    done = cli.run(*options)
    assert first.stat().st_mtime_ns == before, "a finished trial is not run again"
    assert "already done" in done.stderr
    assert [result["status"] for result in cli.results()] == ["ok", "ok"]


def test_a_truncated_shard_is_named_before_anything_runs(cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "data"
    run_to_end(bertbench("data", "pretrain", "--generate", 60_000, "--output", data, "--seq-len", 32))
    shard = sorted(data.rglob("*_training_*.hdf5"))[0]
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size // 2)
    done = cli.run(*SHORT, "--batch-sizes", "2", "--data", str(data), timeout=60, code=2)
    check_refusal(done.stderr, "file-truncated", shard.name)
    assert not (cli.out / "trials").exists()


def test_a_relative_folder_with_spaces_works_from_anywhere(cli: Cli, tmp_path: Path) -> None:
    argv = cli.sweep(*SHORT, "--batch-sizes", "2")
    argv[-1] = "my läufe/one"
    run_to_end(argv, cwd=tmp_path)
    assert (tmp_path / "my läufe" / "one" / "results.csv").exists()


def test_a_folder_that_cannot_be_written_is_one_message(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    argv = cli.sweep(*SHORT, "--batch-sizes", "2")
    argv[-1] = str(tmp_path / "file")
    check_refusal(run_to_end(argv, 2).stderr, "path-kind", argv[-1])
