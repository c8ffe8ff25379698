"""bf16 copies of float32 weights, each made once per update, and gradients in bf16 (Micikevicius et al. 2018, 3.1).

Autocast casts every weight at its first use in a step, and every gradient of a weight back to float32. With a copy
GEMMs read it directly, and write its gradient to the memory that `bert.optim.arena` has for it. If only the optimizer
reads gradients (one process, one micro-step per update), they stay in bf16, and `bert.optim.adamw` turns both around
while a part of them is in the cache.

A copy knows the version of its parameter, which PyTorch raises with every write but those of its fused optimizers: one
that is behind is made again. `bert.optim.adamw.AdamW` sees to the rest; a fused optimizer of PyTorch's own would not.

Shapes: T rows, I input and O output features, V word pieces, H hidden width.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

if TYPE_CHECKING:
    from bert.speed.fp8 import Quantized

LOW = torch.bfloat16


class Copy:
    """The bf16 copy of a float32 parameter."""

    def __init__(self, parameter: Tensor) -> None:
        self.values = torch.empty_like(parameter, dtype=LOW, requires_grad=False)
        self.version = -1
        """That of the parameter when the copy was made."""

    def of(self, parameter: Tensor) -> Tensor:
        """Return the copy of `parameter`, renewed if the parameter has changed."""
        if self.version != parameter._version:
            with torch.no_grad():
                self.values.copy_(parameter)
            self.version = parameter._version
        return self.values

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None, low: "Quantized | None" = None) -> Tensor:
        """Return x W^T + b in bf16, with the copy of `weight`, whose copy this is; `low` as in `linear` below."""
        result: Tensor = _Linear.apply(x, weight, bias, self)  # type: ignore[no-untyped-call]
        return result


def copy_of(parameter: Tensor) -> Copy | None:
    """Return the copy that a parameter has; None for one without."""
    return getattr(parameter, "_bf16", None)


def copy_in_use(weight: Tensor) -> Copy | None:
    """Return the copy that linear layers multiply here instead of a weight; None where they multiply the weight."""
    kind, copy = weight.device.type, copy_of(weight)
    return copy if copy and torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == LOW else None


def give_copies(parameters: Iterable[nn.Parameter], *, gradients: bool, kind: Callable[[Tensor], Copy] = Copy) -> None:
    """Give weights copies of a kind, which linear layers and embeddings under autocast in bf16 then compute with.

    Args:
        parameters: matrices on their device, whole, in float32; they must stay the same tensors.
        gradients: also leave their gradients in bf16: for one micro-step per update, and `bert.optim.adamw.AdamW`.
        kind: makes a copy of a parameter.
    """
    for parameter in parameters:
        parameter._bf16 = kind(parameter)  # type: ignore[attr-defined]
        if gradients and hasattr(parameter, "grad_dtype"):  # of PyTorch 2.10 on
            parameter.grad_dtype = LOW


def has_low_gradients(parameter: Tensor) -> bool:
    """Whether the gradient of a parameter is left in bf16."""
    return copy_of(parameter) is not None and getattr(parameter, "grad_dtype", None) == LOW


def give_gradient(weight: Tensor, product: Callable[..., Tensor]) -> Tensor | None:
    """Add a weight's gradient in bf16, which `product` returns or writes to `out`, to its memory for it.

    Without such memory (bert.optim.arena) return it, for autograd to add up.
    """
    write = getattr(weight, "gradient_writer", None)
    return product() if write is None else write(weight, product)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, low: "Quantized | None" = None) -> Tensor:
    """Return x W^T + b [..., O] of x [..., I], W [O, I] and b [O] or None, as nn.functional.linear.

    `low` is x in FP8, if it is known, for a weight with a copy in FP8.
    """
    copy = copy_in_use(weight)
    return F.linear(x, weight, bias) if copy is None else copy.linear(x, weight, bias, low)


class Linear(nn.Linear):
    """nn.Linear that multiplies the copy of its weight, if it has one."""

    def forward(self, x: Tensor, low: "Quantized | None" = None) -> Tensor:
        """Return [..., O] of [..., I]; `low` as in the function `linear`."""
        return linear(x, self.weight, self.bias, low)


def add_embedding(others: Tensor, ids: Tensor, weight: Tensor, padding: int) -> Tensor:
    """Return others [..., H] + the rows of weight [V, H] of ids [...]; `padding` gives its row no gradient.

    With gradients in bf16 those of the rows used are added to what the predictions, which share the weight, have left
    of its gradient by then. Otherwise PyTorch fills a second whole [V, H], and adds both.
    """
    own = torch.is_grad_enabled() and others.requires_grad and copy_in_use(weight) is not None
    if own and has_low_gradients(weight):
        # In a tuple it is not an input: its gradient does not wait for this function's backward pass.
        result: Tensor = _AddEmbedding.apply(others, ids, weight.detach(), (weight,), padding)  # type: ignore[no-untyped-call]
        return result
    return F.embedding(ids, weight, padding) + others


class _Linear(Function):
    """A linear layer in bf16, whose weight's gradient is bf16 as the GEMMs return it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, copy: Copy) -> Tensor:
        low, values = x.to(LOW), copy.of(weight)
        ctx.save_for_backward(low, values)
        ctx.weight, ctx.dtype = weight, x.dtype
        return F.linear(low, values, None if bias is None else bias.to(LOW))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        low, values = ctx.saved_tensors
        grad = grad.to(LOW)
        rows = grad.reshape(-1, grad.shape[-1])
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.matmul(grad, values).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            flat = low.reshape(-1, low.shape[-1])
            grad_weight = give_gradient(ctx.weight, lambda out=None: torch.mm(rows.t(), flat, out=out))
        if ctx.needs_input_grad[2]:
            grad_bias = rows.sum(0)  # added up in float32, eight times as fast as into float32
        return grad_x, grad_weight, grad_bias, None


