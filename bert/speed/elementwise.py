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

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from bert.private import softmax_gradient
from bert.speed.copies import copies_in_use, linear
from bert.speed.fp8 import Fp8Copy, OutputGradient
from bert.speed.kernels import usable
from bert.speed.native import loops
from bert.speed.scales import Quantized, largest

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
        return Product(linear(x, layer.weight, None), layer.bias)
    output = OutputGradient(copy)
    return Product(copy.linear(x, layer.weight, None, low, output), layer.bias, output)


def fp8_copy(layer: nn.Linear) -> Fp8Copy | None:
    """Return the copy that a layer multiplies here, if it is in FP8."""
    (copy,) = copies_in_use(layer.weight) or (None,)
    return copy if isinstance(copy, Fp8Copy) else None


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the output type of linear layers for `x`."""
    kind = x.device.type
    casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if casts else x.dtype


def residual_norm(
    x: Tensor | Product, residual: Tensor, norm: nn.LayerNorm, probability: float, reader: nn.Linear | None = None
) -> Stream:
    """Return LayerNorm(dropout(x) + residual) of x and residual [..., H].

    Args:
        x: what a linear layer gives.
        residual: as the LayerNorm before gave it.
        norm: with weight and bias; it says whether this is training.
        probability: of dropout.
        reader: the linear layer that reads the result; if it is in FP8, a kernel also writes the result so.
    """
    x, bias, output = x if isinstance(x, Product) else Product(x)
    if bias is not None or usable(x, norm.weight):
        from bert.speed.kernels import norm as kernels

        copy = None if reader is None else fp8_copy(reader)
        into = None if reader is None or copy is None else copy.input_cast(reader.weight)
        dropped = probability if norm.training else 0.0
        return Stream(
            *kernels.residual_norm(x, residual, norm.weight, norm.bias, norm.eps, dropped, bias, into, output)
        )
    if norm.training and _has_loops(x) and residual.dtype == norm.weight.dtype == norm.bias.dtype == torch.float32:
        given = _ResidualNorm.apply(x, residual, norm.weight, norm.bias, norm.eps, probability)  # type: ignore[no-untyped-call]
        return Stream(given[0], given[-1])
    return stream(norm(dropout_add(x, residual, probability, norm.training)))


def gelu(x: Tensor | Product, reader: nn.Linear | None = None) -> tuple[Tensor, Quantized | None]:
    """Return GELU(x) of any shape, by the error function, and the same in FP8 if `reader` is in FP8, a linear layer.

    The first is then a placeholder: no other operation may read it.
    """
    x, bias, output = x if isinstance(x, Product) else Product(x)
    if bias is not None or usable(x):
        from bert.speed.kernels import gelu as kernels

        copy, into = None if reader is None else fp8_copy(reader), None
        if reader is not None and copy is not None:
            into = copy.input_cast(reader.weight, lambda: largest(kernels.gelu(x, bias)[0]))
        return kernels.gelu(x, bias, into, output)
    if x.requires_grad and _has_loops(x):
        result: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
        return result, None
    return F.gelu(x), None


def _has_loops(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in LOOP_TYPES and loops() is not None


def _run(name: str, dtype: torch.dtype, *given: Any) -> None:
    """Run a loop; a tensor is given by where its first element lies, None as NULL."""
    loop = getattr(loops(), f"{name}_{LOOP_TYPES[dtype]}")
    loop(*(one.data_ptr() if isinstance(one, Tensor) else one for one in given))


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero elements of `x` with `probability` and scale the others by 1 / (1 - probability); any shape."""
    if not training or probability == 0.0:
        return x
    if x.device.type == "cpu":
        result: Tensor = _Dropout.apply(x, None, probability)  # type: ignore[no-untyped-call]
        return result
    return F.dropout(x, probability)


def dropout_add(x: Tensor, residual: Tensor, probability: float, training: bool) -> Tensor:
    """Return dropout(x) + residual; `x` and `residual` have one shape, the result has their promoted type."""
    if training and probability > 0.0 and x.device.type == "cpu":
        result: Tensor = _Dropout.apply(x, residual, probability)  # type: ignore[no-untyped-call]
        return result
    return dropout(x, probability, training) + residual


def random_levels(like: Tensor, by_loop: bool = False) -> Tensor:
    """Draw int16 numbers, uniform over all 2^16 values, in the shape of `like`.

    They come from PyTorch's CPU generator, one number after another. A loop takes one number from it as the key of
    Philox4x32-10 (Salmon et al. 2011), which all threads compute at once (bert.speed.native).
    """
    count, library = like.numel(), loops() if by_loop else None
    if library is not None:
        levels = torch.empty(like.shape, dtype=torch.int16)
        key = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None)) & (2**64 - 1)
        library.random_levels(count, torch.get_num_threads(), key, levels.data_ptr())
        return levels
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)  # four numbers in each word
    return words.view(torch.int16)[:count].view(like.shape)


def threshold(probability: float) -> int:
    """Levels below this are dropped."""
    return round(probability * _LEVELS) - _LEVELS // 2


