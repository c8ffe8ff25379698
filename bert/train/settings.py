"""Settings of a training run. Imports no torch: the command line checks settings with it."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from bert.data.batches import PADDINGS
from bert.data.synthetic import check_distribution, default_max_predictions, is_synthetic, lengths_folder
from bert.model.config import model_config
from bert.optim.registry import DEFAULT_WEIGHT_DECAY, OPTIMIZERS
from bert.optim.schedule import PHASES, SCHEDULES, Schedule
from bert.parallel import STRATEGIES, options_text, read_options
from bert.speed import FAST, STEPS, WHOLE_PARAMETERS
from bert.tasks import make_task, task_data
from common.errors import InputError, UsageError
from common.flags import flag
from common.registry import lookup
from common.train_spec import TrainSpec

DEFAULT_SEED = 42
_FP8_CAPABILITY = (8, 9)
LARGEST_SEED = 2**32 - 1
"""Largest seed that NumPy's legacy generator accepts, which Hugging Face also seeds."""
DEFAULT_MICRO_BATCH_SIZE = {1: 32, 2: 8}
"""Sequences per device and micro-step in each phase, by default."""


# What holds where neither a user nor the defaults of the task say it.
_USUAL: Mapping[str, Any] = MappingProxyType(
    {"preset": "large", "strategy": "single", "precision": "fp32", "padding": PADDINGS[0], "step": FAST}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings(TrainSpec):
    """One training run: what is trained and how it is optimized, evaluated and saved. `resolve_settings` makes it.

    Raises:
        UsageError: a value out of its range.
    """

    optimizer: str = "lamb"
    """One of bert.optim.registry.OPTIMIZERS."""
    learning_rate: float = PHASES[1].learning_rate
    """Base rate, which the warm-up climbs to."""
    schedule: str = "poly"
    """Course of the learning rate, one of bert.optim.schedule.SCHEDULES."""
    warmup: float = PHASES[1].warmup
    """Fraction of the updates spent on the warm-up, from 0 to below 1."""
    steps: int = PHASES[1].total_steps
    """Updates in the whole run; those that an fp16 overflow left out do not count."""
    weight_decay: float = DEFAULT_WEIGHT_DECAY
    """Decay of matrices and embeddings; biases and LayerNorm have none."""
    max_grad_norm: float = 1.0
    """The global gradient norm is clipped to this."""
    fp8_fast_gradients: bool = False
    """Whether FP8 GEMMs of gradients add up in fewer bits than float32, as those of the forward pass do."""
    log_every: int = 10
    """Steps after which losses are read from the device and reported, one event per step."""
    eval_every: int = 0
    """Updates between evaluations, with one at the end; 0 evaluates never."""
    eval_data: str | None = None
    """What the model is evaluated on; None is what is beside the training data (pretraining: the test shards)."""
    eval_samples: int = 0
    """Samples of an evaluation, spread evenly over them; 0 takes all."""
    best_by: str | None = None
    """Score of the evaluations that says which checkpoint is the best; None is Task.deciding_score."""
    save_every: int = 200
    """Updates between checkpoints; one comes at the end of the run too."""
    keep: int = 3
    """Checkpoints that stay, the latest; that of the best evaluation stays besides."""
    init: str | None = None
    """Checkpoint, folder of checkpoints or weights of any form that a new run begins from; None begins from scratch."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        make_task(self.task, self.task_options)
        lookup(dict.fromkeys(PADDINGS), self.padding, "padding")
        lookup(OPTIMIZERS, self.optimizer, "optimizer")
        lookup(SCHEDULES, self.schedule, "schedule")
        lookup(STRATEGIES, self.strategy, "strategy")
        lookup(dict.fromkeys(STEPS), self.step, "step")
        options_text(self.strategy, read_options(self.strategy_options))
        if is_synthetic(self.data) and lengths_folder(self.data) is None:
            check_distribution(self.data, self.seq_len, self.task)
        self._check_ranges()
        self.learning_rates()
        if not self.model:
            model_config(self)

    def _check_ranges(self) -> None:
        for name, least in (
            ("seq_len", 5), ("max_predictions", 1), ("vocab_size", 8), ("micro_batch_size", 1),
            ("grad_accum_steps", 1), ("world_size", 1), ("steps", 1), ("log_every", 1), ("save_every", 1),
            ("keep", 1), ("eval_every", 0), ("eval_samples", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UsageError(
                    "option-value", f"{_option(name)} {value!r} must be a whole number of at least {least}"
                )
        check_seed(self.seed)
        if not 0 <= self.weight_decay < math.inf:
            raise UsageError("option-value", f"--weight-decay {self.weight_decay} must be a number of at least 0")
        if not 0 < self.max_grad_norm < math.inf:
            raise UsageError("option-value", f"--max-grad-norm {self.max_grad_norm} must be a number above 0")
        if self.fp8_fast_gradients and self.precision != "fp8":
            raise UsageError("option-not-applicable", "--fp8-fast-gradients needs --precision fp8")
        if self.strategy == "single" and self.world_size > 1:
            raise UsageError(
                "unsupported-combination",
                f"--strategy single has one device, not {self.world_size}: use --strategy ddp",
            )

    def learning_rates(self) -> Schedule:
        """Return the learning rate as a function of the updates applied. Raises UsageError."""
        return Schedule(
            name=self.schedule, learning_rate=self.learning_rate, total_steps=self.steps, warmup=self.warmup
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name, with the global batch size; a shape that is the preset's is None."""
        own = {"shape": self.shape or None, "global_batch_size": self.global_batch_size}
        return {**dataclasses.asdict(self), **own}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TrainSettings":
        """Return the settings that `to_json` wrote. Raises InputError."""
        try:
            return make_settings({**content, "shape": content["shape"] or ""})
        except (UsageError, KeyError, TypeError, ValueError) as error:
            raise InputError("file-damaged", f"the run settings are damaged: {error}") from error


def check_seed(seed: int) -> None:
    """Raise UsageError unless every random generator of a training accepts this seed."""
    if not 0 <= seed <= LARGEST_SEED:
        raise UsageError("option-value", f"--seed {seed} must be a whole number from 0 to {LARGEST_SEED}")


_NAMES = {field.name for field in dataclasses.fields(TrainSettings)} | {"global_batch_size"}
GIVEN = frozenset(_NAMES | {"epochs"})
"""Settings that `resolve_settings` accepts, by name."""


def make_settings(values: Mapping[str, Any]) -> TrainSettings:
    """Return settings of fields by name and a `global_batch_size`."""
    own = dict(values)
    total = own.pop("global_batch_size")
    settings = TrainSettings(**own)
    if total != settings.global_batch_size:
        raise UsageError(
            "batch-size-mismatch",
            f"--global-batch-size {total} is not --micro-batch-size {settings.micro_batch_size} x "
            f"--grad-accum-steps {settings.grad_accum_steps} x --devices {settings.world_size} = "
            f"{settings.global_batch_size}: {_fitting(total, settings.micro_batch_size, settings.world_size)}",
        )
    return settings


# Fields that have no option of their name: the first has another one, the others follow from the data.
_OPTIONS = {"world_size": "--devices", "max_predictions": "max_predictions", "vocab_size": "vocab_size"}


def _option(name: str) -> str:
    return _OPTIONS.get(name) or flag(name)


def _fitting(wanted: int, micro_batch_size: int, world_size: int) -> str:
    per_micro_step = micro_batch_size * world_size
    if wanted > 0 and wanted % per_micro_step == 0:
        return f"use --grad-accum-steps {wanted // per_micro_step}"
    below = wanted // per_micro_step * per_micro_step
    choices = " or ".join(str(size) for size in (below, below + per_micro_step) if size > 0)
    return f"it must be a multiple of {micro_batch_size} x {world_size} = {per_micro_step}, use {choices}"


def phase_defaults(phase: int) -> dict[str, Any]:
    """Return what NVIDIA trains BERT-large with in phase 1 or 2, by field of TrainSettings. Raises UsageError."""
    if phase not in PHASES:
        raise UsageError(
            "option-choice", f"--phase {phase} must be 1 (sequences of 128 tokens) or 2 (512, after phase 1)"
        )
    values = PHASES[phase]
    return {
        "preset": "large",
        "optimizer": "lamb",
        "schedule": "poly",
        "seed": DEFAULT_SEED,
        "seq_len": values.seq_len,
        "max_predictions": values.max_predictions,
        "steps": values.total_steps,
        "warmup": values.warmup,
        "learning_rate": values.learning_rate,
        "global_batch_size": values.global_batch_size,
        "micro_batch_size": DEFAULT_MICRO_BATCH_SIZE[phase],
    }


def task_defaults(task: str, phase: int | None = None) -> dict[str, Any]:
    """Return what a task is trained with by default, by field of TrainSettings, `epochs` and `evaluates`
    besides.

    Raises:
        UsageError: no such task or phase, or a phase of a task that has none.
    """
    defaults = task_data(task).defaults
    if not defaults:
        return phase_defaults(1 if phase is None else phase)
    if phase is not None:
        raise UsageError("option-not-applicable", f"--phase {phase} is of pretraining; {task} has none")
    return dict(defaults)


def resolve_settings(phase: int | None, given: Mapping[str, Any], samples: int | None = None) -> TrainSettings:
    """Return the settings of a task with what was `given`, by field, instead of its defaults; None is not given.

    Where two of micro batch, accumulation and global batch are known, the third follows. A length other than the
    phase's brings its own number of predictions. The number of updates may be given as `epochs`.

    Args:
        phase: of pretraining, None is phase 1.
        given: settings by name; `steps` goes before `epochs`.
        samples: of an epoch; None if they are without end.

    Raises:
        UsageError: as TrainSettings, a field that does not exist, or no whole number of micro-steps fits.
    """
    own = {name: value for name, value in given.items() if value is not None}
    if not own.keys() <= GIVEN:
        raise UsageError(
            "option-unknown",
            f"{', '.join(sorted(own.keys() - GIVEN))}: unknown setting; choose from {', '.join(sorted(GIVEN))}",
        )
    if "seq_len" in own:
        own.setdefault("max_predictions", default_max_predictions(int(own["seq_len"])))
    if "data" not in own:
        raise UsageError("option-missing", "no data was given: give a folder of HDF5 shards, or `synthetic`")
    if "grad_accum_steps" in own and "micro_batch_size" in own and "global_batch_size" not in own:
        own["global_batch_size"] = own["micro_batch_size"] * own["grad_accum_steps"] * own.get("world_size", 1)
    values = {**_USUAL, **task_defaults(own.get("task", "pretrain"), phase), **own}
    world_size, total = values.get("world_size", 1), values["global_batch_size"]
    if "grad_accum_steps" in own and "micro_batch_size" not in own:
        values["micro_batch_size"] = max(1, total // max(1, own["grad_accum_steps"] * world_size))
    elif "grad_accum_steps" not in own:
        if "micro_batch_size" not in own and world_size > 0:
            values["micro_batch_size"] = _largest_divisor(total // world_size, values["micro_batch_size"])
        values["grad_accum_steps"] = max(1, total // max(1, values["micro_batch_size"] * world_size))
    epochs = values.pop("epochs", None)
    evaluates = values.pop("evaluates", False) and samples is not None
    evaluates = (evaluates or "eval_data" in own) and "eval_every" not in own
    if "steps" not in own and epochs is not None:
        if samples is None and "epochs" not in own:
            raise UsageError("option-not-applicable", f"--data {own['data']} has no end: give --steps")
        values["steps"] = _steps_of(epochs, samples, values["global_batch_size"])
        if evaluates:
            values["eval_every"] = _steps_of(min(1.0, epochs), samples, values["global_batch_size"])
    elif evaluates:
        values["eval_every"] = values["steps"]
    return make_settings(values)


def check_step(spec: TrainSpec, device_type: str) -> None:
    """Refuse a step that does not exist, and FP8 where it does not work. Raises UsageError."""
    lookup(dict.fromkeys(STEPS), spec.step, "step")
    if spec.precision != "fp8":
        return
    if spec.strategy not in WHOLE_PARAMETERS:
        problem = f"precision fp8 needs strategy {' or '.join(WHOLE_PARAMETERS)}, not {spec.strategy}: use bf16"
        raise UsageError("unsupported-combination", problem)
    if device_type == "cuda":
        import torch

        if torch.cuda.is_available() and (found := torch.cuda.get_device_capability()) < _FP8_CAPABILITY:
            needed, given = (".".join(map(str, one)) for one in (_FP8_CAPABILITY, found))
            problem = f"precision fp8 needs compute capability {needed}, not {given}: use bf16"
            raise UsageError("device-unsupported", problem)


def _largest_divisor(number: int, most: int) -> int:
    """The largest part, of at most `most`, that a number of samples can be divided into equally; at least 1."""
    return next((part for part in range(min(most, number), 1, -1) if number % part == 0), 1)


def _steps_of(epochs: float, samples: int | None, global_batch_size: int) -> int:
    """Updates in which every sample has been seen `epochs` times."""
    if samples is None:
        raise UsageError("option-not-applicable", f"--epochs {epochs:g} needs data of a finite size: give --steps")
    if not 0 < epochs < math.inf:
        raise UsageError("option-value", f"--epochs {epochs:g} must be a number above 0")
    if global_batch_size < 1:
        raise UsageError("option-value", f"--global-batch-size {global_batch_size} must be at least 1")
    return math.ceil(Fraction(str(epochs)) * samples / global_batch_size)  # 1.1 x 100 is exactly 110
