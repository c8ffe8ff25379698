"""Expand the options of a sweep to its trials: Sweep -> [Trial]."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.implementations import OURS
from bench.implementations.model_folder import IMPLEMENTATIONS as GIVEN_MODEL
from bench.implementations.model_folder import ModelFolder, check_data, check_options, find_model
from bench.implementations.own import check_implementation
from bench.launch.world import World
from bench.machine.devices import Devices
from bench.run.resources import ALLOCATORS, DEFAULT, allocator_environment
from bench.sweep.options import AUTO, TaskFlags, resolve_padding, resolve_precision, resolve_strategy
from bert.data.lengths import is_synthetic
from bert.model.config import PRESETS
from bert.parallel import STRATEGIES, devices_per_rank
from bert.parallel.deepspeed_config import read_deepspeed_config
from bert.parallel.options import OPTIONS, options_text
from bert.speed.registry import check_levers, recorded_levers
from bert.tasks import resolve_options, task_data
from bert.tasks.base import DataSource, TaskData
from common.errors import UsageError
from common.flags import Positional, check_seed, flag
from common.registry import lookup
from records.trial import PRECISIONS, Trial

# Fewer rounds do not show the variation between processes.
ROUNDS_THAT_DECIDE = 3
WEAK, STRONG = "weak", "strong"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What to measure: every combination of the listed values is one trial."""

    task: Positional[str] = "pretrain"
    """Task to train."""
    task_flags: TaskFlags = field(default_factory=TaskFlags)
    presets: tuple[str, ...] = ("base",)
    """Model size."""
    model: str = ""
    """Train this Hugging Face model with implementations hf, hf-compiled, hf-unpadded and hf-trainer: folder,
    config.json or hub id; default a preset."""
    trust_remote_code: bool = False
    """Run the Python code that comes with --model."""
    implementations: tuple[str, ...] = ("bertbench",)
    """Implementations to measure: bertbench, hf, hf-trainer, hf-unpadded, hf-compiled, torch-encoder, or module:Class
    for your own."""
    levers: tuple[str, ...] = (AUTO,)
    """Optimizations of bertbench: auto, none, or names joined by +; each set is measured separately."""
    allocators: tuple[str, ...] = (DEFAULT,)
    """Memory allocator settings of the processes; expandable-segments is for GPU memory."""
    strategies: tuple[str, ...] = (AUTO,)
    """Parallel strategy; default auto: single on one device, ddp on several."""
    zero_stages: tuple[int, ...] = ()
    """ZeRO stages of deepspeed, 0 to 3; default the stage in --deepspeed-config, otherwise 0."""
    deepspeed_config: Path | None = None
    """DeepSpeed configuration, JSON; values that are "auto" or absent come from the other options."""
    devices: tuple[int, ...] = ()
    """Numbers of devices; default 1 2 4 ... up to every GPU, or one rank on all CPU cores."""
    batch_sizes: tuple[int, ...] = (8,)
    """Sequences per device and micro-step."""
    scaling: str = WEAK
    """weak keeps the batch size of a device; strong divides the batch size of the fewest devices among all."""
    grad_accum: tuple[int, ...] = (1,)
    """Micro-steps per optimizer step."""
    seq_lens: tuple[int, ...] = ()
    """Maximum tokens per sequence; default squad: 384; gap: 512; others: 128."""
    padding: str = AUTO
    """Padding of fine-tuning batches: to the longest sequence, or to --seq-lens; default auto: longest."""
    activation_checkpointing: bool = False
    """Keep only the input of each layer and recompute the rest in the backward pass."""
    bucket_mib: int | None = None
    """Gradient bucket size in MiB; default the strategy's own."""
    precisions: tuple[str, ...] = (AUTO,)
    """Numeric precision; default auto: bf16 where the hardware supports it, otherwise fp32."""
    data: str = "synthetic"
    """Data of the batches: synthetic, synthetic:<lengths or path>, or a path."""
    dropout: float = 0.1
    """Dropout probability everywhere, attention included."""
    seed: int = 42
    """Seed of weights, data order and dropout."""
    rounds: int | None = None
    """Interleaved repetitions; default 3 in throughput if implementations or `--levers` compete, otherwise 1."""
    start: int | None = None
    """First measured step; default the end of the detected warm-up."""
    stop: int | None = None
    """One past the last measured step; default until --precision-target or a limit is reached."""
    min_steps: int = 10
    """Minimum measured steps without --start and --stop, time permitting."""
    max_steps: int = 1000
    """Maximum steps without --start and --stop."""
    max_seconds: float = 30.0
    """Maximum measuring time per trial in s without --start and --stop."""
    precision_target: float = 0.01
    """Measuring ends when the 95 % interval of the median is within this fraction."""
    memory_limit_gib: float | None = None
    """Private memory limit per rank in GiB; a trial that exceeds it is oom; default no limit."""
    threads: int | None = None
    """CPU threads per rank; default an equal share."""

    @property
    def repetitions(self) -> int:
        """Number of rounds."""
        compete = len(self.implementations) > 1 or len(self.levers) > 1
        return self.rounds or (ROUNDS_THAT_DECIDE if compete else 1)

    def __post_init__(self) -> None:
        """Refuse unknown names, empty lists and values out of range."""
        self.task_flags.options(self.task)
        for name in self.presets:
            lookup(PRESETS, name, "preset")
        for name in self.implementations:
            check_implementation(name)
        for name in self.strategies:
            lookup({AUTO: "", **STRATEGIES}, name, "strategy")
        self._check_strategy_options()
        for name in self.allocators:
            lookup(ALLOCATORS, name, "allocator")
        for name in self.levers:
            check_levers(name)
        if self.levers != (AUTO,) and OURS not in self.implementations:
            raise UsageError(
                "option-not-applicable",
                f"--levers {' '.join(self.levers)} applies only to {OURS}, but this sweep runs "
                f"{' '.join(self.implementations)}: add --implementations {OURS}",
            )
        for name in self.precisions:
            lookup(dict.fromkeys((AUTO, *PRECISIONS)), name, "precision")
        if set(self.strategies) == {"single"} and min(self.devices, default=1) > 1:
            given = " ".join(map(str, self.devices))
            raise UsageError(
                "option-conflict",
                f"--strategies single runs on one device, not on --devices {given}: use --strategies ddp",
            )
        lookup(dict.fromkeys((WEAK, STRONG)), self.scaling, "scaling")
        self._check_model()
        self._check_numbers()
        if self.memory_limit_gib is not None and not 0 < self.memory_limit_gib < math.inf:
            raise UsageError("option-value", f"--memory-limit-gib {self.memory_limit_gib} must be above 0 and finite")
        if not 0 < self.precision_target < 1:
            raise UsageError(
                "option-value", f"--precision-target {self.precision_target} must be between 0 and 1, such as 0.01"
            )
        if self.min_steps > self.max_steps:
            raise UsageError("option-conflict", f"--min-steps {self.min_steps} is above --max-steps {self.max_steps}")
        for name in () if self.model else self.presets:
            longest = PRESETS[name].max_positions
            if max(self.seq_lens, default=0) > longest:
                raise UsageError(
                    "option-value",
                    f"--seq-lens {max(self.seq_lens)} is above the {longest} positions of {name}: use {longest} or "
                    "less",
                )

    def _check_model(self) -> None:
        usual = {field.name: field.default for field in dataclasses.fields(Sweep)}
        changed = [name for name in ("presets", "dropout") if getattr(self, name) != usual[name]]
        check_options(self.model, self.task, changed)
        others = [name for name in self.implementations if name not in GIVEN_MODEL]
        if self.model and others:
            raise UsageError(
                "unsupported-combination",
                f"--model does not apply to implementation {' '.join(others)}: use --implementations "
                f"{' '.join(GIVEN_MODEL)}, and measure {others[0]} by another call, which may share --out",
            )

    def _check_numbers(self) -> None:
        for option in ("devices", "batch_sizes", "grad_accum", "rounds", "min_steps", "max_steps"):
            given = getattr(self, option)
            numbers = given if isinstance(given, tuple) else (given,)
            if any(number is not None and number < 1 for number in numbers):
                each = ": each" if isinstance(given, tuple) else ""
                raise UsageError(
                    "option-value", f"{flag(option)} {' '.join(map(str, numbers))}{each} must be at least 1"
                )
        check_seed(self.seed)
        if not 0 < self.max_seconds < math.inf:
            raise UsageError("option-value", f"--max-seconds {self.max_seconds:g} must be above 0 and finite")
        if not 0 <= self.dropout < 1:
            raise UsageError("option-value", f"--dropout {self.dropout:g} must be at least 0 and less than 1")
        if (self.start is None) != (self.stop is None):
            raise UsageError("option-missing", "--start and --stop go together: give both or neither")
        if self.start is not None and self.stop is not None and not 0 <= self.start < self.stop:
            window = f"the window of --start {self.start} --stop {self.stop}"
            raise UsageError("option-conflict", f"{window} is empty: start must be at least 0 and below stop")

    def strategy_options(self, names: Iterable[str] = ()) -> dict[str, list[str]]:
        """Return the sets of options of each strategy by name; each set is a trial of its own.

        Raises:
            UsageError: no strategy of the sweep has a given option, or not with this value.
            InputError: the DeepSpeed configuration cannot be read.
        """
        config = None if self.deepspeed_config is None else read_deepspeed_config(self.deepspeed_config)
        variants: list[dict[str, Any]] = [
            {"zero_stage": stage, "config": config, "bucket_mib": self.bucket_mib}
            for stage in self.zero_stages or (None,)
        ]
        found = {}
        for name in names or self.strategies:
            own = [{key: variant[key] for key in OPTIONS.get(name, ())} for variant in variants]
            found[name] = list(dict.fromkeys(options_text(name, options) for options in own))
        return found

    def _check_strategy_options(self) -> None:
        given = {"zero_stage": self.zero_stages, "config": self.deepspeed_config}
        for option, value in given.items():
            if value and not any(option in OPTIONS.get(name, ()) for name in self.strategies):
                raise UsageError(
                    "option-not-applicable",
                    f"--{'zero-stages' if option == 'zero_stage' else 'deepspeed-config'} applies only to the strategy "
                    f"deepspeed, but this sweep runs {' '.join(self.strategies)}: add --strategies deepspeed",
                )
        self.strategy_options()


