"""The attention of a fast step: by chunks on a CPU, by cumulative lengths on a GPU.

PyTorch's CPU attention falls back to unfused operations with dropout. Here one function has the dropout of
bert.speed.elementwise, and works on a few sequences at a time, so that their weights stay in cache.

On a GPU the operator follows from device, type and width of the heads alone, so a resumed run takes the same one: the
kernels of bert.speed.kernels.attention where Triton can run them, else FlashAttention-2, else PyTorch's attention on
padded rows. torch.nn.attention.varlen has no dropout, which training needs; the second one is the operator beneath it.
Measured on an H100: docs/results/2026-11-26-h100.md.

Shapes: B sequences, S tokens of the longest, T tokens of all sequences, N heads, D width of a head; a chunk has b
sequences of at most m tokens, t in all.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from bert.data.batch import Unpadded
from bert.private import flash_attention, multiplies_bf16
from bert.speed.elementwise import dropout, has_loops, softmax_dropout, softmax_dropout_backward
from bert.speed.kernels import processor
from bert.speed.native import triton_missing

Where = Tensor | Unpadded | None
"""bool mask of rows [B, 1, 1, S], True for tokens that may be attended to, or None if all may; or where tokens without
padding lie."""
FLASH, TRITON = "flash", "triton"
_TRITON_WIDTHS = (16, 32, 64, 128)
_WIDEST_FLASH = 256
_OLDEST = 8  # major compute capability
# Attention weights that are worked on together: 1 MiB in float32, which stays in the cache of a core.
_WEIGHTS_AT_ONCE = 1 << 18
# Sequences of different lengths are padded to the longest of them where at most this part of the weights is wasted.
_MOST_WASTE = 0.25
# So few weights cost less than one more call does.
_FEW_WEIGHTS = 1 << 16


def attend(
    qkv: Tensor, where: Where, probability: float, bias: Tensor | None = None, key: Tensor | None = None
) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)) V, with dropout on the weights (Vaswani et al. 2017, eq. 1).

    Args:
        qkv: queries, keys and values [B, S, 3, N, D], or [T, 3, N, D] without padding.
        where: the tokens that may be attended to.
        probability: of dropout.
        bias: [3 H], added to `qkv` without tracking its gradient, which is computed here; only where `sums_bias`.
        key: of the dropout of a kernel, int64 [1]; None draws one.

    Returns:
        [B, S, N, D] or [T, N, D].
    """
    if qkv.device.type == "cpu":
        if isinstance(where, Unpadded) or probability > 0.0 or qkv.requires_grad:
            return _attend_in_chunks(qkv, where, probability)
    elif isinstance(where, Unpadded):
        operator = operator_for(qkv.device, qkv.dtype, qkv.shape[-1])
        if operator == TRITON:
            from bert.speed.kernels.attention import attention

            return attention(qkv, where.work, probability, bias, key)
        if operator == FLASH:
            return flash_attention(qkv[:, 0], qkv[:, 1], qkv[:, 2], where.ends, where.columns, probability)
        return _attend_padded(qkv, where, probability)
    assert not isinstance(where, Unpadded)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=where, dropout_p=probability).transpose(1, 2)


def sums_bias(where: Where, device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether `attend` computes the gradient of a bias, for tokens so laid out and heads of a type and width."""
    return isinstance(where, Unpadded) and operator_for(device, dtype, width) == TRITON


@functools.cache
def operator_for(device: torch.device, dtype: torch.dtype, width: int) -> str | None:
    """Return the operator for heads of a width and type on a GPU: TRITON, FLASH, or None for padded rows."""
    if device.type == "cpu" or dtype not in (torch.float16, torch.bfloat16) or processor(device).major < _OLDEST:
        return None
    if width in _TRITON_WIDTHS and triton_missing() is None:
        return TRITON
    built = device.type != "cuda" or torch.backends.cuda.is_flash_attention_available()
    return FLASH if built and width <= _WIDEST_FLASH and width % 8 == 0 else None


def _attend_padded(qkv: Tensor, where: Unpadded, probability: float) -> Tensor:
    """PyTorch's attention on the padded rows of the batch."""
    query, key, value = where.put_back(qkv).permute(2, 0, 3, 1, 4).unbind(0)
    real = where.put_back(qkv.new_ones(len(qkv), dtype=torch.bool))[:, None, None, :]
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=real, dropout_p=probability)
    return where.take(attended.transpose(1, 2))


