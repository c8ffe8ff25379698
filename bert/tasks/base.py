"""What a workload is to plans and trainings: the class Task, its options, and the values that pass between them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from bert.model.config import ModelConfig
from bert.model.step import Gemm, Step
from common.errors import UsageError
from common.registry import lookup

if TYPE_CHECKING:
    import torch

    from bert.data.batch import Batch
    from bert.data.batches import Batches, DataSpec
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


Value = str | int | bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOption:
    """One option of a task, which the class that trains takes under this name."""

    name: str
    kind: type[str] | type[int] | type[bool]
    default: Value | None = None
    """None if it follows from the data, or nothing holds by default."""
    choices: tuple[str, ...] = ()
    """Of a word; empty if any will do."""
    least: int = 1
    """Of a number."""
    from_data: bool = False
    """Whether it follows from the data alone, so that nobody is asked for it."""
    says: str = ""
    """For the help of the commands."""


def check_options(task: str, known: Sequence[TaskOption], given: Mapping[str, Any]) -> dict[str, Value]:
    """Return options with the defaults of those that are not given or None. Raises UsageError."""
    by_name = {option.name: option for option in known}
    values: dict[str, Value] = {option.name: option.default for option in known if option.default is not None}
    for name, value in ((name, value) for name, value in given.items() if value is not None):
        option = by_name.get(name)
        if option is None:
            has = ", ".join(by_name) or "none"
            raise UsageError("option-not-applicable", f"task {task} has no option {name}, it has {has}")
        if option.choices and value not in option.choices:
            raise UsageError("option-choice", f"{name}={value!r}: choose one of {', '.join(option.choices)}")
        if type(value) is not option.kind or (type(value) is int and value < option.least):
            wanted = {str: "a word", int: f"a whole number of at least {option.least}", bool: "true or false"}
            raise UsageError("option-value", f"{name}={value!r} must be {wanted[option.kind]}")
        values[name] = value
    return values


def options_text(options: Mapping[str, Value]) -> str:
    """Return options as one canonical text, "" where there are none."""
    return json.dumps(options, sort_keys=True, separators=(",", ":"), allow_nan=False) if options else ""


def read_options(text: str) -> dict[str, Any]:
    """Return the options that `options_text` wrote."""
    return dict(json.loads(text)) if text else {}


@dataclass(frozen=True, slots=True)
class DataSource:
    """The data of a sweep, inspected once before anything runs."""

    source: str
    """Value for Trial.data."""
    fingerprint: str
    """Hash of the data, or of the lengths drawn from; empty for synthetic data of a named distribution."""
    seq_len: int | None
    """Tokens per sequence; None if any length is possible."""
    max_predictions: int | None
    """Predicted positions per sequence of a folder; None for a named distribution."""
    vocab_size: int
    samples: int | None = None
    """Of an epoch; None for synthetic data, which have no end."""
    vocabulary: str | None = None
    """Its hash; None if only the ranks look at it."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished training."""

    checkpoint: Path
    """The best one, else the latest."""
    run: Path
    data: str
    """A path or synthetic data."""
    eval_data: str | None
    """None where none was named."""
    options: Mapping[str, Any]
    """Of the task, resolved."""

    def prediction(self, task: str, *words: str) -> list[str]:
        """Return the words of `bertbench predict` with the checkpoint, into a folder beside the run."""
        out = self.run.with_name(f"{self.run.name}-predictions")
        return ["bertbench", "predict", task, "--checkpoint", str(self.checkpoint), *words, "--out", str(out)]

    def folder(self) -> Path:
        """Return the folder that the data are in."""
        path = Path(self.data)
        return path if path.is_dir() else path.parent


@dataclass(frozen=True, kw_only=True, slots=True)
class DataIdentity:
    """Identity of a set of training data, independent of its location."""

    source: str
    """A folder or file as given, or the name of synthetic data."""
    fingerprint: str | None = None
    """Hash of what they are (of shards: names, sizes and sample counts); None for synthetic data."""
    shards: list[str] = field(default_factory=list)
    """Names of the shards, where there are some."""
    vocab_size: int | None = None
    """Word pieces of the vocabulary they were made with; None if nothing beside them says it."""
    vocabulary: str | None = None
    """Hash of that vocabulary; None likewise."""

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
    """By the names in Task.scores."""
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
        """Return this rank's part of a sum over ranks, a float64 vector on the CPU, of the task's model in evaluation
        mode."""

    def score(self, total: "torch.Tensor") -> Evaluation:
        """Return the scores from the sum of all ranks' parts."""


