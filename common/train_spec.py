"""The settings of a training that planning, recording, measuring and running share."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSpec:
    """Model, batch, precision, strategy, data and seed of a training; Trial, TrainSettings and DataSpec add to them."""

    task: str = "pretrain"
    """Name in bert.tasks."""
    task_options: str = ""
    """Options of the task as one JSON object (bert.tasks.base); empty if it has none."""
    preset: str = "base"
    """Model shape: a name in bert.model.config.PRESETS; any name where `shape` is given."""
    shape: str = ""
    """Model shape where it is not a preset's, as bert.model.config.shape_from_words takes it; empty if it is one."""
    model: str = ""
    """Folder or configuration of Hugging Face whose model is trained; empty for a preset, which else is its label."""
    model_fingerprint: str = ""
    """Hash of the configuration and of the names and sizes of the weights; empty for a preset."""
    model_weights: str = ""
    """Initial weights of `model`: random or safetensors; empty for a preset."""
    trust_remote_code: bool = False
    """Whether code in the folder of `model` may run."""
    dropout: float = 0.1
    """Dropout probability everywhere, attention included."""
    activation_checkpointing: bool = False
    """Whether layers keep only their input and recompute the rest in the backward pass."""
    step: str = "fast"
    """How bertbench's own model computes a step, one of bert.speed.STEPS; the others' has one way."""
    data: str = "synthetic"
    """'synthetic', 'synthetic:<distribution>', a path that the task reads, or 'synthetic:<path>': with its lengths."""
    vocab_size: int = 30522
    """Word pieces of the vocabulary that the data was made with, before padding."""
    seq_len: int = 128
    """Maximum tokens per sequence; with padding 'longest' batches may be shorter."""
    max_predictions: int = 20
    """Predicted positions per sequence at most (pretraining)."""
    padding: str = ""
    """How windows become a batch, one of bert.data.batches.PADDINGS; empty where batches come padded."""
    micro_batch_size: int = 8
    """Sequences per device and micro-step."""
    grad_accum_steps: int = 1
    """Micro-steps per update."""
    world_size: int = 1
    """Devices over all nodes."""
    precision: str = "bf16"
    """fp32, tf32, bf16, fp16 or fp8."""
    strategy: str = "ddp"
    """Parallelism: a name in bert.parallel."""
    strategy_options: str = ""
    """Options of the strategy as one JSON object (bert.parallel); empty if it has none."""
    seed: int = 42
    """Seed of weights, data order and dropout."""

    @classmethod
    def of(cls, spec: "TrainSpec", **own: Any) -> Self:
        """Return the same training as an instance of this class; `own` fields are added, or differ from `spec`."""
        return cls(**{field.name: getattr(spec, field.name) for field in dataclasses.fields(TrainSpec)} | own)

    @property
    def global_batch_size(self) -> int:
        """Sequences per update: micro_batch_size x grad_accum_steps x world_size."""
        return self.micro_batch_size * self.grad_accum_steps * self.world_size
