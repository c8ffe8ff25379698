"""Cross-entropy over a vocabulary. It reads the logits once; the backward pass overwrites them with their gradient.

PyTorch writes the logits in float32 and their log-softmax, then the gradient in float32 and in 16 bits.

Shapes: M rows, V classes.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import Function, once_differentiable
from torch.autograd.graph import increment_version

from bert.speed.kernels import columns_of, launch, warps_of

_MOST_COLUMNS = 2048


@triton.jit
def cross_entropy_forward(logits, labels, losses, normalizers, width: tl.constexpr, columns: tl.constexpr):
    """Compute the loss of a row; store its maximum and log(sum(exp(logits - maximum))) separately, for precision."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.full((columns,), -1e30, tl.float32)
    total = tl.zeros((columns,), tl.float32)
    for first in tl.range(0, width, columns):
        column = first + tl.arange(0, columns)
        value = tl.load(logits + row * width + column, mask=column < width, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(largest, value)
        total = total * tl.exp(largest - larger) + tl.exp(value - larger)
        largest = larger
    most = tl.max(largest, 0)
    spread = tl.log(tl.sum(total * tl.exp(largest - most), 0))
    label = tl.load(labels + row)
    # An invalid label makes the loss NaN; PyTorch's kernels abort.
    own = tl.load(logits + row * width + label, mask=(label >= 0) & (label < width), other=float("nan"))
    tl.store(losses + row, most - own.to(tl.float32) + spread)
    tl.store(normalizers + 2 * row, most)
    tl.store(normalizers + 2 * row + 1, spread)


@triton.jit
def cross_entropy_backward(logits, labels, normalizers, scale, width: tl.constexpr, columns: tl.constexpr):
    """Overwrite a block of a row of logits with its gradient, (softmax - one-hot) x scale."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    at = logits + row * width + column
    label = tl.load(labels + row)
    factor = tl.load(scale)
    value = tl.load(at, mask=column < width, other=0.0).to(tl.float32)
    value = tl.exp(value - tl.load(normalizers + 2 * row) - tl.load(normalizers + 2 * row + 1))
    tl.store(at, (value - (column == label).to(tl.float32)) * factor, mask=column < width)


def mean_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats, a float32 scalar, of logits [M, V] and int64 labels [M]; 0 for M = 0.

    A label that is no class, -100 too, makes it NaN. The backward pass overwrites the logits: nothing else may read
    them.
    """
    result: Tensor = _CrossEntropy.apply(logits, labels)
    return result


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        logits, labels = logits.contiguous(), labels.contiguous()
        rows, width = logits.shape
        columns = min(_MOST_COLUMNS, columns_of(width))
        ctx.how = {"width": width, "columns": columns, "warps": warps_of(columns)}
        losses, normalizers = (torch.empty(rows, count, device=logits.device) for count in (1, 2))
        launch(cross_entropy_forward, (rows,), logits, labels, losses, normalizers, **ctx.how)
        ctx.save_for_backward(logits, labels, normalizers)
        mean: Tensor = losses.sum() / max(rows, 1)
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, labels, normalizers = ctx.saved_tensors
        rows, width = logits.shape
        scale = grad.float() / max(rows, 1)
        launch(
            cross_entropy_backward,
            (rows, -(-width // ctx.how["columns"])),
            logits,
            labels,
            normalizers,
            scale,
            **ctx.how,
        )
        increment_version(logits)  # a second backward pass fails
        return logits, None
