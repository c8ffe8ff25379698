"""`bertbench launch` on two hosts, which are network namespaces of this machine: real torchrun, real gloo."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from support.cli import ROOT, wait_for
from support.namespaces import ADDRESSES, Hosts, lacking, two_hosts
from support.train_cli import TrainCli, wait_for_steps
from support.training_runs import levers_of_one

WHY_NOT = lacking()
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
STEPS = 12
UNEQUAL = (("--here-gpus", "1", "--other-gpus", "2"), ("--here-gpus", "2", "--other-gpus", "1"))


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with two_hosts(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainCli:
    """A run of 3 processes on one host that nothing disturbed."""
    cli = training(data, tmp_path_factory.mktemp("whole") / "run")
    argv = [sys.executable, "-m", "bench.cli.main", "launch", "--here-gpus", "3", "--", *command(cli)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return cli


def training(data: Path, out: Path, steps: int = STEPS) -> TrainCli:
    cli = TrainCli(data, out, steps=steps)
    batches = ("--global-batch-size", "12", "--micro-batch-size", "2", "--dropout", "0", "--levers", levers_of_one())
    own = ("--save-every", "5", "--eval-every", "0", "--threads", "1")
    fixed = dict(zip(cli.options[::2], cli.options[1::2], strict=True))
    fixed.pop("--devices")
    for words in (batches, own):
        fixed |= dict(zip(words[::2], words[1::2], strict=True))
    cli.options = tuple(word for pair in fixed.items() for word in pair)
    return cli


def command(cli: TrainCli) -> list[str]:
    return ["bertbench", *cli.argv()[3:]]


def launch_both(hosts: Hosts, *words: str) -> list["subprocess.Popen[str]"]:
    """Node 1 first: it waits for node 0."""
    second = hosts.launch(1, *UNEQUAL[1], *words)
    return [hosts.launch(0, *UNEQUAL[0], *words), second]


def ranks_of(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """The training processes below a launch; `bertbench train` of rank 0 has its own below it."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        words = child.cmdline()
        if "train" in words and "bench.cluster.agent" not in words:
            found.append(child)
    return found


def running(
    hosts: Hosts, data: Path, out: Path
) -> tuple[TrainCli, list["subprocess.Popen[str]"], list[psutil.Process]]:
    """A run on both hosts that would go on for long, some steps into it, and its three ranks."""
    cli = training(data, out, 100_000)
    both = launch_both(hosts, "--", *command(cli))
    wait_for_steps(cli, both[0], 1, 3)
    return cli, both, [*ranks_of(both[0]), *ranks_of(both[1])]


def test_unequal_nodes_train_to_the_losses_of_one_host_and_of_one_process(
    hosts: Hosts, data: Path, whole: TrainCli, tmp_path: Path
) -> None:
    cli = training(data, tmp_path / "run")
    both = launch_both(hosts, "--", *command(cli))
    assert hosts.end(*both) == [0, 0], hosts.said(both[0]) + hosts.said(both[1])
    assert "1 + 2 = 3 processes on 2 nodes; this is node 1 with ranks 1 to 2" in hosts.said(both[1])
    assert cli.curve() == whole.curve()
    assert cli.state()["finished"] and cli.result()["status"] == "ok"
    one = training(data, tmp_path / "one")
    done = one.run("--devices", "1")
    assert done.returncode == 0, done.stderr
    for alone, among in zip(losses(one), losses(cli), strict=True):
        assert alone == pytest.approx(among, rel=1e-5)


def losses(cli: TrainCli) -> list[float]:
    found = [float(row.split(",")[3]) for row in cli.curve().splitlines()[1:]]
    assert len(found) == STEPS
    return found


