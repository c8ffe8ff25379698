"""Convert the options of `bertbench train` to the settings of a run, and check whether a run can resume with them."""

import dataclasses
import json
import math
import shutil
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from bench.implementations import OURS, TRAININGS
from bench.launch.world import World
from bench.loggers import chosen_loggers
from bench.machine.devices import Devices
from bench.sweep.options import AUTO, TaskFlags, resolve_precision, resolve_strategy
from bench.sweep.starting_model import (
    TRAINS_GIVEN,
    check_model,
    check_vocabulary,
    given_settings,
    initial_weights,
    shape_of,
)
from bert.data.lengths import is_synthetic
from bert.model.config import model_config
from bert.model.memory import parameter_count
from bert.parallel import devices_per_rank
from bert.parallel.deepspeed_config import read_deepspeed_config, said_of_training
from bert.parallel.options import options_text
from bert.tasks import check_task_options, make_task, resolve_options, task_data
from bert.tasks.base import DataSource
from bert.train.settings import GIVEN, TrainSettings, resolve_settings, task_defaults
from common.errors import InputError, StorageError, UsageError
from common.flags import Groups, OfTasks, OneOf, Positional, flag, request_of
from common.registry import lookup
from records.training import TrainRun
from records.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """Train a model until the run is complete. The same command resumes. Defaults are as published: NVIDIA's BERT-large
    for pretraining, Devlin et al. 2018 for fine-tuning.

    SIGTERM and Ctrl-C save a checkpoint before the run stops. A second signal stops it at once.

    Examples:
        bertbench train pretrain --preset tiny --data synthetic --steps 20 --global-batch-size 32
        bertbench train squad --data runs/squad --init bert-base --out runs/squad-train
        bertbench train gap --data runs/gap --vary head=mul,concat  # several trainings: --vary, --seeds, --until
    """

    GROUPS: ClassVar[Groups] = {
        "training": (
            "steps", "epochs", "learning_rate", "warmup", "optimizer", "schedule", "weight_decay", "max_grad_norm",
        ),
        "evaluation and checkpoint": (
            "eval_every", "eval_data", "eval_samples", "best_by", "save_every", "keep",
        ),
    }  # fmt: skip

    task: Positional[str]
    """Task to train."""
    file: Positional[str | None] = None
    """Same as --data."""
    task_flags: TaskFlags = field(default_factory=TaskFlags)
    phase: Annotated[int | None, OfTasks(("pretrain",))] = None
    """Phase of pretraining: 1 uses sequences of 128 tokens, 2 of 512, after phase 1; default 1."""
    data: str | None = None
    """Folder of HDF5 shards (pretrain) or features (squad gap glue), CSV or its SQLite file (classify), or
    synthetic."""
    out: Path = Path("runs/train")
    """Run directory. The same command resumes it."""
    model: str = ""
    """Train this Hugging Face model with implementation hf-trainer: folder, config.json or hub id; default a
    preset."""
    trust_remote_code: bool = False
    """Run the Python code that comes with --model."""
    preset: str | None = None
    """Model size; default pretrain: large; fine-tuning: base; with --init, the size of those weights."""
    device: str = "auto"
    """Device type; default auto: CUDA where a GPU is present, otherwise the CPU."""
    devices: int | None = None
    """Devices, one process each; default every GPU, or one process on all CPU cores."""
    strategy: str = AUTO
    """Parallel strategy; default auto: single on one device, ddp on several."""
    implementation: Annotated[str | None, OneOf(tuple(TRAININGS))] = None
    """Implementation that trains; hf-trainer writes no intermediate checkpoints; default bertbench; with --model,
    hf-trainer."""
    zero_stage: int | None = None
    """ZeRO stage of deepspeed, 0 to 3; default the stage in --deepspeed-config, otherwise no sharding (0)."""
    deepspeed_config: Path | None = None
    """DeepSpeed configuration, JSON; its batch sizes, learning rate, weight decay and clipping apply unless given as
    options."""
    global_batch_size: int | None = None
    """Sequences per update; default pretrain: 65536, in phase 2 32768; squad classify glue: 32; gap: 16."""
    micro_batch_size: int | None = None
    """Sequences per device and micro-step; default pretrain: 32, in phase 2 8; fine-tuning: 8."""
    grad_accum_steps: int | None = None
    """Micro-steps per update; default from the batch sizes."""
    seq_len: int | None = None
    """Tokens per sequence; default pretrain: 128, in phase 2 512; fine-tuning: that of the data; squad: 384 for
    synthetic data; gap: 512 for synthetic data."""
    steps: int | None = None
    """Updates in the whole run; default pretrain: 7038, in phase 2 1563; fine-tuning: from --epochs."""
    epochs: float | None = None
    """Passes over the data, instead of --steps; default squad: 2; gap classify glue: 3."""
    learning_rate: float | None = None
    """Peak learning rate; default pretrain: 6e-3, in phase 2 4e-3; fine-tuning: 3e-5."""
    warmup: float | None = None
    """Fraction of the updates for the learning-rate warm-up (cyclic: half a cycle); default pretrain: 0.2843, in
    phase 2 0.128; fine-tuning: 0.1."""
    optimizer: str | None = None
    """Optimizer; default pretrain: lamb; fine-tuning: adamw."""
    schedule: str | None = None
    """Learning-rate schedule; default pretrain: poly; fine-tuning: linear."""
    weight_decay: float | None = None
    """Weight decay of all parameters except biases and LayerNorm; default 0.01."""
    max_grad_norm: float | None = None
    """Maximum gradient norm; larger gradients are clipped; default 1."""
    dropout: float | None = None
    """Dropout probability everywhere, attention included; default 0.1."""
    activation_checkpointing: bool = False
    """Keep only the input of each layer and recompute the rest in the backward pass: less memory, the same losses."""
    levers: str | None = None
    """Optimizations: auto, none, or names joined by + (docs/explanation/speed.md); default auto."""
    bucket_mib: int | None = None
    """Gradient bucket size in MiB; default the strategy's own."""
    precision: str = AUTO
    """Numeric precision; default auto: bf16 where the hardware supports it, otherwise fp32."""
    seed: int | None = None
    """Seed of weights, data order and dropout; default 42."""
    init: Path | None = None
    """Initial weights of a new run: a finished run (fine-tuning takes its best checkpoint, pretraining the latest), a
    checkpoint, or anything that `bertbench convert` reads; default random weights."""
    log_every: int | None = None
    """Steps between progress lines; default 10."""
    eval_every: int | None = None
    """Updates between evaluations, with one more at the end; default pretrain: never; squad: after each epoch if
    --eval-data is given, otherwise never; gap classify glue: after each epoch; fine-tuning: with --steps, only
    at the end."""
    eval_data: str | None = None
    """Features for evaluation (squad gap glue); default gap glue: those beside the training data; pretrain: the test
    shards; classify: the validation split."""
    eval_samples: int | None = None
    """Samples per evaluation, spread evenly; default 0: all."""
    best_by: str | None = None
    """Score that selects the best checkpoint, such as log_loss; default the task's own score."""
    save_every: int | None = None
    """Updates between checkpoints; default 200."""
    keep: int | None = None
    """Latest checkpoints to keep, in addition to the best; default 3."""
    padding: str | None = None
    """Padding of fine-tuning batches: longest pads to the longest sequence of a micro-batch, fixed to --seq-len;
    default longest."""
    max_seconds: float | None = None
    """Save and stop after this time in s, for queues with a time limit; default no limit."""
    threads: int | None = None
    """CPU threads per process; default an equal share."""
    log_to: tuple[str, ...] = ()
    """Loggers; default tensorboard, and mlflow if MLFLOW_RUN_ID and MLFLOW_TRACKING_URI name a run."""
    json: bool = False
    """Print the result as JSON on stdout; progress goes to stderr."""

    def __post_init__(self) -> None:
        """Refuse values out of range; the rest is checked with the settings of the run."""
        for name in ("devices", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError("option-value", f"--{name} {value} must be at least 1")
        for name, holds, required in _RANGES:
            value = getattr(self, name)
            if value is not None and not holds(value):
                raise UsageError("option-value", f"{flag(name)} {value:g} must be {required}")
        if self.max_seconds is not None and not 0 < self.max_seconds < math.inf:
            raise UsageError(
                "option-value",
                f"--max-seconds {self.max_seconds} must be above 0 and finite; omit it for no limit",
            )
        if self.file is not None and self.data is not None:
            raise UsageError(
                "option-conflict", f"FILE {self.file} and --data {self.data} both give the data: give one of them"
            )

    def having(self, values: Mapping[str, Any], **own: Any) -> "TrainOptions":
        """Return these options with other `values` by name, including options of the task, and `own` fields."""
        flags = {field.name for field in dataclasses.fields(TaskFlags)}
        of_task = {name: value for name, value in values.items() if name in flags}
        changed = {name: value for name, value in values.items() if name not in flags}
        if isinstance(changed.get("init"), str):
            changed["init"] = Path(changed["init"])
        task_flags = dataclasses.replace(self.task_flags, **of_task)
        return dataclasses.replace(self, **changed, **own, task_flags=task_flags)


Kind = type[bool] | type[int] | type[float] | type[str]
"""Type of the value of an option."""


def option_kinds(excluded: Collection[str]) -> dict[str, Kind]:
    """Return the training options with a single value, those of tasks too, with the type of each."""
    found: dict[str, Kind] = {}
    for options in (TrainOptions, TaskFlags):
        for name, hint in typing.get_type_hints(options).items():
            kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
            plain = [kind for kind in kinds if kind is not type(None)]
            kind = str if plain == [Path] else plain[0]
            if name not in excluded and len(plain) == 1 and kind in (bool, int, float, str):
                found[name] = kind
    return found


# The ranges of the run's settings, checked here before any data are read.
_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("dropout", lambda value: 0 <= value < 1, "at least 0 and less than 1"),
    ("epochs", lambda value: 0 < value < math.inf, "a number above 0"),
    ("learning_rate", lambda value: 0 <= value < math.inf, "a number of at least 0"),
    ("warmup", lambda value: 0 <= value < 1, "at least 0 and less than 1"),
    ("weight_decay", lambda value: 0 <= value < math.inf, "a number of at least 0"),
    ("max_grad_norm", lambda value: 0 < value < math.inf, "a number above 0"),
)
# Size of a parameter in a checkpoint: its value and two optimizer moments in float32.
_WEIGHT_BYTES, _MOMENTS_BYTES = 4, 8


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a training run."""

    options: TrainOptions
    """Options of the command."""
    settings: TrainSettings
    """Settings of bert.train."""
    phase: int | None
    """1 or 2; None for tasks without phases."""
    source: DataSource

    @property
    def implementation(self) -> str:
        """Implementation that trains, a name in bench.implementations.TRAININGS."""
        return self.options.implementation or (TRAINS_GIVEN if self.options.model else OURS)

    @property
    def log_to(self) -> tuple[str, ...]:
        """Names in bench.loggers.LOGGERS."""
        return chosen_loggers(self.options.log_to)

    @property
    def request(self) -> dict[str, Any]:
        """The options as plain values, for the records."""
        return {"command": "train", **request_of(self.options)}

    def trial(self, **own: Any) -> Trial:
        """Return a trial of this training.

        Args:
            own: further fields of a Trial: kind, device, recorded `levers`, and measuring options.
        """
        return Trial.of(
            self.settings,
            implementation=self.implementation,
            devices_per_rank=devices_per_rank(self.settings.strategy, self.settings.world_size),
            data_fingerprint=self.source.fingerprint,
            **{"shape": "", "padding": "", **own},  # a trial of kind train has them only in `training`
        )


def plan_training(options: TrainOptions, devices: Devices, world: World | None = None) -> Plan:
    """Return the plan of a training run.

    Args:
        options: options of the command; pretraining uses the hyperparameters of the phase as defaults.
        devices: available devices.
        world: the world of ranks that this process belongs to; its size is then the number of devices.
    """
    chosen_loggers(options.log_to)
    lookup(TRAININGS, options.implementation or OURS, "implementation of training runs")
    check_model(options)
    fields = (field.name for field in dataclasses.fields(TrainOptions) if field.name in GIVEN)
    values = {name: getattr(options, name) for name in fields}
    values |= {"world_size": options.devices, "data": options.data or options.file}
    task, phase = options.task, options.phase
    data = task_data(task)
    if phase is None and not data.defaults:
        phase = 1
    defaults = task_defaults(task, phase)
    task_options = options.task_flags.options(task)
    if not values["data"]:
        made = data.prepare_command(options.seq_len or defaults["seq_len"])
        raise UsageError("option-missing", f"no data was given: give --data FOLDER; `{made}` prepares it")
    if world is None:
        world_size = values["world_size"] or devices.default_world_sizes()[-1]
        devices.environment(world_size)
    else:
        world_size = world.check_devices(values["world_size"])
    values["world_size"] = world_size
    values["strategy"] = resolve_strategy(values["strategy"], world_size)
    values |= _strategy_settings(options, values)
    values |= _batch_of_the_file(values, options, defaults)
    values["precision"] = resolve_precision(values["precision"], devices)
    source = data.inspect(str(values["data"]), values["seq_len"] or defaults["seq_len"], task_options)
    values["task_options"] = resolve_options(task, task_options, source)
    if phase is None:  # in pretraining the phase sets the length
        values["seq_len"] = values["seq_len"] or source.seq_len
    seq_len = values["seq_len"] or defaults["seq_len"]
    if source.seq_len not in (None, seq_len):
        raise InputError("data-mismatch", _other_length(phase, seq_len, source, data.prepare_command(seq_len)))
    values |= {"data": source.source, "vocab_size": source.vocab_size, "max_predictions": source.max_predictions}
    if options.model:
        values |= given_settings(options, seq_len, source)
    if options.init is not None:
        init = initial_weights(options.init, best=phase is None)
        values |= {"init": str(init), **shape_of(init, options.preset, seq_len, source.vocab_size, data)}
    if options.eval_data:
        values["eval_data"] = str(Path(options.eval_data).resolve())
    settings = resolve_settings(phase, values, source.samples)
    if settings.eval_every:
        known = check_task_options(task, settings.task_options)
        data.check_evaluation(settings.data, settings.seq_len, settings.eval_data, known)
    if settings.best_by is not None:
        _check_best_by(settings, settings.best_by)
    if settings.init is not None:
        check_vocabulary(Path(settings.init), source)
    return Plan(options, settings, phase, source)


def _check_best_by(settings: TrainSettings, name: str) -> None:
    from bert.tasks.base import deciding

    deciding(make_task(settings.task, settings.task_options), name)
    if is_synthetic(settings.data):
        raise UsageError(
            "option-not-applicable",
            f"--best-by {name} needs evaluations, but synthetic data are not evaluated: give real --data, or omit the "
            "option",
        )
    if not settings.eval_every:
        raise UsageError(
            "option-not-applicable",
            f"--best-by {name} needs evaluations, but this run has none: give --eval-every, or omit the option",
        )


def _batch_of_the_file(values: Mapping[str, Any], options: TrainOptions, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return one micro-step per update, DeepSpeed's default, if its file sets only the micro batch size and the default
    global batch size is not a multiple of it."""
    micro = options.micro_batch_size is None and values["micro_batch_size"]
    if not micro or values["global_batch_size"] or values["grad_accum_steps"]:
        return {}
    return {"grad_accum_steps": 1} if defaults["global_batch_size"] % (micro * values["world_size"]) else {}