class _AddEmbedding(Function):
    """Rows of an embedding added to a sum, whose gradient goes into the weight's own."""

    @staticmethod
    def forward(ctx: Any, others: Tensor, ids: Tensor, values: Tensor, weight: tuple[Tensor], padding: int) -> Tensor:
        ctx.save_for_backward(ids)
        ctx.weight, ctx.padding, ctx.shape = weight[0], padding, others.shape
        return F.embedding(ids, values) + others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        (ids,) = ctx.saved_tensors
        add_rows(ctx.weight, ids.flatten(), grad.reshape(-1, grad.shape[-1]), ctx.padding)
        return grad.sum_to_size(ctx.shape), None, None, None, None


@torch.no_grad()
def add_rows(weight: Tensor, ids: Tensor, rows: Tensor, padding: int) -> None:
    """Add to a weight's bf16 gradient: each row's share is summed in float32 and rounded once."""
    if weight.grad is None:
        zeros = give_gradient(weight, partial(torch.zeros, weight.shape, dtype=LOW, device=weight.device))
        weight.grad = weight.grad if zeros is None else zeros
    assert weight.grad is not None
    add = _add_used if rows.device.type == "cpu" else _add_all
    add(weight.grad, ids, rows, padding)


def _add_all(total: Tensor, ids: Tensor, rows: Tensor, padding: int) -> None:
    """Add through a whole float32 gradient [V, H]: its size is known without waiting for the device."""
    own = torch.ops.aten.embedding_dense_backward(rows.float(), ids, len(total), padding, False)
    torch.add(total, own, out=total)


def _add_used(total: Tensor, ids: Tensor, rows: Tensor, padding: int) -> None:
    used, which = torch.unique(ids, return_inverse=True)
    sums = torch.zeros(len(used), rows.shape[1], dtype=torch.float32, device=rows.device)
    sums.index_add_(0, which, rows.float())
    sums[used == padding] = 0.0
    sums += total.index_select(0, used)
    total.index_copy_(0, used, sums.to(LOW))
