"""A loop of the calling process as a trial of kind measure: the clock, the sensors and the records around it.

    trials/<trial id>/trial.json  env.json  steps-0.csv  rank-0.json  telemetry-0.csv  result.json

A step lasts from the end of the previous one (the first: from the beginning of the `with` block) to the call of `step`.
On a GPU the ends are CUDA events, which are read when the device has passed them: measuring never stalls it.
"""

import os
import sys
import threading
import time
import warnings
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from numbers import Integral, Real
from types import TracebackType
from typing import Any

from bench.machine.devices import find_devices
from bench.machine.environment import capture
from bench.run.recorder import RowWriter, step_writer
from bench.run.resources import used_memory
from bench.run.stopwatch import stopwatch
from bench.run.supervise import LaunchOptions, finish
from bench.run.telemetry import Telemetry, telemetry_writer
from bench.sweep.script import in_next_round
from bench.sweep.sweep import locked, record_request, tidy, write_results
from common.errors import StorageError, UsageError
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.schema import STEP_COLUMNS
from records.trial import Trial

# By device, s: as in trials, but a thread of this process must not take the loop's time.
_SAMPLE_SECONDS = {"cpu": 1.0, "cuda": 0.1}
_UNSEEN = "not visible from the end of a step"
_UNKNOWN = {
    **dict.fromkeys(("data_wait_ms", "forward_ms", "backward_ms", "communication_ms", "optimizer_ms"), _UNSEEN),
    **dict.fromkeys(("mfu", "model_flops_per_second", "measured_peak_flops"), "FLOPs of the loop are unknown"),
}


@dataclass(slots=True)
class _Ended:
    row: dict[str, Any]
    begin: Any
    end: Any


def used_device() -> str:
    """Return cuda if this process uses PyTorch on a GPU, else cpu."""
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_initialized() else "cpu"


