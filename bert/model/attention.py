"""Self-attention with a fused QKV projection, on padded rows or concatenated sequences.

Shapes: B sequences, S tokens, T real tokens of all sequences, H hidden width, N heads, D width of a head (H = N x D).

PyTorch's CPU attention falls back to unfused operations with dropout; this module replaces it with one function
with the dropout of bert.speed.dropout, a few sequences at a time so that their weights stay in cache. Everywhere
else PyTorch's own kernels run.
"""

from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from bert.model.config import ModelConfig
from bert.model.packing import Bounds, Chunk, Unpadded, chunks
from bert.model.varlen import attend_by_lengths, operator_for
from bert.private import multiplies_bf16
from bert.speed.copies import Linear, linear
from bert.speed.dropout import own_kernels
from bert.speed.elementwise import Weights, product_dtype, softmax_dropout, softmax_dropout_backward
from bert.speed.kernels import usable
from bert.speed.scales import Quantized

Where = Tensor | Unpadded | Bounds | None
"""bool mask of rows, True for tokens that may be attended to, or None if all may: [B, 1, 1, S]. Or where tokens without
padding lie (bert.model.packing); by bounds on a GPU."""


def attend(
    qkv: Tensor,
    where: Where,
    dropout_probability: float,
    *,
    in_chunks: bool = True,
    in_bf16: bool = True,
    fused: bool = False,
    bias: Tensor | None = None,
) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)) V, with dropout on the weights (Vaswani et al. 2017, eq. 1).

    Args:
        qkv: queries, keys and values [B, S, 3, N, D], or [T, 3, N, D] without padding.
        where: the tokens that may be attended to.
        dropout_probability: of the weights.
        in_chunks: whether a CPU works on a few sequences at a time.
        in_bf16: whether a CPU multiplies bf16 matrices as such, if it has instructions for it; else in float32.
        fused: whether the operations between the GEMMs are fused (bert.speed.elementwise).
        bias: [3 H], added to `qkv` without tracking its gradient, which is computed here; only where
            bert.model.varlen has an operator.

    Returns:
        [B, S, N, D] or [T, N, D].

    Raises:
        MissingToolError: `fused`, and there is no C compiler.
    """
    if own_kernels(qkv) and (dropout_probability > 0.0 or qkv.requires_grad):
        return _attend_here(qkv, where, dropout_probability, in_chunks, in_bf16, fused)
    if _by_lengths(where, qkv.device):
        bounds = where.bounds if isinstance(where, Unpadded) else where
        operator = operator_for(qkv.device, qkv.dtype, qkv.shape[-1])
        return attend_by_lengths(operator, qkv, bounds, dropout_probability, bias, fused)
    if isinstance(where, Unpadded):
        return _attend_apart(qkv, where, dropout_probability, in_chunks)
    assert not isinstance(where, Bounds)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    context = F.scaled_dot_product_attention(query, key, value, attn_mask=where, dropout_p=dropout_probability)
    return context.transpose(1, 2)


class SelfAttention(nn.Module):
    """Multi-head self-attention, from the hidden states to the output projection (before dropout and residual)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.in_chunks = True
        self.in_bf16 = True
        self.fused = False
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, where: Where) -> Tensor:
        """Return [B, S, H] for [B, S, H], or [T, H] for [T, H], for tokens in the layout `where`."""
        output: Tensor = self.output(self.attended(hidden, where))
        return output

    def attended(self, hidden: Tensor, where: Where, low: Quantized | None = None) -> Tensor:
        """Return the context of all heads [..., H], before the output projection.

        `low` is `hidden` in FP8, if a kernel has written it.
        """
        width = self.output.in_features // self.num_heads
        if (
            self.fused
            and usable(hidden, self.qkv.weight)
            and _by_lengths(where, hidden.device)
            and operator_for(hidden.device, product_dtype(hidden), width) is not None
        ):
            qkv = linear(hidden, self.qkv.weight, self.qkv.bias.detach(), low)
            return self.context(qkv, where, self.qkv.bias)
        return self.context(self.qkv(hidden, low), where)

    def context(self, qkv: Tensor, where: Where, bias: Tensor | None = None) -> Tensor:
        """Return what the heads attend to [..., H], of their queries, keys and values side by side [..., 3 H].

        `bias` is as in `attend`.
        """
        probability = self.dropout if self.training else 0.0
        how = {"in_chunks": self.in_chunks, "in_bf16": self.in_bf16, "fused": self.fused}
        heads = qkv.unflatten(-1, (3, self.num_heads, -1))
        return attend(heads, where, probability, bias=bias, **how).flatten(-2)


