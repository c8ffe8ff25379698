"""Attention over concatenated sequences, by cumulative lengths: operators for a GPU that support dropout.

torch.nn.attention.varlen has no dropout, which training needs; these are the operators beneath it, and one of
bert.speed.kernels. Which one is fastest depends on the GPU and on the lengths: bert.speed.attention_choice measures
them.

Measured on an H100: docs/results/2026-11-26-h100.md.

Shapes: B sequences, S tokens of the longest, T tokens of all sequences, H hidden width, N heads, D width of a head.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from bert.model.packing import Bounds
from bert.speed.kernels import processor, usable
from bert.speed.native import triton_missing

_HALF = (torch.float16, torch.bfloat16)
# The first release whose cuDNN attention by lengths is right: before it, the backward pass takes the width of a head
# for the length of the longest sequence and writes out of bounds (pytorch#186142; releases 2.10 to 2.13 are affected).
_CUDNN_SINCE = (2, 14)
_CUDNN_VERSION = 91800  # 9.18.0
_TRITON_WIDTHS = (16, 32, 64, 128)


@dataclass(frozen=True)
class Kind:
    """What decides whether an operator can be used."""

    device: torch.device
    dtype: torch.dtype
    """Type of queries, keys and values."""
    width: int
    """D."""
    compiled: bool = False
    """Whether torch.compile compiles the layers."""


@dataclass(frozen=True)
class Operator:
    """One way to compute attention by cumulative lengths."""

    run: Callable[[Tensor, Bounds, float, Tensor | None, bool], Tensor]
    """(qkv [T, 3, N, D], bounds, dropout probability, bias, fused) -> context [T, N, D]; `bias` and `fused` are those
    of bert.model.attention.attend."""
    missing: Callable[[Kind], str | None]
    """Why it cannot be used; None if it can."""


def default_operator(kind: Kind) -> str | None:
    """Return the first operator that can be used, which needs no measurement; None if none can, as on a CPU."""
    if kind.device.type == "cpu":
        return None
    return next((name for name, operator in OPERATORS.items() if operator.missing(kind) is None), None)


def _half_missing(kind: Kind, capability: int, widest: int) -> str | None:
    """What operators for 16-bit types lack on GPUs from a compute capability on, with heads of at most `widest`."""
    if kind.dtype not in _HALF:
        return f"needs bf16 or fp16, not {_name(kind.dtype)}"
    if processor(kind.device).major < capability:
        return f"needs compute capability {capability}.0"
    if kind.width > widest or kind.width % 8:
        return f"needs heads of a multiple of 8 and at most {widest} columns, not {kind.width}"
    return None


def _flash_missing(kind: Kind) -> str | None:
    if lacking := _half_missing(kind, 8, 256):
        return lacking
    if kind.device.type == "cuda" and not torch.backends.cuda.is_flash_attention_available():
        return "this build of PyTorch has no FlashAttention"
    return None


def _flash(qkv: Tensor, bounds: Bounds, probability: float, bias: Tensor | None, fused: bool) -> Tensor:
    """FlashAttention-2 (Dao 2023, arXiv 2307.08691)."""
    query, key, value = _split(qkv, bias, fused)
    ends, longest = bounds
    context: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, ends, ends, longest, longest, probability, False, False
    )[0]
    return context


def _triton_missing(kind: Kind) -> str | None:
    if kind.compiled:
        return "not with compiled layers"
    if triton_missing() is not None:
        return "needs Triton"
    if lacking := _half_missing(kind, 8, 128):
        return lacking
    if kind.width not in _TRITON_WIDTHS:
        return f"needs heads of {', '.join(map(str, _TRITON_WIDTHS))} columns, not {kind.width}"
    return None


def _triton(qkv: Tensor, bounds: Bounds, probability: float, bias: Tensor | None, _: bool) -> Tensor:
    """The kernels of bert.speed.kernels.attention, which write the gradients into one tensor and sum those of bias."""
    from bert.speed.kernels.attention import attention

    return attention(qkv, bounds.ends, bounds.longest, probability, bias)


def _cudnn_missing(kind: Kind) -> str | None:
    release = _release(torch.__version__)
    if release < _CUDNN_SINCE:
        since = ".".join(map(str, _CUDNN_SINCE))
        return f"needs PyTorch {since}: the backward pass of {torch.__version__} writes out of bounds (pytorch#186142)"
    return _cudnn_unsupported(kind)


def _cudnn_unsupported(kind: Kind) -> str | None:
    if kind.compiled:
        return "not with compiled layers"
    if lacking := _half_missing(kind, 9, 128):
        return lacking
    if kind.device.type == "cuda" and (torch.backends.cudnn.version() or 0) < _CUDNN_VERSION:
        return f"needs cuDNN 9.18, found {torch.backends.cudnn.version()}"
    return None


def _cudnn(qkv: Tensor, bounds: Bounds, probability: float, bias: Tensor | None, fused: bool) -> Tensor:
    query, key, value = _split(qkv, bias, fused)
    ends, longest = bounds
    context: Tensor = torch.ops.aten._cudnn_attention_forward(
        query, key, value, None, ends, ends, longest, longest, qkv.requires_grad, probability, False, False
    )[0]
    return context


def _split(qkv: Tensor, bias: Tensor | None, fused: bool) -> tuple[Tensor, ...]:
    """Queries, keys and values [T, N, D]; with Triton one kernel writes their three gradients into one tensor."""
    if fused and usable(qkv):
        from bert.speed.kernels.heads import unbind

        return unbind(qkv, bias)
    return qkv.unbind(1)


def _cudnn_padded(qkv: Tensor, bounds: Bounds, probability: float, bias: Tensor | None, _: bool) -> Tensor:
    context: Tensor = _Padded.apply(qkv, bounds, probability, bias)  # type: ignore[no-untyped-call]
    return context


class _Padded(Function):
    """cuDNN's attention on rows padded to the longest sequence, whose padding a mask leaves out."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bounds: Bounds, probability: float, bias: Tensor | None) -> Tensor:
        ends, longest = bounds
        rows, slots = ends.shape[0] - 1, _slots(bounds, qkv.shape[0])
        padded = qkv.new_zeros(rows * longest, *qkv.shape[1:]).index_copy_(0, slots, qkv)
        query, key, value = _heads(padded, longest).unbind(0)
        lengths = ends.diff()[:, None, None, None]
        outside = torch.arange(longest, device=qkv.device) >= lengths
        mask = torch.zeros_like(outside, dtype=qkv.dtype).masked_fill_(outside, torch.finfo(qkv.dtype).min)
        attended = torch.ops.aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, ctx.needs_input_grad[0], probability, False, False
        )
        context, logsumexp, _, _, longest_query, longest_key, seed, offset, _ = attended
        ctx.save_for_backward(slots, padded, mask, context, logsumexp, seed, offset)
        ctx.longest = longest, longest_query, longest_key
        ctx.probability, ctx.bias_dtype = probability, None if bias is None else bias.dtype
        real: Tensor = context.transpose(1, 2).flatten(0, 1).index_select(0, slots)
        return real

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        slots, padded, mask, context, logsumexp, seed, offset = ctx.saved_tensors
        longest, longest_query, longest_key = ctx.longest
        given = grad.new_zeros(padded.shape[0], *grad.shape[1:]).index_copy_(0, slots, grad)
        given = given.unflatten(0, (-1, longest)).transpose(1, 2)
        grads = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
            given, *_heads(padded, longest).unbind(0), context, logsumexp, seed, offset, mask, None, None,
            longest_query, longest_key, ctx.probability, False,
        )  # fmt: skip
        result = grad.new_empty(grad.shape[0], 3, *grad.shape[1:])
        for place, one in enumerate(grads):
            result[:, place] = one.transpose(1, 2).flatten(0, 1).index_select(0, slots)
        return result, None, None, _bias_gradient(result, ctx.bias_dtype)


