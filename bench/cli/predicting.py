"""What the commands that predict with a trained model have in common."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bench.machine.devices import find_devices
from bench.plan.automatic import AUTO, resolve_precision
from common.errors import UsageError
from records.training import TrainRun, is_train_run

if TYPE_CHECKING:
    import torch

    from bert.optim.precision import Precision
    from bert.predict import Opened
    from bert.tasks.base import DataIdentity


class FeatureSettings(Protocol):
    """What the settings of all features say of the vocabulary they were made with."""

    @property
    def vocab_size(self) -> int:
        """Word pieces."""

    @property
    def vocabulary(self) -> str:
        """Its fingerprint."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Computing:
    """Where a trained model computes, and how."""

    device: str = "auto"
    """cpu cuda auto."""
    precision: str = AUTO
    """fp32 tf32 bf16 fp16; auto: bf16 where in hardware, else fp32."""
    batch_size: int = 32
    """Rows at a time; of squad, windows."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if self.batch_size < 1:
            raise UsageError("option-value", f"--batch-size {self.batch_size} must be at least 1")


@dataclass(frozen=True, slots=True)
class Ready:
    """A model where it is to compute."""

    model: "torch.nn.Module"
    """On `device`, in evaluation mode."""
    device: "torch.device"
    """Where."""
    precision: "Precision"
    """What to compute in."""
    batch_size: int
    """Rows at a time."""


def best_of_run(path: Path) -> Path:
    """Return the best checkpoint of a run that knows one; else the path as it is."""
    if not is_train_run(path):
        return path
    run = TrainRun(path)
    return run.best_checkpoint() or run.checkpoints


def identity_of(path: Path, fingerprint: str, settings: "FeatureSettings") -> "DataIdentity":
    """Return what a model has to fit: the features in `path`."""
    from bert.tasks.base import DataIdentity

    return DataIdentity(
        source=str(path), fingerprint=fingerprint, vocab_size=settings.vocab_size, vocabulary=settings.vocabulary
    )


def make_ready(opened: "Opened", computing: Computing) -> Ready:
    """Put a model on a device. Raises UsageError: no such device, or a precision that it does not have."""
    from bert.optim.precision import Precision
    from bert.parallel.single import SingleStrategy

    devices = find_devices(computing.device)
    strategy = SingleStrategy()
    strategy.setup(devices.kind)
    model = opened.model.to(strategy.device)
    precision = Precision(resolve_precision(computing.precision, devices), devices.kind)
    return Ready(model, strategy.device, precision, computing.batch_size)
