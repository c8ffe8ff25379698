"""`bertbench train` as the ranks of a world that is no launch."""

import os
import socket
import subprocess
from pathlib import Path

from support.cli import ROOT
from support.train_cli import TrainCli
from support.training_runs import shards


def test_ranks_that_were_started_by_hand_train_together_without_torchrun(tmp_path: Path) -> None:
    cli = TrainCli(shards(tmp_path / "data"), tmp_path / "run", ranks=2, steps=3)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        subprocess.Popen(
            cli.command("--eval-every", "0"),
            cwd=ROOT,
            env={**world, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    said = [process.communicate(timeout=240) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    assert "finished" in said[0][0] and said[1][0] == ""
    assert len(cli.curve().splitlines()) == 4 and cli.state()["finished"]
