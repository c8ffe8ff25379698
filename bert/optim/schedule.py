"""Learning rates: a warm-up, then a decay, or cycles, as functions of the number of applied steps.

Every schedule is a factor of the base learning rate, a pure function of progress x = t / T and warm-up w, both
fractions of the T steps in all. As in NVIDIA's run_pretraining.py, whose scheduler steps before the optimizer and
starts counting at one, the first update has t = 1: it is made with a rate above zero, and the last of T updates, at
t = T, has the rate the decay ends at (zero for poly and linear). t counts applied updates: one that an fp16 overflow
skipped is repeated.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from common.errors import UsageError
from common.registry import lookup

Factor = Callable[[float, float], float]


def poly(progress: float, warmup: float) -> float:
    """x / w during the warm-up, then sqrt(1 - x): NVIDIA's PolyWarmUpScheduler (degree 0.5), the one for LAMB.

    Where the warm-up ends the rate drops from about 1 to sqrt(1 - w), as it does there.
    """
    if progress < warmup:
        return progress / warmup
    return math.sqrt(max(1.0 - progress, 0.0))


def linear(progress: float, warmup: float) -> float:
    """x / w during the warm-up, then (1 - x) / (1 - w), never below zero: NVIDIA's LinearWarmUpScheduler."""
    if progress < warmup:
        return progress / warmup
    return max((1.0 - progress) / (1.0 - warmup), 0.0)


def constant(progress: float, warmup: float) -> float:
    """x / w during the warm-up, then 1."""
    return progress / warmup if progress < warmup else 1.0


def cyclic(progress: float, warmup: float) -> float:
    """From a quarter to 1 in w, back in another w, and so on: the triangular policy of cyclical learning rates.

    Smith 2017 (arXiv 1506.01186), sections 3.1 and 3.3, which puts the lower bound at a third or a quarter of the upper
    one. It is torch.optim.lr_scheduler.CyclicLR with base_lr a quarter of max_lr and step_size_up = w T. A run has
    1 / (2 w) cycles.
    """
    place = progress / warmup % 2.0
    return CYCLIC_FLOOR + (1.0 - CYCLIC_FLOOR) * (1.0 - abs(1.0 - place))


CYCLIC_FLOOR = 0.25
"""Lowest factor of the schedule cyclic."""
SCHEDULES: dict[str, Factor] = {"poly": poly, "linear": linear, "constant": constant, "cyclic": cyclic}


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Learning rate of each update; call it with the number of updates applied before."""

    name: str = "poly"
    learning_rate: float
    """Base rate, which the warm-up climbs to."""
    total_steps: int
    """T, updates in the whole run."""
    warmup: float = 0.0
    """w, fraction of the run spent on the warm-up, from 0 to below 1; of the schedule cyclic half a cycle."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        lookup(SCHEDULES, self.name, "schedule")
        if not 0 <= self.learning_rate < math.inf:
            raise UsageError("option-value", f"--learning-rate {self.learning_rate} must be a number of at least 0")
        if self.total_steps < 1:
            raise UsageError("option-value", f"--steps {self.total_steps} must be at least 1")
        if not 0 <= self.warmup < 1:
            raise UsageError(
                "option-value", f"--warmup {self.warmup} must be a fraction of the run: give at least 0 and less than 1"
            )
        if self.name == "cyclic" and self.warmup * self.total_steps < 1:
            raise UsageError(
                "option-value",
                f"--schedule cyclic with --warmup {self.warmup} of {self.total_steps} steps warms up for less than "
                f"one step: give --warmup {1 / self.total_steps:.2g} or more (half a cycle)",
            )

    def __call__(self, applied_steps: int) -> float:
        """Learning rate of the update that follows `applied_steps` others. After T updates it stays where it ended."""
        progress = min(applied_steps + 1, self.total_steps) / self.total_steps
        return self.learning_rate * SCHEDULES[self.name](progress, self.warmup)


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """NVIDIA's settings for one of the two phases of pretraining BERT-large."""

    seq_len: int
    """Tokens per sequence."""
    max_predictions: int
    """Maximum masked positions per sequence."""
    total_steps: int
    warmup: float
    """Fraction of the updates spent on the warm-up."""
    learning_rate: float
    """Base rate of LAMB under the poly schedule."""
    global_batch_size: int
    """Sequences per update over all devices."""


# DeepLearningExamples/PyTorch/LanguageModeling/BERT: scripts/configs/pretrain_config.sh.
PHASE_1 = Phase(
    seq_len=128, max_predictions=20, total_steps=7038, warmup=0.2843, learning_rate=6e-3, global_batch_size=65536
)
PHASE_2 = Phase(
    seq_len=512, max_predictions=80, total_steps=1563, warmup=0.128, learning_rate=4e-3, global_batch_size=32768
)
PHASES = {1: PHASE_1, 2: PHASE_2}
