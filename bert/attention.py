"""Self-attention with a fused QKV projection.

Shapes: B sequences, S tokens, H hidden width, N heads, D width of a head (H = N x D).

PyTorch's CPU attention falls back to unfused operations where there is dropout; there it is done here, in one function
with the dropout of bert.dropout. Everywhere else PyTorch's own kernels run.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from bert.config import ModelConfig
from bert.dropout import keep_mask, keep_scale, own_kernels, random_levels


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_probability: float) -> Tensor:
    """Return softmax(Q K^T / sqrt(D)) V, with dropout on the weights (Vaswani et al. 2017, eq. 1).

    Args:
        query: [B, N, S, D], as are `key`, `value` and the result.
        key: what is attended to.
        value: what is gathered.
        mask: bool [B, 1, 1, S], True where a key may be attended to; None where every key may.
        dropout_probability: of the weights.
    """
    if dropout_probability > 0.0 and own_kernels(query):
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
            levels = random_levels(weights)
            ctx.save_for_backward(query, key, value, weights, levels)
            kept = keep_mask(levels, probability, weights.dtype).mul_(weights)
            context = torch.bmm(kept, value).mul_(keep_scale(probability))
            return context.view(batch, heads, length, width).to(ctx.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, weights, levels = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            shape = grad.shape
            grad = _flat_heads(grad) * keep_scale(ctx.probability)
            kept = keep_mask(levels, ctx.probability, weights.dtype)
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
