"""FLOPs of a module, counted from the GEMMs of its forward pass on meta tensors, which compute nothing.

The body of an encoder takes a n^2 + b n + c FLOPs for a sequence of n tokens: scores and weighted values, weight
matrices, and what each sequence costs whatever its length. DeBERTa adds GEMMs of relative positions once a batch.
A head that predicts words takes as many FLOPs for every position it predicts, one that classifies as many for every
sequence. The coefficients follow exactly from a few lengths and batch sizes, and further ones have to agree. A module
that disagrees or cannot be traced has no known FLOPs.

Training takes three times the forward pass (bert.model.step), so that the figures compare with those of our own model:
padding and positions without a label do not count. Attention in windows counts as the module computes it, in full.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bert.data.batch import BatchCounts

_PARTS = (1, 2, 4, 6, 8)  # eighths of the longest sequence
_FEWEST_LENGTHS = 4  # three give the coefficients, the fourth checks them


class NotTracedError(Exception):
    """The FLOPs of a module are unknown; the text says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardFlops:
    """Coefficients of the FLOPs of one forward pass."""

    squared: int | Fraction
    """For each token and token of the same sequence."""
    token: int | Fraction
    sequence: int | Fraction
    batch: int
    """For each micro-batch."""
    prediction: int | Fraction
    """For each predicted position."""

    def training(self, counts: BatchCounts, micro_batches: int = 1) -> float:
        """Return FLOPs of forward and backward passes over `micro_batches` with these counts together."""
        forward = (
            self.squared * counts.squared_lengths
            + self.token * counts.real_tokens
            + self.sequence * counts.samples
            + self.batch * micro_batches
            + self.prediction * counts.predicted_positions
        )
        return float(3 * forward)


def forward_flops(model: Any, longest: int, predicts_words: bool = True) -> ForwardFlops:
    """Count the FLOPs of a Hugging Face encoder with its head.

    Args:
        model: on the meta device, with attention written out (attn_implementation="eager").
        longest: tokens of the longest sequence.
        predicts_words: whether the head works on predicted positions; False where it works on whole sequences.
    """
    body = model.base_model
    if body is model:
        raise NotTracedError(f"{type(model).__name__} does not tell its encoder from its head")
    lengths = sorted({max(1, longest * part // 8) for part in _PARTS})
    if len(lengths) < _FEWEST_LENGTHS:
        raise NotTracedError(f"sequences of {longest} tokens are too short to count")
    one = {length: _count(body, 1, length) for length in lengths}
    # What a batch costs whatever its size: F(1) = s + c, F(2) = 2 s + c.
    fixed = {2 * one[length] - _count(body, 2, length) for length in (lengths[0], lengths[-1])}
    unit = (lambda length: length) if predicts_words else (lambda length: 1)
    heads = {Fraction(_count(model, 1, length) - one[length], unit(length)) for length in lengths}
    if len(fixed) > 1 or len(heads) > 1:
        raise NotTracedError(
            f"the FLOPs of {type(model).__name__} are not proportional to its sequences and predictions"
        )
    batch = fixed.pop()
    squared, token, sequence = _parabola([(length, one[length] - batch) for length in lengths[-3:]])
    for length in lengths:
        if squared * length**2 + token * length + sequence + batch != one[length]:
            raise NotTracedError(
                f"the FLOPs of {type(model).__name__} are not a quadratic function of the sequence length"
            )
    head = heads.pop()
    if not predicts_words:
        sequence, head = sequence + head, Fraction(0)
    return ForwardFlops(squared=squared, token=token, sequence=sequence, batch=batch, prediction=head)


def _parabola(points: list[tuple[int, int]]) -> tuple[Fraction, Fraction, Fraction]:
    """Return a, b, c of y = a x^2 + b x + c through three points."""
    (x0, y0), (x1, y1), (x2, y2) = points
    first, second = Fraction(y1 - y0, x1 - x0), Fraction(y2 - y1, x2 - x1)
    a = (second - first) / (x2 - x0)
    b = first - a * (x0 + x1)
    return a, b, y0 - a * x0**2 - b * x0


def _count(module: Callable[..., Any], sequences: int, length: int) -> int:
    """FLOPs of one forward pass; models that read the ids where there is no mask are given one."""
    ids = torch.zeros(sequences, length, dtype=torch.long, device="meta")
    try:
        return _forward(module, input_ids=ids)
    except Exception:  # whatever a model does with missing values
        try:
            return _forward(module, input_ids=ids, attention_mask=torch.ones_like(ids))
        except Exception as error:
            lines = str(error).splitlines() or [type(error).__name__]
            raise NotTracedError(f"its forward pass cannot be traced on meta tensors ({lines[0][:200]})") from error


def _forward(module: Callable[..., Any], **inputs: torch.Tensor) -> int:
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        module(**inputs)
    return int(counter.get_total_flops())
