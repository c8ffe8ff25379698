"""Slurm: a batch script with one launcher per node (srun), job arrays, heterogeneous jobs, and a stop in time."""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from bench.cluster.schedulers.base import Group, JobOptions, Rendered, checked_groups
from bench.cluster.schedulers.words import (
    assignments,
    fill,
    memory_gib,
    places,
    program,
    quote,
)
from common.errors import UsageError
from common.flags import Groups, flag

# Runs torchrun so that it survives a SIGTERM to all processes of a job: the ranks save and exit, and it exits with
# them. It uses a handler, since ranks would inherit SIG_IGN.
_PATIENT_TORCHRUN = (
    "import runpy, signal; signal.signal(signal.SIGTERM, lambda *_: None); "
    'runpy.run_module("torch.distributed.run", run_name="__main__", alter_sys=True)'
)

_PLAIN = re.compile(r"[A-Za-z0-9_.,:+/@%=\[\]*&|()-]+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ARRAY = re.compile(r"\d+(-\d+(:[1-9]\d*)?)?(,\d+(-\d+(:[1-9]\d*)?)?)*(%[1-9]\d*)?")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
# Options of sbatch on which the script depends, and the flags that set them ("": none may).
_NOT_OPTIONS = {
    "nodes": "--nodes",
    "ntasks": "--processes-per-node",
    "ntasks-per-node": "--processes-per-node",
    "gpus-per-node": "--gpus-per-node",
    "cpus-per-task": "--cpus",
    "time": "--time-limit",
    "signal": "--stop-seconds",
    "array": "--array or --sweep",
    "requeue": "--requeues",
    "no-requeue": "--requeues",
    "open-mode": "",
}
_MOST_INDEX = 4_000_000  # of Slurm's MaxArraySize, at most
_MOUNT = re.compile(r"[^:,]+:/[^:,]*(:[^:,]+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmOptions(JobOptions):
    """Write a Slurm batch script. Different numbers of GPUs per node make a heterogeneous job.

    Examples:
        bertbench submit slurm --nodes 2 --gpus-per-node 8 --time-limit 60 -- bertbench train pretrain --data shards
        bertbench submit slurm --sweep lr=1e-5,3e-5 --submit -- bertbench train squad --learning-rate {lr}
    """

    GROUPS: ClassVar[Groups] = {
        **JobOptions.GROUPS,
        "queue": ("partition", "account", "qos", "constraint", "gpu_type", "exclusive", "requeues", "option"),
        "job array": ("array", "sweep", "at_once"),
        "environment": ("log_dir", "chdir", "setup", "container", "mounts"),
    }

    partition: str | None = None
    """Partition; default the cluster's."""
    account: str | None = None
    """Account to charge; default the user's."""
    qos: str | None = None
    """Quality of service; default the cluster's."""
    constraint: str | None = None
    """Required node features; default any node."""
    gpu_type: str | None = None
    """GPU type as named by the cluster, such as a100; default any."""
    exclusive: bool = False
    """Use nodes exclusively."""
    array: str | None = None
    """Indices of a job array, such as 0-99%10. {array_index} in COMMAND becomes the index, {array_count} the count;
    default no array."""
    sweep: tuple[str, ...] = ()
    """NAME=VALUE,VALUE: a job array over every combination; {NAME} in COMMAND becomes the value; default no array."""
    at_once: int | None = None
    """Maximum jobs of --sweep at the same time; default all."""
    requeues: int = 0
    """Maximum times to requeue a job that saved and was stopped before its time limit."""
    log_dir: Path = Path()
    """Folder for logs, on a file system that the nodes can reach."""
    chdir: Path | None = None
    """Working folder; default the current one."""
    setup: tuple[str, ...] = ()
    """Shell lines to run first on the first node, such as 'module load cuda'; default none."""
    container: Literal["pyxis", "apptainer"] = "pyxis"
    """Runtime of --image: the pyxis plugin of srun, or apptainer."""
    mounts: tuple[str, ...] = ()
    """Folders to mount into the container, HOST:CONTAINER; default none."""
    option: tuple[str, ...] = ()
    """Further options of sbatch, NAME=VALUE or NAME, such as reservation=maintenance; default none."""

    def __post_init__(self) -> None:
        """Refuse values that sbatch rejects or misinterprets."""
        JobOptions.__post_init__(self)
        if not _NAME.fullmatch(self.name):
            raise UsageError("option-value", f"--name {self.name!r}: use letters, digits, dots, - and _")
        for name in ("partition", "account", "qos", "constraint", "gpu_type", "log_dir", "option"):
            value = getattr(self, name)
            for word in value if isinstance(value, tuple) else [value]:
                if word is not None and not _PLAIN.fullmatch(str(word)):
                    raise UsageError(
                        "option-value", f"{flag(name)} {str(word)!r} has characters that #SBATCH does not support"
                    )
        if self.array is not None and not _ARRAY.fullmatch(self.array):
            raise UsageError(
                "option-value", f"--array {self.array!r}: give indices such as 0-9, 1,3,5, 0-99:10 or 0-99%10"
            )
        for text, indices in _ranges(self.array or ""):
            if not indices:
                raise UsageError(
                    "option-value", f"--array {self.array}: {text} is descending: give the smaller index first"
                )
            if indices[-1] > _MOST_INDEX:
                raise UsageError(
                    "option-value", f"--array {self.array}: {text} is above {_MOST_INDEX:,}, the most that Slurm allows"
                )
        if self.array is not None and self.sweep:
            raise UsageError(
                "option-conflict", "--array and --sweep exclude each other: a sweep is an array over its combinations"
            )
        if self.requeues < 0 or (self.at_once is not None and self.at_once < 1):
            raise UsageError("option-value", "--requeues must be at least 0 and --at-once at least 1")
        if self.at_once is not None and not self.sweep:
            raise UsageError(
                "option-not-applicable", "--at-once needs --sweep: for --array give the limit as in --array 0-99%10"
            )
        self._check_container()
        for word in self.option:
            _check_option(word)
        if self.requeues and (self.time_limit is None or not self.stop_seconds):
            raise UsageError(
                "option-missing",
                "--requeues needs --time-limit and --stop-seconds: only a job that stops in time can continue later",
            )

    def _check_container(self) -> None:
        for mount in self.mounts:
            if not _MOUNT.fullmatch(mount):
                raise UsageError(
                    "option-value",
                    f"--mounts {mount!r} is not HOST:CONTAINER with absolute paths, such as /data:/data",
                )
        if self.image is None and (self.mounts or self.container != "pyxis"):
            given = "--mounts" if self.mounts else f"--container {self.container}"
            raise UsageError("option-missing", f"{given} needs a container: give --image too, or omit it")


def _check_option(word: str) -> None:
    """Raise UsageError for an option, or its beginning, which sbatch accepts too, on which the script depends."""
    name = word.partition("=")[0]
    own = next((own for own in _NOT_OPTIONS if own.startswith(name)), None)
    if own is not None:
        remedy = f"give {_NOT_OPTIONS[own]} instead" if _NOT_OPTIONS[own] else "omit it"
        raise UsageError("option-conflict", f"--option {word}: the script depends on its own --{own}: {remedy}")


def _ranges(array: str) -> list[tuple[str, range]]:
    parts = _RANGE.finditer(array.partition("%")[0])
    return [(match[0], range(int(match[1]), int(match[2] or match[1]) + 1, int(match[3] or 1))) for match in parts]


def _tasks(array: str) -> set[int]:
    return {index for _, indices in _ranges(array) for index in indices}


class Slurm:
    """Renders batch scripts."""

    options = SlurmOptions
    tool = "sbatch"
    remedy = "run this on a login node of the cluster, or write the script with --out FILE and submit it there"

    def render(self, options: SlurmOptions, command: Sequence[str]) -> Rendered:
        """Return the script. Raises UsageError."""
        groups = checked_groups(options, command)
        _check_launcher(options, command, sum(group.nodes for group in groups))
        grid = {name: tuple(text.split(",")) for name, text in assignments("--sweep", options.sweep).items()}
        array = _indices(options, grid)
        _check_places(options, grid, command, groups)
        known = tuple(grid) + (_OWN if array else ())
        words = program(command, options.module, options.no_python) if options.launcher == "torchrun" else command
        text = _script(
            directives=_directives(options, groups, array),
            groups=groups,
            cpus=options.cpus,
            folder=str((options.chdir or Path.cwd()).absolute()),
            variables=options.variables,
            setup=options.setup,
            words=[
                fill(word, known, quote, lambda name: f'"${name if name in _OWN else "sweep_" + name}"')
                for word in words
            ],
            array=array,
            axes=_axes(grid),
            array_count=len(_tasks(array)) if array else 0,
            torchrun=options.launcher == "torchrun",
            patient_torchrun=_PATIENT_TORCHRUN,
            python=options.python or ("python3" if options.image else sys.executable),
            prefix=list(_container_prefix(options)),
            components=[_component(options, group, number, len(groups)) for number, group in enumerate(groups)],
            stops=options.time_limit is not None and options.stop_seconds > 0,
            requeues=options.requeues,
        )
        notes = []
        if options.time_limit is None:
            notes.append("without --time-limit the processes get no signal before the job ends")
        if array and options.array and not places(command) & set(_OWN):
            notes.append("COMMAND does not use {array_index}: tasks differ only in SLURM_ARRAY_TASK_ID")
        if options.array and set(_OWN) <= places(command):
            tasks = _tasks(options.array)
            if min(tasks) > 1 or max(tasks) - min(tasks) >= len(tasks):
                notes.append(
                    f"{{array_count}} is {len(tasks)}, the number of tasks, but the largest index is {max(tasks)}: to "
                    "submit some tasks of an array again, use its script with sbatch --array=INDICES"
                )
        return Rendered(text=text, suffix=".sbatch", folders=(options.log_dir,), notes=tuple(notes))

    def submission(self, options: SlurmOptions, path: Path) -> list[str]:
        """Return the sbatch command."""
        return ["sbatch", str(path)]


# Commands of bertbench that write one folder: those that join the ranks of a launcher, and those of one node.
_JOINING = ("comm", "throughput", "train")
_OF_ONE_NODE = ("autotune", "data", "profile", "speed-of-light")


def _check_launcher(options: SlurmOptions, command: Sequence[str], nodes: int) -> None:
    name = command[1] if len(command) > 1 and Path(command[0]).name in ("bertbench", "bertbench.py") else ""
    if options.launcher != "none" or nodes == 1 or name not in _JOINING + _OF_ONE_NODE:
        return
    remedy = "use one node"
    if name in _JOINING:
        remedy += ", or omit --launcher none and give --gpus-per-node N (--processes-per-node N on CPUs) for one run"
    raise UsageError(
        "unsupported-combination",
        f"--launcher none would run `bertbench {name}` {nodes} times, once per node, with one folder: {remedy}",
    )


_OWN = ("array_index", "array_count")


def _script(**content: Any) -> str:
    """Render slurm.sbatch.jinja; words of the user are quoted before, or by its filter `sh`."""
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 # nosec B701 # HTML escapes would damage a shell script
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sh"] = quote
    return environment.get_template("slurm.sbatch.jinja").render(content)


def _combinations(grid: dict[str, tuple[str, ...]]) -> int:
    return math.prod(map(len, grid.values()))


def _axes(grid: dict[str, tuple[str, ...]]) -> list[tuple[str, tuple[str, ...], int]]:
    """Return name and values of each swept option, the fastest first, and the number of indices per value."""
    found, divisor = [], 1
    for name, values in reversed(grid.items()):
        found.append((name, values, divisor))
        divisor *= len(values)
    return found


def _indices(options: SlurmOptions, grid: dict[str, tuple[str, ...]]) -> str | None:
    """Return the indices of the job array for sbatch, or None without an array."""
    if not grid:
        return options.array
    return f"0-{_combinations(grid) - 1}{f'%{options.at_once}' if options.at_once else ''}"


def _check_places(
    options: SlurmOptions, grid: dict[str, tuple[str, ...]], command: Sequence[str], groups: Sequence[Group]
) -> None:
    found = places(command)
    for name, values in grid.items():
        if name in _OWN:
            raise UsageError("option-value", f"--sweep {name}: this name is reserved for the array; use another")
        if name not in found:
            raise UsageError("option-value", f"COMMAND does not use {{{name}}}: add it, or omit --sweep {name}")
        if "" in values or len(set(values)) < len(values):
            raise UsageError("option-value", f"--sweep {name}: a value is empty or repeated: {','.join(values)}")
    if found & set(_OWN) and not (options.array or grid):
        raise UsageError(
            "option-missing",
            f"COMMAND uses {{{min(found & set(_OWN))}}} without an array: give --array or --sweep",
        )
    if len(groups) > 1 and (options.array or grid):
        raise UsageError(
            "unsupported-combination",
            "Slurm has no arrays of heterogeneous jobs: give every node the same number of GPUs, or submit separate "
            "jobs",
        )


def _directives(options: SlurmOptions, groups: Sequence[Group], array: str | None) -> list[str]:
    stem = "%x-%A_%a" if array else "%x-%j"
    once = [f"--job-name={options.name}", f"--output={options.log_dir / f'{stem}.out'}", "--open-mode=append"]
    once += [f"--array={array}"] if array else []
    if options.time_limit is not None and options.stop_seconds:
        once.append(f"--signal=B:USR1@{options.stop_seconds}")
    once.append("--requeue" if options.requeues else "--no-requeue")
    lines: list[str] = []
    for number, group in enumerate(groups):
        lines += ["hetjob"] if number else once
        lines += [f"--nodes={group.nodes}", "--ntasks-per-node=1"]
        if group.gpus:
            lines.append(_gpus(options, group))
        if options.cpus:
            lines.append(f"--cpus-per-task={options.cpus}")
        if options.memory:
            lines.append(f"--mem={round(memory_gib(options.memory) * 1024)}M")
        given = {
            "time": options.time_limit,
            "partition": options.partition,
            "account": options.account,
            "qos": options.qos,
            "constraint": options.constraint,
        }
        lines += [f"--{name}={value}" for name, value in given.items() if value is not None]
        lines += ["--exclusive"] if options.exclusive else []
        lines += [f"--{word}" for word in options.option]
    return lines


def _gpus(options: SlurmOptions, group: Group) -> str:
    return f"--gpus-per-node={options.gpu_type + ':' if options.gpu_type else ''}{group.gpus}"


def _component(options: SlurmOptions, group: Group, number: int, count: int) -> str:
    words = [f"--het-group={number}"] if count > 1 else []
    # Without --export, srun obeys that of sbatch: the command would miss the variables of the script.
    words += ["--export=ALL", f"--nodes={group.nodes}", f"--ntasks={group.nodes}", "--ntasks-per-node=1"]
    words += ["--kill-on-bad-exit=1"]
    words += [quote(_gpus(options, group))] if group.gpus else []
    words += [f"--cpus-per-task={options.cpus}"] if options.cpus else []
    words += map(quote, _container_options(options))
    return " ".join([*words, "bash", "-c", '"$node"', "node", str(group.processes)])


def _container_prefix(options: SlurmOptions) -> tuple[str, ...]:
    if options.image is None or options.container != "apptainer":
        return ()
    binds = [word for mount in options.mounts for word in ("--bind", mount)]
    gpus = ["--nv"] if any(options.gpus_per_node) else []
    return ("apptainer", "exec", *gpus, *binds, options.image)


def _container_options(options: SlurmOptions) -> tuple[str, ...]:
    if options.image is None or options.container != "pyxis":
        return ()
    mounts = [f"--container-mounts={','.join(options.mounts)}"] if options.mounts else []
    return (f"--container-image={options.image}", *mounts)