def _strategy_settings(options: TrainOptions, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the strategy, and settings of a DeepSpeed configuration that no option sets."""
    config = None if options.deepspeed_config is None else read_deepspeed_config(options.deepspeed_config)
    own = {"zero_stage": options.zero_stage, "bucket_mib": options.bucket_mib, "config": config}
    said = {} if config is None else said_of_training(config)
    text = options_text(values["strategy"], own)
    return {"strategy_options": text} | {name: value for name, value in said.items() if values.get(name) is None}


def _other_length(phase: int | None, seq_len: int, source: DataSource, made: str) -> str:
    other = {128: 1, 512: 2}.get(source.seq_len or 0)
    fitting = f"--phase {other}" if phase is not None and other not in (None, phase) else f"--seq-len {source.seq_len}"
    wanted = "--seq-len is" if phase is None else f"phase {phase} uses"
    return (
        f"the samples in {source.source} have {source.seq_len} tokens, but {wanted} {seq_len}: use {fitting}, or "
        f"prepare data with `{made}`"
    )


def check_space(run: TrainRun, plan: Plan) -> None:
    """Refuse a new run if not even one checkpoint fits; a resumed run may free space. Raises StorageError."""
    if run.attempts():
        return
    settings = plan.settings
    parameters = _parameters(settings)
    # Other implementations save only the weights.
    needed = parameters * (_WEIGHT_BYTES + (_MOMENTS_BYTES if plan.implementation == OURS else 0))
    place = next(folder for folder in (run.path, *run.path.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise StorageError(
            "disk-full",
            f"the disk of {run.path} has {free / 2**20:,.0f} MiB free, but a checkpoint of {parameters:,} parameters "
            f"needs about {needed / 2**20:,.0f} MiB: free some space, or give another --out or a smaller --preset",
        )


def _parameters(settings: TrainSettings) -> int:
    if not settings.model:
        return parameter_count(model_config(settings), settings.task, settings.task_options)
    from bench.implementations.given import GivenModel

    return GivenModel(settings, make_task(settings.task, settings.task_options)).parameters


def check_continues(run: TrainRun, plan: Plan) -> None:
    """Refuse to resume a run with another sequence length or implementation, or with a different default batch size.

    Args:
        run: the run directory; without checkpoints any plan is accepted.
        plan: the new plan.
    """
    attempts = run.attempts()
    began = attempts[-1].read_trial().implementation if attempts else plan.implementation
    if began != plan.implementation:
        raise UsageError(
            "settings-changed",
            f"{run.path} is a run of implementation {began}, not {plan.implementation}: give another --out, or "
            f"--implementation {began}",
        )
    saved = _saved_settings(run)
    settings = plan.settings
    if saved.get("seq_len", settings.seq_len) != settings.seq_len:
        raise UsageError(
            "settings-changed",
            f"{run.path} is a run with sequences of {saved['seq_len']} tokens, not {settings.seq_len}: give another "
            f"--out, and --init {run.path} to start from the weights of the finished run",
        )
    what = settings.task if plan.phase is None else f"phase {plan.phase}"
    given = plan.options
    asked = given.global_batch_size or (given.micro_batch_size and given.grad_accum_steps)
    before = saved.get("global_batch_size", settings.global_batch_size)
    if before != settings.global_batch_size and not asked:
        raise UsageError(
            "settings-changed",
            f"{run.path} is a run with --global-batch-size {before}, but the default of {what} is "
            f"{settings.global_batch_size}: give --global-batch-size {before} to resume it unchanged, or another size "
            "to change it",
        )


def _saved_settings(run: TrainRun) -> dict[str, Any]:
    # bert.train.checkpoint imports torch, which is not loaded before the training starts.
    states = run.checkpoints.glob("step-*/state.json")
    for path in sorted(states, key=lambda path: (len(path.parent.name), path.parent.name), reverse=True):
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))["settings"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {}
