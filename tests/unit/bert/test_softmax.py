"""The softmax of attention with dropout on its weights: softmax by its formula, and derivatives by differences."""

import pytest
import torch
from support.softmax_formula import HEADS, LENGTH, MASKS, by_formula
from torch import Tensor

from bert.speed.dropout import keep_scale, random_levels, threshold
from bert.speed.softmax import softmax_dropout, softmax_dropout_backward

FACTOR = 0.3


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("name", MASKS)
def test_it_is_the_formula(name: str, probability: float) -> None:
    mask = MASKS[name]
    scores = torch.randn(2 * HEADS, LENGTH, LENGTH, dtype=torch.float64)
    torch.manual_seed(3)
    found, _ = softmax_dropout(scores.clone(), mask, FACTOR, probability, False)
    torch.manual_seed(3)
    levels = random_levels(scores) if probability else None
    expected = by_formula(scores, mask, FACTOR)
    if levels is not None:
        expected = torch.where(levels >= threshold(probability), expected * keep_scale(probability), 0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize("name", sorted(set(MASKS) - {"nothing allowed"}))
def test_the_backward_pass_is_the_derivative(name: str, probability: float) -> None:
    mask = MASKS[name]
    scores = torch.randn(2 * HEADS, LENGTH, LENGTH, dtype=torch.float64, requires_grad=True)

    def fixed(scores: Tensor) -> Tensor:
        return Checked.apply(scores, mask, probability)  # type: ignore[no-untyped-call]

    assert torch.autograd.gradcheck(fixed, scores)


class Checked(torch.autograd.Function):
    """The two functions as one for autograd's check."""

    @staticmethod
    def forward(ctx, scores: Tensor, mask: Tensor | None, probability: float) -> Tensor:
        torch.manual_seed(3)
        ctx.probability = probability
        ctx.kept, ctx.saved = softmax_dropout(scores.clone(), mask, FACTOR, probability, False)
        return ctx.kept.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        grad_scores, again = softmax_dropout_backward(grad.clone(), ctx.saved, FACTOR, ctx.probability, False)
        assert torch.equal(again, ctx.kept)
        return grad_scores, None, None
