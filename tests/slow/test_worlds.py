"""Commands as the ranks of a world that is no launch."""

import csv
import os
import socket
import subprocess
from pathlib import Path

from support.cli import ROOT, Cli, TrainCli
from support.training_runs import shards


def ranks_of(argv: list[str]) -> list["subprocess.CompletedProcess[str]"]:
    """Run a command as two ranks that are started by hand."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(argv, cwd=ROOT, env={**world, "RANK": n, "LOCAL_RANK": n}, **pipes) for n in "01"]
    said = [process.communicate(timeout=240) for process in ranks]
    return [subprocess.CompletedProcess(argv, one.returncode, *words) for one, words in zip(ranks, said, strict=True)]


def test_ranks_that_were_started_by_hand_train_together_without_torchrun(tmp_path: Path) -> None:
    cli = TrainCli(shards(tmp_path / "data"), tmp_path / "run", ranks=2, steps=3)
    first, second = ranks_of(cli.command("--eval-every", "0"))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "finished" in first.stdout and second.stdout == ""
    assert len(cli.curve().splitlines()) == 4 and cli.state()["finished"]


def test_ranks_measure_one_trial_after_another_and_only_what_is_missing(cli: Cli) -> None:
    words = ["--device", "cpu", "--max-bytes", "4K", "--dtypes", "fp32", "bf16", "--out", str(cli.out)]
    for names, done in ((["all_reduce"], 0), (["all_reduce", "broadcast"], 2)):
        first, second = ranks_of(cli.argv("comm", "--collectives", *names, *words))
        assert (first.returncode, second.returncode, second.stdout) == (0, 0, ""), first.stderr + second.stderr
        assert ("2 already done" in first.stderr) == (done == 2)
    with (cli.out / "results.csv").open(newline="") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["ok"] * 4