def expand(
    sweep: Sweep,
    devices: Devices,
    kind: str = "throughput",
    profiler: str | None = None,
    profiler_options: tuple[str, ...] = (),
    world: World | None = None,
) -> list[Trial]:
    """Return the trials in the order they run: round by round, with competing trials next to each other.

    Args:
        sweep: options of the sweep.
        devices: available devices.
        kind: Trial.kind of all trials.
        profiler: name in bench.profilers, for kind profile.
        profiler_options: its options.
        world: existing ranks to use as devices.

    Raises:
        UsageError: a value that no trial can have, or not on these devices, or more devices than available.
        InputError: the data cannot be read.
    """
    for name in sweep.allocators:
        allocator_environment(name, devices.kind)
    world_sizes = _world_sizes(sweep, devices, world)
    data = task_data(sweep.task)
    _check_buckets(sweep, world_sizes)
    seq_lens = sweep.seq_lens or (data.seq_len,)
    given = sweep.task_flags.options(sweep.task)
    sources = {seq_len: _source(data, sweep.data, seq_len, given) for seq_len in seq_lens}
    base = dataclasses.replace(
        _base(sweep, devices),
        kind=kind,
        profiler=profiler,
        profiler_options=profiler_options,
        nodes=1 if world is None else world.nodes,
    )
    names = {resolve_strategy(*pair) for pair in itertools.product(sweep.strategies, world_sizes)}
    options = sweep.strategy_options(names)
    model = find_model(sweep.model, sweep.trust_remote_code) if sweep.model else None
    if model is not None:
        base = _with_model(base, model, sources, sweep.trust_remote_code)
    labels = sweep.presets if model is None else (model.settings["preset"],)
    trials = []
    for round_number, preset, seq_len, precision, world_size, strategy, batch, accumulated, memory in itertools.product(
        range(sweep.repetitions), labels, seq_lens, sweep.precisions, world_sizes, sweep.strategies,
        sweep.batch_sizes, sweep.grad_accum, sweep.allocators,
    ):  # fmt: skip
        # Rotate the order of competing trials in each round, so that none is always first.
        own = resolve_strategy(strategy, world_size)
        competitors = [*itertools.product(_implementations(sweep, devices), options[own])]
        shift, source = round_number % len(competitors), sources[seq_len]
        for (implementation, levers), chosen in competitors[shift:] + competitors[:shift]:
            trials.append(
                dataclasses.replace(
                    base,
                    task_options=resolve_options(sweep.task, given, source),
                    implementation=implementation,
                    allocator="" if memory == DEFAULT else memory,
                    levers=levers,
                    strategy=own,
                    strategy_options=chosen,
                    devices_per_rank=devices_per_rank(own, world_size),
                    preset=preset,
                    precision=resolve_precision(precision, devices),
                    seq_len=seq_len,
                    micro_batch_size=_share(sweep, batch, world_size, min(world_sizes)),
                    grad_accum_steps=accumulated,
                    world_size=world_size,
                    data=source.source,
                    data_fingerprint=source.fingerprint,
                    max_predictions=source.max_predictions or data.max_predictions(seq_len),
                    vocab_size=_vocabulary(source, model),
                    round=round_number,
                )
            )
    return list(dict.fromkeys(trials))


