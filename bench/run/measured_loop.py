"""A loop of the calling process as a trial of kind measure: the clock, the sensors and the records around it.

    trials/<trial id>/trial.json  env.json  steps-0.csv  rank-0.json  telemetry-0.csv  result.json

A step lasts from the end of the previous one (the first: from the beginning of the `with` block) to the call of `step`.
On a GPU the ends are CUDA events, which are read when the device has passed them: measuring never stalls it.
"""

import contextlib
import dataclasses
import os
import sys
import threading
import time
import warnings
from collections import deque
from contextlib import ExitStack
from numbers import Integral
from pathlib import Path
from typing import Any

from bench.machine.devices import capture, find_devices
from bench.run.resources import used_memory
from bench.run.stopwatch import stopwatch
from bench.run.supervise import LaunchOptions, finish
from bench.run.telemetry import Telemetry
from bench.sweep.script import in_next_round, plan_script
from bench.sweep.sweep import locked, record_request, write_results
from common.errors import StorageError, UsageError
from common.registry import lookup
from records.files import RowWriter, write_record
from records.run import RunDirectory
from records.schema import STEP_COLUMNS

# By device, s: as in trials, but a thread of this process must not take the loop's time.
_SAMPLE_SECONDS = {"cpu": 1.0, "cuda": 0.1}
_UNSEEN = "not visible from the end of a step"
_UNKNOWN = {
    **dict.fromkeys(("data_wait_ms", "forward_ms", "backward_ms", "communication_ms", "optimizer_ms"), _UNSEEN),
    **dict.fromkeys(("mfu", "model_flops_per_second", "measured_peak_flops"), "FLOPs of the loop are unknown"),
}


