"""The operations between the GEMMs of a layer, by PyTorch's functions, loops in C (CPU) or Triton kernels (GPU).

A loop reads every value once. For dropout, residual connection and LayerNorm PyTorch passes over them for the mask, the
sum, the norm and the cast, and in the backward pass for the cast, the sum of two gradients, the norm, the mask and a
cast again. The loop gives its result twice: in float32 for the next residual connection, and in the type of the
GEMMs for the next linear layer. PyTorch's GELU is as fast as one pass over memory; only its backward pass is
done here. For the softmax of attention with dropout on its weights PyTorch passes over all scores for the factor, the
mask, the softmax, the dropout and the cast; a loop works on a row while it is in the nearest cache.

PyTorch's CPU dropout draws one Bernoulli number after another, which in a small model takes more time than the GEMMs.
Here dropout takes 16 random bits per element.

On a GPU, bert.speed.kernels does the same. Its kernels also add the bias of the preceding linear layer and compute its
gradient. Between linear layers in FP8 they write FP8.

Shapes: T rows, H hidden width; b sequences of m tokens, N heads, R = b x N.
"""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from bert.speed import copies
from bert.speed.fp8 import INPUT, Cast, Fp8Copy, OutputGradient, Quantized, largest
from bert.speed.kernels import usable
from bert.speed.native import loops

# A dropout probability is rounded to a multiple of 1 / _LEVELS, which moves it by at most 2^-17.
_LEVELS = 1 << 16
# Types of what linear layers give for which there are loops.
LOOP_TYPES = {torch.bfloat16: "bf16", torch.float32: "float"}


class Stream(NamedTuple):
    """Hidden states between two parts of a layer, twice."""

    wide: Tensor
    narrow: Tensor
    """For the next linear layer: in the type of its GEMMs, if available in it."""
    low: Quantized | None = None
    """For the next linear layer in FP8, if a kernel has written it."""


def stream(hidden: Tensor | Stream) -> Stream:
    """Return hidden states as a Stream."""
    return hidden if isinstance(hidden, Stream) else Stream(hidden, hidden)


class Product(NamedTuple):
    """Output of a linear layer [..., O]."""

    values: Tensor
    bias: Tensor | None = None
    """Bias of the layer [O] that the next kernel must add; None if it has been added."""
    output: OutputGradient | None = None
    """Where the next kernel may leave the gradient of the values in FP8."""


def product(layer: nn.Linear, x: Tensor, low: Quantized | None = None) -> Product:
    """Return the output of a linear layer for x [..., I]; without its bias if a kernel adds it to the next operation.

    `low` is x in FP8, if it is known, for a layer in FP8.
    """
    if not usable(x, layer.weight):
        return Product(layer(x))
    copy = fp8_copy(layer)
    if copy is None:
        return Product(copies.linear(x, layer.weight, None), layer.bias)
    output = OutputGradient(copy)
    return Product(copy.linear(x, layer.weight, None, low, output), layer.bias, output)