def _vocabulary(source: DataSource, model: ModelFolder | None) -> int:
    """Word pieces: those of the data, or of a given model where ids are drawn."""
    return source.vocab_size if model is None or not is_synthetic(source.source) else model.vocab_size


def _with_model(base: Trial, model: ModelFolder, sources: Mapping[int, DataSource], trust_remote_code: bool) -> Trial:
    for seq_len, source in sources.items():
        real = None if is_synthetic(source.source) else Path(source.source)
        check_data(model, seq_len, source, real)
    return dataclasses.replace(base, trust_remote_code=trust_remote_code, **model.settings)


def _implementations(sweep: Sweep, devices: Devices) -> list[tuple[str, str]]:
    """Return each implementation with the `levers` of its trials; "" is the default, and only our own has others."""
    texts = [recorded_levers(text, devices.kind) for text in sweep.levers]
    return [(name, text) for name in sweep.implementations for text in (texts if name == OURS else [""])]


def _world_sizes(sweep: Sweep, devices: Devices, world: World | None) -> tuple[int, ...]:
    if world is None:
        sizes = sweep.devices or devices.default_world_sizes()
        for size in sizes:
            devices.environment(size)
        _check_threads(sweep, devices, max(sizes))
        return sizes
    return (world.check_devices(*sweep.devices),)