class MeasuredLoop:
    """Measures a loop as a trial: a context manager whose `step` is called at the end of each step.

    The trial ends as ok, or, with the steps made so far, as interrupted (KeyboardInterrupt) or crashed (any other
    exception); exceptions are not held back. A block without a step ends as refused, with a warning. The run directory
    is locked while the block runs, and the trial's round becomes the next of the folder when it begins.
    """

    def __init__(self, name: str, out: Path, device: str | None = None) -> None:
        torch = sys.modules.get("torch")
        used = "cuda" if torch is not None and torch.cuda.is_initialized() else "cpu"
        lookup({"cpu": "", "cuda": ""}, device or used, "device")
        self.run = RunDirectory(out)
        planned = plan_script(self.run, ("bertbench.measure", name), name=name)
        self.trial = dataclasses.replace(planned, device=device or used)
        self.result: dict[str, Any] | None = None
        """result.json, once the block has ended."""
        self.steps = 0
        self._ended: deque[tuple[dict[str, Any], Any, Any]] = deque()  # a row, and the marks of its begin and end
        self._stack = ExitStack()
        self._open = False

    def __enter__(self) -> "MeasuredLoop":
        if self._open or self.result is not None:
            raise UsageError("option-conflict", "this measurement has been used: call bertbench.measure again")
        with ExitStack() as stack:  # undone if the folder cannot be written
            stack.enter_context(locked(self.run))
            self.trial = in_next_round(self.run, self.trial)  # others may have measured since it was planned
            self.directory = self.run.trial(self.trial.trial_id)
            self.directory.path.mkdir(parents=True, exist_ok=True)
            write_record(self.directory.trial_json, self.trial.to_json())
            devices = find_devices(self.trial.device)
            uuids = [gpu.uuid for gpu in devices.gpus if gpu.uuid]
            sensors = Telemetry(self.directory.telemetry_csv(0), uuids, _SAMPLE_SECONDS[self.trial.device])
            self._telemetry = stack.enter_context(sensors)
            self._environment = {**capture(devices), "telemetry_unavailable": sensors.unavailable}
            write_record(self.directory.env_json, self._environment)
            record_request(self.run, [self.trial], {"command": "measure", "name": self.trial.implementation})
            self._records = stack.enter_context(RowWriter(self.directory.steps_csv(0), STEP_COLUMNS))
            self._stack = stack.pop_all()
        self._stop = threading.Event()
        self._sensors = threading.Thread(target=self._sample, name="bertbench-sensors", daemon=True)
        self._sensors.start()
        self._watch = stopwatch(self.trial.device)
        self._watch.synchronize()  # earlier work is not the first step's
        self._began = time.perf_counter()
        self._mark, self._start_ns = self._watch.mark(), time.time_ns()
        self._open = True
        return self

    def step(self, *, samples: int | None = None, tokens: int | None = None, loss: Any = None) -> None:
        """End a step of so many samples and tokens, for samples/s and tokens/s; reading a loss on a GPU waits for it.

        Raises UsageError (a count that is no integer of at least 0, outside of the block) and StorageError.
        """
        if not self._open:
            raise UsageError("option-conflict", "step() was called outside of its block: `with bertbench.measure(...)`")
        end, now = self._watch.mark(), time.time_ns()
        counts: dict[str, Any] = {"samples": samples, "tokens": tokens}
        for name, value in counts.items():
            if value is not None and not (isinstance(value, Integral) and int(value) >= 0):
                raise UsageError("option-value", f"{name}={value!r} must be an integer of at least 0")
        row = {
            "step": self.steps,
            "start_ns": self._start_ns,
            "samples": None if samples is None else int(samples),
            **dict.fromkeys(("real_tokens", "padded_tokens"), None if tokens is None else int(tokens)),
            "loss": None,
        }
        with contextlib.suppress(TypeError, ValueError, RuntimeError):  # such as of a tensor of several numbers
            row["loss"] = None if loss is None else float(loss)
        self._ended.append((row, self._mark, end))
        self._mark, self._start_ns = end, now
        self.steps += 1
        self._write_steps()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        wall_seconds = time.perf_counter() - self._began
        self._stop.set()
        self._sensors.join()
        self._open = False
        with self._stack:
            # Of a failed device, what it has not passed is lost.
            with contextlib.suppress(RuntimeError) if error else contextlib.nullcontext():
                self._watch.synchronize()
                self._write_steps()
            self._end(error, wall_seconds)

    def _write_steps(self) -> None:
        """Write the steps that the device has passed."""
        while self._ended and self._watch.passed(self._ended[0][-1]):
            row, begin, end = self._ended.popleft()
            times = {"step_time_ms": self._watch.elapsed_ms(begin, end)}
            self._records.write({**dict.fromkeys(STEP_COLUMNS), **row, **times})

    def _end(self, error: BaseException | None, wall_seconds: float) -> None:
        status, reason, code = "ok", "", ""
        if isinstance(error, KeyboardInterrupt):
            status, reason = "interrupted", f"interrupted after {self.steps} steps"
        elif error is not None:
            text = f"{type(error).__name__}: {error}".strip()[:2000]
            status, reason, code = "crashed", f"{text} (after {self.steps} steps)", "rank-failed"
        elif not self.steps:
            status, reason, code = "refused", "no step was recorded: call step() at the end of each", "rows-invalid"
            warnings.warn(f"measurement {self.trial.implementation}: {reason}", stacklevel=3)
        write_record(self.directory.env_json, self._environment)  # with the sensors that failed meanwhile
        write_record(self.directory.rank_json(0), {"rank": 0, **used_memory(self.trial.device), "unknown": _UNKNOWN})
        self.result = finish(self.trial, self.directory, status, reason, LaunchOptions(), wall_seconds, code)
        write_results(self.run)

    def _sample(self) -> None:
        with contextlib.suppress(StorageError):  # a full disk ends the readings, not the loop
            self._telemetry.sample(os.getpid())
            while not self._stop.wait(_SAMPLE_SECONDS[self.trial.device]):
                self._telemetry.sample(os.getpid())