def _heads(padded: Tensor, longest: int) -> Tensor:
    """[B x S, 3, N, D] -> [3, B, N, S, D] in the same memory."""
    heads: Tensor = padded.unflatten(0, (-1, longest)).permute(2, 0, 3, 1, 4)
    return heads


def _slots(bounds: Bounds, tokens: int) -> Tensor:
    """Row x S + column in padded rows of each token [T], computed on the device."""
    ends, longest = bounds
    token = torch.arange(tokens, device=ends.device, dtype=ends.dtype)
    row = torch.searchsorted(ends, token, right=True) - 1
    return row * longest + token - ends[row]


def _efficient_missing(kind: Kind) -> str | None:
    if kind.compiled:
        return "not with compiled layers"
    if kind.dtype not in (*_HALF, torch.float32):
        return f"needs bf16, fp16 or float32, not {_name(kind.dtype)}"
    least = 8 if kind.dtype == torch.bfloat16 else 5
    if processor(kind.device).major < least:
        return f"needs compute capability {least}.0 in {_name(kind.dtype)}"
    if kind.width % (16 // kind.dtype.itemsize):
        return f"needs heads of a multiple of {16 // kind.dtype.itemsize} columns, not {kind.width}"
    return None


def _efficient(qkv: Tensor, bounds: Bounds, probability: float, bias: Tensor | None, _: bool) -> Tensor:
    if probability > 0.0:
        return _efficient_with_dropout(qkv, bounds, probability, bias)
    context: Tensor = _Efficient.apply(qkv, bounds, bias)  # type: ignore[no-untyped-call]
    return context


def _efficient_with_dropout(qkv: Tensor, bounds: Bounds, probability: float, bias: Tensor | None) -> Tensor:
    """PyTorch's attention on rows padded to the longest sequence.

    By cumulative lengths, the backward pass of the memory-efficient operator drops other weights than its forward pass
    did (found on an H100 with torch 2.11, in bf16 and float32): the gradients are wrong.
    """
    ends, longest = bounds
    rows, slots = ends.shape[0] - 1, _slots(bounds, qkv.shape[0])
    if bias is not None:
        qkv = _Biased.apply(qkv, bias)  # type: ignore[no-untyped-call]
    padded = qkv.new_zeros(rows * longest, *qkv.shape[1:]).index_copy(0, slots, qkv)
    query, key, value = _heads(padded, longest).unbind(0)
    real = (torch.arange(longest, device=qkv.device) < ends.diff()[:, None])[:, None, None, :]
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=real, dropout_p=probability)
    context: Tensor = attended.transpose(1, 2).flatten(0, 1).index_select(0, slots)
    return context


