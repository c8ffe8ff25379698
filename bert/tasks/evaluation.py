"""What evaluations have in common: a model run over batches, whose outputs belong to numbered samples."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from bert.data.rows import Int64
from bert.optim.precision import Precision

if TYPE_CHECKING:
    from bert.data.batch import Batch


def outputs(
    model: torch.nn.Module,
    batches: "Iterable[tuple[Int64, Batch]]",
    device: torch.device,
    precision: Precision,
    told: Callable[[int], None] | None = None,
) -> Iterator[tuple[Int64, Any]]:
    """Yield what a model makes of each batch, with the numbers [B] of the samples in it.

    Args:
        model: on `device`, in evaluation mode.
        batches: with the numbers of their samples.
        device: where to compute.
        precision: what to compute in.
        told: called with the number of samples done so far.
    """
    done = 0
    for numbers, batch in batches:
        with torch.inference_mode(), precision.autocast():
            output = model(batch.to(device))
        yield numbers, output
        done += len(numbers)
        if told is not None:
            told(done)