def fp8_copy(layer: nn.Linear) -> Fp8Copy | None:
    """Return the copy that a layer multiplies here, if it is in FP8."""
    copy = copies.copy_in_use(layer.weight)
    return copy if isinstance(copy, Fp8Copy) else None


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the output type of linear layers for `x`."""
    kind = x.device.type
    casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if casts else x.dtype


def residual_norm(
    x: Tensor | Product, residual: Tensor, norm: nn.LayerNorm, probability: float, reader: nn.Linear | None = None,
    key: Tensor | None = None,
) -> Stream:  # fmt: skip
    """Return LayerNorm(dropout(x) + residual) of x and residual [..., H].

    Args:
        x: what a linear layer gives.
        residual: as the LayerNorm before gave it.
        norm: with weight and bias; it says whether this is training.
        probability: of dropout.
        reader: the linear layer that reads the result; if it is in FP8, a kernel also writes the result so.
        key: of the dropout of a kernel; None draws one.
    """
    x, bias, output = x if isinstance(x, Product) else Product(x)
    if bias is not None or usable(x, norm.weight):
        from bert.speed.kernels import norm as kernels

        dropped = probability if norm.training else 0.0
        parameters = norm.weight, norm.bias, norm.eps, dropped, bias
        return Stream(*kernels.residual_norm(x, residual, *parameters, _input_cast(reader), output, key))
    if norm.training and has_loops(x) and residual.dtype == norm.weight.dtype == norm.bias.dtype == torch.float32:
        given = _ResidualNorm.apply(x, residual, norm.weight, norm.bias, norm.eps, probability)  # type: ignore[no-untyped-call]
        return Stream(given[0], given[-1])
    return stream(norm(dropout(x, probability, norm.training) + residual))


def gelu(x: Tensor | Product, reader: nn.Linear | None = None) -> tuple[Tensor, Quantized | None]:
    """Return GELU(x) of any shape, by the error function, and the same in FP8 if `reader` is in FP8, a linear layer.

    The first is then a placeholder: no other operation may read it.
    """
    x, bias, output = x if isinstance(x, Product) else Product(x)
    if bias is not None or usable(x):
        from bert.speed.kernels import gelu as kernels

        into = _input_cast(reader, lambda: largest(kernels.gelu(x, bias)[0]))
        return kernels.gelu(x, bias, into, output)
    if x.requires_grad and has_loops(x):
        result: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
        return result, None
    return F.gelu(x), None


def _input_cast(reader: nn.Linear | None, measure: Callable[[], Tensor] | None = None) -> Cast | None:
    """Return how a kernel casts what a layer reads; None if it is not in FP8, or not measured yet."""
    copy = None if reader is None else fp8_copy(reader)
    return None if copy is None else copy.scales.cast(copy.layer, INPUT, torch.is_grad_enabled(), measure=measure)


def has_loops(x: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Whether loops can compute with a tensor in its type, or cast to another one."""
    return x.device.type == "cpu" and (dtype or x.dtype) in LOOP_TYPES and loops() is not None


def _run(name: str, *given: Tensor | int | float | None) -> None:
    """Run a loop, whose arguments are pointers, long and float; None is NULL."""

    def argument(one: Tensor | int | float | None) -> Any:
        if one is None or isinstance(one, Tensor):
            return ctypes.c_void_p(None if one is None else one.data_ptr())
        return ctypes.c_float(one) if isinstance(one, float) else ctypes.c_long(one)

    getattr(loops(), name)(*map(argument, given))


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero elements of `x` with `probability` and scale the others by 1 / (1 - probability); any shape."""
    if not training or probability == 0.0:
        return x
    if x.device.type == "cpu":
        result: Tensor = _Dropout.apply(x, probability)  # type: ignore[no-untyped-call]
        return result
    return F.dropout(x, probability)


def random_levels(like: Tensor, by_loop: bool = False) -> Tensor:
    """Draw int16 numbers, uniform over all 2^16 values, in the shape of `like`.

    They come from PyTorch's CPU generator, one number after another. A loop takes one number from it as the key of
    Philox4x32-10 (Salmon et al. 2011), which all threads compute at once (bert.speed.native).
    """
    count = like.numel()
    if by_loop:
        levels, key = torch.empty(like.shape, dtype=torch.int16), torch.empty((), dtype=torch.int64)
        _run("random_levels", count, torch.get_num_threads(), int(key.random_(-(2**63), None)), levels)
        return levels
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)  # four numbers in each word
    return words.view(torch.int16)[:count].view(like.shape)


def threshold(probability: float) -> int:
    """Levels below this are dropped."""
    return round(probability * _LEVELS) - _LEVELS // 2


def keep_scale(probability: float) -> float:
    """One over the probability with which an element is really kept."""
    return _LEVELS / (_LEVELS - round(probability * _LEVELS))


class _Dropout(Function):
    """Dropout that keeps its random bits for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        levels = random_levels(x)
        ctx.save_for_backward(levels)
        ctx.probability = probability
        return _kept(x, levels, probability)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (levels,) = ctx.saved_tensors
        return _kept(grad, levels, ctx.probability), None