class _Biased(Function):
    """Returns its input, to which a bias was added without tracking its gradient, and computes that."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor) -> Tensor:
        ctx.dtype = bias.dtype
        return qkv.view_as(qkv)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, _bias_gradient(grad, ctx.dtype)


class _Efficient(Function):
    """CUTLASS' memory-efficient attention (Rabe and Staats 2021, arXiv 2112.05682), for older GPUs and float32 too.

    Its backward pass writes the gradients of queries, keys and values into one tensor.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bounds: Bounds, bias: Tensor | None) -> Tensor:
        ends, longest = bounds.ends, min(bounds.longest, qkv.shape[0])
        query, key, value = qkv.unbind(1)
        context, logsumexp, seed, offset, _, _ = torch.ops.aten._efficient_attention_forward(
            query[None], key[None], value[None], None, ends, ends, longest, longest, 0.0, 0, ctx.needs_input_grad[0]
        )
        ctx.save_for_backward(qkv, ends, context, logsumexp, seed, offset)
        ctx.longest, ctx.bias_dtype = longest, None if bias is None else bias.dtype
        only: Tensor = context[0]
        return only

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        qkv, ends, context, logsumexp, seed, offset = ctx.saved_tensors
        query, key, value = qkv.unbind(1)
        grads = torch.ops.aten._efficient_attention_backward(
            grad[None], query[None], key[None], value[None], None, context, ends, ends, ctx.longest, ctx.longest,
            logsumexp, 0.0, seed, offset, 0, False, shared_storage_dqdkdv=True,
        )  # fmt: skip
        result = _together(grads[0][0], grads[1][0], grads[2][0])
        return result, None, _bias_gradient(result, ctx.bias_dtype)


def _together(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Gradients [T, 3, N, D] of three [T, N, D], without a copy where they are parts of one tensor."""
    tokens, heads, depth = query.shape
    hidden = heads * depth
    places = [one.storage_offset() - query.storage_offset() for one in (query, key, value)]
    shared = all(one.untyped_storage()._cdata == query.untyped_storage()._cdata for one in (key, value))
    if shared and places == [0, hidden, 2 * hidden] and query.stride() == (3 * hidden, depth, 1):
        return query.as_strided((tokens, 3, heads, depth), (3 * hidden, hidden, depth, 1))
    return torch.stack((query, key, value), 1)


def _bias_gradient(grad: Tensor, dtype: torch.dtype | None) -> Tensor | None:
    return None if dtype is None else grad.flatten(1).sum(0, dtype=torch.float32).to(dtype)


def _release(version: str) -> tuple[int, ...]:
    """("2.13.0+cu130") -> (2, 13)."""
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


OPERATORS = {
    "flash": Operator(_flash, _flash_missing),
    "triton": Operator(_triton, _triton_missing),
    "cudnn": Operator(_cudnn, _cudnn_missing),
    "cudnn-padded": Operator(_cudnn_padded, _cudnn_unsupported),
    "efficient": Operator(_efficient, _efficient_missing),
}
"""By name; the first that can be used is the default where nothing was measured."""
