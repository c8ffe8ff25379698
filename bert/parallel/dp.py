"""PyTorch's DataParallel: one process, a thread per GPU. Slower than ddp; kept as a baseline.

Every step copies the model to all GPUs, the batch from the first one, and the gradients back to it, while the threads
share one interpreter.
"""

from dataclasses import fields, is_dataclass
from typing import Any

import torch

from bert.data.batch import Batch, BatchCounts
from bert.parallel.base import NO_PLAN, StepPlan
from bert.parallel.single import SingleStrategy
from bert.train.observer import Observer
from common.errors import UsageError


class DpStrategy(SingleStrategy):
    """All GPUs that this process sees; it draws their batches as one."""

    def setup(self, device_type: str) -> None:
        """Take all visible GPUs. Raises UsageError without a GPU, and where several processes were started."""
        self._read_environment()
        if device_type != "cuda":
            raise UsageError(
                "device-unsupported",
                "strategy dp splits a batch over the GPUs of one process; on a CPU, DataParallel only calls the model: "
                "use single, or ddp for several processes",
            )
        if self.world_size != 1:
            raise UsageError(
                "unsupported-combination",
                f"strategy dp drives all GPUs of a node from one process, but {self.world_size} were started: start "
                "one, or use ddp",
            )
        self._pick_gpu()
        self.devices_per_rank = torch.cuda.device_count()

    def wrap(self, model: torch.nn.Module, observer: Observer, plan: StepPlan = NO_PLAN) -> torch.nn.Module:
        """Move the model to the first GPU; every forward pass copies it to the others."""
        return Replicas(model.to(self.device), list(range(self.devices_per_rank)))


class Replicas(torch.nn.DataParallel[torch.nn.Module]):
    """DataParallel for batches whose tensors do not all have a row per sequence, and for losses that are means.

    The loss is the mean of the replicas' losses, as the mean over the ranks is in every other strategy.
    """

    def scatter(self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Any) -> tuple[Any, Any]:
        """Cut a Batch, or else all tensors along their first dimension, into as many parts as there are devices."""
        if len(inputs) == 1 and isinstance(inputs[0], Batch) and not kwargs:
            devices = [torch.device("cuda", index) for index in device_ids]
            parts = split_batch(inputs[0], len(devices))
            moved = [part.to(device) for part, device in zip(parts, devices, strict=False)]
            return tuple((part,) for part in moved), tuple({} for _ in moved)
        scattered: tuple[Any, Any] = super().scatter(inputs, kwargs, device_ids)
        return scattered

    def gather(self, outputs: Any, output_device: Any) -> Any:
        """Put the replicas' outputs together: the mean of scalars, other tensors one after the other."""
        return joined(list(outputs), torch.device("cuda", output_device))


def split_batch(batch: Batch, parts: int) -> list[Batch]:
    """Cut a batch into at most `parts` of consecutive sequences; on a GPU this waits for it.

    Counts of the parts are those that models read: whether all tokens are real. The others are not divided.
    """
    rows, length = batch.tensors["input_ids"].shape
    size = -(-rows // parts)
    found = []
    for begin in range(0, rows, size):
        end = min(begin + size, rows)
        tensors = {name: value[begin:end] for name, value in batch.tensors.items() if len(value) == rows}
        if "masked_positions" in batch.tensors:
            positions = batch.tensors["masked_positions"]
            inside = (positions >= begin * length) & (positions < end * length)
            tensors["masked_positions"] = positions[inside] - begin * length
            tensors["masked_labels"] = batch.tensors["masked_labels"][inside]
        found.append(Batch(tensors, _counts(batch.counts, end - begin, length)))
    return found


def _counts(whole: BatchCounts, rows: int, length: int) -> BatchCounts:
    all_real = whole.real_tokens == whole.padded_tokens
    return BatchCounts(
        samples=rows,
        real_tokens=rows * length if all_real else rows * length - 1,
        padded_tokens=rows * length,
        predicted_positions=whole.predicted_positions,
        squared_lengths=whole.squared_lengths,
    )


def joined(outputs: list[Any], device: torch.device) -> Any:
    """Return the outputs of all replicas as one of the same kind, on `device`."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        moved = [output.to(device) for output in outputs]
        return torch.stack(moved).mean(0) if first.ndim == 0 else torch.cat(moved)
    if is_dataclass(first) and not isinstance(first, type):
        parts = {part.name: joined([getattr(each, part.name) for each in outputs], device) for part in fields(first)}
        return type(first)(**parts)
    if isinstance(first, tuple | list):
        return type(first)(joined(list(each), device) for each in zip(*outputs, strict=True))
    return first
