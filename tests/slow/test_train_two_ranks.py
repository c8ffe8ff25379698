"""`bertbench train` on two ranks: killed, locked, stopped by a batch system, resumed."""

import signal
from pathlib import Path

import pytest
from support.train_cli import STEPS, TrainCli, kill_all, send_to_all, tree, wait_for_steps
from support.training_runs import shards


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shards(tmp_path_factory.mktemp("data"))


def test_two_ranks_killed_then_stopped_by_a_batch_system_give_the_same_curve(data: Path, tmp_path: Path) -> None:
    reference = TrainCli(data, tmp_path / "whole", ranks=2)
    done = reference.run()
    assert done.returncode == 0, done.stderr
    cli = TrainCli(data, tmp_path / "run", ranks=2)
    first = cli.start()
    wait_for_steps(cli, first, 1, 7)
    kill_all(first)
    second = cli.start()
    wait_for_steps(cli, second, 2, 3)
    other = cli.run()
    assert other.returncode == 2 and "in use by another call" in other.stderr and str(second.pid) in other.stderr
    send_to_all(second, signal.SIGTERM)
    output, errors = second.communicate(timeout=60)
    assert second.returncode == 0, errors
    if not cli.state()["finished"]:
        made = cli.state()["applied_steps"]
        assert f"stopped by SIGTERM after step {made} of {STEPS}" in output and "to continue: bertbench" in output
        assert cli.checkpoints()[-1] == f"step-{made:07d}"
        assert cli.result()["status"] == "ok" and "stopped as asked" in cli.result()["reason"]
    assert len(tree(second)) == 0
    done = cli.run()
    assert done.returncode == 0, done.stderr
    assert cli.curve() == reference.curve()
