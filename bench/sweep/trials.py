"""Expand the options of a sweep to its trials: Sweep -> [Trial]."""

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter, validators

from bench.implementations import OURS, check_implementation
from bench.implementations.model_folder import IMPLEMENTATIONS as GIVEN_MODEL
from bench.implementations.model_folder import ModelFolder, check_data, check_options, find_model
from bench.launch.world import World
from bench.machine.devices import Devices
from bench.sweep.options import (
    AUTO,
    COUNT,
    PADDING,
    POSITIVE,
    PRECISION,
    PRESET,
    STEP,
    STRATEGY,
    TaskFlags,
    resolve_padding,
    resolve_precision,
    resolve_strategy,
)
from bert.model.config import PRESETS
from bert.parallel import OPTIONS, devices_per_rank, options_text
from bert.parallel.deepspeed_config import read_deepspeed_config
from bert.speed import FAST
from bert.tasks import resolve_options, task_data
from bert.train.settings import check_seed
from common.errors import InputError, UsageError
from common.flags import Positional, flag
from records.run import RunDirectory
from records.trial import Trial

# Fewer rounds do not show the variation between processes.
ROUNDS_THAT_DECIDE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What is trained: task, model and data. Of several values each is a trial of its own."""

    task: Positional[str] = "pretrain"
    """Task to train."""
    task_flags: TaskFlags = field(default_factory=TaskFlags)
    presets: Annotated[tuple[str, ...], PRESET] = ("base",)
    """Model size."""
    seq_lens: tuple[int, ...] = ()
    """Maximum tokens per sequence; default squad: 384; gap: 512; others: 128."""
    padding: Annotated[str, PADDING] = AUTO
    """Padding of fine-tuning batches: to the longest sequence, or to --seq-lens; default auto: longest."""
    precisions: Annotated[tuple[str, ...], PRECISION] = (AUTO,)
    """Numeric precision; default auto: bf16 where the hardware supports it, otherwise fp32."""
    data: str = "synthetic"
    """Data of the batches: synthetic, synthetic:<lengths or path>, or a path."""
    dropout: float = 0.1
    """Dropout probability everywhere, attention included."""
    seed: int = 42
    """Seed of weights, data order and dropout."""
    threads: int | None = None
    """CPU threads per rank; default an equal share."""

    def sweep(self, **others: Any) -> "Sweep":
        """Return a sweep of this one workload, with the `others` of its options. Raises UsageError: several values."""
        for name in ("presets", "seq_lens", "precisions"):
            if len(getattr(self, name)) > 1:
                raise UsageError("option-value", f"{flag(name)} takes one value here")
        return Sweep(**{item.name: getattr(self, item.name) for item in dataclasses.fields(Workload)}, **others)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep(Workload):
    """What to measure: every combination of the listed values is one trial."""

    model: str = ""
    """Train this Hugging Face model with implementations hf*: folder, config.json or hub id; default a preset."""
    trust_remote_code: bool = False
    """Run the Python code that comes with --model."""
    implementations: tuple[str, ...] = (OURS,)
    """Implementations to measure: bertbench, hf, hf-trainer, hf-unpadded, hf-compiled, or module:Class for your own."""
    step: Annotated[tuple[str, ...], STEP] = (FAST,)
    """Computation of a step of bertbench: fast, or plain padded PyTorch, the reference; or both."""
    strategies: Annotated[tuple[str, ...], STRATEGY] = (AUTO,)
    """Parallel strategy; default auto: single on one device, ddp on several."""
    zero_stages: tuple[int, ...] = ()
    """ZeRO stages of deepspeed, 0 to 3; default the stage in --deepspeed-config, otherwise 0."""
    deepspeed_config: Path | None = None
    """DeepSpeed configuration, JSON; values that are "auto" or absent come from the other options."""
    devices: Annotated[tuple[int, ...], COUNT] = ()
    """Numbers of devices; default 1 2 4 ... up to every GPU, or one rank on all CPU cores."""
    batch_sizes: Annotated[tuple[int, ...], COUNT] = (8,)
    """Sequences per device and micro-step."""
    scaling: Literal["weak", "strong"] = "weak"
    """weak keeps the batch size of a device; strong divides the batch size of the fewest devices among all."""
    grad_accum: Annotated[tuple[int, ...], COUNT] = (1,)
    """Micro-steps per optimizer step."""
    activation_checkpointing: bool = False
    """Keep only the input of each layer and recompute the rest in the backward pass."""
    bucket_mib: int | None = None
    """Gradient bucket size in MiB; default the strategy's own."""
    rounds: Annotated[int | None, COUNT] = None
    """Interleaved repetitions; default 3 in throughput if implementations or `--step` compete, otherwise 1."""
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
    precision_target: Annotated[float, Parameter(validator=validators.Number(gt=0, lt=1))] = 0.01
    """Measuring ends when the 95 % interval of the median is within this fraction."""
    memory_limit_gib: Annotated[float | None, POSITIVE] = None
    """Private memory limit per rank in GiB; a trial that exceeds it is oom; default no limit."""

    @property
    def repetitions(self) -> int:
        """Number of rounds."""
        compete = len(self.implementations) > 1 or len(self.step) > 1
        return self.rounds or (ROUNDS_THAT_DECIDE if compete else 1)

    def __post_init__(self) -> None:
        """Refuse what no trial can have; a Trial checks its own numbers."""
        self.task_flags.options(self.task)
        for name in self.implementations:
            check_implementation(name)
        check_seed(self.seed)
        if self.step != (FAST,) and OURS not in self.implementations:
            others = " ".join(self.implementations)
            raise UsageError("option-not-applicable", f"--step applies to {OURS}, not to {others}: leave it out")
        if self.model:
            default = Sweep()
            changed = [name for name in ("presets", "dropout") if getattr(self, name) != getattr(default, name)]
            check_options(self.model, self.task, changed)
            if others := " ".join(name for name in self.implementations if name not in GIVEN_MODEL):
                problem = f"--model does not apply to {others}: use --implementations {' '.join(GIVEN_MODEL)}"
                raise UsageError("unsupported-combination", problem)
            return
        for name in self.presets:
            seq_len, longest = max(self.seq_lens, default=0), PRESETS[name].max_positions
            if seq_len > longest:
                raise UsageError("option-value", f"--seq-lens {seq_len} is above the {longest} positions of {name}")


