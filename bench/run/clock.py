"""The step clock: how long each step and each of its phases took on the device."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from analysis.metrics.statistics import relative_half_width, warmup_steps
from bench.run.stopwatch import stopwatch
from bert.data.batch import BatchCounts
from bert.observer import STEP_PHASES, Observer, StepResult
from records.trial import Trial

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


Maximum = Callable[[torch.Tensor], torch.Tensor]

# However slow the machine, a result has at least one step before and two inside the window.
FEWEST_STEPS = 3
# By device, ms. A GPU's energy counter is renewed every 20 to 100 ms, and its clocks settle over some tenths of a
# second: a shorter window, however precise, has neither its energy nor the speed that lasts.
LEAST_MEASURED_MS = {"cpu": 0.0, "cuda": 2000.0}


class Window:
    """Decides, the same on every rank, whether a further step is made.

    With a window given, exactly `stop_iteration` steps are made. Otherwise the ranks' step times are combined (the
    slowest counts) now and then, between steps: measuring ends when at least `min_steps` steps after the detected
    warm-up, and LEAST_MEASURED_MS of them, give a 95 % interval of the median within +- `relative_half_width`, or at
    `max_steps`, or `max_seconds` after the first step (which may contain compilation).
    """

    def __init__(self, trial: Trial, flush: Callable[[], None], maximum: Maximum) -> None:
        self._trial = trial
        self._flush = flush
        self._maximum = maximum
        self._own_times: list[float] = []
        self._times: list[float] = []
        self._next_check = FEWEST_STEPS
        self._first_step_end: float | None = None
        self.stopped_because = ""

    def record(self, step_time_ms: float) -> None:
        """Take in the time of one finished step of this rank."""
        self._own_times.append(step_time_ms)

    def keep_going(self, step: int) -> bool:
        """Whether step number `step` is made."""
        if self._trial.stop_iteration is not None:
            self.stopped_because = "window given"
            return step < self._trial.stop_iteration
        if step == 1:
            self._flush()
            self._first_step_end = time.perf_counter()
        if step < self._next_check:
            return True
        return self._check(step)

    def _check(self, step: int) -> bool:
        self._flush()
        seconds = time.perf_counter() - (self._first_step_end or time.perf_counter())
        fresh = self._own_times[len(self._times) : step]
        *times, seconds = self._maximum(torch.tensor([*fresh, seconds], dtype=torch.float64)).tolist()
        self._times.extend(times)
        measured = self._times[warmup_steps(self._times) :]
        if len(measured) >= self._trial.min_steps and sum(measured) >= LEAST_MEASURED_MS[self._trial.device]:
            width = relative_half_width(measured)
            if width <= self._trial.relative_half_width:
                self.stopped_because = "interval narrow enough"
                return False
        if step >= self._trial.max_steps:
            self.stopped_because = "max_steps reached"
            return False
        if seconds >= self._trial.max_seconds:
            self.stopped_because = "max_seconds reached"
            return False
        self._next_check = min(step + self._steps_until_check(step, seconds), self._trial.max_steps)
        return True

    def _steps_until_check(self, step: int, seconds: float) -> int:
        """A quarter more steps, but at most about a second's worth and never past the time limit."""
        step_seconds = sorted(self._times)[len(self._times) // 2] / 1000
        affordable = int(min(1.0, self._trial.max_seconds - seconds) / max(step_seconds, 1e-6))
        return max(1, min(max(step // 4, 1), affordable))
