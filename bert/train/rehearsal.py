"""CUDA graphs of every shape that a training can have, recorded before its first step.

PyTorch runs each shape of a compiled layer once without a graph, records it at the second pass, forward and backward,
and replays it from the third on. Rehearsed, none of this falls into what is measured.

Shapes: B sequences in padded rows of S columns.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F

from bert.data.batch import Batch
from bert.model.encoder import BertEncoder
from bert.model.packing import Unpadded
from bert.train.agreement import together
from bert.train.feed import Feed
from bert.train.loop import ComputeLoss, Training

_PASSES = 3
# Other strategies keep gradients where a pass that is not followed by an update would leave them.
_STRATEGIES = frozenset({"single", "ddp"})


def rehearse(training: Training, feed: Feed, strategy: str, compute_loss: ComputeLoss) -> int:
    """Run forward and backward passes of every total of the token budget, if layers are replayed in such shapes.

    Weights, gradients, random numbers and the position of the data stay as they are. Every rank must call it.

    Args:
        training: ready for its first step.
        feed: of its batches, all of one size.
        strategy: the name of its strategy; only with single and ddp is anything rehearsed.
        compute_loss: (wrapped model, batch) -> scalar.

    Returns:
        The number of shapes; 0 where nothing was to be rehearsed.
    """
    encoders = [part for part in training.model.modules() if isinstance(part, BertEncoder)]
    if strategy not in _STRATEGIES or not any(encoder.few_shapes for encoder in encoders):
        return 0
    device, precision = training.strategy.device, training.precision
    training.model.train()
    first = together(training.strategy, feed.peek)
    made = [] if first.layout is None else batches_of_all_totals(first, first.layout)
    # Ranks may have budgets of their own, but must make equally many passes.
    number = int(training.strategy.maximum(torch.tensor([len(made)], dtype=torch.float64)))
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        # The largest first: the memory that its graphs keep then serves the others.
        for place in reversed(range(number)):
            moved = (made[min(place, len(made) - 1)] if made else first).to(device)
            for _ in range(_PASSES):
                with training.strategy.accumulate(last=True):
                    with precision.autocast():
                        loss = compute_loss(training.model, moved)
                    training.strategy.backward(loss, precision)
                training.optimizer.zero_grad(set_to_none=True)
    return len(made)


def batches_of_all_totals(batch: Batch, layout: Unpadded) -> list[Batch]:
    """Return a batch for each total of the budget of a batch with a layout, ascending: `batch` with other lengths.

    Its sequences are as equal as possible. What lies beyond them is padding, labels and predicted positions included.
    """
    budget, (rows, columns) = layout.budget, batch.tensors["attention_mask"].shape
    found: list[Batch] = []
    if budget is None:
        return found
    tensors = {
        name: F.pad(each, (0, budget.columns - columns)) if each.shape[1:] == (columns,) else each
        for name, each in batch.tensors.items()
    }
    for total in budget.totals:
        tokens = min(total - budget.dummies, rows * budget.columns)
        lengths = torch.tensor([tokens // rows + (row < tokens % rows) for row in range(rows)])
        mask = (torch.arange(budget.columns) < lengths[:, None]).to(tensors["attention_mask"].dtype)
        counts = replace(
            batch.counts, real_tokens=tokens, padded_tokens=mask.numel(), squared_lengths=int((lengths**2).sum())
        )
        found.append(Batch({**tensors, "attention_mask": mask}, counts).laid_out(budget))
    return found
