"""PyTorch's DataParallel: one process, a thread per GPU. Slower than ddp; kept as a baseline.

Every step copies the model to all GPUs, the batch from the first one, and the gradients back to it, while the threads
share one interpreter.
"""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from bert.data.batch import Batch, BatchCounts
from bert.observer import Observer
from bert.parallel.base import NO_PLAN, StepPlan, Strategy
from common.errors import UsageError


class DpStrategy(Strategy):
    """All GPUs that this process sees; it draws their batches as one."""

    def setup(self, device_type: str) -> None:
        """Take all visible GPUs. Raises UsageError without a GPU, or with several processes."""
        if device_type != "cuda":
            raise UsageError(
                "device-unsupported",
                "strategy dp splits a batch over the GPUs of one process; on a CPU use single, or ddp for several",
            )
        super().setup(device_type)
        if self.world_size != 1:
            raise UsageError(
                "unsupported-combination",
                f"strategy dp drives all GPUs from one process, but {self.world_size} were started: use ddp",
            )
        self.devices_per_rank = torch.cuda.device_count()

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Move the model to the first GPU; every forward pass copies it to the others."""
        return Replicas(model.to(self.device), list(range(self.devices_per_rank)))


class Replicas(torch.nn.DataParallel[torch.nn.Module]):
    """DataParallel for batches whose tensors do not all have a row per sequence, and for losses that are means.

    The loss is that of the whole batch: replicas weigh by their rows, and their predicted words by their number.
    """

    _rows: tuple[int, ...] = (1,)

    def scatter(self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Any) -> tuple[Any, Any]:
        """Cut a Batch, or else all tensors along their first dimension, into as many parts as there are devices."""
        if kwargs or not isinstance(inputs[0], Batch):
            scattered: tuple[Any, Any] = super().scatter(inputs, kwargs, device_ids)
            tensors = [(*args, *named.values()) for args, named in zip(*scattered, strict=True)]
            self._rows = tuple(len(each[0]) for each in tensors)
            return scattered
        parts = split_batch(inputs[0], len(device_ids))
        self._rows = tuple(part.counts.samples for part in parts)
        moved = [part.to(torch.device("cuda", index)) for part, index in zip(parts, device_ids, strict=False)]
        return tuple((part,) for part in moved), tuple({} for _ in moved)

    def gather(self, outputs: Any, output_device: Any) -> Any:
        """Put the replicas' outputs together: the mean of scalars by rows, other tensors one after the other."""
        return joined(list(outputs), self._rows, torch.device("cuda", output_device))


def split_batch(batch: Batch, parts: int) -> list[Batch]:
    """Cut a batch into at most `parts` of consecutive sequences; on a GPU this waits for it."""
    rows, length = batch.tensors["input_ids"].shape
    size = -(-rows // parts)
    return [_part(batch, range(begin, min(begin + size, rows)), length) for begin in range(0, rows, size)]


def _part(batch: Batch, rows: range, length: int) -> Batch:
    whole = batch.counts
    tensors = {name: v[rows.start : rows.stop] for name, v in batch.tensors.items() if len(v) == whole.samples}
    words, weight = 0, batch.weight
    if "masked_positions" in batch.tensors:
        positions = batch.tensors["masked_positions"]
        inside = (positions >= rows.start * length) & (positions < rows.stop * length)
        tensors["masked_positions"] = positions[inside] - rows.start * length
        tensors["masked_labels"] = batch.tensors["masked_labels"][inside]
        words = len(tensors["masked_labels"])
        # What is not in proportion to the rows, which `joined` weighs by.
        weight *= words / max(whole.predicted_positions, 1) * whole.samples / len(rows)
    lengths = [length] * len(rows) if batch.mask is None else tensors["attention_mask"].sum(1).tolist()
    counts = BatchCounts(
        samples=len(rows),
        real_tokens=sum(lengths),
        padded_tokens=len(rows) * length,
        predicted_positions=words,
        squared_lengths=sum(each**2 for each in lengths),
    )
    return Batch(tensors, counts, weight=weight)


def joined(outputs: list[Any], rows: Sequence[int], device: torch.device) -> Any:
    """Return the outputs of all replicas, computed of so many `rows`, as one of the same kind, on `device`."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        moved = [output.to(device) for output in outputs]
        if first.ndim:
            return torch.cat(moved)
        return torch.stack([output * (each / sum(rows)) for output, each in zip(moved, rows, strict=True)]).sum()
    if is_dataclass(first) and not isinstance(first, type):
        names = [part.name for part in fields(first)]
        return type(first)(**{name: joined([getattr(each, name) for each in outputs], rows, device) for name in names})
    if isinstance(first, tuple | list):
        return type(first)(joined(list(each), rows, device) for each in zip(*outputs, strict=True))
    return first
