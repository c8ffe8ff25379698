"""Record Kineto traces of one or several cycles of steps on one rank."""

import shutil
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bench.hook import trace
from bench.profilers.kineto import SCHEDULE, Cycle
from bert.observer import Observer, StepResult
from common.atomic import storage_errors

PHASE_PREFIX = "bertbench:"


class TraceObserver(Observer):
    """Records cycles; each step in them is a range ProfilerStep#<n>, each phase a range bertbench:<phase>."""

    model_phases = True

    def __init__(self, path: Path, rank: int, cycles: Sequence[Cycle], options: Collection[str] = ()) -> None:
        """Write the first cycle to `path`, the others only for TensorBoard; `options` are those of TorchProfiler."""
        self._path, self._rank, self._options = path, rank, options
        self._cycles = list(cycles)
        self._profile: profile | None = None
        self._recording = False
        self._first_written = False
        self._step: AbstractContextManager[object] | None = None

    def step_begin(self, step: int) -> None:
        """Start the profiler at the begin of a cycle, and mark every recorded step."""
        if not self._cycles or step < self._cycles[0].warm_up:
            return
        if self._profile is None:
            self._profile = profile(
                activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * torch.cuda.is_available()],
                record_shapes="shapes" in self._options or _needs_sizes(),
                with_stack="stacks" in self._options,
                profile_memory="memory" in self._options,
            )
            self._profile.prepare_trace()
            trace.describe(self._profile, self._rank)
        if step == self._cycles[0].start:
            self._profile.start_trace()
            self._recording = True
        if self._recording:
            self._step = record_function(f"ProfilerStep#{step}")
            self._step.__enter__()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Mark a part of a recorded step."""
        return super().phase(name) if self._step is None else record_function(PHASE_PREFIX + name)

    def step_end(self, step: int, result: StepResult) -> None:
        """End the mark of the step; write the trace after the last step of a cycle."""
        if self._step is None:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the step's range ends when its kernels do
        self._step.__exit__(None, None, None)
        self._step = None
        if step == self._cycles[0].stop - 1:
            self._write()

    def run_end(self) -> None:
        """Write the records so far if the run ended early."""
        if self._recording:
            self._write()

    def _write(self) -> None:
        assert self._profile is not None
        recorded, self._profile, self._recording = self._profile, None, False
        recorded.stop_trace()
        del self._cycles[0]
        places = [] if self._first_written else [self._path]
        self._first_written = True
        several = SCHEDULE & set(self._options)
        if several or "tensorboard" in self._options:
            # One level below the search for traces, so that a second cycle is not taken for a second rank.
            folder = self._path.parent / ("tensorboard/cycles" if several else "tensorboard")
            folder.mkdir(parents=True, exist_ok=True)
            # Name pattern of the plugin: <worker>.<time>.pt.trace.json.gz.
            places.append(folder / f"rank{self._rank}.{time.time_ns()}.pt.trace.json.gz")
        for place in places[:1]:
            with storage_errors(place):
                trace.write(recorded, place)
        for place in places[1:]:
            shutil.copyfile(places[0], place)


def _needs_sizes() -> bool:
    """Return whether message sizes need shapes: NCCL kernels record the sizes, gloo spans do not."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return distributed and torch.distributed.get_world_size() > 1 and not torch.cuda.is_available()
