"""The Task protocol: what a workload is to plans and trainings, and the values that pass between them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from bert.data.lengths import PADDINGS
from bert.model.config import ModelConfig
from bert.model.step import Step
from bert.tasks.options import TaskOption
from common.registry import lookup
from common.train_spec import TrainSpec

if TYPE_CHECKING:
    import torch

    from bert.data.batch import Batch
    from bert.data.rows import Int64, TokenRows
    from bert.observer import Observer
    from bert.optim.precision import Precision

Heads = Literal["masked words", "answer spans", "classes", ""]
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
FINE_TUNING: Mapping[str, Any] = MappingProxyType(
    {
        "preset": "base",
        "optimizer": "adamw",
        "learning_rate": 3e-5,
        "schedule": "linear",
        "warmup": 0.1,
        "weight_decay": 0.01,
        "seq_len": 128,
        "global_batch_size": 32,
        "micro_batch_size": 8,
        "max_grad_norm": 1.0,
        "epochs": 3.0,
        "evaluates": True,
        "seed": 42,
    }
)
"""What a task is fine-tuned with by default (Devlin et al. 2018, section 4.1: batch 32, 3 epochs, rates
from 5e-5 to 2e-5); a task may have other values."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """The data of a sweep, inspected once before anything runs."""

    source: str
    """Value for Trial.data."""
    fingerprint: str
    """Hash of the data, or of the lengths drawn from; empty for synthetic data of a named distribution."""
    seq_len: int | None
    """Tokens per sequence of real data; None if any length is possible."""
    max_predictions: int | None
    """Predicted positions per sequence of a folder; None for a named distribution."""
    vocab_size: int
    samples: int | None = None
    """Samples of an epoch; None for synthetic data, which have no end."""
    vocabulary: str | None = None
    """Hash of the vocabulary they were made with; None if only the ranks look at it."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished training."""

    checkpoint: Path
    """The best one, else the latest."""
    run: Path
    """The run directory, beside which something new may lie."""
    data: str
    """What it was trained on, a path or synthetic data."""
    eval_data: str | None
    """What it was evaluated on, where that was named."""
    options: Mapping[str, Any]
    """Of the task, resolved."""

    def prediction(self, task: str, *words: str) -> list[str]:
        """Return the words of `bertbench predict` with the checkpoint, into a folder beside the run."""
        out = self.run.with_name(f"{self.run.name}-predictions")
        return ["bertbench", "predict", task, "--checkpoint", str(self.checkpoint), *words, "--out", str(out)]

    def conversion(self) -> list[str]:
        """Return the words of `bertbench convert` with the checkpoint, into a folder beside the run."""
        folder = self.run.with_name(f"{self.run.name}-hugging-face")
        return ["bertbench", "convert", str(self.checkpoint), str(folder)]

    def folder(self) -> Path:
        """Return the folder that the data are in."""
        path = Path(self.data)
        return path if path.is_dir() else path.parent


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSpec(TrainSpec):
    """A training as one rank draws its batches: micro_batch_size is that of a rank, world_size counts ranks.

    They see disjoint samples.
    """

    padding: str = PADDINGS[0]
    """Of batches that do not come padded: one of bert.data.lengths.PADDINGS."""
    rank: int = 0
    balanced: bool = False
    """Whether the samples of a global batch are divided between ranks by their work, not in runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataIdentity:
    """Identity of a set of training data, independent of its location."""

    source: str
    """As given: a folder or file, or the name of synthetic data."""
    fingerprint: str | None = None
    """Hash of what they are (of shards: names, sizes and sample counts); None for synthetic data."""
    shards: list[str] = field(default_factory=list)
    """Names of the shards, where there are some."""
    vocab_size: int | None = None
    """Word pieces of the vocabulary they were made with; None if nothing beside them says it."""
    vocabulary: str | None = None
    """Hash of that vocabulary; None if nothing beside the data says it."""

    @classmethod
    def of(cls, source: object, rows: "TokenRows") -> "DataIdentity":
        """Return that of rows: what a model must fit that computes them."""
        return cls(
            source=str(source), fingerprint=rows.fingerprint, vocab_size=rows.vocab_size, vocabulary=rows.vocabulary
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationSpec:
    """The evaluation data of a model."""

    source: str | None = None
    """A file the task reads; None is what is beside the training data."""
    samples: int = 0
    """How many samples of it, spread evenly; 0 takes all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Scores of a model on data that it is not trained on."""

    values: Mapping[str, float]
    """Scores and losses, by the names in Task.scores."""
    samples: int
    counts: Mapping[str, int] = field(default_factory=dict)
    """What else they were measured on, by name (predicted_positions)."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A model where it computes, and the samples that it computes there: without gradients, a batch at a time."""

    model: "torch.nn.Module"
    """On `device`, in evaluation mode."""
    device: "torch.device"
    precision: "Precision"
    batch_size: int
    rank: int = 0
    world_size: int = 1
    """Ranks that share the samples."""
    chosen: "Int64 | None" = None
    """Numbers of the samples that are wanted; None is all."""


class Evaluator(Protocol):
    """Evaluation data, divided over the ranks; the scores are the same on every rank."""

    @property
    def fingerprint(self) -> str:
        """Hash of the samples: only scores on the same samples are compared."""

    def measure(self, model: "torch.nn.Module", device: "torch.device", precision: "Precision") -> "torch.Tensor":
        """This rank's part of a sum over ranks, a float64 vector on the CPU.

        `model` is on `device`, in evaluation mode and without what a strategy wraps around it; no gradients are kept.
        Raises UsageError: the model has not the heads of the task.
        """

    def score(self, total: "torch.Tensor") -> Evaluation:
        """Return the scores from the sum of all ranks' parts."""


