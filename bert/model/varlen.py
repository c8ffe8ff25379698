"""Attention over concatenated sequences on a GPU, by cumulative lengths.

The operator follows from device, type and width of the heads alone, so a resumed run takes the same one: the kernels of
bert.speed.kernels.attention where Triton can run them, else FlashAttention-2, else PyTorch's attention on padded rows.
torch.nn.attention.varlen has no dropout, which training needs; the second one is the operator beneath it.

Measured on an H100: docs/results/2026-11-26-h100.md.

Shapes: B sequences, S tokens of the longest, T tokens of all sequences, H hidden width, N heads, D width of a head.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from bert.model.packing import Bounds
from bert.private import flash_attention
from bert.speed.kernels import processor, usable
from bert.speed.native import triton_missing

FLASH, TRITON = "flash", "triton"
_TRITON_WIDTHS = (16, 32, 64, 128)
_WIDEST_FLASH = 256
_OLDEST = 8  # major compute capability


@functools.cache
def operator_for(device: torch.device, dtype: torch.dtype, width: int) -> str | None:
    """Return the operator for heads of a width and type on a device: TRITON, FLASH, or None for padded rows."""
    if device.type == "cpu" or dtype not in (torch.float16, torch.bfloat16) or processor(device).major < _OLDEST:
        return None
    if width in _TRITON_WIDTHS and triton_missing() is None:
        return TRITON
    built = device.type != "cuda" or torch.backends.cuda.is_flash_attention_available()
    return FLASH if built and width <= _WIDEST_FLASH and width % 8 == 0 else None


def attend_by_lengths(
    operator: str | None, qkv: Tensor, bounds: Bounds, probability: float, bias: Tensor | None, fused: bool
) -> Tensor:
    """Return the context [T, N, D] of queries, keys and values [T, 3, N, D], with dropout on the weights.

    `operator` is that of `operator_for`; `bias`, which padded rows do not support, and `fused` are those of
    bert.model.attention.attend.
    """
    if operator == TRITON:
        from bert.speed.kernels.attention import attention

        return attention(qkv, bounds.ends, bounds.longest, probability, bias)
    if operator == FLASH:
        return _flash(qkv, bounds, probability, bias, fused)
    return _padded(qkv, bounds, probability)


def _flash(qkv: Tensor, bounds: Bounds, probability: float, bias: Tensor | None, fused: bool) -> Tensor:
    """FlashAttention-2 (Dao 2023, arXiv 2307.08691)."""
    query, key, value = _split(qkv, bias, fused)
    ends, longest = bounds
    return flash_attention(query, key, value, ends, longest, probability)


def _split(qkv: Tensor, bias: Tensor | None, fused: bool) -> tuple[Tensor, ...]:
    """Queries, keys and values [T, N, D]; with Triton one kernel writes their three gradients into one tensor."""
    if fused and usable(qkv):
        from bert.speed.kernels.heads import unbind

        return unbind(qkv, bias)
    return qkv.unbind(1)


def _padded(qkv: Tensor, bounds: Bounds, probability: float) -> Tensor:
    """PyTorch's attention on rows padded to the longest sequence, without reading a length from the device."""
    ends, longest = bounds
    rows = ends.shape[0] - 1
    token = torch.arange(qkv.shape[0], device=ends.device, dtype=ends.dtype)
    row = torch.searchsorted(ends, token, right=True) - 1
    slots = row * longest + token - ends[row]
    padded = qkv.new_zeros(rows * longest, *qkv.shape[1:]).index_copy(0, slots, qkv)
    query, key, value = padded.unflatten(0, (rows, longest)).permute(2, 0, 3, 1, 4).unbind(0)
    real = (torch.arange(longest, device=qkv.device) < ends.diff()[:, None])[:, None, None, :]
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=real, dropout_p=probability)
    context: Tensor = attended.transpose(1, 2).flatten(0, 1).index_select(0, slots)
    return context