def expand(sweep: Sweep, devices: Devices, world: World | None = None, **fields: Any) -> list[Trial]:
    """Return the trials in the order they run: round by round, with competing trials next to each other.

    The ranks of `world` are used as devices; `fields` are those of all trials: kind, profiler, profiler_options. Raises
    UsageError and InputError.
    """
    world_sizes = _world_sizes(sweep, devices, world)
    model = find_model(sweep.model, sweep.trust_remote_code) if sweep.model else None
    lengths = [_of_length(sweep, seq_len, model) for seq_len in sweep.seq_lens or (task_data(sweep.task).seq_len,)]
    base = _base(sweep, devices, model, nodes=1 if world is None else world.nodes, **fields)
    options = _strategy_options(
        sweep, {resolve_strategy(*pair) for pair in itertools.product(sweep.strategies, world_sizes)}
    )
    # Only our own implementation has another step.
    implementations = [
        (name, step) for name in sweep.implementations for step in (sweep.step if name == OURS else [FAST])
    ]
    presets, trials = sweep.presets if model is None else (model.settings["preset"],), []
    for round_number, preset, length, precision, world_size, name, batch, accumulated in itertools.product(
        range(sweep.repetitions), presets, lengths, sweep.precisions,
        world_sizes, sweep.strategies, sweep.batch_sizes, sweep.grad_accum,
    ):  # fmt: skip
        strategy = resolve_strategy(name, world_size)
        competitors = [*itertools.product(implementations, options[strategy])]
        shift = round_number % len(competitors)  # none is first in every round
        for (implementation, step), strategy_options in competitors[shift:] + competitors[:shift]:
            trials.append(
                dataclasses.replace(
                    base,
                    **length,
                    round=round_number,
                    preset=preset,
                    implementation=implementation,
                    step=step,
                    strategy=strategy,
                    strategy_options=strategy_options,
                    devices_per_rank=devices_per_rank(strategy, world_size),
                    precision=resolve_precision(precision, devices),
                    micro_batch_size=_share(sweep, batch, world_size, min(world_sizes)),
                    grad_accum_steps=accumulated,
                    world_size=world_size,
                )
            )
    return list(dict.fromkeys(trials))