def _share(sweep: Sweep, batch: int, world_size: int, fewest: int) -> int:
    """Return the micro batch size; with strong scaling the global batch is that of the fewest devices."""
    if sweep.scaling == WEAK:
        return batch
    share, left = divmod(batch * fewest, world_size)
    if left or not share:
        raise UsageError(
            "batch-size-mismatch",
            f"--scaling strong: the {batch * fewest} sequences of batch size {batch} on {fewest} "
            f"device{'s'[: fewest != 1]} cannot be divided equally among {world_size} devices: give another "
            f"--batch-sizes, such as {math.lcm(batch * fewest, world_size) // fewest}",
        )
    return share


def _base(sweep: Sweep, devices: Devices) -> Trial:
    # --start and --stop replace the automatic window, so its options must not change the trial id.
    rules = Sweep() if sweep.start is not None else sweep
    return Trial(
        task=sweep.task,
        device=devices.kind,
        padding=resolve_padding(sweep.padding, task_data(sweep.task), sweep.task),
        dropout=sweep.dropout,
        seed=sweep.seed,
        start_iteration=sweep.start,
        stop_iteration=sweep.stop,
        min_steps=rules.min_steps,
        max_steps=rules.max_steps,
        max_seconds=rules.max_seconds,
        relative_half_width=rules.precision_target,
        memory_limit_bytes=None if sweep.memory_limit_gib is None else int(sweep.memory_limit_gib * 2**30),
        threads_per_rank=sweep.threads,
        activation_checkpointing=sweep.activation_checkpointing,
    )


def _source(data: TaskData, given: str, seq_len: int, options: dict[str, Any]) -> DataSource:
    source = data.inspect(given, seq_len, options)
    if source.seq_len not in (None, seq_len):
        raise UsageError(
            "data-mismatch",
            f"--seq-lens {seq_len} does not match {source.source}, whose samples have {source.seq_len} tokens: "
            f"use --seq-lens {source.seq_len}, or prepare data with `{data.prepare_command(seq_len)}`",
        )
    return source


def _check_buckets(sweep: Sweep, world_sizes: Sequence[int]) -> None:
    found = {resolve_strategy(name, count) for name in sweep.strategies for count in world_sizes}
    if sweep.bucket_mib is not None and not any("bucket_mib" in OPTIONS.get(name, ()) for name in found):
        raise UsageError(
            "option-not-applicable",
            f"--bucket-mib {sweep.bucket_mib} does not apply to {' '.join(sorted(found))}, whose gradient buckets have "
            "no size to set: use --strategies ddp",
        )


def _check_threads(sweep: Sweep, devices: Devices, world_size: int) -> None:
    share = max(1, devices.cpu_cores // world_size)
    if sweep.threads is not None and not 1 <= sweep.threads <= share:
        raise UsageError(
            "option-value",
            f"--threads {sweep.threads} is not between 1 and {share}, the share of each of {world_size} ranks in "
            f"{devices.cpu_cores} cores: give a value in that range, or fewer --devices",
        )