def test_after_a_kill_the_whole_world_restarts_from_the_checkpoint_with_the_same_losses(
    hosts: Hosts, data: Path, whole: TrainCli, tmp_path: Path
) -> None:
    cli = training(data, tmp_path / "run")
    both = launch_both(hosts, "--max-restarts", "1", "--", *command(cli))
    wait_for_steps(cli, both[0], 1, 7)
    victim = ranks_of(both[1])[-1]
    number = victim.environ()["RANK"]
    victim.kill()
    assert hosts.end(*both) == [0, 0], hosts.said(both[0]) + hosts.said(both[1])
    for process in both:
        assert f"restart 1 of 1: rank {number} on node 1 (host node-b) died by SIGKILL" in hosts.said(process)
    # Between the seventh step and the kill more may have been saved.
    assert len(cli.attempts()) == 2 and re.search(r"resumes after step (5|10)\b", hosts.said(both[0]))
    assert cli.curve() == whole.curve()


def test_a_rank_killed_in_a_step_ends_all_within_30_s_and_is_named_with_its_host(
    hosts: Hosts, data: Path, tmp_path: Path
) -> None:
    _, both, ranks = running(hosts, data, tmp_path / "run")
    victim = ranks_of(both[1])[-1]
    number = victim.environ()["RANK"]
    began = time.monotonic()
    victim.kill()
    assert hosts.end(*both, seconds=60) == [3, 3]
    assert time.monotonic() - began < 30
    for process in both:
        assert f"failed: rank {number} on node 1 (host node-b) died by SIGKILL" in hosts.said(process)
        assert "Traceback" not in hosts.said(process) and "GLHF" not in hosts.said(process), hosts.said(process)
    _, left = psutil.wait_procs(ranks, timeout=5)
    assert not left


@pytest.mark.soak
def test_a_cut_link_ends_both_sides_in_bounded_time_and_names_the_other_node(
    hosts: Hosts, data: Path, tmp_path: Path
) -> None:
    cli, both, ranks = running(hosts, data, tmp_path / "run")
    hosts.cut()
    assert hosts.end(*both, seconds=90) == [3, 3]
    assert "node 1 (host node-b, ranks 1 to 2) was lost: no message for 20 s" in hosts.said(both[0])
    assert "node 0 (host node-a) was lost: no message for 20 s" in hosts.said(both[1])
    (attempt,) = (json.loads(path.read_text()) for path in (tmp_path / "run").glob("trials/*/result.json"))
    assert attempt["status"] == "crashed" and "node-b" in attempt["reason"], attempt
    assert cli.state() and "crashed" in (tmp_path / "run" / "results.csv").read_text()
    _, left = psutil.wait_procs(ranks, timeout=5)
    assert not left


@pytest.mark.soak
def test_a_launch_killed_outright_takes_its_ranks_along_and_ends_the_other_node(
    hosts: Hosts, data: Path, tmp_path: Path
) -> None:
    _, both, ranks = running(hosts, data, tmp_path / "run")
    both[1].kill()
    assert hosts.end(both[0], seconds=60) == [3]
    assert "node 1 (host node-b, ranks 1 to 2) was lost: " in hosts.said(both[0])
    _, left = psutil.wait_procs(ranks, timeout=5)
    assert not left


@pytest.mark.soak
def test_a_signal_to_one_launch_saves_on_all_nodes_and_ends_them_well(hosts: Hosts, data: Path, tmp_path: Path) -> None:
    cli, both, _ = running(hosts, data, tmp_path / "run")
    both[1].send_signal(signal.SIGTERM)
    assert hosts.end(*both) == [0, 0], hosts.said(both[0])
    made = cli.state()["applied_steps"]
    assert made > 0 and cli.checkpoints()[-1] == f"step-{made:07d}"
    for process in both:
        assert "stopped by SIGTERM on node 1 (host node-b)" in hosts.said(process)


