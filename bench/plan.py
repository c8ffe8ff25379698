"""From what was asked for to the list of trials: Sweep -> [Trial]."""

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import tyro

from analysis.records import PRECISIONS, Trial
from bench.devices import Devices
from bench.environment import native_bf16
from bench.implementations import IMPLEMENTATIONS
from bert.config import PRESETS
from bert.data.lengths import SYNTHETIC, is_synthetic
from bert.strategies import STRATEGIES
from bert.tasks import DATA, TASKS
from bert.tasks.data import DataSource as DataSource
from bert.tasks.data import TaskData
from common.errors import UsageError
from common.registry import load, lookup

AUTO = "auto"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What to measure: every combination of the listed values is one trial."""

    task: Annotated[str, tyro.conf.Positional] = "pretrain"
    """What is trained: pretrain squad."""
    presets: tuple[str, ...] = ("base",)
    """tiny mini small medium base large distilbert."""
    implementations: tuple[str, ...] = ("bertbench",)
    """bertbench hf hf-compiled."""
    strategies: tuple[str, ...] = (AUTO,)
    """single ddp; auto: single on one device, ddp on several."""
    devices: tuple[int, ...] = ()
    """Counts; default 1 2 4 ... to every GPU, or 1 rank with all CPU cores."""
    batch_sizes: tuple[int, ...] = (8,)
    """Sequences per device and micro-step."""
    grad_accum: tuple[int, ...] = (1,)
    """Micro-steps per optimizer step."""
    seq_lens: tuple[int, ...] = ()
    """Tokens per sequence at most; default 128, squad 384."""
    padding: str = AUTO
    """Of squad's batches: longest fixed; auto: longest."""
    precisions: tuple[str, ...] = (AUTO,)
    """fp32 tf32 bf16 fp16; auto: bf16 where in hardware, else fp32."""
    data: str = "synthetic"
    """synthetic, synthetic:<lengths or path>, or a path."""
    dropout: float = 0.1
    """Dropout probability everywhere, attention included."""
    seed: int = 42
    """Seed of weights, data order and dropout."""
    rounds: int = 1
    """Interleaved repetitions; 3 or more can decide."""
    start: int | None = None
    """First measured step (else: end of detected warm-up)."""
    stop: int | None = None
    """One past the last measured step."""
    min_steps: int = 10
    """Fewest measured steps without a window, time permitting."""
    max_steps: int = 1000
    """Most steps without a window."""
    max_seconds: float = 30.0
    """Longest measuring per trial in s without a window."""
    precision_target: float = 0.01
    """95 % interval of the median, +- this fraction, ends measuring."""
    memory_limit_gib: float | None = None
    """Private memory per rank in GiB; more is oom."""
    threads: int | None = None
    """CPU threads per rank; default an equal share."""

    def __post_init__(self) -> None:
        """Refuse names that do not exist and empty lists."""
        lookup(TASKS, self.task, "task")
        for names, registry, kind in (
            (self.presets, PRESETS, "preset"),
            (self.implementations, IMPLEMENTATIONS, "implementation"),
        ):
            for name in names:
                lookup(registry, name, kind)
        for name in self.strategies:
            lookup({AUTO: "", **STRATEGIES}, name, "strategy")
        for name in self.precisions:
            lookup(dict.fromkeys((AUTO, *PRECISIONS)), name, "precision")
        for option in ("presets", "implementations", "strategies", "batch_sizes", "grad_accum"):
            if not getattr(self, option):
                raise UsageError(f"--{option.replace('_', '-')} needs at least one value")
        if self.rounds < 1:
            raise UsageError(f"--rounds {self.rounds} must be at least 1")
        if self.memory_limit_gib is not None and not 0 < self.memory_limit_gib < math.inf:
            raise UsageError(f"--memory-limit-gib {self.memory_limit_gib} must be above 0 and finite")
        if not 0 < self.precision_target < 1:
            raise UsageError(f"--precision-target {self.precision_target} must be between 0 and 1, such as 0.01")
        if self.min_steps > self.max_steps:
            raise UsageError(f"--min-steps {self.min_steps} is above --max-steps {self.max_steps}")
        for name in self.presets:
            longest = PRESETS[name].max_positions
            if max(self.seq_lens, default=0) > longest:
                raise UsageError(
                    f"--seq-lens {max(self.seq_lens)}: {name} has {longest} positions, use {longest} or less"
                )
        if any(count < 1 for count in self.devices):
            raise UsageError(f"--devices {' '.join(map(str, self.devices))}: each count must be at least 1")


def inspect_data(data: str, seq_len: int | None = None, task: str = "pretrain") -> DataSource:
    """Look at the data of a sweep.

    Raises:
        InputError: the task finds no data there, or damaged ones (the message names the file).
        UsageError: no such synthetic data.
    """
    return task_data(task).inspect(data, seq_len)


def task_data(task: str) -> TaskData:
    """Return what a task knows of its data. Raises UsageError for an unknown task."""
    found: TaskData = load(DATA, task, "task")()
    return found


