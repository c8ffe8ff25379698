"""Open a trained model for prediction, with all weights of its task, from any form of checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from bert.checkpoints.model_config import read_config
from bert.checkpoints.read import STATE_FILE, checkpoint_path, saved_steps
from bert.model.config import ModelConfig
from bert.optim.precision import Precision
from bert.parallel.base import SingleStrategy
from bert.speed import FAST, apply
from bert.tasks.base import DataIdentity, Ready, Task
from bert.train.checkpoint import read
from bert.train.resume import find_weights, load_weights, unpadded
from bert.train.settings import TrainSettings
from common.errors import InputError


@dataclass(frozen=True, slots=True)
class Opened:
    """A model and where it came from."""

    model: nn.Module
    """On the CPU, in float32, in evaluation mode."""
    config: ModelConfig
    source: Path
    """Folder, file or prefix of the weights."""

    def ready(self, device_type: str, precision: str, batch_size: int) -> Ready:
        """Put the model on the device of this process, which computes alone. Raises UsageError: no such device."""
        strategy = SingleStrategy.alone(device_type)
        chosen = Precision(precision, device_type)
        return Ready(self.model.to(strategy.device), strategy.device, chosen, batch_size)


def open_model(checkpoint: Path, task: Task, data: DataIdentity, warn: Callable[[str], None]) -> Opened:
    """Open a model that was trained on a task.

    Args:
        checkpoint: a checkpoint, a folder (or a run's folder) of them, of which the latest is taken, or weights of any
            form that `bertbench convert` reads.
        task: what it must be able to do.
        data: what it is to be used on.
        warn: called for each damaged checkpoint that is skipped.

    Raises:
        InputError: there is none, it is damaged, lacks a head of the task, or is of another vocabulary than the data.
    """
    found = find_weights(checkpoint, data, warn, f"predictions need a model trained on {task.name}")
    if found.config is None:
        raise InputError(
            "data-missing",
            f"no config.json or bert_config.json beside {checkpoint}: the weights alone do not give the number "
            "of attention heads; put it there",
        )
    config = read_config(found.config)
    if data.vocab_size is not None:
        config = unpadded(config, config.replace(vocab_size=data.vocab_size))
        if config.vocab_size != data.vocab_size:
            raise InputError(
                "vocabulary-mismatch",
                f"the model in {checkpoint} has a vocabulary of {config.vocab_size} word pieces, but {data.source} was "
                f"prepared with {data.vocab_size}: use the vocabulary the model was trained with",
            )
    model = task.build_model(config)
    apply(model, FAST)
    missing = load_weights(found, model, config, whole=False).missing
    if missing:
        raise InputError(
            "weights-mismatch",
            f"{checkpoint} lacks {len(missing)} weights of a model trained on {task.name}, {missing[0]} "
            f"first: train it with `bertbench train {task.name} --init {checkpoint}`",
        )
    return Opened(model.eval(), config, found.path)


def settings_of(checkpoint: Path) -> TrainSettings | None:
    """Return how a bertbench checkpoint, or the latest of a folder of them, was trained; None if it does not say."""
    steps = [] if (checkpoint / STATE_FILE).is_file() or not checkpoint.is_dir() else saved_steps(checkpoint)
    place = checkpoint_path(checkpoint, steps[-1]) if steps else checkpoint
    return read(place).state.settings if (place / STATE_FILE).is_file() else None
