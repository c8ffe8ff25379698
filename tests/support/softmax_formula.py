"""Softmax by its formula in float64, and masks for it: two sequences of LENGTH tokens, HEADS heads."""

import torch
from torch import Tensor

HEADS, LENGTH = 3, 5

_ROWS = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], dtype=torch.bool)
_PACKED = torch.tensor([0, 0, 1, 1, 1])
MASKS: dict[str, Tensor | None] = {
    "none": None,
    "padded": _ROWS[:, None, None, :],
    "nothing allowed": (_ROWS & torch.tensor([[False], [True]]))[:, None, None, :],
    "packed": (_PACKED[:, None] == _PACKED).expand(2, 1, LENGTH, LENGTH),
}
"""Name -> True where may be attended to."""


def by_formula(scores: Tensor, mask: Tensor | None, factor: float) -> Tensor:
    """e^s / sum e^s over the keys that are allowed, of scores [2 x HEADS, m, m]; equal weights where none is."""
    powers = (scores.double() * factor).exp()
    if mask is not None:
        allowed = mask.expand(2, HEADS, *scores.shape[1:]).flatten(0, 1)
        powers = torch.where(allowed.any(-1, keepdim=True), powers * allowed, 1.0)
    return powers / powers.sum(-1, keepdim=True)
