"""What a training run reports while it goes on, and when it ends."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAST_GOOD_CHECKPOINT = "The last good checkpoint"
"""What a message about losses that are not finite says of where to go on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """How the model does on the test shards."""

    mlm_loss: float
    """Cross-entropy in nats per predicted position, over all of them."""
    mlm_accuracy: float
    """Fraction of the predicted positions whose word piece is the most likely one."""
    nsp_loss: float
    """Cross-entropy of the next-sentence labels in nats per sample."""
    nsp_accuracy: float
    """Fraction of the samples whose label is the more likely one."""
    samples: int
    """Samples it was measured on."""
    predicted_positions: int
    """Predicted positions it was measured on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """The run goes on from a checkpoint, or begins from one of another run."""

    path: Path
    """Folder of the checkpoint or of the weights."""
    applied_steps: int
    """Updates this run has made so far: 0 where it begins anew."""
    new_phase: bool
    """Whether step count, schedule and data begin anew."""
    moments: bool
    """Whether the optimizer's moments were taken too."""
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Where this run goes on: settings that have changed since the checkpoint, by name, before and now."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One step; comes after every step, but in bundles of `log_every`."""

    step: int
    """Number of the step, from 0; steps that were left out count here."""
    loss: float
    """Training loss in nats, mean over micro-steps and ranks."""
    mlm_loss: float
    """Its masked-word part."""
    nsp_loss: float
    """Its next-sentence part."""
    learning_rate: float
    """Rate the step was made with."""
    applied: bool
    """Whether the parameters were updated: False after an fp16 overflow."""
    applied_steps: int
    """Updates of the run after this step."""
    samples_seen: int
    """Samples trained on after this step."""
    loss_scale: float | None
    """fp16 loss scale when the bundle was read; None in other precisions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """The model was evaluated."""

    applied_steps: int
    """Updates of the run."""
    evaluation: Evaluation
    """What was found."""
    seconds: float
    """Time it took, on this rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint is complete."""

    applied_steps: int
    """Updates of the run."""
    path: Path
    """Its folder."""
    seconds: float
    """Time it took, with the disk's confirmation."""
    size_bytes: int
    """Size of its files together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned:
    """Something the user should know."""

    message: str
    """What, and what to do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOutcome:
    """How a run ended."""

    finished: bool
    """All updates were made; False: it was asked to stop before."""
    applied_steps: int
    """Updates made in all."""
    skipped_steps: int
    """Steps left out after an fp16 overflow, in all."""
    samples_seen: int
    """Samples trained on in all."""
    resumed_from: Path | None
    """Checkpoint of this run that it went on from."""
    checkpoint: Path | None
    """Latest checkpoint; None where no update was made."""
    evaluation: Evaluation | None
    """Latest evaluation."""


Event = Resumed | Progress | Evaluated | Saved | Warned
Report = Callable[[Event], None]
