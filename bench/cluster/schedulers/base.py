"""The interface of a scheduler: render a job from options and a command, and return the command that submits it."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from bench.cluster.schedulers.words import check_command, memory_gib, text_words, time_limit_seconds
from common.errors import UsageError
from common.flags import Groups

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOptions:
    """The options of a job on any scheduler."""

    GROUPS: ClassVar[Groups] = {
        "job": ("name", "time_limit", "stop_seconds"),
        "resource": ("nodes", "gpus_per_node", "processes_per_node", "cpus", "memory"),
        "command": ("env", "image", "python", "launcher", "module", "no_python"),
        "output": ("submit",),
    }

    name: str = "bertbench"
    """Name of the job."""
    nodes: int | None = None
    """Number of nodes; default the number of counts in --gpus-per-node or --processes-per-node, otherwise 1."""
    gpus_per_node: tuple[int, ...] = ()
    """GPUs per node: one number for all nodes, or one for each; default no GPUs requested."""
    processes_per_node: tuple[int, ...] = ()
    """Processes per node: one number for all nodes, or one for each; default the GPUs of the node."""
    cpus: int | None = None
    """CPU cores per node; default the scheduler's."""
    memory: str | None = None
    """Memory per node with the unit M, G (GiB) or T, such as 64G; default the scheduler's."""
    time_limit: str | None = None
    """Time limit: minutes, hours:minutes:seconds, or days-hours:minutes:seconds, such as 0-12:00:00; default the
    scheduler's."""
    stop_seconds: int = 120
    """Time in s from SIGTERM to the end, for `bertbench train` to save: before the limit on Slurm, after it on
    Kubernetes; no effect on AzureML."""
    env: tuple[str, ...] = ()
    """Environment variables NAME=VALUE. The job file shows them in plain text, so do not pass secrets."""
    image: str | None = None
    """Container image; default no container on Slurm."""
    python: str | None = None
    """Python executable on the nodes; default this one on Slurm without an image, otherwise python3."""
    launcher: Literal["torchrun", "none"] = "torchrun"
    """torchrun starts the processes of a node; none runs COMMAND once per node."""
    module: bool = False
    """COMMAND is a Python module."""
    no_python: bool = False
    """COMMAND is an executable program even if its name ends in .py."""
    out: Path | None = None
    """File to write; default the terminal, with --submit NAME.sbatch or NAME.yaml."""
    submit: bool = False
    """Submit the job to the scheduler."""

    def __post_init__(self) -> None:
        """Refuse values that no scheduler accepts."""
        _check_counts(self)
        if self.memory is not None:
            memory_gib(self.memory)
        for variable in self.env:
            name, equals, _ = variable.partition("=")
            if not equals or not _VARIABLE.fullmatch(name):
                raise UsageError(
                    "option-value", f"--env {variable!r} is not NAME=VALUE with a name of letters, digits and _"
                )
        if self.module and self.no_python:
            raise UsageError(
                "option-conflict", "--module and --no-python exclude each other: COMMAND is a module or a program"
            )
        if not 0 <= self.stop_seconds <= 65535:
            raise UsageError("option-value", f"--stop-seconds {self.stop_seconds} must be from 0 to 65535")
        if self.time_limit is not None and self.stop_seconds >= time_limit_seconds(self.time_limit):
            raise UsageError(
                "option-conflict",
                f"--stop-seconds {self.stop_seconds} leaves no time to run within --time-limit {self.time_limit}: "
                "raise the limit or lower the seconds",
            )

    @property
    def seconds(self) -> int | None:
        """Time limit in s."""
        return None if self.time_limit is None else time_limit_seconds(self.time_limit)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables by name."""
        return dict(variable.split("=", 1) for variable in self.env)


@dataclass(frozen=True, slots=True)
class Group:
    """Adjacent nodes with equal counts."""

    nodes: int
    gpus: int
    processes: int
    first: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A rendered job."""

    text: str
    suffix: str
    folders: tuple[Path, ...] = ()
    """Folders that must exist before it starts."""
    notes: tuple[str, ...] = ()


class Scheduler(Protocol):
    """Renders jobs for one kind of cluster."""

    options: type[JobOptions]
    """Class of its options."""
    tool: str
    """The program that submits a job."""
    remedy: str
    """Remedy if that program is not installed."""

    def render(self, options: Any, command: Sequence[str]) -> Rendered:
        """Return the job. Raises UsageError for unsupported options."""

    def submission(self, options: Any, path: Path) -> list[str]:
        """Return the command that submits the file."""


def groups_of(options: JobOptions) -> tuple[Group, ...]:
    """Return the nodes in order, with equal adjacent nodes grouped."""
    torchrun = options.launcher == "torchrun"
    if torchrun and not any(options.gpus_per_node) and not options.processes_per_node:
        raise UsageError(
            "option-missing",
            "the job has no GPUs: give --gpus-per-node N, or --processes-per-node N for a job on CPUs, "
            "or --launcher none if COMMAND starts its own processes",
        )
    nodes = _node_count(options)
    gpus = _spread(options.gpus_per_node or (0,), nodes)
    processes = _spread(options.processes_per_node, nodes) if options.processes_per_node else gpus
    if torchrun and 0 in processes:
        raise UsageError(
            "option-value", "a node would run no process: every number of --gpus-per-node must be at least 1"
        )
    found: list[Group] = []
    for rank, (count, started) in enumerate(zip(gpus, processes, strict=True)):
        if found and (found[-1].gpus, found[-1].processes) == (count, started):
            found[-1] = dataclasses.replace(found[-1], nodes=found[-1].nodes + 1)
        else:
            found.append(Group(1, count, started, rank))
    return tuple(found)


def checked_groups(options: JobOptions, command: Sequence[str]) -> tuple[Group, ...]:
    """Check that there is a command in valid UTF-8 and return `groups_of`. Raises UsageError."""
    check_command(command)
    text_words([*command, *options.env])
    return groups_of(options)


def _node_count(options: JobOptions) -> int:
    return options.nodes or max(1, len(options.gpus_per_node), len(options.processes_per_node))


def _spread(counts: Sequence[int], nodes: int) -> list[int]:
    return [counts[0]] * nodes if len(counts) == 1 else list(counts)


def _check_counts(options: JobOptions) -> None:
    if options.nodes is not None and options.nodes < 1:
        raise UsageError("option-value", f"--nodes {options.nodes} must be at least 1")
    if options.cpus is not None and options.cpus < 1:
        raise UsageError("option-value", f"--cpus {options.cpus} must be at least 1")
    for name, counts, least in (
        ("--gpus-per-node", options.gpus_per_node, 0),
        ("--processes-per-node", options.processes_per_node, 1),
    ):
        if any(count < least for count in counts):
            raise UsageError(
                "option-value", f"{name} {' '.join(map(str, counts))}: every number must be at least {least}"
            )
        nodes = _node_count(options)
        if len(counts) > 1 and len(counts) != nodes:
            raise UsageError(
                "option-value",
                f"{name} has {len(counts)} numbers for {nodes} nodes: give one for all nodes, or one for each",
            )
