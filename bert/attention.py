"""Self-attention with a fused QKV projection, and the dropout the whole model uses.

Shapes: B sequences, S tokens, H hidden width, N heads, D width of a head (H = N x D).

PyTorch's CPU dropout draws one Bernoulli number after another, and its CPU attention falls back to unfused operations
where there is dropout; together they take more time than the matrix products of a small model. On a CPU both are done
here from 16 random bits per element. Everywhere else PyTorch's own kernels run.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from bert.config import ModelConfig

# A dropout probability is rounded to a multiple of 1 / _LEVELS, which moves it by at most 2^-17.
_LEVELS = 1 << 16


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Zero elements of `x` with `probability` and scale the others by 1 / (1 - probability); any shape."""
    if not training or probability == 0.0:
        return x
    if _own_kernels(x):
        result: Tensor = _Dropout.apply(x, probability)  # type: ignore[no-untyped-call]
        return result
    return F.dropout(x, probability)


def dropout_add(x: Tensor, residual: Tensor, probability: float, training: bool) -> Tensor:
    """Return dropout(x) + residual; `x` and `residual` have one shape, the result has their promoted type."""
    if training and probability > 0.0 and _own_kernels(x):
        result: Tensor = _DropoutAdd.apply(x, residual, probability)  # type: ignore[no-untyped-call]
        return result
    return dropout(x, probability, training) + residual


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_probability: float) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)) V, with dropout on the weights (Vaswani et al. 2017, eq. 1).

    Args:
        query: [B, N, S, D], as are `key`, `value` and the result.
        key: what is attended to.
        value: what is gathered.
        mask: bool [B, 1, 1, S], True where a key may be attended to; None where every key may.
        dropout_probability: of the weights.
    """
    if dropout_probability > 0.0 and _own_kernels(query):
        result: Tensor = _DropoutAttention.apply(query, key, value, mask, dropout_probability)  # type: ignore[no-untyped-call]
        return result
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout_probability)


class SelfAttention(nn.Module):
    """Multi-head self-attention, from the hidden states to the output projection (before dropout and residual)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Return [B, S, H] of [B, S, H]; bool `mask` [B, 1, 1, S] is True for real tokens, None when all are real."""
        batch, length, width = hidden.shape
        qkv = self.qkv(hidden).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        context = attend(query, key, value, mask, self.dropout if self.training else 0.0)
        output: Tensor = self.output(context.transpose(1, 2).reshape(batch, length, width))
        return output


def _own_kernels(x: Tensor) -> bool:
    # A compiler fuses PyTorch's own operations and cannot look into these.
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _random_levels(like: Tensor) -> Tensor:
    """Draw int16 numbers, uniform over all 2^16 values, in the shape of `like` from PyTorch's CPU generator."""
    count = like.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)  # four numbers in each word
    return words.view(torch.int16)[:count].view(like.shape)


def _threshold(probability: float) -> int:
    """Levels below this are dropped."""
    return round(probability * _LEVELS) - _LEVELS // 2


def _scale(probability: float) -> float:
    """One over the probability with which an element is really kept."""
    return _LEVELS / (_LEVELS - round(probability * _LEVELS))


def _kept(levels: Tensor, probability: float, dtype: torch.dtype) -> Tensor:
    """Return 1 where an element is kept and 0 where it is dropped, as `dtype`."""
    # Comparing straight into the floating type is several times as fast as multiplying by a bool tensor.
    return torch.ge(levels, _threshold(probability), out=torch.empty(levels.shape, dtype=dtype))


class _Dropout(Function):
    """Dropout that keeps 16 random bits per element for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        levels = _random_levels(x)
        ctx.save_for_backward(levels)
        ctx.probability = probability
        return _kept(levels, probability, x.dtype).mul_(x).mul_(_scale(probability))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (levels,) = ctx.saved_tensors
        return _kept(levels, ctx.probability, grad.dtype).mul_(grad).mul_(_scale(ctx.probability)), None


class _DropoutAdd(Function):
    """Dropout and the residual connection in one pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, probability: float) -> Tensor:
        levels = _random_levels(x)
        ctx.save_for_backward(levels)
        ctx.probability = probability
        ctx.dtype = x.dtype
        return torch.addcmul(residual, x, _kept(levels, probability, x.dtype), value=_scale(probability))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (levels,) = ctx.saved_tensors
        grad_x = _kept(levels, ctx.probability, grad.dtype).mul_(grad).mul_(_scale(ctx.probability))
        return grad_x.to(ctx.dtype), grad, None


class _DropoutAttention(Function):
    """Attention with dropout on its weights, computed in float32 for 16-bit inputs too, as PyTorch's is on a CPU."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, probability: float) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            batch, heads, length, width = query.shape
            ctx.probability = probability
            ctx.dtype = query.dtype
            query, key, value = (_flat_heads(tensor) for tensor in (query, key, value))
            weights = torch.bmm(query, key.transpose(1, 2)).mul_(width**-0.5)
            if mask is not None:
                # The lowest finite number: a sequence without any real token gets equal weights, not NaN.
                weights.view(batch, heads, length, length).masked_fill_(~mask, torch.finfo(weights.dtype).min)
            torch.softmax(weights, -1, out=weights)
            levels = _random_levels(weights)
            ctx.save_for_backward(query, key, value, weights, levels)
            kept = _kept(levels, probability, weights.dtype).mul_(weights)
            context = torch.bmm(kept, value).mul_(_scale(probability))
            return context.view(batch, heads, length, width).to(ctx.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, weights, levels = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            shape = grad.shape
            grad = _flat_heads(grad) * _scale(ctx.probability)
            kept = _kept(levels, ctx.probability, weights.dtype)
            grad_weights = torch.bmm(grad, value.transpose(1, 2)).mul_(kept)
            grad_value = torch.bmm(kept.mul_(weights).transpose(1, 2), grad)
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            grad_scores.mul_(shape[-1] ** -0.5)
            grad_query = torch.bmm(grad_scores, key)
            grad_key = torch.bmm(grad_scores.transpose(1, 2), query)
            grads = (tensor.view(shape).to(ctx.dtype) for tensor in (grad_query, grad_key, grad_value))
            grad_query, grad_key, grad_value = grads
            return grad_query, grad_key, grad_value, None, None


def _flat_heads(tensor: Tensor) -> Tensor:
    """[B, N, S, D] of any strides and type -> [B x N, S, D] of at least float32, contiguous."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32)).flatten(0, 1).contiguous()
