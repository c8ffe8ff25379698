"""The training loop: batches in, optimizer steps out, with observers notified of everything in between."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import torch

from bert.data.batch import Batch, BatchCounts
from bert.observer import Observer, StepResult
from bert.optim.precision import Precision
from bert.parallel.base import Strategy
from common.errors import BertbenchError

ComputeLoss = Callable[[torch.nn.Module, Batch], torch.Tensor]

# Each overflow halves the scale: after so many in a row, from 2**16 down to 2**-16, the scale is not what overflows.
MAX_SKIPPED_IN_A_ROW = 32


class DivergenceError(BertbenchError):
    """Training diverged to non-finite numbers at `step` with `learning_rate`."""

    def __init__(self, message: str, step: int, learning_rate: float) -> None:
        super().__init__("training-diverged", message)
        self.step = step
        self.learning_rate = learning_rate

    def __reduce__(self) -> tuple[type["DivergenceError"], tuple[str, int, float]]:
        """Pickle the arguments of this class, not those of its base."""
        return type(self), (str(self), self.step, self.learning_rate)


@dataclass(slots=True)
class Progress:
    """How far the updates are; a checkpoint keeps it."""

    applied_steps: int = 0
    """Updates made: what the learning rate is a function of. An update whose outcome was not read counts as made."""
    skipped_steps: int = 0
    """Steps whose update was left out, because gradients were not finite."""
    skipped_in_a_row: int = 0
    """How many of them came last, one after another."""

    def count(self, applied: bool | None) -> None:
        """Count one step; as applied where a GPU decides it, until `recount`."""
        if applied is None:
            self.applied_steps += 1
        elif not applied:
            self.skipped_steps += 1
            self.skipped_in_a_row += 1
        else:
            self.applied_steps += 1
            self.skipped_in_a_row = 0

    def recount(self, left_out: bool) -> None:
        """Count one step that a GPU decided."""
        self.applied_steps -= 1
        self.count(not left_out)

    def state_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from saved counts."""
        for name in asdict(self):
            setattr(self, name, state[name])


class DivergenceWatch:
    """Looks out for losses that are not finite, without making a GPU wait at every step.

    Losses are judged on the device as they come; the verdict is read after every step on a CPU and after every
    `every` steps on a GPU, and covers all ranks. Updates that a GPU has left out are counted then too. A loss whose
    update the loss scaling left out is no divergence, but MAX_SKIPPED_IN_A_ROW of them one after another are.
    """

    def __init__(self, every: int = 50) -> None:
        self.every = every
        self._first_bad: torch.Tensor | None = None
        self._rates: dict[int, float] = {}
        self._left_out: list[torch.Tensor] = []

    def note(self, step: int, result: StepResult, progress: Progress, scaled: bool = False) -> None:
        """Judge a step, made with a scaled loss or not. Raises DivergenceError if gradients never are finite."""
        _check_gradients(progress, step, result.learning_rate)
        if isinstance(result.applied, torch.Tensor):
            self._left_out.append(result.applied)
        if scaled and result.applied is False:
            return
        self._rates[step] = result.learning_rate
        here = torch.where(torch.isfinite(result.loss.double()), math.inf, float(step))
        self._first_bad = here if self._first_bad is None else torch.minimum(self._first_bad, here)

    def due(self, step: int, device: torch.device) -> bool:
        """Whether the verdict is read after step number `step`."""
        return device.type == "cpu" or (step + 1) % self.every == 0

    def check(self, strategy: Strategy, progress: Progress) -> None:
        """Read the verdict on all steps since the last time; every rank must call it.

        Raises DivergenceError, on every rank, with the first step whose loss was not finite on one of them.
        """
        if self._left_out:
            flags = torch.stack(self._left_out).tolist()
            for (step, rate), left_out in zip(self._rates.items(), flags, strict=True):
                progress.recount(bool(left_out))
                _check_gradients(progress, step, rate)
            self._left_out.clear()
        first = torch.tensor(math.inf) if self._first_bad is None else self._first_bad.cpu()
        first_bad = -float(strategy.maximum(-first.double().reshape(1)))
        rates, self._rates, self._first_bad = self._rates, {}, None
        if first_bad < math.inf:
            step = int(first_bad)
            raise DivergenceError(
                f"the loss of step {step + 1} is not finite (learning rate {rates[step]:.6g}): lower the "
                "learning rate or lengthen the warm-up",
                step,
                rates[step],
            )


