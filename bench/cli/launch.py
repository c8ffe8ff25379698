"""`bertbench launch [options] -- COMMAND`: run any program on one or several nodes with equal or unequal GPU counts."""

import shlex
import signal
import socket
import sys
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter, validators

from bench.cli.progress import terminal_text
from bench.cli.result import Result
from bench.launch.layout import in_words, least_busy, read_layout
from bench.launch.preflight import Node
from bench.launch.torchrun import OK, command_of_rank
from bench.launch.watch import launch
from bench.machine.devices import find_devices
from bench.sweep.options import COUNT
from common.errors import UsageError
from common.flags import Positional


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

    command: Positional[tuple[str, ...]]
    """Program and its arguments."""
    here_gpus: Annotated[int | None, COUNT] = None
    """Processes on this node, one per GPU; default every GPU, without GPUs 1 CPU process."""
    other_gpus: tuple[str, ...] = ()
    """Processes on each other node, in rank order, or one JSON file of host -> number, with or without this host;
    'localhost' is allowed; default no other node."""
    node_rank: int | None = None
    """Rank of this node; default its position in the JSON file, otherwise 0."""
    master_addr: str | None = None
    """Address of node 0, required on the other nodes; default on node 0 its host name."""
    master_port: Annotated[int, Parameter(validator=validators.Number(gte=1, lte=65535))] = 29500
    """Port of node 0, a different one for each job over several nodes."""
    join_timeout: Annotated[float, Parameter(validator=validators.Number(gt=0, lt=1e6))] = 60.0
    """Time in s within which all nodes must join."""
    module: bool = False
    """COMMAND is a Python module, as with python -m."""
    no_python: bool = False
    """COMMAND is an executable program."""
    quiet: bool = False
    """Print only why it failed."""


OPTIONS = {"launch": LaunchOptions}


def run(options: LaunchOptions) -> Result:
    """Launch; return exit code 0 if all ranks of all nodes succeed, 3 if one fails, 130 after Ctrl-C on this node."""
    command = command_of_rank(options.command, options.module, options.no_python)
    devices = find_devices()
    default = len(devices.gpus) if devices.kind == "cuda" else 1
    counts, rank = read_layout(options.here_gpus, options.other_gpus, options.node_rank, default)
    if devices.kind == "cuda":
        devices = least_busy(devices, counts[rank])

    def note(text: str) -> None:
        if not options.quiet:
            print(f"launch: {terminal_text(text)}", file=sys.stderr, flush=True)

    used = " ".join(gpu.visible_as for gpu in devices.gpus) if devices.gpus else f"the CPU ({devices.note})"
    note(f"{in_words(counts)}; this is node {rank} on {used}: {shlex.join(command)}")
    address = options.master_addr or (socket.gethostname() if rank == 0 else None)
    if address is None:
        raise UsageError("option-missing", f"node {rank} needs --master-addr: give an address of node 0")
    node = Node(rank=rank, counts=counts, device=devices.kind, command=shlex.join(options.command))
    try:
        ending, stopped_by = launch(node, command, devices, address, options.master_port, options.join_timeout, note)
    except UsageError as error:  # a thread may still wait for the store, and would abort Python's own end
        return Result(problems=[error.shown()], code=2, at_once=True)
    code = 130 if stopped_by == signal.SIGINT else 0 if ending.kind == OK else 3
    if ending.kind == OK or stopped_by is not None:
        return Result(notes=[ending.text] if ending.text else [], code=code)
    return Result(problems=[f"failed: {ending.text} [rank-failed]"], code=code)
