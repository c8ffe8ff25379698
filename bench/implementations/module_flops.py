"""FLOPs of a module, counted from the GEMMs of its forward pass on meta tensors, which compute nothing.

The body of an encoder takes a n^2 + b n + c FLOPs for a sequence of n tokens: scores and weighted values, weight
matrices, and what each sequence costs whatever its length. DeBERTa adds GEMMs of relative positions once a batch.
A head that predicts words takes as many FLOPs for every position it predicts, one that classifies as many for every
sequence. The coefficients follow exactly from a few lengths and batch sizes, and further ones have to agree.

Training takes three times the forward pass (bert.model.step), so that the figures compare with those of our own model:
padding and positions without a label do not count. Attention in windows counts as the module computes it, in full.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from bert.data.batch import BatchCounts
from common.errors import first_line

TrainingFlops = Callable[[BatchCounts, int], float]
"""(counts, micro-batches) -> FLOPs of forward and backward passes over micro-batches with these counts together."""
_PARTS = (1, 2, 4, 6, 8)  # eighths of the longest sequence
_FEWEST_LENGTHS = 4  # three give the coefficients, the fourth checks them


class NotTracedError(Exception):
    """The FLOPs of a module are unknown; the text says why."""


def training_flops(model: Any, longest: int, predicts_words: bool = True) -> TrainingFlops:
    """Count the FLOPs of a Hugging Face encoder with its head.

    Args:
        model: on the meta device, with attention written out (attn_implementation="eager").
        longest: tokens of the longest sequence.
        predicts_words: whether the head works on predicted positions; False where it works on whole sequences.
    """
    body = model.base_model
    lengths = sorted({max(1, longest * part // 8) for part in _PARTS})
    if body is model or len(lengths) < _FEWEST_LENGTHS:
        raise NotTracedError(f"{type(model).__name__} has no encoder apart from its head, or too short sequences")
    one = {length: _count(body, 1, length) for length in lengths}
    # What a batch costs whatever its size: F(1) = s + c, F(2) = 2 s + c.
    fixed = {2 * one[length] - _count(body, 2, length) for length in (lengths[0], lengths[-1])}
    heads = {Fraction(_count(model, 1, length) - one[length], length if predicts_words else 1) for length in lengths}
    batch, head = fixed.pop(), heads.pop()
    squared, token, sequence = _parabola([(length, one[length] - batch) for length in lengths[-3:]])
    quadratic = all(squared * length**2 + token * length + sequence + batch == one[length] for length in lengths)
    if fixed or heads or not quadratic:
        raise NotTracedError(f"the FLOPs of {type(model).__name__} are not a quadratic function of the sequence length")

    def flops(counts: BatchCounts, micro_batches: int) -> float:
        forward = squared * counts.squared_lengths + token * counts.real_tokens + sequence * counts.samples
        heads = counts.predicted_positions if predicts_words else counts.samples
        return float(3 * (forward + batch * micro_batches + head * heads))

    return flops


def _parabola(points: list[tuple[int, int]]) -> tuple[Fraction, Fraction, Fraction]:
    """Return a, b, c of y = a x^2 + b x + c through three points."""
    (x0, y0), (x1, y1), (x2, y2) = points
    first, second = Fraction(y1 - y0, x1 - x0), Fraction(y2 - y1, x2 - x1)
    a = (second - first) / (x2 - x0)
    b = first - a * (x0 + x1)
    return a, b, y0 - a * x0**2 - b * x0


def _count(module: Any, sequences: int, length: int) -> int:
    """FLOPs of one forward pass; models that read the ids where there is no mask are given one."""
    ids = torch.zeros(sequences, length, dtype=torch.long, device="meta")
    problem = ""
    for inputs in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}):
        counter = FlopCounterMode(display=False)
        try:
            with counter, torch.no_grad():
                module(**inputs)
            return int(counter.get_total_flops())
        except Exception as error:  # whatever a model does with missing values
            problem = first_line(error)
    raise NotTracedError(f"its forward pass cannot be traced on meta tensors ({problem})")
