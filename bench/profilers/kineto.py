"""The PyTorch profiler (Kineto): one Chrome trace per rank, with the steps [start, stop) and nothing else."""

import gzip
import shutil
import socket
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bert.observer import Observer, StepResult
from common.atomic import atomic_path
from common.errors import InputError

PHASE_PREFIX = "bertbench:"


class TorchProfiler:
    """Runs inside every rank; needs nothing but torch."""

    def check(self) -> None:
        """Always there."""

    def wrap(self, argv: list[str], directory: Path) -> list[str]:
        """Works inside the program: nothing is put in front of it."""
        return argv

    def observer(self, directory: Path, rank: int, start: int, stop: int) -> Observer:
        """Return what starts and stops the recording on one rank."""
        return _TraceObserver(directory / f"trace-rank{rank}.json.gz", rank, start, stop)

    def collect(self, directory: Path) -> list[Path]:
        """List the traces. Raises InputError where there is none."""
        traces = sorted(directory.glob("trace-rank*.json.gz"))
        if not traces:
            raise InputError(f"{directory} holds no trace: the run ended before the window was over; see its log.txt")
        return traces


class _TraceObserver(Observer):
    """Records steps [start, stop); each step is a range ProfilerStep#<n>, each phase a range bertbench:<phase>."""

    model_phases = True

    def __init__(self, path: Path, rank: int, start: int, stop: int) -> None:
        self._path = path
        self._rank = rank
        self._start = start
        self._stop = stop
        self._profile: profile | None = None
        self._step: AbstractContextManager[object] | None = None

    def step_begin(self, step: int) -> None:
        if step == self._start:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(activities=activities)
            self._profile.add_metadata_json("bertbench", f'{{"rank": {self._rank}, "host": "{socket.gethostname()}"}}')
            self._profile.start()
        if self._profile is not None:
            self._step = record_function(f"ProfilerStep#{step}")
            self._step.__enter__()

    def phase(self, name: str) -> AbstractContextManager[None]:
        if self._profile is None:
            return super().phase(name)
        return record_function(PHASE_PREFIX + name)

    def step_end(self, step: int, result: StepResult) -> None:
        if self._step is not None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # the step's range ends when its kernels do
            self._step.__exit__(None, None, None)
            self._step = None
        if step == self._stop - 1:
            self._finish()

    def run_end(self) -> None:
        self._finish()

    def _finish(self) -> None:
        if self._profile is None:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._profile.stop()
        with atomic_path(self._path) as temporary:
            plain = temporary.with_suffix(".json")
            try:
                self._profile.export_chrome_trace(str(plain))
                with plain.open("rb") as source, gzip.open(temporary, "wb", compresslevel=3) as target:
                    shutil.copyfileobj(source, target)
            finally:
                plain.unlink(missing_ok=True)
        self._profile = None