def _by_lengths(where: Where, device: torch.device) -> TypeGuard[Unpadded | Bounds]:
    return isinstance(where, Unpadded | Bounds) and device.type != "cpu"


def _attend_apart(qkv: Tensor, where: Unpadded, probability: float, in_chunks: bool) -> Tensor:
    parts = []
    for chunk in where.chunks(qkv.shape[2], in_chunks):
        query, key, value = chunk.take(qkv).permute(2, 0, 3, 1, 4).unbind(0)
        mask = chunk.mask(qkv.device)
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=probability)
        parts.append(chunk.real(context.transpose(1, 2)))
    return torch.cat(parts)


def _attend_here(qkv: Tensor, where: Where, probability: float, in_chunks: bool, in_bf16: bool, fused: bool) -> Tensor:
    heads, products = qkv.shape[-2], _product_type(qkv.dtype, in_bf16)
    if isinstance(where, Unpadded):
        parts = where.chunks(heads, in_chunks)
        found: Tensor = _Attention.apply(qkv, parts, None, probability, products, fused)  # type: ignore[no-untyped-call]
        return found
    rows, length = qkv.shape[:2]
    parts = tuple(chunks((length,) * rows, heads, in_chunks))
    found = _Attention.apply(qkv.flatten(0, 1), parts, where, probability, products, fused)  # type: ignore[no-untyped-call]
    padded: Tensor = found.unflatten(0, (rows, length))
    return padded


def _product_type(dtype: torch.dtype, in_bf16: bool) -> torch.dtype:
    if in_bf16 and dtype == torch.bfloat16 and multiplies_bf16():
        return dtype
    return torch.promote_types(dtype, torch.float32)


class _Attention(Function):
    """Attention with dropout on its weights, whose softmax is at least float32."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        parts: tuple[Chunk, ...],
        mask: Tensor | None,
        probability: float,
        products: torch.dtype,
        fused: bool,
    ) -> Tensor:
        """Return [T, N, D] of qkv [T, 3, N, D]; a mask [B, 1, 1 or S, S] leaves keys of rows out."""
        with torch.autocast("cpu", enabled=False):
            ctx.parts, ctx.products, ctx.how = parts, products, (qkv.shape[-1] ** -0.5, probability, fused)
            context = torch.empty_like(qkv[:, 0])
            saved: list[Tensor | None] = []
            for part in parts:
                own, shape = _by_head(part.take(qkv), products)
                kept, weights = softmax_dropout(
                    torch.bmm(own[0], own[1].transpose(1, 2)), _own_mask(part, mask), *ctx.how
                )
                part.put(context, torch.bmm(kept, own[2]).view(shape[1:]).transpose(1, 2))
                saved += weights
            ctx.save_for_backward(qkv, *saved)
            return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        qkv, *saved = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            grad_qkv = torch.empty_like(qkv)
            for number, part in enumerate(ctx.parts):
                (given,), _ = _by_head(part.take(grad)[:, :, None], ctx.products)
                (query, key, value), shape = _by_head(part.take(qkv), ctx.products)
                scores, kept = softmax_dropout_backward(
                    torch.bmm(given, value.transpose(1, 2)), Weights(*saved[2 * number : 2 * number + 2]), *ctx.how
                )
                grads = torch.empty(3, *query.shape, dtype=query.dtype)
                torch.bmm(scores, key, out=grads[0])
                torch.bmm(scores.transpose(1, 2), query, out=grads[1])
                torch.bmm(kept.transpose(1, 2), given, out=grads[2])
                part.put(grad_qkv, grads.view(shape).permute(1, 3, 0, 2, 4))
            return grad_qkv, None, None, None, None, None


def _own_mask(part: Chunk, mask: Tensor | None) -> Tensor | None:
    """The mask [b, 1, 1 or m, m] of a chunk of a batch: of its rows, or of what was padded to its longest."""
    if mask is None:
        return part.mask(torch.device("cpu"))
    first = part.first // part.longest
    return mask[first : first + len(part.lengths)]


def _by_head(tensor: Tensor, dtype: torch.dtype) -> tuple[Tensor, torch.Size]:
    """[b, m, K, N, D] of any strides and type -> own memory [K, b x N, m, D], and the shape [K, b, N, m, D]."""
    heads = tensor.permute(2, 0, 3, 1, 4)
    return torch.empty(heads.shape, dtype=dtype).copy_(heads).flatten(1, 2), heads.shape
