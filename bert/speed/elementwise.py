"""The operations between the GEMMs of a layer, by PyTorch's functions, loops in C (CPU) or Triton kernels (GPU).

A loop reads every value once. For dropout, residual connection and LayerNorm PyTorch passes over them for the mask, the
sum, the norm and the cast, and in the backward pass for the cast, the sum of two gradients, the norm, the mask and a
cast again. The loop gives its result twice: in float32 for the next residual connection, and in the type of the
GEMMs for the next linear layer. PyTorch's GELU is as fast as one pass over memory; only its backward pass is
done here. For the softmax of attention with dropout on its weights PyTorch passes over all scores for the factor, the
mask, the softmax, the dropout and the cast; a loop works on a row while it is in the nearest cache.

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
from bert.speed.copies import Linear, copies_in_use, linear
from bert.speed.dropout import dropout_add, keep_mask, keep_scale, own_kernels, random_levels, threshold
from bert.speed.fp8 import Fp8Copy, OutputGradient
from bert.speed.kernels import usable
from bert.speed.native import is_wanted, loops
from bert.speed.scales import Quantized

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


def product(layer: Linear, x: Tensor, fused: bool, low: Quantized | None = None) -> Product:
    """Return the output of a linear layer for x [..., I]; without its bias if it is `fused` into the next operation.

    `low` is x in FP8, if it is known, for a layer in FP8.
    """
    if fused and usable(x, layer.weight):
        copy = _fp8_copy(layer)
        if copy is None:
            return Product(linear(x, layer.weight, None), layer.bias)
        output = OutputGradient(copy)
        return Product(copy.linear(x, layer.weight, None, low, output), layer.bias, output)
    return Product(layer(x, low))


def _fp8_copy(layer: Linear) -> Fp8Copy | None:
    """Return the copy that a layer multiplies here, if it is in FP8."""
    (copy,) = copies_in_use(layer.weight) or (None,)
    return copy if isinstance(copy, Fp8Copy) else None


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the output type of linear layers for `x`."""
    kind = x.device.type
    casts = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if casts else x.dtype


def residual_norm(
    x: Tensor | Product, residual: Tensor, norm: nn.LayerNorm, probability: float, fused: bool = False,
    reader: Linear | None = None,
) -> Stream:  # fmt: skip
    """Return LayerNorm(dropout(x) + residual) of x and residual [..., H].

    Args:
        x: what a linear layer gives.
        residual: as the LayerNorm before gave it.
        norm: with weight and bias; it says whether this is training.
        probability: of dropout.
        fused: whether in training on a CPU, and on a GPU, it is done in one pass each way, with random numbers of its
            own.
        reader: the linear layer that reads the result; if it is in FP8, a kernel also writes the result so.

    Raises:
        MissingToolError: there is no C compiler.
    """
    x, bias, output = x if isinstance(x, Product) else Product(x)
    if bias is not None or (fused and usable(x, norm.weight)):
        from bert.speed.kernels import norm as kernels

        copy = None if reader is None else _fp8_copy(reader)
        into = None if reader is None or copy is None else copy.input_cast(reader.weight)
        dropped = probability if norm.training else 0.0
        wide, narrow, *low = kernels.residual_norm(
            x, residual, norm.weight, norm.bias, norm.eps, dropped, bias, into, output
        )
        return Stream(wide, narrow, None if into is None else Quantized(low[0], low[1], into.scale))
    if fused and norm.training and own_kernels(x) and _fits(x, residual, norm):
        given = _ResidualNorm.apply(x, residual, norm.weight, norm.bias, norm.eps, probability)  # type: ignore[no-untyped-call]
        return Stream(given[0], given[-1])
    return stream(norm(dropout_add(x, residual, probability, norm.training)))


def gelu(x: Tensor | Product, fused: bool = False) -> Tensor:
    """Return GELU(x) of any shape, by the error function; `fused` as in `residual_norm`."""
    x, bias, _ = x if isinstance(x, Product) else Product(x)
    if bias is not None or (fused and usable(x)):
        from bert.speed.kernels import gelu as kernels

        return kernels.gelu(x, bias)
    if fused and own_kernels(x) and x.requires_grad and x.dtype in LOOP_TYPES and is_wanted():
        result: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
        return result
    return F.gelu(x)


def feed_forward(first: Linear, second: Linear, x: Tensor, fused: bool, low: Quantized | None = None) -> Product:
    """Return second(GELU(first(x))) for x [..., H]; `fused` and `low` as in `product` and `gelu`."""
    if fused and usable(x, first.weight, second.weight):
        copies = _fp8_copy(first), _fp8_copy(second)
        if copies[0] is not None and copies[1] is not None:
            from bert.speed.fp8_feed_forward import products

            output = OutputGradient(copies[1])
            return Product(products(x, first, second, copies[0], copies[1], low, output), second.bias, output)
    return product(second, gelu(product(first, x, fused, low), fused), fused)


