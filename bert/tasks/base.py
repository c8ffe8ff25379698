"""What a task is: its model, its batches, its loss; and what training needs of it besides.

bert.train imports this module and reaches the tasks by their names alone; no task imports bert.train.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from bert.data.batch import Batch
from bert.data.lengths import PADDINGS
from bert.model.config import ModelConfig
from bert.optim.precision import Precision
from bert.train.observer import Observer
from common.errors import UsageError
from common.registry import lookup
from common.train_spec import TrainSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSpec(TrainSpec):
    """A training as one rank draws its batches: micro_batch_size is that of a rank, world_size counts ranks.

    They see disjoint samples.
    """

    padding: str = PADDINGS[0]
    """Of batches that do not come padded: one of bert.data.lengths.PADDINGS."""
    rank: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class DataIdentity:
    """What tells one set of training data from another, wherever it lies."""

    source: str
    """As given: a folder or file, or the name of made-up data."""
    fingerprint: str | None = None
    """Hash of what they are (of shards: names, sizes and sample counts); None for made-up data."""
    shards: list[str] = field(default_factory=list)
    """Names of the shards, where there are some."""
    vocab_size: int | None = None
    """Word pieces of the vocabulary they were made with; None where nothing beside them says it."""
    vocabulary: str | None = None
    """Hash of that vocabulary; None where nothing beside the data says it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSpec:
    """What a model is to be evaluated on."""

    source: str | None = None
    """A file the task reads; None is what lies beside the training data."""
    samples: int = 0
    """How many samples of it, spread evenly; 0 takes all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """How a model does on data that it is not trained on."""

    values: Mapping[str, float]
    """Scores and losses, by the names in Task.scores."""
    samples: int
    counts: Mapping[str, int] = field(default_factory=dict)
    """What else they were measured on, by name (predicted_positions)."""


class Evaluator(Protocol):
    """Data to evaluate on, divided over the ranks; what is found is the same on every rank."""

    @property
    def fingerprint(self) -> str:
        """Tells these samples from others: scores on others are not compared."""

    def measure(self, model: torch.nn.Module, device: torch.device, precision: Precision) -> torch.Tensor:
        """This rank's part of a sum over ranks, a float64 vector on the CPU.

        `model` is on `device`, in evaluation mode and without what a strategy wraps around it; no gradients are kept.

        Raises:
            UsageError: the model has not the heads of the task.
            InputError: the data are damaged.
        """

    def score(self, total: torch.Tensor) -> Evaluation:
        """Make scores of the sum of all ranks' parts."""


class BatchStream(Protocol):
    """Endless micro-batches whose position can be saved."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield micro-batches on the CPU, epoch after epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Position after the last batch that was yielded."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position."""


class Task(Protocol):
    """One workload. Implementations are stateless; bert.tasks.TASKS lists them."""

    name: str

    def build_model(self, config: ModelConfig, observer: Observer | None = None) -> torch.nn.Module:
        """Model with freshly initialised weights, on the CPU, in float32; its phases go to `observer`."""

    def batches(self, spec: DataSpec, split: str = "training") -> BatchStream:
        """Batches of `spec.data`. Raises InputError that names the file at fault."""

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Mean training loss of one micro-batch, a scalar."""


class TrainableTask(Task, Protocol):
    """A workload that `bertbench train` trains."""

    parts: tuple[str, ...]
    """Names of the parts of the loss that are told beside their sum."""
    scores: tuple[str, ...]
    """Names of what an evaluation finds; common.scores knows how each is shown."""
    deciding_score: str
    """The one of them that says which checkpoint is the best."""
    higher_is_better: bool
    """Whether more of it is better."""
    begins_from_encoder: bool
    """Whether a run usually begins from the encoder of another task's model: heads that are absent there are then
    nothing to warn of, and the state of its optimizer is not taken. Else checkpoints of ours have to have all heads."""

    def loss_parts(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Mean training loss of one micro-batch, a scalar, and its parts by the names in `parts`, detached scalars."""

    def identify(self, spec: DataSpec, split: str = "training") -> DataIdentity:
        """Look at the data of a run. Raises InputError where they are missing, damaged or of another vocabulary."""

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> Evaluator:
        """Open what a model is evaluated on while it is trained on `spec`.

        Raises:
            InputError: there is nothing, it is damaged, or it does not fit `spec`.
            UsageError: `wanted` says too little or too much.
        """


def check_objective(task: TrainableTask, name: str, *besides: str) -> None:
    """Refuse what does not say which of two models is better: a name that is no score, or a threshold.

    Args:
        task: what is trained.
        name: what was asked for.
        besides: what may be asked for, too.

    Raises:
        UsageError: it names what can be.
    """
    choices = (*(score for score in task.scores if not score.endswith("_thresh")), *besides)
    if name in task.scores and name not in choices:
        raise UsageError(
            "option-choice",
            f"{name} is a threshold, more or less of it makes no model better: choose one of {', '.join(choices)}",
        )
    lookup(dict.fromkeys(choices), name, f"score of {task.name}")


def deciding(task: TrainableTask, best_by: str | None) -> tuple[str, bool]:
    """Return the score that says which checkpoint is the best, and whether more of it is better.

    Args:
        task: what is trained.
        best_by: one of its scores; None is the task's own choice.

    Raises:
        UsageError: the task has no such score, or it is a threshold.
    """
    if best_by is None or best_by == task.deciding_score:
        return task.deciding_score, task.higher_is_better
    check_objective(task, best_by)
    return best_by, not best_by.endswith("_loss")
