"""What a task is: its model, its batches, its loss."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from bert.batch import Batch, BatchCounts
from bert.config import ModelConfig
from bert.data.lengths import PADDINGS
from bert.observer import Observer


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSpec:
    """Which batches a rank trains on."""

    source: str
    """'synthetic', 'synthetic:<distribution>', 'synthetic:<path>' (its lengths), or a path the task reads."""
    seq_len: int
    """Tokens per sequence at most."""
    micro_batch_size: int
    """Sequences per rank and micro-step."""
    max_predictions: int = 20
    """Predicted positions per sequence at most (pretraining)."""
    vocab_size: int = 30522
    """Word pieces; synthetic ids stay below it."""
    seed: int = 42
    """Seed of the order and of synthetic content."""
    rank: int = 0
    """This rank; ranks see disjoint samples."""
    world_size: int = 1
    """Ranks in all."""
    padding: str = PADDINGS[0]
    """Of batches that do not come padded (SQuAD): one of bert.data.lengths.PADDINGS."""


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
        """Batches of `spec.source`. Raises InputError that names the file at fault."""

    def loss(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        """Mean training loss of one micro-batch, a scalar."""

    def model_flops(self, config: ModelConfig, counts: BatchCounts) -> float:
        """Model FLOPs of forward and backward for these counts (bert.flops)."""