def _fits(x: Tensor, residual: Tensor, norm: nn.LayerNorm) -> bool:
    """Whether the types are those of float32 weights, with or without autocast, or wider."""
    wide = residual.dtype
    return (
        wide == norm.weight.dtype == norm.bias.dtype == torch.promote_types(x.dtype, wide)
        and wide == torch.promote_types(wide, torch.float32)
    )  # fmt: skip


class _ResidualNorm(Function):
    """LayerNorm(dropout(x) + residual), in the residual's type and, if x has another one, in that too."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, probability: float
    ) -> tuple[Tensor, ...]:
        by_loops = _has_loops(x, residual)
        levels = random_levels(x, by_loops) if probability else None
        with torch.autocast("cpu", enabled=False):
            forward = _norm_loop_forward if by_loops else _norm_forward
            terms = _Terms(x.contiguous(), residual.contiguous(), levels, probability)
            *results, mean, inverse = forward(terms, weight, bias, eps)
        ctx.save_for_backward(*terms[:3], weight, mean, inverse)
        ctx.probability = probability
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, residual, levels, weight, mean, inverse = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            backward = _norm_loop_backward if _has_loops(x, residual) else _norm_backward
            own = [grad.contiguous() for grad in grads]
            terms = _Terms(x, residual, levels, ctx.probability)
            return *backward(own, terms, weight, mean, inverse), None, None


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
        loop = getattr(loops(), f"gelu_backward_{LOOP_TYPES[x.dtype]}")
        loop(x.numel(), torch.get_num_threads(), grad.data_ptr(), x.data_ptr(), grad_x.data_ptr())
        return grad_x


def _has_loops(x: Tensor, residual: Tensor) -> bool:
    return residual.dtype == torch.float32 and x.dtype in LOOP_TYPES and is_wanted()


class _Terms(NamedTuple):
    """The terms of dropout(x) + residual [..., H]."""

    x: Tensor
    residual: Tensor
    levels: Tensor | None
    """Random bits of dropout; None without dropout."""
    probability: float
    """Of dropout."""

    def sum(self) -> Tensor:
        """Return the sum, in the type of the residual."""
        wide = self.x.to(self.residual.dtype)
        return self.residual + (wide if self.levels is None else wide * self.factors(wide.dtype))

    def factors(self, dtype: torch.dtype) -> Tensor:
        """Return what dropout multiplies x by."""
        assert self.levels is not None
        return keep_mask(self.levels, self.probability, dtype).mul_(keep_scale(self.probability))


def _norm_forward(terms: _Terms, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
    """Return the norm [..., H], in the type of x too if that is another one, and of the sum the mean and the inverse of
    the standard deviation [..., 1] (Ba et al. 2016, arXiv 1607.06450, eq. 3 over H).
    """
    summed = terms.sum()
    mean = summed.mean(-1, keepdim=True)
    inverse = torch.rsqrt((summed - mean).square().mean(-1, keepdim=True) + eps)
    wide = (summed - mean) * inverse * weight + bias
    return wide, *([] if terms.x.dtype == wide.dtype else [wide.to(terms.x.dtype)]), mean, inverse


def _norm_backward(
    grads: list[Tensor], terms: _Terms, weight: Tensor, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x and residual [..., H], and of weight and bias [H], from those of the results."""
    grad = grads[0] if len(grads) == 1 else grads[0] + grads[1].to(grads[0].dtype)
    normed = (terms.sum() - mean) * inverse
    weighted = grad * weight
    along = (weighted * normed).mean(-1, keepdim=True)
    grad_sum = (weighted - weighted.mean(-1, keepdim=True) - normed * along) * inverse
    grad_x = grad_sum if terms.levels is None else grad_sum * terms.factors(grad_sum.dtype)
    rows = tuple(range(grad.dim() - 1))
    return grad_x.to(terms.x.dtype), grad_sum, (grad * normed).sum(rows), grad.sum(rows)


