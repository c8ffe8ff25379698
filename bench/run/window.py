"""When to stop: a given [start, stop), or measuring until the median step time is known well enough."""

import time
from collections.abc import Callable

import torch

from analysis.metrics.statistics import relative_half_width, warmup_steps
from records.trial import Trial

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