class MeasuredLoop:
    """Measures a loop: a context manager whose `step` is called at the end of each step.

    The trial ends as ok, or, with the steps made so far, as interrupted (KeyboardInterrupt) or crashed (any other
    exception); exceptions are not held back. A block without a step, or with a count that is none, ends as refused,
    with a warning: a mistake in the measurement does not end the loop.

    Args:
        run: run directory; it is locked while the block runs.
        trial: of kind measure, with one device; its round becomes the next of the folder when the block begins.

    Raises:
        LockedError: another measurement uses the run directory.
        StorageError: the run directory cannot be written.
    """

    def __init__(self, run: RunDirectory, trial: Trial) -> None:
        self.run, self.trial = run, trial
        self.result: dict[str, Any] | None = None
        """result.json, once the block has ended."""
        self.steps = 0
        self._mistake = ""
        self._ended: deque[_Ended] = deque()
        self._stack = ExitStack()
        self._writer: RowWriter | None = None

    @property
    def directory(self) -> TrialDirectory:
        """The folder of the trial."""
        return self.run.trial(self.trial.trial_id)

    def __enter__(self) -> "MeasuredLoop":
        if self._writer is not None or self.result is not None:
            raise UsageError("option-conflict", "this measurement has been used: call bertbench.measure again")
        with ExitStack() as stack:  # undone if the folder cannot be written
            stack.enter_context(locked(self.run))
            tidy(self.run)
            self.trial = in_next_round(self.run, self.trial)  # others may have measured since it was planned
            self.directory.path.mkdir(parents=True, exist_ok=True)
            write_record(self.directory.trial_json, self.trial.to_json())
            devices = find_devices(self.trial.device)
            self._telemetry = Telemetry([gpu.uuid for gpu in devices.gpus if gpu.uuid])
            self._environment = capture(devices)
            self._write_environment()
            record_request(self.run, [self.trial], {"command": "measure", "name": self.trial.implementation})
            self._readings = stack.enter_context(telemetry_writer(self.directory.telemetry_csv(0)))
            self._writer = stack.enter_context(step_writer(self.directory.steps_csv(0)))
            self._stack = stack.pop_all()
        self._stop = threading.Event()
        self._sensors = threading.Thread(target=self._sample, name="bertbench-sensors", daemon=True)
        self._sensors.start()
        self._watch = stopwatch(self.trial.device)
        self._watch.synchronize()  # earlier work is not the first step's
        self._began = time.perf_counter()
        self._mark, self._start_ns = self._watch.mark(), time.time_ns()
        return self

    def step(self, *, samples: int | None = None, tokens: int | None = None, loss: float | None = None) -> None:
        """End a step. With a value of another type, or a count below 0, the trial is refused when the block ends.

        Args:
            samples: samples of the step, for samples/s; an integer of at least 0.
            tokens: tokens of the step, for tokens/s; an integer of at least 0.
            loss: its loss. A number, not a tensor: reading it from a GPU would wait for the device.

        Raises:
            UsageError: called outside of the `with` block.
            StorageError: the records cannot be written; the earlier steps are kept.
        """
        if self._writer is None:
            raise UsageError("option-conflict", "step() was called outside of its block: `with bertbench.measure(...)`")
        end, now = self._watch.mark(), time.time_ns()
        row = {**dict.fromkeys(STEP_COLUMNS), "step": self.steps, "start_ns": self._start_ns}
        row |= self._counts(samples, tokens, loss)
        self._ended.append(_Ended(row, self._mark, end))
        self._mark, self._start_ns = end, now
        self.steps += 1
        while self._ended and self._watch.passed(self._ended[0].end):
            self._write_step()

    def _counts(self, samples: Any, tokens: Any, loss: Any) -> dict[str, Any]:
        """Return the row's values, None for one that is none; the first such one is a warning."""
        kept: dict[str, Any] = {}
        for name, value, kind in (("samples", samples, Integral), ("tokens", tokens, Integral), ("loss", loss, Real)):
            wrong = ""
            if value is not None and not isinstance(value, kind):
                wrong = f"{name} is of type {type(value).__name__}, not {'a number' if kind is Real else 'an integer'}"
            elif value is not None and kind is Integral and value < 0:
                wrong = f"{name}={value} is below 0"
            kept[name] = None if wrong or value is None else int(value) if kind is Integral else float(value)
            if wrong and not self._mistake:
                self._mistake = f"step {self.steps}: {wrong}"
                warnings.warn(f"measurement {self.trial.implementation} will be refused: {self._mistake}", stacklevel=3)
        counted = {"samples": kept["samples"], "real_tokens": kept["tokens"], "padded_tokens": kept["tokens"]}
        return {**counted, "loss": kept["loss"]}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wall_seconds = time.perf_counter() - self._began
        self._stop.set()
        self._sensors.join()
        try:
            with self._stack:
                self._flush(error)
                self._end(error, wall_seconds)
        except StorageError:
            if error is None:
                raise
            warnings.warn("the measurement could not be written completely; see the exception", stacklevel=2)
        finally:
            self._writer = None

    def __repr__(self) -> str:
        name = self.trial.implementation
        if self.result is None:
            return f"<measurement {name}: {self.steps} steps so far>"
        if self.result["status"] != "ok" or self.result.get("step_time_ms") is None:
            return f"<measurement {name}: {self.result['status']}, {self.result['reason'] or 'no step time'}>"
        low, high = self.result["step_time_ms_low"], self.result["step_time_ms_high"]
        span = "" if low is None else f" (95 % interval {low:.4g} to {high:.4g} ms)"
        return (
            f"<measurement {name}: {self.result['step_time_ms']:.4g} ms per step{span}, median of "
            f"{self.result['steps_measured']} steps after {self.result['steps_warmup']} of warm-up>"
        )

    def _flush(self, error: BaseException | None) -> None:
        try:
            self._watch.synchronize()
        except RuntimeError:  # a failed device: what it has not passed is lost
            if error is None:
                raise
            return
        while self._ended:
            self._write_step()

    def _write_step(self) -> None:
        assert self._writer is not None
        ended = self._ended.popleft()
        self._writer.write({**ended.row, "step_time_ms": self._watch.elapsed_ms(ended.begin, ended.end)})

    def _end(self, error: BaseException | None, wall_seconds: float) -> None:
        after = f"after {self.steps} step{'' if self.steps == 1 else 's'}"
        status, reason, code = "ok", "", ""
        if isinstance(error, KeyboardInterrupt):
            status, reason = "interrupted", f"interrupted {after}"
        elif error is not None:
            text = f"{type(error).__name__}: {error}".strip()[:2000]
            status, reason, code = "crashed", f"{text} ({after})", "rank-failed"
        elif self._mistake:
            status, reason, code = "refused", self._mistake, "rows-invalid"
        elif not self.steps:
            status, reason, code = (
                "refused",
                "no step was recorded: call step() at the end of each step",
                "rows-invalid",
            )
            warnings.warn(f"measurement {self.trial.implementation}: {reason}", stacklevel=3)
        self._write_environment()
        write_record(self.directory.rank_json(0), {"rank": 0, **self._memory(), "unknown": _UNKNOWN})
        self.result = finish(self.trial, self.directory, status, reason, LaunchOptions(), wall_seconds, code)
        write_results(self.run)

    def _memory(self) -> dict[str, Any]:
        if self.trial.device == "cuda":
            import torch

            return used_memory(torch.device("cuda"))
        return used_memory(_Host)

    def _write_environment(self) -> None:
        environment = {**self._environment, "telemetry_unavailable": self._telemetry.unavailable}
        write_record(self.directory.env_json, environment)

    def _sample(self) -> None:
        while True:
            try:
                self._telemetry.sample(self._readings, [os.getpid()])
            except StorageError:  # a full disk ends the readings, not the loop
                return
            if self._stop.wait(_SAMPLE_SECONDS[self.trial.device]):
                return


class _Host:
    type = "cpu"
