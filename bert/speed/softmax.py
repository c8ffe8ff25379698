"""The softmax of attention with dropout on its weights: by PyTorch's functions, or by loops of our own in C.

A loop reads every score once and works on a row while it lies in the nearest cache; PyTorch passes over all of them for
the factor, the mask, the softmax, the dropout and the cast. The weights are at least float32.

Shapes: b sequences of m tokens, N heads, R = b x N.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from bert.speed.dropout import keep_mask, keep_scale, random_levels, threshold
from bert.speed.elementwise import LOOP_TYPES, address
from bert.speed.native import is_wanted, loops


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

    Raises:
        MissingToolError: there is no C compiler.
    """
    fused = fused and scores.dtype in LOOP_TYPES and is_wanted()
    levels = random_levels(scores, fused) if probability else None
    if fused:
        return _loop_forward(scores, mask, factor, levels, probability)
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
        return _loop_backward(grad, weights, factor, probability)
    wide, kept = grad.to(weights.dtype), weights
    if levels is not None:
        kept = keep_mask(levels, probability, weights.dtype)
        wide.mul_(kept)
        kept.mul_(weights)
    scores = torch._softmax_backward_data(wide, weights, -1, weights.dtype)
    return scores.mul_(factor * keep_scale(probability)).to(grad.dtype), _scaled(kept, probability, grad)


def _scaled(kept: Tensor, probability: float, like: Tensor) -> Tensor:
    return torch.mul(kept, keep_scale(probability), out=torch.empty_like(like)) if probability else kept.to(like.dtype)


def _loop_forward(
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


def _loop_backward(grad: Tensor, weights: Tensor, factor: float, probability: float) -> tuple[Tensor, Tensor]:
    kept, length = torch.empty_like(grad), grad.shape[-1]
    getattr(loops(), f"softmax_backward_{LOOP_TYPES[grad.dtype]}")(
        grad.numel() // length, length, torch.get_num_threads(), grad.data_ptr(), weights.data_ptr(), factor,
        keep_scale(probability), kept.data_ptr(),
    )  # fmt: skip
    return grad, kept
