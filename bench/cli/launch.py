"""`bertbench launch [options] -- COMMAND`: run any program on one or several nodes with equal or unequal GPU counts."""

import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.cli.options import WrappedCommand, parse_with_command
from bench.cli.progress import terminal_text
from bench.cli.result import Result
from bench.cluster.layout import Layout, in_words, ranks_in_words, read_layout
from bench.cluster.node import Job, launch_node
from bench.cluster.statements import Verdict
from bench.machine.devices import Devices, find_devices
from bench.machine.gpu_load import least_busy
from bench.run.processes import StopRequest
from common.errors import UsageError
from common.flags import Groups

DEFAULT_PORT = 29500
PROCESSES_PER_CORE = 8
"""Most CPU processes per core without --crowded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOptions:
    """Run a program with torchrun on one or several nodes, also with different numbers of GPUs: `launch [options] --
    COMMAND`.

    COMMAND is a Python script with its arguments, `bertbench train ...`, or what --module or --no-python make of it.
    Run the same command on every node with the node's own numbers and --node-rank. All nodes stop together and report
    why.

    Examples:
        bertbench launch -- bertbench throughput pretrain  # one rank per GPU of this node
        bertbench launch --other-gpus 4 --node-rank 0 -- train.py  # node 0 of two
    """

    GROUPS: ClassVar[Groups] = {
        "node": (
            "here_gpus",
            "other_gpus",
            "node_rank",
            "master_addr",
            "master_port",
            "join_timeout",
            "max_restarts",
            "crowded",
        ),
        "command": ("module", "no_python"),
        "output": ("quiet",),
    }

    here_gpus: int | None = None
    """Processes on this node, one per GPU; default every GPU, without GPUs 1 CPU process."""
    other_gpus: tuple[str, ...] = ()
    """Processes on each other node, in rank order, or one JSON file of host -> number, with or without this host;
    'localhost' is allowed; default no other node."""
    node_rank: int | None = None
    """Rank of this node; default its position in the JSON file, otherwise 0."""
    master_addr: str | None = None
    """Address of node 0, required on the other nodes; default the first host of the JSON file, or node 0's name."""
    master_port: int | None = None
    """Port of node 0, a different one for each job; default 29500, on one node any free port."""
    join_timeout: float = 60.0
    """Time in s within which all nodes must join."""
    max_restarts: int = 0
    """Restarts of all processes on all nodes after a failure."""
    module: bool = False
    """COMMAND is a Python module, as with python -m."""
    no_python: bool = False
    """COMMAND is an executable program."""
    crowded: bool = False
    """Allow more than 8 CPU processes per core."""
    quiet: bool = False
    """Print only why it failed."""

    def __post_init__(self) -> None:
        """Refuse values out of range and options that conflict."""
        if not 0 < self.join_timeout < float("inf"):
            raise UsageError("option-value", f"--join-timeout {self.join_timeout:g} must be a time in s above 0")
        if self.max_restarts < 0:
            raise UsageError("option-value", f"--max-restarts {self.max_restarts} must be at least 0")
        if self.master_port is not None and not 0 < self.master_port < 65536:
            raise UsageError("option-value", f"--master-port {self.master_port} must be between 1 and 65535")
        if self.module and self.no_python:
            raise UsageError(
                "option-conflict", "--module and --no-python exclude each other: a Python module needs Python"
            )


OPTIONS = {"launch": LaunchOptions}


def read_words(words: list[str], program: str) -> WrappedCommand[LaunchOptions]:
    """Return the options before -- and the command after it. Raises UsageError if there is no command."""
    return parse_with_command(LaunchOptions, words, program, "train.py --epochs 3")