def _kept(x: Tensor, levels: Tensor, probability: float) -> Tensor:
    # Comparing straight into the floating type is several times as fast as multiplying by a bool tensor.
    kept = torch.ge(levels, threshold(probability), out=torch.empty(x.shape, dtype=x.dtype))
    return kept.mul_(x).mul_(keep_scale(probability))


class _ResidualNorm(Function):
    """LayerNorm(dropout(x) + residual), in the residual's type and, if x has another one, in that too."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, probability: float
    ) -> tuple[Tensor, ...]:
        levels = random_levels(x, by_loop=True) if probability else None
        x, residual, weight, width = x.contiguous(), residual.contiguous(), weight.contiguous(), x.shape[-1]
        wide, narrow = torch.empty_like(residual), None if x.dtype == residual.dtype else torch.empty_like(x)
        mean, inverse = (torch.empty(*x.shape[:-1], 1) for _ in range(2))
        _run(
            f"norm_forward_{LOOP_TYPES[x.dtype]}", mean.numel(), width, torch.get_num_threads(), x, residual, levels,
            threshold(probability), keep_scale(probability), eps, weight, bias.contiguous(), wide, narrow, mean,
            inverse,
        )  # fmt: skip
        ctx.save_for_backward(x, residual, levels, weight, mean, inverse)
        ctx.probability = probability
        return (wide,) if narrow is None else (wide, narrow)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, residual, levels, weight, mean, inverse = ctx.saved_tensors
        threads, width = torch.get_num_threads(), x.shape[-1]
        grad, other = (*(grad.contiguous() for grad in grads), None)[:2]
        grad_x, grad_residual, sums = torch.empty_like(x), torch.empty_like(residual), torch.zeros(threads, 3, width)
        _run(
            f"norm_backward_{LOOP_TYPES[x.dtype]}", mean.numel(), width, threads, grad, other, x, residual, levels,
            threshold(ctx.probability), keep_scale(ctx.probability), weight, mean, inverse, grad_x, grad_residual, sums,
        )  # fmt: skip
        grad_weight, grad_bias, _ = sums.sum(0)
        return grad_x, grad_residual, grad_weight, grad_bias, None, None


class _Gelu(Function):
    """PyTorch's GELU with a backward pass of our own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        grad, grad_x = grad.contiguous(), torch.empty_like(x)
        _run(f"gelu_backward_{LOOP_TYPES[x.dtype]}", x.numel(), torch.get_num_threads(), grad, x, grad_x)
        return grad_x


def softmax_dropout(scores: Tensor, mask: Tensor | None, factor: float, probability: float) -> tuple[Tensor, Tensor]:
    """Return dropout(softmax(scores factor)) [R, m, m] in the type of the scores, and what its backward pass needs.

    That are the weights before dropout in float32, of which those that were dropped have their sign bit set.

    Args:
        scores: [R, m, m] of a CPU, in one piece, of a type with loops.
        mask: bool [b, 1, 1, m], True where may be attended to; None where everywhere. A row that may attend to nothing
            gets equal weights.
        factor: of the scores.
        probability: of dropout.
    """
    levels = random_levels(scores, by_loop=True) if probability else None
    count, length, _ = scores.shape
    allowed, heads = (None, 1) if mask is None else (mask.contiguous(), count // len(mask))
    weights, kept = torch.empty(scores.shape), torch.empty_like(scores)
    _run(
        f"softmax_forward_{LOOP_TYPES[scores.dtype]}", count * length, length, torch.get_num_threads(), scores, allowed,
        heads, factor, levels, threshold(probability), keep_scale(probability), weights, kept,
    )  # fmt: skip
    return kept, weights


def softmax_dropout_backward(grad: Tensor, weights: Tensor, factor: float, probability: float) -> tuple[Tensor, Tensor]:
    """Return the gradient of the scores from that of the result, and the result again: [R, m, m] each.

    The arguments are those of `softmax_dropout`. `grad` is written to.
    """
    kept, length = torch.empty_like(grad), grad.shape[-1]
    _run(
        f"softmax_backward_{LOOP_TYPES[grad.dtype]}", grad.numel() // length, length, torch.get_num_threads(), grad,
        weights, factor, keep_scale(probability), kept,
    )  # fmt: skip
    return grad, kept