def _norm_loop_forward(terms: _Terms, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
    """`_norm_forward`, in one pass."""
    x, residual, levels, probability = terms
    width = x.shape[-1]
    wide = torch.empty_like(residual)
    narrow = None if x.dtype == wide.dtype else torch.empty_like(x)
    mean, inverse = (torch.empty(*x.shape[:-1], 1) for _ in range(2))
    weight, bias = weight.contiguous(), bias.contiguous()
    getattr(loops(), f"norm_forward_{LOOP_TYPES[x.dtype]}")(
        mean.numel(), width, torch.get_num_threads(), x.data_ptr(), residual.data_ptr(), address(levels),
        threshold(probability), keep_scale(probability), eps, weight.data_ptr(), bias.data_ptr(), wide.data_ptr(),
        address(narrow), mean.data_ptr(), inverse.data_ptr(),
    )  # fmt: skip
    return wide, *([] if narrow is None else [narrow]), mean, inverse


def _norm_loop_backward(
    grads: list[Tensor], terms: _Terms, weight: Tensor, mean: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_norm_backward`, in one pass."""
    x, residual, levels, probability = terms
    width, threads = x.shape[-1], torch.get_num_threads()
    grad_x, grad_residual = torch.empty_like(x), torch.empty_like(residual)
    sums, weight = torch.zeros(threads, 3, width), weight.contiguous()
    getattr(loops(), f"norm_backward_{LOOP_TYPES[x.dtype]}")(
        mean.numel(), width, threads, grads[0].data_ptr(), address(grads[1] if len(grads) > 1 else None),
        x.data_ptr(), residual.data_ptr(), address(levels), threshold(probability), keep_scale(probability),
        weight.data_ptr(), mean.data_ptr(), inverse.data_ptr(), grad_x.data_ptr(), grad_residual.data_ptr(),
        sums.data_ptr(),
    )  # fmt: skip
    grad_weight, grad_bias, _ = sums.sum(0)
    return grad_x, grad_residual, grad_weight, grad_bias


def address(tensor: Tensor | None) -> int | None:
    """Return where the first element lies, for a loop; NULL for none."""
    return None if tensor is None else tensor.data_ptr()


class Weights(NamedTuple):
    """What the backward pass needs of the weights before dropout [R, m, m]."""

    values: Tensor
    """Of loops those that were dropped have their sign bit set."""
    levels: Tensor | None
    """Random bits of dropout; None without dropout, and of loops."""


def softmax_dropout(
    scores: Tensor, mask: Tensor | None, factor: float, probability: float, fused: bool
) -> tuple[Tensor, Weights]:
    """Return dropout(softmax(scores factor)) [R, m, m] in the type of the scores, and what its backward pass needs.

    Args:
        scores: [R, m, m] of a CPU, in one piece; written to.
        mask: bool [b, 1, 1, m] or [b, 1, m, m], True where may be attended to; None where everywhere. A row that may
            attend to nothing gets equal weights.
        factor: of the scores.
        probability: of dropout.
        fused: whether it is done in one pass, with random numbers of its own.
    """
    fused = fused and scores.dtype in LOOP_TYPES and is_wanted()
    levels = random_levels(scores, fused) if probability else None
    if fused:
        return _softmax_loop_forward(scores, mask, factor, levels, probability)
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


def softmax_dropout_backward(
    grad: Tensor, saved: Weights, factor: float, probability: float, fused: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the scores from that of the result, and the result again: [R, m, m] each.

    The arguments are those of `softmax_dropout`. `grad` is written to.
    """
    weights, levels = saved
    if fused and grad.dtype in LOOP_TYPES and is_wanted():
        return _softmax_loop_backward(grad, weights, factor, probability)
    wide, kept = grad.to(weights.dtype), weights
    if levels is not None:
        kept = keep_mask(levels, probability, weights.dtype)
        wide.mul_(kept)
        kept.mul_(weights)
    scores = softmax_gradient(wide, weights)
    return scores.mul_(factor * keep_scale(probability)).to(grad.dtype), _scaled(kept, probability, grad)


def _scaled(kept: Tensor, probability: float, like: Tensor) -> Tensor:
    return torch.mul(kept, keep_scale(probability), out=torch.empty_like(like)) if probability else kept.to(like.dtype)


def _softmax_loop_forward(
    scores: Tensor, mask: Tensor | None, factor: float, levels: Tensor | None, probability: float
) -> tuple[Tensor, Weights]:
    count, length, _ = scores.shape
    allowed, heads, whole = None, 1, False
    if mask is not None:
        allowed, heads, whole = mask.contiguous(), count // len(mask), mask.shape[2] > 1
    weights, kept = torch.empty(scores.shape), torch.empty_like(scores)
    getattr(loops(), f"softmax_forward_{LOOP_TYPES[scores.dtype]}")(
        count * length, length, torch.get_num_threads(), scores.data_ptr(), address(allowed), heads, whole, factor,
        address(levels), threshold(probability), keep_scale(probability), weights.data_ptr(), kept.data_ptr(),
    )  # fmt: skip
    return kept, Weights(weights, None)


def _softmax_loop_backward(grad: Tensor, weights: Tensor, factor: float, probability: float) -> tuple[Tensor, Tensor]:
    kept, length = torch.empty_like(grad), grad.shape[-1]
    getattr(loops(), f"softmax_backward_{LOOP_TYPES[grad.dtype]}")(
        grad.numel() // length, length, torch.get_num_threads(), grad.data_ptr(), weights.data_ptr(), factor,
        keep_scale(probability), kept.data_ptr(),
    )  # fmt: skip
    return grad, kept