def expand(
    sweep: Sweep,
    devices: Devices,
    kind: str = "throughput",
    profiler: str | None = None,
    profiler_options: tuple[str, ...] = (),
    against_synthetic: bool = False,
) -> list[Trial]:
    """Return the trials in the order they run: round by round, what competes next to each other.

    Args:
        sweep: what to measure.
        devices: what there is to measure on.
        kind: Trial.kind of all trials.
        profiler: name in bench.profilers, for kind profile.
        profiler_options: what the profiler is told.
        against_synthetic: add to each trial a twin on made-up batches with the lengths of the folder's samples.

    Raises:
        UsageError: a value no trial can have, or more devices than there are.
        InputError: the data cannot be read.
    """
    world_sizes = sweep.devices or devices.default_world_sizes()
    for world_size in world_sizes:
        devices.environment(world_size)
    _check_threads(sweep, devices, max(world_sizes))
    data = task_data(sweep.task)
    seq_lens = sweep.seq_lens or (data.seq_len,)
    sources = {seq_len: _sources(data, sweep.data, seq_len, against_synthetic) for seq_len in seq_lens}
    make_trial = partial(
        Trial, kind=kind, profiler=profiler, profiler_options=profiler_options, **_common_fields(sweep, devices)
    )
    trials = []
    for round_number, preset, seq_len, precision, world_size, strategy, batch, accumulation in itertools.product(
        range(sweep.rounds),
        sweep.presets,
        seq_lens,
        sweep.precisions,
        world_sizes,
        sweep.strategies,
        sweep.batch_sizes,
        sweep.grad_accum,
    ):
        # The order of the competitors turns with the round, so that none is always first.
        competitors = [*itertools.product(sweep.implementations, sources[seq_len])]
        shift = round_number % len(competitors)
        for implementation, source in competitors[shift:] + competitors[:shift]:
            trials.append(
                make_trial(
                    implementation=implementation,
                    strategy=resolve_strategy(strategy, world_size),
                    preset=preset,
                    precision=resolve_precision(precision, devices),
                    seq_len=seq_len,
                    micro_batch_size=batch,
                    grad_accum_steps=accumulation,
                    world_size=world_size,
                    data=source.source,
                    data_fingerprint=source.fingerprint,
                    max_predictions=source.max_predictions or data.max_predictions(seq_len),
                    vocab_size=source.vocab_size,
                    round=round_number,
                )
            )
    return list(dict.fromkeys(trials))


def _common_fields(sweep: Sweep, devices: Devices) -> dict[str, Any]:
    """The fields that all trials of a sweep have in common."""
    # With a window given the rules of the automatic one decide nothing: they must not decide the id either.
    rules = Sweep() if sweep.start is not None else sweep
    return {
        "task": sweep.task,
        "device": devices.kind,
        "padding": resolve_padding(sweep.padding, task_data(sweep.task), sweep.task),
        "dropout": sweep.dropout,
        "seed": sweep.seed,
        "start_iteration": sweep.start,
        "stop_iteration": sweep.stop,
        "min_steps": rules.min_steps,
        "max_steps": rules.max_steps,
        "max_seconds": rules.max_seconds,
        "relative_half_width": rules.precision_target,
        "memory_limit_bytes": _bytes(sweep.memory_limit_gib),
        "threads_per_rank": sweep.threads,
    }


def _sources(data: TaskData, given: str, seq_len: int, against_synthetic: bool) -> list[DataSource]:
    """The data of a sequence length, and the made-up data it is held against."""
    source = data.inspect(given, seq_len)
    if source.seq_len not in (None, seq_len):
        raise UsageError(
            f"--seq-lens {seq_len} does not fit {source.source}, whose samples have {source.seq_len} tokens: "
            f"use --seq-lens {source.seq_len}, or prepare data with `{data.prepare_command(seq_len)}`"
        )
    if not against_synthetic:
        return [source]
    if is_synthetic(given):
        raise UsageError(
            f"--against-synthetic holds real data against made-up ones, --data {given} is made up: give a folder or a "
            "file of real ones"
        )
    return [source, data.inspect(f"{SYNTHETIC}:{source.source}", seq_len)]


def _check_threads(sweep: Sweep, devices: Devices, world_size: int) -> None:
    share = max(1, devices.cpu_cores // world_size)
    if sweep.threads is not None and not 1 <= sweep.threads <= share:
        raise UsageError(
            f"--threads {sweep.threads} does not fit {devices.cpu_cores} cores shared by {world_size} ranks: "
            f"use 1 to {share}, or fewer --devices"
        )


def resolve_strategy(name: str, world_size: int) -> str:
    """Return the strategy that `auto` stands for, others as they are."""
    if name != AUTO:
        return name
    return "single" if world_size == 1 else "ddp"


def resolve_precision(name: str, devices: Devices) -> str:
    """Return the precision that `auto` stands for, others as they are."""
    if name != AUTO:
        return name
    return "bf16" if native_bf16(devices) else "fp32"


def resolve_padding(name: str, data: TaskData, task: str) -> str:
    """Return the padding that `auto` stands for, or `name`; "" where batches come padded. Raises UsageError."""
    if name == AUTO:
        return data.paddings[0] if data.paddings else ""
    if not data.paddings:
        raise UsageError(
            f"--padding {name}: the batches of {task} come padded, there is nothing to choose; leave it out"
        )
    lookup(dict.fromkeys((AUTO, *data.paddings)), name, "padding")
    return name


def _bytes(gib: float | None) -> int | None:
    return None if gib is None else int(gib * 2**30)