@pytest.mark.soak
def test_a_full_shared_folder_is_said_once_and_the_checkpoint_before_stays(
    hosts: Hosts, data: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", str(small)], check=True)
    try:
        cli = training(data, small / "run")
        both = launch_both(hosts, "--", *command(cli))
        assert hosts.end(*both) == [3, 3]
        assert "disk is full" in hosts.said(both[0])
        assert cli.checkpoints() == ["step-0000005"]
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_wrong_count_fails_on_every_node_with_both_numbers_before_anything_starts(hosts: Hosts) -> None:
    mark = hosts.folder / "started"
    words = ("--no-python", "--", "touch", str(mark))
    first = hosts.launch(0, *UNEQUAL[0], *words)
    second = hosts.launch(1, "--here-gpus", "3", "--other-gpus", "1", *words)
    assert hosts.end(first, second, seconds=40) == [2, 2]
    for process in (first, second):
        said = hosts.said(process)
        assert "node 0 (host node-a) expects 1 + 2 = 3 processes on 2 nodes" in said
        assert "node 1 (host node-b) expects 1 + 3 = 4 processes on 2 nodes" in said
        assert ": node 0 (host node-a, 1 process), node 1 (host node-b, 3 processes)" in said
    assert not mark.exists()


@pytest.mark.soak
@pytest.mark.parametrize("absent", [0, 1])
def test_an_absent_node_fails_within_the_time_that_was_given(hosts: Hosts, absent: int) -> None:
    present = 1 - absent
    began = time.monotonic()
    alone = hosts.launch(present, *UNEQUAL[present], "--join-timeout", "3", "--no-python", "--", "true")
    assert hosts.end(alone, seconds=30) == [2]
    assert time.monotonic() - began < 20
    said = hosts.said(alone)
    if absent:
        assert "within 3 s: 1 of 3 processes" in said and ": node 0 (host node-a" in said
    else:
        assert f"node 0 at {ADDRESSES[0]}:29500 did not answer this node (node 1 (host node-b)) within 3 s" in said
        assert "3 processes; only the 2 of this node" in said


def test_a_late_node_is_waited_for_and_the_program_may_be_any(hosts: Hosts) -> None:
    words = ("--no-python", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE is $LOCAL_RANK")
    first = hosts.launch(0, *UNEQUAL[0], *words)
    wait_for(lambda: "waiting for the other nodes" in hosts.said(first), "node 0 to wait")
    time.sleep(2)
    second = hosts.launch(1, *UNEQUAL[1], *words)
    assert hosts.end(first, second) == [0, 0]
    assert "rank 0 of 3 is 0" in hosts.said(first)
    assert set(re.findall(r"^rank .*", hosts.said(second), re.MULTILINE)) == {"rank 1 of 3 is 0", "rank 2 of 3 is 1"}


@pytest.mark.soak
def test_a_second_job_is_told_of_a_free_port_and_leaves_the_first_alone(hosts: Hosts) -> None:
    mark = hosts.folder / "go"
    waits = ("--no-python", "--", "sh", "-c", f"until [ -e {mark} ]; do sleep 0.1; done")
    first, second = launch_both(hosts, *waits)
    wait_for(lambda: "has joined" in hosts.said(first), "node 1 to come")
    other = hosts.launch(0, *UNEQUAL[0], *waits)
    late = hosts.launch(1, *UNEQUAL[1], *waits)
    assert hosts.end(other, late, seconds=40) == [2, 2]
    assert "--master-port 29500 is in use" in hosts.said(other)
    assert "--master-port 29501, which is free here" in hosts.said(other)
    assert "own --master-port" in hosts.said(late)
    mark.touch()
    assert hosts.end(first, second) == [0, 0], hosts.said(first)


def test_no_process_of_a_launch_is_left(hosts: Hosts) -> None:
    both = launch_both(hosts, "--no-python", "--", "sleep", "1000")
    children: list[psutil.Process] = []

    def sleeping() -> bool:
        children[:] = [c for p in both for c in psutil.Process(p.pid).children(recursive=True)]
        return sum(child.name() == "sleep" for child in children) == 3

    wait_for(sleeping, "three ranks")
    os.kill(both[0].pid, signal.SIGINT)
    assert hosts.end(*both) == [130, 3]
    _, left = psutil.wait_procs(children, timeout=5)
    assert not left
