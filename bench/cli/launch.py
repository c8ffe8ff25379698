"""`bertbench launch [options] -- COMMAND`: run any program on one or several nodes with equal or unequal GPU counts."""

import hashlib
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.cli.progress import terminal_text
from bench.cli.result import Result
from bench.launch import torchrun
from bench.launch.layout import in_words, least_busy, read_layout
from bench.launch.preflight import Node, meet, source_address
from bench.launch.watch import Watch
from bench.machine.devices import find_devices
from bench.run.processes import StopRequest
from common.errors import UsageError
from common.flags import Groups, Positional

_LONGEST_WAIT = 86400


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOptions:
    """Run a program with torchrun on one or several nodes, also with different numbers of GPUs: `launch [options] --
    COMMAND`.

    COMMAND is a Python script with its arguments, `bertbench train ...`, or what --module or --no-python make of it.
    Run the same command on every node with the node's own numbers and --node-rank. All nodes stop together and report
    why; nothing restarts by itself, and the same command resumes.

    Examples:
        bertbench launch -- bertbench throughput pretrain  # one rank per GPU of this node
        bertbench launch --other-gpus 4 --node-rank 0 -- train.py  # node 0 of two
    """

    GROUPS: ClassVar[Groups] = {
        "node": ("here_gpus", "other_gpus", "node_rank", "master_addr", "master_port", "join_timeout"),
        "command": ("module", "no_python"),
        "output": ("quiet",),
    }

    command: Positional[tuple[str, ...]]
    """Program and its arguments."""
    here_gpus: int | None = None
    """Processes on this node, one per GPU; default every GPU, without GPUs 1 CPU process."""
    other_gpus: tuple[str, ...] = ()
    """Processes on each other node, in rank order, or one JSON file of host -> number, with or without this host;
    'localhost' is allowed; default no other node."""
    node_rank: int | None = None
    """Rank of this node; default its position in the JSON file, otherwise 0."""
    master_addr: str | None = None
    """Address of node 0, required on the other nodes; default on node 0 its host name."""
    master_port: int = 29500
    """Port of node 0, a different one for each job over several nodes."""
    join_timeout: float = 60.0
    """Time in s within which all nodes must join."""
    module: bool = False
    """COMMAND is a Python module, as with python -m."""
    no_python: bool = False
    """COMMAND is an executable program."""
    quiet: bool = False
    """Print only why it failed."""

    def __post_init__(self) -> None:
        """Refuse values out of range and options that conflict."""
        if not 0 < self.join_timeout <= _LONGEST_WAIT:
            text = f"--join-timeout {self.join_timeout:g} must be above 0 and at most {_LONGEST_WAIT} s"
            raise UsageError("option-value", text)
        if not 0 < self.master_port < 65536:
            raise UsageError("option-value", f"--master-port {self.master_port} must be between 1 and 65535")
        if self.module and self.no_python:
            raise UsageError("option-conflict", "--module and --no-python exclude each other: give one")


OPTIONS = {"launch": LaunchOptions}


def run(options: LaunchOptions) -> Result:
    """Launch; return exit code 0 if all ranks of all nodes succeed, 3 if one fails, 130 after Ctrl-C on this node."""
    command = command_of_rank(options.command, options.module, options.no_python)
    devices = find_devices()
    default = len(devices.gpus) if devices.kind == "cuda" else 1
    counts, rank = read_layout(options.here_gpus, options.other_gpus, options.node_rank, default)
    if devices.kind == "cuda":
        devices = least_busy(devices, counts[rank])
    address = options.master_addr or (socket.gethostname() if rank == 0 else None)
    if address is None:
        raise UsageError("option-missing", f"node {rank} needs --master-addr: give an address of node 0")

    def note(text: str) -> None:
        if not options.quiet:
            print(f"launch: {terminal_text(text)}", file=sys.stderr, flush=True)

    used = " ".join(gpu.visible_as for gpu in devices.gpus) if devices.gpus else f"the CPU ({devices.note})"
    note(f"{in_words(counts)}; this is node {rank} on {used}: {shlex.join(command)}")
    node = Node(
        rank=rank,
        counts=counts,
        device=devices.kind,
        command=hashlib.sha256(
            "\0".join(map(str, (options.module, options.no_python, *options.command))).encode(errors="surrogateescape")
        ).hexdigest()[:8],
        host=socket.gethostname(),
        pid=os.getpid(),
    )
    store, nodes, variables = None, [node], torchrun.environment(devices, counts[rank])
    if len(counts) > 1:
        note(f"waiting for the other nodes at {address}:{options.master_port} (timeout {options.join_timeout:g} s)")
        try:
            store, nodes = meet(node, address, options.master_port, options.join_timeout)
        except UsageError as error:  # a thread may still wait for the store, and would abort Python's own end
            return Result(problems=[error.shown()], code=2, at_once=True)
        peer = nodes[1].address if rank == 0 else address
        variables = {**torchrun.gloo_interface(source_address(peer)), **variables}
    words = [*torchrun.options(counts, rank, address, nodes[0].port), "--no-python", *command]
    with tempfile.TemporaryDirectory(prefix="bertbench-launch-") as folder, StopRequest() as stop:
        record = Path(folder, "ending.json")
        child = torchrun.start(words, variables, record)
        watch = Watch(node=node, nodes=nodes, store=store, child=child, record=record, stop=stop)
        return _result(watch.to_end(), stop)


def _result(ending: torchrun.Ending, stop: StopRequest) -> Result:
    code = 130 if stop.signal == signal.SIGINT else 0 if ending.kind == torchrun.OK else 3
    if ending.kind == torchrun.OK or stop.signal is not None:
        return Result(notes=[ending.text] if ending.text else [], code=code)
    return Result(problems=[f"failed: {ending.text} [rank-failed]"], code=code)


def command_of_rank(command: Sequence[str], module: bool, no_python: bool) -> tuple[str, ...]:
    """Return the command line of a rank. Raises UsageError if this node does not have the program."""
    if module:
        return (sys.executable, "-u", "-m", *command)
    if command[0] == "bertbench" and not no_python:
        return (sys.executable, "-u", "-P", "-m", "bench.cli.main", *command[1:])
    if no_python and shutil.which(command[0]) is None:
        raise UsageError("tool-missing", f"program {command[0]!r} is not on this node: give its path, or install it")
    if not no_python and not Path(command[0]).is_file():
        problem = f"Python script {command[0]!r} is not on this node: give its path, or --no-python for another program"
        raise UsageError("path-missing", problem)
    return tuple(command) if no_python else (sys.executable, "-u", *command)