def keep_scale(probability: float) -> float:
    """One over the probability with which an element is really kept."""
    return _LEVELS / (_LEVELS - round(probability * _LEVELS))


def keep_mask(levels: Tensor, probability: float, dtype: torch.dtype) -> Tensor:
    """Return 1 where an element is kept and 0 if it is dropped, as `dtype`."""
    # Comparing straight into the floating type is several times as fast as multiplying by a bool tensor.
    return torch.ge(levels, threshold(probability), out=torch.empty(levels.shape, dtype=dtype))


class _Dropout(Function):
    """Dropout that keeps its random bits for the backward pass, with the residual connection if there is one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, probability: float) -> Tensor:
        levels = random_levels(x)
        ctx.save_for_backward(levels)
        ctx.probability, ctx.dtype, ctx.adds = probability, x.dtype, residual is not None
        kept = keep_mask(levels, probability, x.dtype)
        if residual is None:
            return kept.mul_(x).mul_(keep_scale(probability))
        return torch.addcmul(residual, x, kept, value=keep_scale(probability))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (levels,) = ctx.saved_tensors
        grad_x = keep_mask(levels, ctx.probability, grad.dtype).mul_(grad).mul_(keep_scale(ctx.probability))
        return grad_x.to(ctx.dtype), grad if ctx.adds else None, None


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
            "norm_forward", x.dtype, mean.numel(), width, torch.get_num_threads(), x, residual, levels,
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
            "norm_backward", x.dtype, mean.numel(), width, threads, grad, other, x, residual, levels,
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
        _run("gelu_backward", x.dtype, x.numel(), torch.get_num_threads(), grad, x, grad_x)
        return grad_x


class Weights(NamedTuple):
    """What the backward pass needs of the weights before dropout [R, m, m]."""

    values: Tensor
    """Of loops those that were dropped have their sign bit set."""
    levels: Tensor | None
    """Random bits of dropout; None without dropout, and of loops."""


def softmax_dropout(scores: Tensor, mask: Tensor | None, factor: float, probability: float) -> tuple[Tensor, Weights]:
    """Return dropout(softmax(scores factor)) [R, m, m] in the type of the scores, and what its backward pass needs.

    Args:
        scores: [R, m, m] of a CPU, in one piece; written to.
        mask: bool [b, 1, 1, m] or [b, 1, m, m], True where may be attended to; None where everywhere. A row that may
            attend to nothing gets equal weights.
        factor: of the scores.
        probability: of dropout.
    """
    fused = _has_loops(scores)
    levels = random_levels(scores, fused) if probability else None
    if fused:
        return _softmax_by_loop(scores, mask, factor, levels, probability)
    weights = scores.to(torch.promote_types(scores.dtype, torch.float32)).mul_(factor)
    if mask is not None:
        rows, length = mask.shape[0], scores.shape[-1]
        # The lowest finite number: a sequence without any real token gets equal weights, not NaN.
        weights.view(rows, -1, length, length).masked_fill_(~mask, torch.finfo(weights.dtype).min)
    torch.softmax(weights, -1, out=weights)
    if levels is None:
        return weights.to(scores.dtype), Weights(weights, None)
    kept = keep_mask(levels, probability, weights.dtype).mul_(weights)
    return _scaled(kept, probability, scores), Weights(weights, levels)


def softmax_dropout_backward(grad: Tensor, saved: Weights, factor: float, probability: float) -> tuple[Tensor, Tensor]:
    """Return the gradient of the scores from that of the result, and the result again: [R, m, m] each.

    The arguments are those of `softmax_dropout`. `grad` is written to.
    """
    weights, levels = saved
    if _has_loops(grad):
        kept, length = torch.empty_like(grad), grad.shape[-1]
        _run(
            "softmax_backward", grad.dtype, grad.numel() // length, length, torch.get_num_threads(), grad, weights,
            factor, keep_scale(probability), kept,
        )  # fmt: skip
        return grad, kept
    wide, kept = grad.to(weights.dtype), weights
    if levels is not None:
        kept = keep_mask(levels, probability, weights.dtype)
        wide.mul_(kept)
        kept.mul_(weights)
    scores = softmax_gradient(wide, weights)
    return scores.mul_(factor * keep_scale(probability)).to(grad.dtype), _scaled(kept, probability, grad)


def _scaled(kept: Tensor, probability: float, like: Tensor) -> Tensor:
    return torch.mul(kept, keep_scale(probability), out=torch.empty_like(like)) if probability else kept.to(like.dtype)


def _softmax_by_loop(
    scores: Tensor, mask: Tensor | None, factor: float, levels: Tensor | None, probability: float
) -> tuple[Tensor, Weights]:
    count, length, _ = scores.shape
    allowed, heads, whole = None, 1, False
    if mask is not None:
        allowed, heads, whole = mask.contiguous(), count // len(mask), mask.shape[2] > 1
    weights, kept = torch.empty(scores.shape), torch.empty_like(scores)
    _run(
        "softmax_forward", scores.dtype, count * length, length, torch.get_num_threads(), scores, allowed, heads, whole,
        factor, levels, threshold(probability), keep_scale(probability), weights, kept,
    )  # fmt: skip
    return kept, Weights(weights, None)