@dataclass(frozen=True)
class Chunk:
    """Neighboring sequences whose attention is computed at once."""

    first: int
    """Token at which it begins."""
    lengths: tuple[int, ...]
    """Tokens of each sequence."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths)

    @property
    def padded(self) -> bool:
        """Whether its sequences differ in length."""
        return min(self.lengths) != self.longest

    @functools.cached_property
    def places(self) -> Tensor:
        """Row x longest + column of each of its tokens [t], on the CPU."""
        with torch.inference_mode(False):  # an evaluation may ask first, and autograd saves no tensor of that mode
            return torch.from_numpy(np.flatnonzero(np.arange(self.longest) < np.array(self.lengths)[:, None]))

    def take(self, tokens: Tensor) -> Tensor:
        """Return [b, m, ...] of what all tokens [T, ...] have; zeros where there is none."""
        own = tokens[self.first : self.first + sum(self.lengths)]
        if self.padded:
            zeros = own.new_zeros(len(self.lengths) * self.longest, *own.shape[1:])
            own = zeros.index_copy(0, self.places.to(own.device), own)
        rows: Tensor = own.unflatten(0, (len(self.lengths), self.longest))
        return rows

    def real(self, rows: Tensor) -> Tensor:
        """Return the tokens [t, ...] of [b, m, ...] in their order."""
        flat = rows.flatten(0, 1)
        return flat.index_select(0, self.places.to(flat.device)) if self.padded else flat

    def put(self, tokens: Tensor, rows: Tensor) -> None:
        """Write [b, m, ...] to the places of its tokens in [T, ...]."""
        own = tokens[self.first : self.first + sum(self.lengths)]
        if self.padded:
            own.copy_(self.real(rows))
        else:
            own.unflatten(0, (len(self.lengths), self.longest)).copy_(rows)

    def mask(self, device: torch.device) -> Tensor | None:
        """Return bool [b, 1, 1, m], True for real tokens; None if all are."""
        if not self.padded:
            return None
        columns = torch.arange(self.longest, device=device)
        return (columns < torch.tensor(self.lengths, device=device)[:, None])[:, None, None, :]


@functools.lru_cache(maxsize=8)
def chunks(lengths: tuple[int, ...], heads: int) -> tuple[Chunk, ...]:
    """Return the chunks of a batch of sequences of these lengths, of at least 1 token each; once for all layers."""
    cut, first = list[Chunk](), 0
    for length in lengths:
        if cut and _fit([*cut[-1].lengths, length], heads):
            cut[-1] = Chunk(cut[-1].first, (*cut[-1].lengths, length))
        else:
            cut.append(Chunk(first, (length,)))
        first += length
    return tuple(cut)


def _fit(lengths: list[int], heads: int) -> bool:
    weights = heads * len(lengths) * max(lengths) ** 2
    wasted = weights - heads * sum(length**2 for length in lengths)
    return weights <= _FEW_WEIGHTS or (weights <= _WEIGHTS_AT_ONCE and wasted <= _MOST_WASTE * weights)


def _attend_in_chunks(qkv: Tensor, where: Where, probability: float) -> Tensor:
    rows, heads, mask = qkv, qkv.shape[-2], None
    if isinstance(where, Unpadded):
        parts = chunks(where.lengths, heads)
    else:
        rows, mask, parts = qkv.flatten(0, 1), where, chunks((qkv.shape[1],) * len(qkv), heads)
    # In bf16 only where the CPU has instructions for it; else in float32.
    low = qkv.dtype == torch.bfloat16 and multiplies_bf16()
    products = qkv.dtype if low else torch.promote_types(qkv.dtype, torch.float32)
    if (probability > 0.0 or qkv.requires_grad) and has_loops(qkv, products):
        found: Tensor = _Attention.apply(rows, parts, mask, probability, products)  # type: ignore[no-untyped-call]
    else:
        found = torch.cat([_attend_alone(part, rows, mask, probability, products) for part in parts])
    return found.view(qkv[..., 0, :, :].shape)


def _attend_alone(part: Chunk, qkv: Tensor, mask: Tensor | None, probability: float, products: torch.dtype) -> Tensor:
    """Attention of a chunk by PyTorch's functions."""
    query, key, value = part.take(qkv).permute(2, 0, 3, 1, 4).unbind(0)
    allowed = _own_mask(part, mask)
    if probability == 0.0:
        return part.real(F.scaled_dot_product_attention(query, key, value, attn_mask=allowed).transpose(1, 2))
    wide = torch.promote_types(products, torch.float32)
    with torch.autocast("cpu", enabled=False):
        scores = (query.to(products) @ key.to(products).transpose(2, 3)).to(wide) * qkv.shape[-1] ** -0.5
        if allowed is not None:
            # The lowest finite number: a sequence without any real token gets equal weights, not NaN.
            scores = scores + scores.new_zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(wide).min)
        weights = dropout(scores.softmax(-1), probability, True)
        return part.real((weights.to(products) @ value.to(products)).to(qkv.dtype).transpose(1, 2))