class Task(ABC):
    """One workload. Instances are stateless but for the values of their options, which the constructor takes by name.

    What a plan asks needs no torch: modules of tasks import it in the methods that train.
    """

    name: str
    heads: Heads
    """Which of the heads of bert.model its model has, so that their losses and Hugging Face's class hold; "" for its
    own."""
    commands: Mapping[str, tuple[str, str]]
    """By `data`, `predict` and `eval`: "module:class" of a bert.tasks.commands.TaskCommand, and one line of help. They
    are called by the task's name, unless another one follows the word, as in `data csv`."""
    seq_len: int
    """Tokens per sequence where no other length is asked for."""
    paddings: tuple[str, ...]
    """Ways to pad a batch, the default first; empty where batches come padded."""
    options: tuple[TaskOption, ...] = ()
    """The command line has a flag for each."""
    defaults: Mapping[str, Any]
    """Of a training, by field of TrainSettings; besides `epochs`, and `evaluates`: whether it is evaluated after each
    epoch without being asked. Empty if the phases of pretraining say it."""
    parts: tuple[str, ...] = ()
    """Parts of the loss that are reported beside their sum: fields of the model's output."""
    scores: tuple[str, ...]
    """Names of what an evaluation finds; common.scores knows how each is shown."""
    deciding_score: str
    """Says which checkpoint is the best."""
    higher_is_better: bool
    begins_from_encoder: bool
    """Whether a run usually begins from the encoder of another task's model: heads that are absent there are then
    nothing to warn of, and the state of its optimizer is not taken. Else bertbench checkpoints must have all heads."""

    def __init__(self, **options: Any) -> None:
        self.values = check_options(self.name, self.options, options)

    @abstractmethod
    def inspect(self, data: str, seq_len: int | None = None, options: Mapping[str, Any] = NO_OPTIONS) -> DataSource:
        """Inspect data, real or synthetic, with these options. Raises InputError, UsageError."""

    def resolve(self, source: DataSource) -> Mapping[str, Any]:
        """Return the options with those that follow from the data, such as the number of labels. Raises InputError."""
        return self.values

    @abstractmethod
    def check_evaluation(self, source: str, seq_len: int, wanted: str | None) -> None:
        """Inspect the evaluation data of a run of `seq_len` tokens on `source`, by default what is beside these.

        Raises UsageError (the task does not accept those `wanted`, or some must be named), InputError (none that fit).
        """

    def max_predictions(self, seq_len: int) -> int:
        """Predicted positions per sequence where the data do not say."""
        return 0

    @abstractmethod
    def prepare_command(self, seq_len: int) -> str:
        """The command that prepares data of this length."""

    def next_command(self, trained: Trained) -> list[str] | None:
        """Return the words of the command that comes after a training, to run as it is; None if there is none."""
        folder = trained.run.with_name(f"{trained.run.name}-hugging-face")
        return ["bertbench", "convert", str(trained.checkpoint), str(folder)]

    @abstractmethod
    def loss_label(self) -> str:
        """What the training loss is made of, such as "MLM + NSP"; a sum is one of losses of an evaluation, too."""

    @abstractmethod
    def step(self, config: ModelConfig) -> Step:
        """Return what a training step of the model computes."""

    @abstractmethod
    def build_model(self, config: ModelConfig, observer: "Observer | None" = None) -> "torch.nn.Module":
        """Model with freshly initialized weights, on the CPU, in float32; its phases go to `observer`."""

    @abstractmethod
    def batches(self, spec: "DataSpec", split: str = "training") -> "Batches":
        """Endless micro-batches of `spec.data` on the CPU. Raises InputError that names the file at fault."""

    def loss(self, model: "torch.nn.Module", batch: "Batch") -> "torch.Tensor":
        """Mean training loss of one micro-batch, a scalar."""
        loss: torch.Tensor = model(batch).loss
        return loss

    def loss_parts(self, model: "torch.nn.Module", batch: "Batch") -> "tuple[torch.Tensor, dict[str, torch.Tensor]]":
        """Mean training loss of one micro-batch, a scalar, and its parts by the names in `parts`, detached scalars."""
        output = model(batch)
        return output.loss, {name: getattr(output, name).detach() for name in self.parts}

    @abstractmethod
    def identify(self, spec: "DataSpec", split: str = "training") -> DataIdentity:
        """Inspect the data of a run. Raises InputError if they are missing, damaged or of another vocabulary."""

    @abstractmethod
    def evaluator(self, spec: "DataSpec", wanted: EvaluationSpec) -> Evaluator:
        """Open what a model is evaluated on while it is trained on `spec`; raises as `check_evaluation` does."""


def deciding(task: Task, best_by: str | None) -> tuple[str, bool]:
    """Return the score that says which checkpoint is the best, and whether more of it is better.

    `best_by` is one of the scores, None is the task's own choice. Raises UsageError: the task has no such score, or it
    is a threshold.
    """
    if best_by is None or best_by == task.deciding_score:
        return task.deciding_score, task.higher_is_better
    known = [score for score in task.scores if not score.endswith("_thresh")]
    return lookup(dict.fromkeys(known, best_by), best_by, f"score of {task.name}"), not best_by.endswith("_loss")


def pooler(config: ModelConfig) -> Gemm:
    """Return the GEMM of the projected first tokens."""
    return Gemm(name="pooler", inner=config.hidden_size, columns=config.hidden_size, over="sequences")


def classifier(config: ModelConfig, labels: int, name: str = "classifier") -> Gemm:
    """Return the GEMM that gives each sequence so many logits."""
    return Gemm(name=name, inner=config.hidden_size, columns=labels, over="sequences")