def run(launch: WrappedCommand[LaunchOptions]) -> Result:
    """Launch; return exit code 0 if all processes of all nodes succeed, 3 if one fails."""
    options, command = launch.options, launch.command
    program = program_of(command, options.module, options.no_python)
    devices = find_devices()
    layout = read_layout(
        options.here_gpus, options.other_gpus, options.node_rank, len(devices.gpus) if devices.kind == "cuda" else 1
    )

    def told(text: str) -> None:
        if not options.quiet:
            print(f"launch: {terminal_text(text)}", file=sys.stderr, flush=True)

    if devices.kind == "cpu" and layout.here > PROCESSES_PER_CORE * devices.cpu_cores and not options.crowded:
        raise UsageError(
            "device-missing",
            f"{layout.here} processes on {devices.cpu_cores} CPU cores exceed the limit of {PROCESSES_PER_CORE} per "
            f"core: start at most {PROCESSES_PER_CORE * devices.cpu_cores}, or add --crowded",
        )
    devices = _choose(devices, layout, told)
    several = len(layout.counts) > 1
    job = Job(
        layout=layout,
        address=_address(options, layout) if several else "127.0.0.1",
        port=options.master_port or (DEFAULT_PORT if several else 0),
        command=program,
        given=(*(("--module",) if options.module else ()), *(("--no-python",) if options.no_python else ()), *command),
        own_program=command[0] == "bertbench" and not options.no_python and not options.module,
        join_timeout=options.join_timeout,
        max_restarts=options.max_restarts,
    )
    _announce(job, told)
    stop = StopRequest()
    return _ended(launch_node(job, devices, stop, told), stop, told)


def program_of(command: Sequence[str], module: bool, no_python: bool) -> tuple[str, ...]:
    """Return the command line of a rank."""
    if no_python:
        if shutil.which(command[0]) is None:
            raise UsageError(
                "tool-missing", f"program {command[0]!r} was not found on this node: give its path, or install it"
            )
        return tuple(command)
    if module:
        return (sys.executable, "-u", "-m", *command)
    if command[0] == "bertbench":
        return (sys.executable, "-u", "-m", "bench.cli.main", *command[1:])
    if not Path(command[0]).is_file():
        hint = "add --no-python to run a program" if shutil.which(command[0]) else "give its path, or copy it here"
        raise UsageError("path-missing", f"Python script {command[0]!r} was not found on this node: {hint}")
    return (sys.executable, "-u", *command)


def _choose(devices: Devices, layout: Layout, told: Callable[[str], None]) -> Devices:
    if devices.kind == "cpu":
        told(f"running on the CPU: {devices.note}")
        if layout.here > devices.cpu_cores:
            told(f"{layout.here} processes share {devices.cpu_cores} CPU cores: suitable for tests, not for benchmarks")
        return devices
    chosen, loads = least_busy(devices, layout.here)
    chosen.environment(layout.here)  # refuses unsupported devices before contacting other nodes
    parts = [f"{gpu.visible_as} ({load.in_words()})" for gpu, load in zip(chosen.gpus, loads, strict=True)]
    if len(chosen.gpus) < len(devices.gpus):
        told(f"using the {len(parts)} least busy of {len(devices.gpus)} GPUs: {', '.join(parts)}")
    return chosen


def _address(options: LaunchOptions, layout: Layout) -> str:
    if options.master_addr is not None:
        return options.master_addr
    if layout.hosts and layout.hosts[0] not in ("", "localhost"):
        return layout.hosts[0]
    if layout.node_rank == 0:
        return socket.gethostname()
    raise UsageError(
        "option-missing",
        f"{in_words(layout.counts)} need --master-addr: give the address of node 0, reachable from all",
    )


def _announce(job: Job, told: Callable[[str], None]) -> None:
    layout = job.layout
    which = ranks_in_words(layout.counts, layout.node_rank)
    told(f"{in_words(layout.counts)}; this is node {layout.node_rank} with {which}: {shlex.join(job.command)}")
    if len(layout.counts) > 1:
        what = "waiting for the other nodes" if layout.node_rank == 0 else "connecting to node 0"
        told(f"{what} at {job.address}:{job.port} (timeout {job.join_timeout:g} s)")


def _ended(verdict: Verdict, stop: StopRequest, told: Callable[[str], None]) -> Result:
    if verdict.ok and not verdict.why:
        return Result()
    if stop.signal is not None or verdict.ok:
        told(verdict.why)
        return Result(code=130 if stop.signal == signal.SIGINT else 0 if verdict.ok else 3)
    return Result(problems=[f"failed: {verdict.why}; all processes of all nodes were stopped [rank-failed]"], code=3)