class _Attention(Function):
    """Attention with dropout on its weights, whose softmax is at least float32."""

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, parts: tuple[Chunk, ...], mask: Tensor | None, probability: float, products: torch.dtype
    ) -> Tensor:
        """Return [T, N, D] of qkv [T, 3, N, D]; a mask [B, 1, 1, S] leaves keys of rows out."""
        with torch.autocast("cpu", enabled=False):
            ctx.parts, ctx.products, ctx.how = parts, products, (qkv.shape[-1] ** -0.5, probability)
            context = torch.empty_like(qkv[:, 0])
            saved = list[Tensor]()
            for part in parts:
                own, shape = _by_head(part.take(qkv), products)
                scores = torch.bmm(own[0], own[1].transpose(1, 2))
                kept, weights = softmax_dropout(scores, _own_mask(part, mask), *ctx.how)
                part.put(context, torch.bmm(kept, own[2]).view(shape[1:]).transpose(1, 2))
                saved.append(weights)
            ctx.save_for_backward(qkv, *saved)
            return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        qkv, *saved = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            grad_qkv = torch.empty_like(qkv)
            for part, weights in zip(ctx.parts, saved, strict=True):
                (given,), _ = _by_head(part.take(grad)[:, :, None], ctx.products)
                (query, key, value), shape = _by_head(part.take(qkv), ctx.products)
                scores, kept = softmax_dropout_backward(torch.bmm(given, value.transpose(1, 2)), weights, *ctx.how)
                grads = torch.empty(3, *query.shape, dtype=query.dtype)
                torch.bmm(scores, key, out=grads[0])
                torch.bmm(scores.transpose(1, 2), query, out=grads[1])
                torch.bmm(kept.transpose(1, 2), given, out=grads[2])
                part.put(grad_qkv, grads.view(shape).permute(1, 3, 0, 2, 4))
            return grad_qkv, None, None, None, None


def _own_mask(part: Chunk, mask: Tensor | None) -> Tensor | None:
    """The mask [b, 1, 1, m] of a chunk of a batch: of its rows, or of what was padded to its longest."""
    if mask is None:
        return part.mask(torch.device("cpu"))
    first = part.first // part.longest
    return mask[first : first + len(part.lengths)]


def _by_head(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, torch.Size]:
    """[b, m, K, N, D] of any strides and type -> own memory [K, b x N, m, D], and the shape [K, b, N, m, D]."""
    heads = tensor.permute(2, 0, 3, 1, 4)
    return torch.empty(heads.shape, dtype=dtype).copy_(heads).flatten(1, 2), heads.shape
