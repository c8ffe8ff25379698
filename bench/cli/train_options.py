"""The options of `bertbench train`, which every command that trains shares."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from bench.implementations import OURS
from bench.plan.automatic import AUTO
from bench.plan.task_flags import TaskFlags
from common.errors import UsageError
from common.flags import flag

_OUT_HELP = "Run directory; a call with the same folder resumes it."


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """Train until the run is complete; the same command resumes it. What is not given is as it was published: NVIDIA's
    BERT-large for pretraining, Devlin et al. 2018 for fine-tuning.

    SIGTERM and Ctrl-C save a checkpoint before they end it; a second signal ends it at once.
    """

    task: tyro.conf.Positional[str]
    """What is trained: pretrain squad gap classify glue."""
    file: tyro.conf.Positional[str | None] = None
    """The same as --data."""
    task_flags: Annotated[TaskFlags, tyro.conf.arg(name="")] = field(default_factory=TaskFlags)
    phase: int | None = None
    """Of pretraining, 1 unless given: 1 is sequences of 128 tokens, 2 of 512, after phase 1."""
    data: str | None = None
    """Folder of HDF5 shards (pretrain), features (squad gap glue), CSV or its SQLite file (classify), or synthetic."""
    out: Annotated[Path, tyro.conf.arg(help=_OUT_HELP)] = Path("runs/train")
    preset: str | None = None
    """tiny mini small medium base large distilbert; default large, fine-tuning base, with --init its own."""
    device: str = "auto"
    """cpu cuda auto."""
    devices: int | None = None
    """Devices, one process each; default every GPU, or one process on all CPU cores."""
    strategy: str = AUTO
    """single ddp fsdp deepspeed horovod dp; auto: single on one device, ddp on several."""
    implementation: str = OURS
    """Whose model and loop train: bertbench hf-trainer; the latter keeps no checkpoints on its way."""
    zero_stage: int | None = None
    """ZeRO stage of deepspeed, 0 to 3; else that of its file, or 0."""
    deepspeed_config: Path | None = None
    """JSON file of deepspeed; what it says of batch sizes, rate, decay and clipping holds where no option is given."""
    global_batch_size: int | None = None
    """Sequences per update; default 65536, in phase 2 32768, squad classify glue 32, gap 16."""
    micro_batch_size: int | None = None
    """Sequences per device and micro-step; default 32, in phase 2 and fine-tuning 8."""
    grad_accum_steps: int | None = None
    """Micro-steps per update; default what the batch sizes need."""
    seq_len: int | None = None
    """Tokens per sequence; default 128, in phase 2 512; fine-tuning those of its data, made up squad 384, gap 512."""
    steps: int | None = None
    """Updates in the whole run; default 7038, in phase 2 1563, else those of the epochs."""
    epochs: float | None = None
    """How often every sample is seen, in place of --steps; default of squad 2, of gap classify glue 3."""
    learning_rate: float | None = None
    """Rate that the warm-up climbs to; default 6e-3, in phase 2 4e-3, fine-tuning 3e-5."""
    warmup: float | None = None
    """Fraction of the updates spent on the warm-up (cyclic: half a cycle); default .2843, in phase 2 .128, fine-tuning
    .1."""
    optimizer: str | None = None
    """lamb adamw; default lamb, fine-tuning adamw."""
    schedule: str | None = None
    """poly linear constant cyclic; default poly, fine-tuning linear."""
    weight_decay: float | None = None
    """Decay of all but biases and LayerNorm; default .01."""
    max_grad_norm: float | None = None
    """Gradients are clipped to this norm; default 1."""
    dropout: float | None = None
    """Dropout probability everywhere; default .1."""
    activation_checkpointing: bool = False
    """Keep the input of each layer and make the rest again in backward: less memory, the same losses."""
    levers: str | None = None
    """How a step is computed: auto, none, or names joined by + (docs/explanation/speed.md); default auto."""
    bucket_mib: int | None = None
    """Buckets that gradients are reduced in, MiB; default the strategy's own."""
    precision: str = AUTO
    """fp32 tf32 bf16 fp16; auto: bf16 where in hardware, else fp32."""
    seed: int | None = None
    """Seed of weights, data order and dropout; default 42."""
    init: Path | None = None
    """Where a new run begins: a finished run (of which fine-tuning takes the best checkpoint, pretraining the latest),
    a checkpoint, or anything that `bertbench convert` reads."""
    log_every: int | None = None
    """Steps between lines of progress; default 10."""
    eval_every: int | None = None
    """Updates between evaluations, and one at the end; default after each epoch, or with --steps at the end alone, but
    pretrain and, without --eval-data, squad never."""
    eval_data: str | None = None
    """Features to evaluate on (squad gap glue); default of gap and glue those beside the training data. Pretraining
    takes its test shards, classify its validation split."""
    eval_samples: int | None = None
    """Samples of an evaluation, spread evenly over them; default 0, which takes all."""
    best_by: str | None = None
    """Score of the evaluations that says which checkpoint is the best, such as log_loss; default that of the task."""
    save_every: int | None = None
    """Updates between checkpoints; default 200."""
    keep: int | None = None
    """Checkpoints that stay, the latest; default 3; the best one stays besides."""
    padding: str | None = None
    """Of fine-tuning: longest, to the longest of a micro-batch, or fixed, to --seq-len; default longest."""
    max_seconds: float | None = None
    """Save and end after this time in s, as a signal would; for the limits of queues."""
    threads: int | None = None
    """CPU threads per process; default an equal share."""
    log_to: tuple[str, ...] = ()
    """tensorboard mlflow none; default tensorboard, and mlflow where MLFLOW_RUN_ID names a run."""
    json: bool = False
    """Print the result as JSON, progress on stderr."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing; the others are checked with the settings of the run."""
        for name in ("devices", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError("option-value", f"--{name} {value} must be at least 1")
        for name, holds, required in _RANGES:
            value = getattr(self, name)
            if value is not None and not holds(value):
                raise UsageError("option-value", f"{flag(name)} {value:g} must be {required}")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise UsageError("option-value", f"--max-seconds {self.max_seconds} must be above 0")
        if self.file is not None and self.data is not None:
            raise UsageError(
                "option-conflict", f"the data are named twice, {self.file} and --data {self.data}: give one of them"
            )

    def given(self) -> dict[str, Any]:
        """Return what was given of the settings of a run, None where nothing was, as bench.run.trainer takes them."""
        values = {name: getattr(self, name) for name in _SETTINGS}
        own = {"world_size": self.devices, "data": self.data or self.file, "task_flags": self.task_flags}
        return {**values, **own}


# As the settings of the run have them; said before any data are looked at.
_RANGES: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    ("dropout", lambda value: 0 <= value < 1, "at least 0 and less than 1"),
    ("epochs", lambda value: 0 < value < math.inf, "a number above 0"),
    ("learning_rate", lambda value: 0 <= value < math.inf, "a number of at least 0"),
    ("warmup", lambda value: 0 <= value < 1, "at least 0 and less than 1"),
    ("weight_decay", lambda value: 0 <= value < math.inf, "a number of at least 0"),
    ("max_grad_norm", lambda value: 0 < value < math.inf, "a number above 0"),
)
# Options that are fields of bert.train.TrainSettings.
_SETTINGS = (
    "task", "preset", "dropout", "data", "seq_len", "micro_batch_size", "grad_accum_steps", "global_batch_size",
    "optimizer", "learning_rate", "schedule", "warmup", "steps", "weight_decay", "max_grad_norm", "precision",
    "strategy", "seed", "log_every", "eval_every", "eval_data", "eval_samples", "best_by", "save_every", "keep", "init",
    "epochs", "padding", "activation_checkpointing", "levers", "bucket_mib", "zero_stage", "deepspeed_config",
    "implementation", "log_to",
)  # fmt: skip
