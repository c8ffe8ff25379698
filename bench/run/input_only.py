"""The input alone: batches are drawn, adapted and pinned as in training, and nothing is done with them."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bert.data.batch import Batch, BatchCounts
from bert.train.observer import Observer, StepResult

_REASON = "input only: batches were drawn, nothing was trained"
# Columns of a result that need a model.
_OF_TRAINING = (
    "mfu",
    "model_flops_per_second",
    "measured_peak_flops",
    "peak_memory_bytes",
    "forward_ms",
    "backward_ms",
    "communication_ms",
    "optimizer_ms",
    "rank_skew",
    "cost_per_million_samples",
)
_OF_TRAINING_STEPS = ("model_flops", "loss", "learning_rate")


def draw(batches: Iterator[Batch], grad_accum_steps: int, observer: Observer, keep_going: Callable[[int], bool]) -> int:
    """Draw the batches of one step after another until `keep_going(step)` says no; return the number of steps.

    The same calls in the same order as bert.train.loop.train makes, without model and device.
    """
    step = 0
    nothing = torch.tensor(math.nan)
    observer.run_begin()
    try:
        while keep_going(step):
            counts: BatchCounts | None = None
            observer.step_begin(step)
            with observer.phase("data"):
                for _ in range(grad_accum_steps):
                    batch = next(batches)
                    counts = batch.counts if counts is None else counts + batch.counts
            assert counts is not None
            observer.step_end(step, StepResult(counts, nothing, math.nan))
            step += 1
    finally:
        observer.run_end()
    return step


def without_training(row: dict[str, Any]) -> dict[str, Any]:
    """Return a step record in which what needs a model is unknown."""
    return {**row, **dict.fromkeys(_OF_TRAINING_STEPS)}


def rank_record(stream: object) -> dict[str, Any]:
    """Return what a rank writes down about its input: why the columns of training are unknown, and what was read.

    Args:
        stream: the batches; those of compressed shards tell how fast these were read (`reading`).
    """
    reading = getattr(stream, "reading", None)
    read = None if reading is None else {"samples": reading.samples, "seconds": reading.seconds}
    return {"unknown": dict.fromkeys(_OF_TRAINING, _REASON), "shards_read": read}
