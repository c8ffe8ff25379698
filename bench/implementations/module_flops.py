"""FLOPs of a module, counted from the GEMMs of its forward pass on meta tensors, which compute nothing.

The body of an encoder takes a n^2 + b n + c FLOPs for a sequence of n tokens: scores and weighted values, weight
matrices, and what each sequence costs whatever its length. DeBERTa adds GEMMs of relative positions once a batch.
A head that predicts words takes as many FLOPs for every position it predicts, one that classifies as many for every
sequence. The coefficients follow exactly from three lengths and two batch sizes, and further ones have to agree.

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


class NotTracedError(Exception):
    """The FLOPs of a module are unknown; the text says why."""


def training_flops(model: Any, longest: int, predicts_words: bool = True) -> TrainingFlops:
    """Count the FLOPs of a Hugging Face encoder with its head.

    Args:
        model: on the meta device, or on the CPU where it reads values, with attn_implementation="eager".
        longest: tokens of the longest sequence.
        predicts_words: whether the head works on predicted positions; False where it works on whole sequences.
    """
    body, unit = model.base_model, longest // 4
    if body is model or not unit:
        raise NotTracedError(f"{type(model).__name__} has no encoder apart from its head, or too short sequences")
    first, second, third, fourth = (_count(body, 1, unit * times) for times in (1, 2, 3, 4))
    squared = Fraction(third - 2 * second + first, 2 * unit**2)
    token = Fraction(second - first, unit) - 3 * unit * squared
    # What a batch costs whatever its size: F(1) = s + c, F(2) = 2 s + c.
    batch, batch_of_longest = 2 * first - _count(body, 2, unit), 2 * fourth - _count(body, 2, 4 * unit)
    sequence = first - batch - squared * unit**2 - token * unit
    head, head_of_longest = (
        Fraction(_count(model, 1, length) - whole, length if predicts_words else 1)
        for length, whole in ((unit, first), (4 * unit, fourth))
    )
    cubic = fourth - 3 * third + 3 * second - first
    if cubic or batch != batch_of_longest or head != head_of_longest:
        raise NotTracedError(f"the FLOPs of {type(model).__name__} are not a quadratic function of the sequence length")

    def flops(counts: BatchCounts, micro_batches: int) -> float:
        forward = squared * counts.squared_lengths + token * counts.real_tokens + sequence * counts.samples
        heads = counts.predicted_positions if predicts_words else counts.samples
        return float(3 * (forward + batch * micro_batches + head * heads))

    return flops


def _count(module: Any, sequences: int, length: int) -> int:
    """FLOPs of one forward pass; models that read the ids where there is no mask are given one."""
    ids = torch.zeros(sequences, length, dtype=torch.long, device=getattr(module, "device", "meta"))
    problem = ""
    for inputs in ({"input_ids": ids}, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}):
        counter = FlopCounterMode(display=False)
        try:
            with counter, torch.no_grad():
                module(**inputs)
            return int(counter.get_total_flops())
        except Exception as error:  # whatever a model does with missing values
            problem = first_line(error)
    raise NotTracedError(f"its forward pass cannot be traced ({problem})")