def _world_sizes(sweep: Sweep, devices: Devices, world: World | None) -> Sequence[int]:
    if world is not None:
        return (world.check_devices(*sweep.devices),)
    sizes = sweep.devices or devices.default_world_sizes()
    for size in sizes:
        devices.environment(size)
    share, ranks = max(1, devices.cpu_cores // max(sizes)), max(sizes)
    if sweep.threads is not None and not 1 <= sweep.threads <= share:
        problem = f"--threads {sweep.threads} is not between 1 and {share}, the share of each of {ranks} ranks"
        raise UsageError("option-value", f"{problem} in {devices.cpu_cores} cores")
    return sizes


def _of_length(sweep: Sweep, seq_len: int, model: ModelFolder | None) -> dict[str, Any]:
    """Return the fields of a trial that follow from the length of its sequences and from its data."""
    data, given = task_data(sweep.task), sweep.task_flags.options(sweep.task)
    source = data.inspect(sweep.data, seq_len, given)
    if source.seq_len not in (None, seq_len):
        problem = f"--seq-lens {seq_len} does not match {source.source}: use --seq-lens {source.seq_len}"
        raise UsageError("data-mismatch", f"{problem}, or prepare data with `{data.prepare_command(seq_len)}`")
    return {
        "task_options": resolve_options(sweep.task, given, source),
        "seq_len": seq_len,
        "data": source.source,
        "data_fingerprint": source.fingerprint,
        "max_predictions": source.max_predictions or data.max_predictions(seq_len),
        "vocab_size": source.vocab_size if model is None else check_data(model, seq_len, source),
    }


def _base(sweep: Sweep, devices: Devices, model: ModelFolder | None, **fields: Any) -> Trial:
    """Return what all trials have in common."""
    # --start and --stop replace the automatic window, so its options must not change the trial id.
    rules = Sweep() if sweep.start is not None else sweep
    if model is not None:
        fields |= {**model.settings, "trust_remote_code": sweep.trust_remote_code}
    return Trial(
        task=sweep.task,
        device=devices.kind,
        padding=resolve_padding(sweep.padding, task_data(sweep.task), sweep.task),
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
        **{"dropout": sweep.dropout, **fields},
    )


def _strategy_options(sweep: Sweep, strategies: Collection[str]) -> dict[str, list[str]]:
    """Return the sets of options of each strategy by name; each set is a trial of its own."""
    config = None if sweep.deepspeed_config is None else read_deepspeed_config(sweep.deepspeed_config)
    stages = sweep.zero_stages or (None,)
    variants = [{"zero_stage": stage, "config": config, "bucket_mib": sweep.bucket_mib} for stage in stages]
    accepted = {option for name in strategies for option in OPTIONS.get(name, ())}
    for option in (name for name, value in variants[-1].items() if value is not None and name not in accepted):
        name = {"zero_stage": "--zero-stages", "config": "--deepspeed-config"}.get(option, "--bucket-mib")
        owner = next(strategy for strategy, options in OPTIONS.items() if option in options)
        problem = f"{name} does not apply to {' '.join(sorted(strategies))}: use --strategies {owner}"
        raise UsageError("option-not-applicable", problem)
    return {
        name: [options_text(name, {key: one[key] for key in OPTIONS.get(name, ())}) for one in variants]
        for name in strategies
    }


def _share(sweep: Sweep, batch: int, world_size: int, fewest: int) -> int:
    """Return the micro batch size; with strong scaling the global batch is that of the fewest devices."""
    if sweep.scaling == "weak":
        return batch
    share, left = divmod(batch * fewest, world_size)
    if left or not share:
        problem = f"--scaling strong: {batch * fewest} sequences cannot be divided equally among {world_size} devices"
        raise UsageError("batch-size-mismatch", f"{problem}: give another --batch-sizes")
    return share


def fastest_trial(
    folder: Path, task: str, devices: Devices, implementation: str | None = None, **changes: Any
) -> Trial:
    """Return a trial of the fastest configuration of a task with its own `changes`; `implementation` restricts it.

    Raises InputError (nothing was measured) and UsageError (on devices that this machine does not have).
    """
    from analysis.load import load_run
    from analysis.run_views import fastest

    trials = [trial for trial in load_run(RunDirectory(folder)) if trial.trial.task == task]
    rounds = fastest([one for one in trials if implementation in (None, one.trial.implementation)])
    if not rounds:
        problem = f"{folder} has no throughput of {implementation or task}"
        raise InputError("run-incomplete", f"{problem}: measure it with `bertbench throughput {task}`")
    winner = rounds[0].trial
    if winner.device != devices.kind or winner.nodes > 1:
        where = f"{winner.nodes} nodes" if winner.nodes > 1 else winner.device
        raise UsageError("device-missing", f"the fastest configuration of {folder} ran on {where}: use that machine")
    devices.environment(winner.world_size)
    return dataclasses.replace(winner, round=0, relative_half_width=Sweep().precision_target, **changes)