def _check_gradients(progress: Progress, step: int, rate: float) -> None:
    """Raise DivergenceError if the gradients of too many steps up to this one were not finite."""
    if progress.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        raise DivergenceError(
            f"the gradients of {progress.skipped_in_a_row} steps in a row up to step {step + 1} are not finite "
            f"(learning rate {rate:.6g}): use bf16, lower the learning rate or lengthen the warm-up",
            step,
            rate,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """Everything a run of the loop needs, already on its device."""

    model: torch.nn.Module
    """The model, wrapped by the strategy."""
    optimizer: torch.optim.Optimizer
    compute_loss: ComputeLoss
    """(model, batch) -> mean loss of the micro-batch, a scalar."""
    batches: Iterator[Batch]
    """Endless micro-batches on the CPU, pinned where the device is a GPU."""
    weighted: bool = False
    """Whether micro-batches weigh by their share of the predicted words of all ranks; the ranks add them up first."""
    strategy: Strategy
    precision: Precision
    grad_accum_steps: int = 1
    """Micro-steps per optimizer step."""
    seed: int = 0
    """Of dropout on a GPU."""
    max_grad_norm: float | None = None
    """Clip the global gradient norm to this; None leaves it, as LAMB needs, which clips by itself."""
    learning_rate: Callable[[int], float] | None = None
    """Learning rate of an update, given the number of updates applied before it; None keeps the optimizer's."""
    progress: Progress = field(default_factory=Progress)
    divergence: DivergenceWatch | None = None
    """None lets a run whose loss is not finite continue."""


def train(training: Training, observer: Observer, keep_going: Callable[[int], bool], first_step: int = 0) -> int:
    """Step until `keep_going(step)` says no; return the number of the step that was not made.

    `keep_going` is asked between steps, outside of what is timed, with the number of the step to come; in a
    distributed run its answer must be the same on every rank. It is the place to save a checkpoint: a verdict of
    `training.divergence` that was due has been read by then. Raises DivergenceError.
    """
    training.model.train()
    watch, step = training.divergence, first_step
    observer.run_begin()
    try:
        while keep_going(step):
            result = run_step(training, observer, step)
            if watch is not None:
                watch.note(step, result, training.progress, training.precision.scaler is not None)
                if watch.due(step, training.strategy.device):
                    watch.check(training.strategy, training.progress)
            step += 1
        if watch is not None:
            watch.check(training.strategy, training.progress)
    finally:
        observer.run_end()
    return step


def run_step(training: Training, observer: Observer, step: int) -> StepResult:
    """Make one optimizer step: `grad_accum_steps` micro-steps, then the update. Return what it did."""
    strategy, precision = training.strategy, training.precision
    accumulation = training.grad_accum_steps
    total_loss: torch.Tensor | None = None
    counts: BatchCounts | None = None
    observer.step_begin(step)
    if training.learning_rate is not None:
        rate = training.learning_rate(training.progress.applied_steps)
        for group in training.optimizer.param_groups:
            group["lr"] = rate
    for micro_step, batch in enumerate(micro_batches(training, observer, step)):
        with strategy.accumulate(last=micro_step == accumulation - 1):
            with observer.phase("forward"), precision.autocast():
                loss = training.compute_loss(training.model, batch) / accumulation
            with observer.phase("backward"):
                strategy.backward(loss, precision)
        detached = loss.detach()
        total_loss = detached if total_loss is None else total_loss + detached
        counts = batch.counts if counts is None else counts + batch.counts
    with observer.phase("optimizer"):
        if training.max_grad_norm is not None:
            strategy.clip(training.model, training.optimizer, training.max_grad_norm, precision)
        # Only a schedule and the watch depend on the outcome; a benchmark has neither and never waits for it.
        wait = training.learning_rate is not None or training.divergence is not None
        applied = strategy.step(training.optimizer, precision, wait)
    training.progress.count(None if isinstance(applied, torch.Tensor) else applied)
    assert total_loss is not None and counts is not None
    result = StepResult(counts, total_loss, float(training.optimizer.param_groups[0]["lr"]), applied)
    observer.step_end(step, result)
    return result


def micro_batches(training: Training, observer: Observer, step: int) -> Iterator[Batch]:
    """Take the micro-batches of a step, on the device, with their keys and, where the training has them, weights."""
    device, rank = training.strategy.device, training.strategy.rank

    def there(batch: Batch, micro_step: int) -> Batch:
        if device.type == "cpu":
            return batch
        key = dropout_key(training.seed, step, micro_step, rank)
        if batch.key is None:
            return replace(batch, key=key).to(device)
        batch.key.copy_(key)  # beside the rest, with which it is copied
        return batch.to(device)

    if not training.weighted:
        for micro_step in range(training.grad_accum_steps):
            with observer.phase("data"):
                batch = there(next(training.batches), micro_step)
            yield batch
        return
    with observer.phase("data"):
        batches = [next(training.batches) for _ in range(training.grad_accum_steps)]
    words = sum(batch.counts.predicted_positions for batch in batches)
    of_all = float(training.strategy.total(torch.tensor([words], dtype=torch.float64)))
    mean = of_all / (len(batches) * training.strategy.world_size)
    for micro_step, waiting in enumerate(batches):
        with observer.phase("data"):
            batch = there(waiting, micro_step)
        yield replace(batch, weight=batch.counts.predicted_positions / mean) if mean else batch


def dropout_key(seed: int, step: int, micro_step: int, rank: int) -> torch.Tensor:
    """Return the key of the dropout of a micro-step, int64 [1]: a hash, so that a resumed run finds it again."""
    (number,) = np.random.SeedSequence((abs(seed), step, micro_step, rank)).generate_state(1, np.uint64)
    return torch.tensor([int(number >> np.uint64(1))])


def parameters_are_finite(weights: Iterator[tuple[str, torch.Tensor]]) -> bool:
    """Whether every number in these weights (Strategy.weights) is finite; reading the answer waits for a GPU.

    Gradients that are not finite show in the loss one step later only: ask this before a checkpoint is saved.
    """
    finite = [bool(torch.isfinite(value).all()) for _, value in weights]  # of all: other ranks wait for each
    return all(finite)
