"""`bertbench launch` on two hosts, which are network namespaces of this machine: real torchrun, real gloo."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from support.cli import ROOT, TrainCli, bertbench, run_to_end, wait_for, wait_for_steps

ADDRESSES = ("10.97.0.1", "10.97.0.2")


def lacking() -> str:
    """Return why there can be no namespaces here; nothing where there can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed (iproute2, util-linux)"
    probe = subprocess.run(["ip", "netns", "add", f"bb{os.getpid()}"], capture_output=True, text=True, check=False)
    if probe.returncode:
        return f"no network namespace can be made here: {probe.stderr.strip()}"
    _ip("netns", "del", f"bb{os.getpid()}")
    return ""


@dataclass
class Hosts:
    """Two hosts, node-a and node-b."""

    names: tuple[str, str]
    folder: Path
    started: list["subprocess.Popen[str]"] = field(default_factory=list)

    def launch(self, host: int, *words: str, rank: int | None = None) -> "subprocess.Popen[str]":
        """Start `bertbench launch` on a host, as the node of its number or `rank`; its output goes to a file each."""
        options = ("--node-rank", str(host if rank is None else rank), "--master-addr", ADDRESSES[0])
        command = [sys.executable, "-m", "bench.cli.main", "launch", *options, *words]
        shell = 'hostname "$1"; shift; exec "$@"'
        argv = ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", shell, "sh"]
        with self._output(len(self.started)).open("w") as output:
            process = subprocess.Popen(
                [*argv, f"node-{'ab'[host]}", *command],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdout=output,
                stderr=output,
                text=True,
            )
        self.started.append(process)
        return process

    def said(self, process: "subprocess.Popen[str]") -> str:
        """Return what a launch has said so far."""
        return self._output(self.started.index(process)).read_text()

    def _output(self, number: int) -> Path:
        return self.folder / f"launch-{number}.txt"

    def end(self, *processes: "subprocess.Popen[str]", seconds: float = 120) -> list[int]:
        """Wait for launches to end; return their exit codes."""
        deadline = time.monotonic() + seconds
        try:
            return [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            raise AssertionError("\n--\n".join(self.said(process) for process in processes)) from None

    def cut(self) -> None:
        """Cut the link: nothing arrives any more, and nobody is told."""
        _ip("-n", self.names[1], "link", "set", "eth0", "down")


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Two hosts for as long as the block lasts; what was launched on them is then killed."""
    names = (f"bb{os.getpid()}a", f"bb{os.getpid()}b")
    hosts = Hosts(names, folder)
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield hosts
    finally:
        for process in hosts.started:
            process.kill()
            process.wait()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


WHY_NOT = lacking()
pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)]
STEPS = 12
UNEQUAL = (("--here-gpus", "1", "--other-gpus", "2"), ("--here-gpus", "2", "--other-gpus", "1"))
ALL_REDUCES = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(total := torch.ones(1))
print(f"rank {dist.get_rank()} of {int(total)}", flush=True)
while True:
    dist.all_reduce(total)
    time.sleep(0.05)
"""
SILENCE_SECONDS = 20
# Of a node whose ranks the others miss: 6 s of silence, 8 s to end.
LOST_SECONDS = 14
# Beside the stated seconds: imports of torch on a machine that does other work too.
SPARE_SECONDS = 30

Launch = subprocess.Popen[str]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    with two_hosts(tmp_path) as made:
        yield made


def launch_both(hosts: Hosts, *words: str) -> list[Launch]:
    """Node 1 first: it waits for node 0."""
    second = hosts.launch(1, *UNEQUAL[1], *words)
    return [hosts.launch(0, *UNEQUAL[0], *words), second]


def below(launch: Launch) -> list[psutil.Process]:
    return psutil.Process(launch.pid).children(recursive=True)


def ranks_of(launch: Launch) -> dict[int, psutil.Process]:
    """The processes of the ranks, which are the children of torchrun."""
    (guard,) = psutil.Process(launch.pid).children()
    (torchrun,) = guard.children()
    return {int(process.environ()["RANK"]): process for process in torchrun.children()}


class Running:
    """Three ranks on two hosts that all-reduce without end."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        (hosts.folder / "endless.py").write_text(ALL_REDUCES)
        self.both = launch_both(hosts, "--", str(hosts.folder / "endless.py"))
        wait_for(lambda: sum(len(re.findall("rank . of 3", hosts.said(each))) for each in self.both) == 3, "the ranks")
        self.processes = [process for each in self.both for process in below(each)]
        assert len(self.processes) == 7, "a guard and a torchrun on each host, and three ranks"
        self.began = time.monotonic()

    def end(self, seconds: float, *codes: int) -> list[str]:
        """Wait for the end of the launches in so many seconds, with these exit codes; return each one's last line."""
        assert self.hosts.end(*self.both, seconds=seconds + SPARE_SECONDS) == [*codes]
        _, left = psutil.wait_procs(self.processes, timeout=5)
        assert not left
        assert time.monotonic() - self.began < seconds + SPARE_SECONDS
        return [self.hosts.said(each).splitlines()[-1] for each in self.both]


def test_an_absent_node_ends_the_other_in_the_time_that_was_given(hosts: Hosts) -> None:
    words = ("--join-timeout", "3", "--no-python", "--", "true")
    for present in (0, 1):
        began = time.monotonic()
        alone = hosts.launch(present, *UNEQUAL[present], *words)
        assert hosts.end(alone, seconds=3 + SPARE_SECONDS) == [2]
        assert time.monotonic() - began > 3
        line = hosts.said(alone).splitlines()[-1]
        if present == 0:
            assert "node 1 did not join within 3 s: 1 of 3 processes are here, on node 0 (host node-a)" in line
        else:
            assert "node 1 (host node-b) cannot reach node 0 at 10.97.0.1:29500 (no answer for 3 s)" in line


def test_two_nodes_of_one_rank_end_all(hosts: Hosts) -> None:
    words = ("--here-gpus", "1", "--other-gpus", "1", "1", "--no-python", "--", "true")
    three = [hosts.launch(0, *words), hosts.launch(1, *words)]
    wait_for(lambda: all("waiting" in hosts.said(each) for each in three), "the first two")
    three.append(hosts.launch(1, *words))
    assert hosts.end(*three, seconds=3 * SPARE_SECONDS) == [2, 2, 2]
    lines = {hosts.said(each).splitlines()[-1] for each in three}
    (line,) = lines
    pids = re.findall(r"host node-b \(process (\d+)\)", line)
    assert "two nodes have --node-rank 1" in line and len(set(pids)) == 2


@pytest.mark.parametrize(
    ("node_1", "facts"),
    [
        (("--here-gpus", "3", "--other-gpus", "1", "--no-python", "--", "touch", "started"),
         ("node 0 (host node-a) has 1 + 2 = 3 processes on 2", "node 1 (host node-b) has 1 + 3 = 4 processes on 2")),
        ((*UNEQUAL[1], "--no-python", "--", "touch", "other"), ("has touch started", "has touch other")),
    ],
)  # fmt: skip
def test_different_counts_or_commands_end_every_node_with_both_before_anything_starts(
    hosts: Hosts, node_1: tuple[str, ...], facts: tuple[str, ...]
) -> None:
    both = [hosts.launch(0, *UNEQUAL[0], "--no-python", "--", "touch", "started"), hosts.launch(1, *node_1)]
    assert hosts.end(*both, seconds=3 * SPARE_SECONDS) == [2, 2]
    (line,) = {hosts.said(each).splitlines()[-1] for each in both}
    assert all(fact in line for fact in facts) and line.endswith("[nodes-disagree]")
    assert not (ROOT / "started").exists()


def test_a_killed_rank_ends_all_nodes_and_is_named(hosts: Hosts) -> None:
    running = Running(hosts)
    ranks_of(running.both[1])[2].kill()
    for line in running.end(10, 3, 3):
        assert line == "bertbench: failed: node 1 (host node-b): rank 2 died by SIGKILL [rank-failed]"


@pytest.mark.parametrize("dead", [0, 1])
def test_a_killed_node_is_named_by_the_other(hosts: Hosts, dead: int) -> None:
    running = Running(hosts)
    for process in [*below(running.both[dead]), psutil.Process(running.both[dead].pid)]:
        process.kill()
    codes = [-9, 3] if dead == 0 else [3, -9]
    line = running.end(LOST_SECONDS, *codes)[1 - dead]
    assert line.startswith(f"bertbench: failed: node {dead} (host node-{'ab'[dead]}): lost (")


def test_a_launcher_killed_alone_takes_its_ranks_along(hosts: Hosts) -> None:
    running = Running(hosts)
    running.both[1].kill()
    line = running.end(LOST_SECONDS, 3, -9)[0]
    assert "node 1 (host node-b): lost (no sign of its launcher for " in line


def test_ctrl_c_on_one_node_ends_all(hosts: Hosts) -> None:
    running = Running(hosts)
    running.both[1].send_signal(signal.SIGINT)
    for line in running.end(10, 3, 130):
        assert "stopped by SIGINT on node 1 (host node-b)" in line


@pytest.mark.soak
def test_a_cut_link_ends_both_sides_and_each_names_the_other(hosts: Hosts) -> None:
    running = Running(hosts)
    hosts.cut()
    lines = running.end(SILENCE_SECONDS + 8, 3, 3)
    assert "node 1 (host node-b): lost" in lines[0] and "node 0 (host node-a): lost" in lines[1]


def test_a_late_node_is_waited_for_and_the_program_may_be_any(hosts: Hosts) -> None:
    words = ("--no-python", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE is $LOCAL_RANK over $GLOO_SOCKET_IFNAME")
    first = hosts.launch(0, *UNEQUAL[0], *words)
    wait_for(lambda: "waiting for the other nodes" in hosts.said(first), "node 0 to wait")
    time.sleep(2)
    second = hosts.launch(1, *UNEQUAL[1], *words)
    assert hosts.end(first, second) == [0, 0]
    assert "rank 0 of 3 is 0 over eth0" in hosts.said(first)
    ranks = {"rank 1 of 3 is 0 over eth0", "rank 2 of 3 is 1 over eth0"}
    assert set(re.findall(r"^rank .*", hosts.said(second), re.MULTILINE)) == ranks


def training(data: Path, out: Path, steps: int = STEPS) -> TrainCli:
    cli = TrainCli(data, out, steps=steps)
    batches = ("--global-batch-size", "12", "--micro-batch-size", "2", "--dropout", "0")
    own = ("--save-every", "5", "--eval-every", "0", "--threads", "1")
    fixed = dict(zip(cli.options[::2], cli.options[1::2], strict=True))
    fixed.pop("--devices")
    for words in (batches, own):
        fixed |= dict(zip(words[::2], words[1::2], strict=True))
    cli.options = tuple(word for pair in fixed.items() for word in pair)
    return cli


def command(cli: TrainCli) -> list[str]:
    return ["bertbench", *cli.command()[3:]]


def losses(cli: TrainCli) -> list[float]:
    found = [float(row.split(",")[3]) for row in cli.curve().splitlines()[1:]]
    assert len(found) == STEPS
    return found


def test_unequal_nodes_train_and_resume_to_the_losses_of_one_host_and_of_one_process(
    hosts: Hosts, data: Path, tmp_path: Path
) -> None:
    whole = training(data, tmp_path / "whole")
    run_to_end(bertbench("launch", "--here-gpus", 3, "--", *command(whole)))
    cli = training(data, tmp_path / "run")
    both = launch_both(hosts, "--", *command(cli))
    wait_for_steps(cli, both[0], 1, 7)
    ranks_of(both[1])[2].kill()
    assert hosts.end(*both) == [3, 3]
    again = launch_both(hosts, "--", *command(cli))
    assert hosts.end(*again) == [0, 0], hosts.said(again[0]) + hosts.said(again[1])
    # Between the seventh step and the kill more may have been saved.
    assert len(cli.attempts()) == 2 and re.search(r"resumes after step (5|10)\b", hosts.said(again[0]))
    assert cli.curve() == whole.curve()
    assert cli.state()["finished"] and cli.result()["status"] == "ok"
    one = training(data, tmp_path / "one")
    one.run("--devices", "1")
    assert losses(one) == pytest.approx(losses(cli), rel=1e-5)
