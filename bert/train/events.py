"""Events that a training run reports while it runs and when it ends."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bert.tasks.base import Evaluation


@dataclass(frozen=True, kw_only=True, slots=True)
class Best:
    """The best of a run's evaluations so far; its checkpoint stays."""

    applied_steps: int
    """Updates of the run when it was made, which name the checkpoint."""
    score: str
    """Name of the score that decides (TrainSettings.best_by)."""
    value: float
    data: str
    """Evaluator.fingerprint of what it was measured on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """The run resumes from a checkpoint, or begins from one of another run."""

    path: Path
    """Folder of the checkpoint or of the weights."""
    applied_steps: int
    new_phase: bool
    """Whether step count, schedule and data start over."""
    moments: bool
    """Whether the optimizer's moments were taken too."""
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Resumed runs: settings that changed since the checkpoint, by name, before and now."""
    missing: tuple[str, ...] = ()
    """Missing weights of the model, which keep their initial values."""
    unused: tuple[str, ...] = ()
    """Weights that are there and that the model has no place for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """One step; comes after every step, but in bundles of `log_every`."""

    step: int
    """Number of the step, from 0; steps that were left out count here."""
    loss: float
    """Training loss in nats, mean over micro-steps and ranks."""
    parts: Mapping[str, float]
    """Its parts by the task's names for them."""
    learning_rate: float
    applied: bool
    """Whether the parameters were updated: False after an fp16 overflow."""
    applied_steps: int
    """Updates of the run after this step."""
    samples_seen: int
    loss_scale: float | None
    """fp16 loss scale when the bundle was read; None in other precisions."""
    fp8_saturated: int | None = None
    """Tensors, by update and rank, that had larger numbers in the bundle than fp8 could hold; None in others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """The model was evaluated."""

    applied_steps: int
    evaluation: "Evaluation"
    seconds: float
    best: bool = False
    """Whether it is the best so far."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """A checkpoint is complete."""

    applied_steps: int
    path: Path
    seconds: float
    size_bytes: int
    best: Best | None = None
    """The best evaluation up to there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Warned:
    """Something the user should know."""

    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOutcome:
    """How a run ended."""

    finished: bool
    """All updates were made; False: it was asked to stop before."""
    applied_steps: int
    skipped_steps: int
    samples_seen: int
    resumed_from: Path | None
    """Checkpoint of this run that it resumed from."""
    checkpoint: Path | None
    """Latest checkpoint; None if no update was made."""
    evaluation: "Evaluation | None"
    best: Best | None = None


Event = Resumed | Progress | Evaluated | Saved | Warned
Report = Callable[[Event], None]
