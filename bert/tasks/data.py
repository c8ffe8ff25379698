"""What a plan asks of a task's data before anything runs. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from bert.model.config import ModelConfig
from bert.model.step import Step
from bert.tasks.options import TaskOption

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
"""What a task is fine-tuned with where nothing is given (Devlin et al. 2018, section 4.1: batch 32, 3 epochs, rates
from 5e-5 to 2e-5); a task may have other values."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """The data of a sweep, looked at once before anything runs."""

    source: str
    """What Trial.data becomes."""
    fingerprint: str
    """Hash of the data, or of the lengths drawn from; empty for synthetic data of a named distribution."""
    seq_len: int | None
    """Tokens per sequence of real data; None where any length is possible."""
    max_predictions: int | None
    """Predicted positions per sequence of a folder; None for a named distribution."""
    vocab_size: int
    samples: int | None = None
    """Samples of an epoch; None for made-up data, which have no end."""
    vocabulary: str | None = None
    """Hash of the vocabulary they were made with; None where only the ranks look at it."""


@dataclass(frozen=True, slots=True)
class Trained:
    """A training that has come to its end."""

    checkpoint: Path
    """The best one, else the latest."""
    run: Path
    """The run directory, beside which something new may lie."""
    data: str
    """What it was trained on, a path or made-up data."""
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
        """Return the folder that the data lie in."""
        path = Path(self.data)
        return path if path.is_dir() else path.parent


class TaskData(Protocol):
    """The data of one task. Implementations are stateless; bert.tasks.TASKS lists them."""

    trained_by: str
    """"module:class" of the bert.tasks.base.TrainableTask, which imports torch and takes `options` by name."""
    heads: Heads
    """Which of the heads of bert.model its model has: what is known of them (losses, Hugging Face's class) holds
    for the task. "" where it has its own."""
    commands: Mapping[str, tuple[str, str]]
    """Its commands `data`, `predict` and `eval`, those that it has: "module:class" of the
    bert.tasks.commands.TaskCommand, and one line of help."""
    seq_len: int
    """Tokens per sequence where no other length is asked for."""
    paddings: tuple[str, ...]
    """Ways to pad a batch, the default first; empty where batches come padded."""
    options: tuple[TaskOption, ...]
    """Which options the task has; the command line has a flag for each."""
    defaults: Mapping[str, Any]
    """What training uses where nothing is given, by field of TrainSettings. Besides: `epochs`, which the number of
    updates follows from, and `evaluates`, whether it is evaluated after each epoch without being asked. Empty where the
    phases of pretraining say it."""

    def inspect(self, data: str, seq_len: int | None = None, options: Mapping[str, Any] = NO_OPTIONS) -> DataSource:
        """Look at data, real or made up.

        Args:
            data: as given.
            seq_len: tokens per sequence that are wanted; None is what the data have.
            options: of the task, with its defaults.

        Raises:
            InputError: there is none, or it is damaged (the message names the file).
            UsageError: no such synthetic data.
        """

    def resolve(self, options: Mapping[str, Any], source: DataSource) -> Mapping[str, Any]:
        """Return the options with those that follow from the data, such as the number of labels.

        Raises:
            UsageError: options that the data cannot be used with.
            InputError: the data cannot be read.
        """

    def check_evaluation(
        self, source: str, seq_len: int, wanted: str | None, options: Mapping[str, Any] = NO_OPTIONS
    ) -> None:
        """Look at what a run is to be evaluated on, before it begins.

        Args:
            source: the data it trains on, as `inspect` returned them.
            seq_len: tokens per sequence of the run.
            wanted: other data to evaluate on; None is what lies beside the training data.
            options: of the task, resolved.

        Raises:
            UsageError: no such data can be wanted, or they have to be named.
            InputError: there are none, they are damaged or do not fit those that are trained on.
        """

    def max_predictions(self, seq_len: int) -> int:
        """Predicted positions per sequence where the data do not say."""

    def prepare_command(self, seq_len: int) -> str:
        """The command that prepares data of this length."""

    def next_command(self, trained: Trained) -> list[str] | None:
        """Return the words of the command that comes after a training, to run as it is; None where there is none."""

    def loss_label(self, options: Mapping[str, Any] = NO_OPTIONS) -> str:
        """What the training loss is made of, such as "MLM + NSP"; a sum is one of losses of an evaluation, too."""

    def step(self, config: ModelConfig, options: Mapping[str, Any] = NO_OPTIONS) -> Step:
        """Return what a training step of the model computes: FLOPs, parameters and predicted memory follow from it."""
