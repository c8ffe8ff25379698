"""What the commands that predict with a trained model have in common."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.machine.devices import find_devices
from bench.plan.options import AUTO, resolve_precision
from bert.tasks.commands import Ready
from common.errors import UsageError
from records.training import TrainRun, is_train_run

if TYPE_CHECKING:
    from bert.predict import Opened


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


def best_of_run(path: Path) -> Path:
    """Return the best checkpoint of a run that knows one; else the path as it is."""
    if not is_train_run(path):
        return path
    run = TrainRun(path)
    return run.best_checkpoint() or run.checkpoints


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
