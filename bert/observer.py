"""The one hook of loop and model: measuring, tracing and logging all attach here.

The loop calls every method; the model calls only `phase`. An observer that does nothing costs nothing: the model is
handed an observer only where one wants its phases.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from bert.data.batch import BatchCounts

# The parts of a step, in order. "communication" is the all-reduce the backward pass could not hide.
STEP_PHASES = ("data", "forward", "backward", "communication", "optimizer")

_NO_PHASE: AbstractContextManager[None] = nullcontext()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did on this rank."""

    counts: "BatchCounts"
    """Sequences, tokens and FLOP terms of all micro-steps together."""
    loss: "torch.Tensor"
    """Mean loss over the micro-steps, a detached scalar on the device (reading it synchronizes)."""
    learning_rate: float
    """Learning rate the step was made with."""
    applied: "bool | torch.Tensor" = True
    """Whether the parameters were updated: False if gradients were not finite; a scalar on a GPU is 1 for those."""


class Observer:
    """Does nothing; subclasses override what they need."""

    model_phases: bool = False
    """Whether the model's own phases ("layer.3.attention") are wanted too."""

    def run_begin(self) -> None:
        """Before the first step."""

    def step_begin(self, step: int) -> None:
        """Before the data of step number `step` is asked for."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Bracket a part of a step; STEP_PHASES come from the loop, other names from the model."""
        return _NO_PHASE

    def mark(self, name: str) -> None:
        """Note an instant inside a step, such as "gradients_ready" (called on the thread that runs backward)."""

    def step_end(self, step: int, result: StepResult) -> None:
        """After the optimizer step number `step`."""

    def run_end(self) -> None:
        """After the last step, also when the run failed."""


class Observers(Observer):
    """Several observers as one; the first listed is entered first and left last."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.observers = tuple(observers)
        self.model_phases = any(observer.model_phases for observer in observers)
        self._phased = tuple(o for o in observers if type(o).phase is not Observer.phase)
        self._marked = tuple(o for o in observers if type(o).mark is not Observer.mark)

    def run_begin(self) -> None:
        """Tell every observer."""
        for observer in self.observers:
            observer.run_begin()

    def step_begin(self, step: int) -> None:
        """Tell every observer."""
        for observer in self.observers:
            observer.step_begin(step)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Enter the phase of every observer that has phases."""
        if not self._phased:
            return _NO_PHASE
        if len(self._phased) == 1:
            return self._phased[0].phase(name)
        return self._all_phases(name)

    @contextmanager
    def _all_phases(self, name: str) -> Iterator[None]:
        with ExitStack() as stack:
            for observer in self._phased:
                stack.enter_context(observer.phase(name))
            yield

    def mark(self, name: str) -> None:
        """Tell every observer that listens to marks."""
        for observer in self._marked:
            observer.mark(name)

    def step_end(self, step: int, result: StepResult) -> None:
        """Tell every observer, the last listed first."""
        for observer in reversed(self.observers):
            observer.step_end(step, result)

    def run_end(self) -> None:
        """Tell every observer, the last listed first, even when one fails."""
        with ExitStack() as stack:
            for observer in self.observers:
                stack.callback(observer.run_end)