class BatchStream(Protocol):
    """Endless micro-batches whose position can be saved."""

    def __iter__(self) -> "Iterator[Batch]":
        """Yield micro-batches on the CPU, epoch after epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Position after the last batch that was yielded."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position."""


class Task(Protocol):
    """One workload. Instances are stateless but for the values of their options, which the constructor takes by name.

    What a plan asks needs no torch: modules of tasks import it in the methods that train.
    """

    name: str
    """In bert.tasks."""
    heads: Heads
    """Which of the heads of bert.model its model has: what is known of them (losses, Hugging Face's class) holds
    for the task. "" where it has its own."""
    commands: Mapping[str, tuple[str, str]]
    """Its commands `data`, `predict` and `eval`, those that it has: "module:class" of the
    bert.tasks.commands.TaskCommand, and one line of help. They are called by the
    task's name, unless another one follows the word, as in `data csv`."""
    seq_len: int
    """Tokens per sequence where no other length is asked for."""
    paddings: tuple[str, ...]
    """Ways to pad a batch, the default first; empty where batches come padded."""
    options: tuple[TaskOption, ...] = ()
    """Which options the task has; the command line has a flag for each."""
    defaults: Mapping[str, Any]
    """What training uses by default, by field of TrainSettings. Besides: `epochs`, which the number of
    updates follows from, and `evaluates`, whether it is evaluated after each epoch without being asked. Empty if the
    phases of pretraining say it."""
    parts: tuple[str, ...] = ()
    """Names of the parts of the loss that are reported beside their sum."""
    scores: tuple[str, ...]
    """Names of what an evaluation finds; common.scores knows how each is shown."""
    deciding_score: str
    """The one of them that says which checkpoint is the best."""
    higher_is_better: bool
    """Whether more of it is better."""
    begins_from_encoder: bool
    """Whether a run usually begins from the encoder of another task's model: heads that are absent there are then
    nothing to warn of, and the state of its optimizer is not taken. Else bertbench checkpoints must have all heads."""

    def inspect(self, data: str, seq_len: int | None = None, options: Mapping[str, Any] = NO_OPTIONS) -> DataSource:
        """Inspect data, real or synthetic, with these options. Raises InputError, UsageError."""

    def resolve(self, source: DataSource) -> Mapping[str, Any]:
        """Return the options with those that follow from the data, such as the number of labels. Raises InputError."""

    def check_evaluation(self, source: str, seq_len: int, wanted: str | None) -> None:
        """Inspect the evaluation data of a run before it begins.

        Args:
            source: the data it trains on, as `inspect` returned them.
            seq_len: tokens per sequence of the run.
            wanted: other data to evaluate on; None is what is beside the training data.

        Raises:
            UsageError: the task does not accept such data, or they must be given.
            InputError: there are none, they are damaged or do not fit those that are trained on.
        """

    def max_predictions(self, seq_len: int) -> int:
        """Predicted positions per sequence where the data do not say."""

    def prepare_command(self, seq_len: int) -> str:
        """The command that prepares data of this length."""

    def next_command(self, trained: Trained) -> list[str] | None:
        """Return the words of the command that comes after a training, to run as it is; None if there is none."""

    def loss_label(self) -> str:
        """What the training loss is made of, such as "MLM + NSP"; a sum is one of losses of an evaluation, too."""

    def step(self, config: ModelConfig) -> Step:
        """Return what a training step of the model computes: FLOPs, parameters and predicted memory follow from it."""

    def build_model(self, config: ModelConfig, observer: "Observer | None" = None) -> "torch.nn.Module":
        """Model with freshly initialized weights, on the CPU, in float32; its phases go to `observer`."""

    def batches(self, spec: DataSpec, split: str = "training") -> BatchStream:
        """Batches of `spec.data`. Raises InputError that names the file at fault."""

    def loss(self, model: "torch.nn.Module", batch: "Batch") -> "torch.Tensor":
        """Mean training loss of one micro-batch, a scalar."""

    def loss_parts(self, model: "torch.nn.Module", batch: "Batch") -> "tuple[torch.Tensor, dict[str, torch.Tensor]]":
        """Mean training loss of one micro-batch, a scalar, and its parts by the names in `parts`, detached scalars."""

    def identify(self, spec: DataSpec, split: str = "training") -> DataIdentity:
        """Inspect the data of a run. Raises InputError if they are missing, damaged or of another vocabulary."""

    def evaluator(self, spec: DataSpec, wanted: EvaluationSpec) -> Evaluator:
        """Open what a model is evaluated on while it is trained on `spec`; raises as `check_evaluation` does."""


def deciding(task: Task, best_by: str | None) -> tuple[str, bool]:
    """Return the score that says which checkpoint is the best, and whether more of it is better.

    `best_by` is one of the scores, None is the task's own choice. Raises UsageError: the task has no such score, or it
    is a threshold.
    """
    if best_by is None or best_by == task.deciding_score:
        return task.deciding_score, task.higher_is_better
    choices = [score for score in task.scores if not score.endswith("_thresh")]
    lookup(dict.fromkeys(choices), best_by, f"score of {task.name}")
    return best_by, not best_by.endswith("_loss")
