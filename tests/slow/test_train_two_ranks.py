"""`bertbench train` on two ranks: locked, stopped by a batch system, resumed."""

import signal
from pathlib import Path

from support.refusals import check_refusal
from support.train_cli import STEPS, TrainCli, send_to_all, tree, wait_for_steps


def test_two_ranks_stopped_by_a_batch_system_and_resumed_give_the_same_curve(data: Path, tmp_path: Path) -> None:
    reference = TrainCli(data, tmp_path / "whole", ranks=2)
    done = reference.run()
    assert done.returncode == 0, done.stderr
    cli = TrainCli(data, tmp_path / "run", ranks=2)
    first = cli.start()
    wait_for_steps(cli, first, 1, 3)
    ranks = tree(first)[2:]
    for rank in ranks:
        rank.suspend()  # else they may be through before the other call begins
    other = cli.run()
    assert other.returncode == 2
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
    done = cli.run()
    assert done.returncode == 0, done.stderr
    assert cli.curve() == reference.curve()
