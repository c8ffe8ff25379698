"""The step clock: how long each step and each of its phases took on the device."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.run.stopwatch import stopwatch
from bert.data.batch import BatchCounts
from bert.observer import STEP_PHASES, Observer, StepResult

Row = dict[str, Any]
_COUNTS = ("samples", "real_tokens", "padded_tokens", "predicted_positions")


@dataclass(slots=True)
class _OpenStep:
    step: int
    start_ns: int
    begin: Any
    phases: list[tuple[str, Any, Any]] = field(default_factory=list)
    gradients_ready: Any = None
    end: Any = None
    result: StepResult | None = None
    loss: torch.Tensor | None = None


class StepClock(Observer):
    """Measures every step and hands finished rows (records.schema.STEPS) to `on_row`, in order.

    A row is made once the device has reached the end of its step; `flush` waits for all of them.
    """

    def __init__(
        self, device_type: str, model_flops: Callable[[BatchCounts], float | None], on_row: Callable[[Row], None]
    ) -> None:
        self._watch = stopwatch(device_type)
        self._model_flops = model_flops
        self._on_row = on_row
        self._pending: deque[_OpenStep] = deque()
        self._open: _OpenStep | None = None

    def step_begin(self, step: int) -> None:
        """Start the clock of a step."""
        self._open = _OpenStep(step, time.time_ns(), self._watch.mark())

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Time one of STEP_PHASES; phases of the model pass through."""
        return self._timed(name) if name in STEP_PHASES else super().phase(name)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = self._watch.mark()
        yield
        if self._open is not None:
            self._open.phases.append((name, begin, self._watch.mark()))

    def mark(self, name: str) -> None:
        """Note when the last gradients were ready: what is left of backward is exposed communication."""
        if name == "gradients_ready" and self._open is not None:
            self._open.gradients_ready = self._watch.mark()

    def step_end(self, step: int, result: StepResult) -> None:
        """Stop the clock of a step and pass on the rows of all steps the device has finished."""
        assert self._open is not None
        self._open.loss = self._watch.fetch(result.loss)
        self._open.end = self._watch.mark()
        self._open.result = result
        self._pending.append(self._open)
        self._open = None
        self._pass_on()

    def flush(self) -> None:
        """Wait for the device and pass on every row that is left; also at the end of a run that failed."""
        if self._pending:
            self._watch.synchronize()
        self._pass_on()

    run_end = flush

    def _pass_on(self) -> None:
        while self._pending and self._watch.passed(self._pending[0].end):
            self._on_row(self._row(self._pending.popleft()))

    def _row(self, open_step: _OpenStep) -> Row:
        assert open_step.result is not None and open_step.loss is not None
        elapsed = self._watch.elapsed_ms
        times: dict[str, float] = {}
        for name, begin, end in open_step.phases:
            times[name] = times.get(name, 0.0) + elapsed(begin, end)
        communication: float | None = None
        if open_step.gradients_ready is not None:
            # Accumulation: only the last micro-step communicates, and its backward is the last one recorded.
            last_backward_end = [end for name, _, end in open_step.phases if name == "backward"][-1]
            communication = max(0.0, elapsed(open_step.gradients_ready, last_backward_end))
            times["backward"] -= communication
        counts = open_step.result.counts
        return {
            "step": open_step.step,
            "start_ns": open_step.start_ns,
            "step_time_ms": elapsed(open_step.begin, open_step.end),
            "data_wait_ms": times.get("data"),
            "forward_ms": times.get("forward"),
            "backward_ms": times.get("backward"),
            "communication_ms": communication,
            "optimizer_ms": times.get("optimizer"),
            **{name: getattr(counts, name) for name in _COUNTS},
            "model_flops": self._model_flops(counts),
            "loss": float(open_step.loss),
            "learning_rate": open_step.result.learning_rate,
        }
