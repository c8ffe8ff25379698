"""What records a Kineto trace on one rank: the steps [start, stop) and nothing else."""

import gzip
import os
import shutil
import socket
import sys
from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from bert.observer import Observer, StepResult
from common.atomic import atomic_path
from common.errors import StorageError

PHASE_PREFIX = "bertbench:"


class TraceObserver(Observer):
    """Records steps [start, stop); each step is a range ProfilerStep#<n>, each phase a range bertbench:<phase>."""

    model_phases = True

    def __init__(self, path: Path, rank: int, start: int, stop: int, options: Collection[str] = ()) -> None:
        """Write to `path`; `options` are those of TorchProfiler."""
        self._path = path
        self._rank = rank
        self._start = start
        self._stop = stop
        self._options = options
        self._profile: profile | None = None
        self._step: AbstractContextManager[object] | None = None

    def step_begin(self, step: int) -> None:
        """Start the profiler before the first step of the window, and mark every recorded step."""
        if step == self._start:
            activities = [ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(ProfilerActivity.CUDA)
            self._profile = profile(
                activities=activities,
                record_shapes="shapes" in self._options or _needs_sizes(),
                with_stack="stacks" in self._options,
                profile_memory="memory" in self._options,
            )
            self._profile.add_metadata_json("bertbench", f'{{"rank": {self._rank}, "host": "{socket.gethostname()}"}}')
            self._profile.start()
        if self._profile is not None:
            self._step = record_function(f"ProfilerStep#{step}")
            self._step.__enter__()

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Mark a part of a recorded step."""
        if self._profile is None:
            return super().phase(name)
        return record_function(PHASE_PREFIX + name)

    def step_end(self, step: int, result: StepResult) -> None:
        """End the step's mark; write the trace after the last step of the window."""
        if self._step is not None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # the step's range ends when its kernels do
            self._step.__exit__(None, None, None)
            self._step = None
        if step == self._stop - 1:
            self._finish()

    def run_end(self) -> None:
        """Write what there is where the run ended early."""
        self._finish()

    def _finish(self) -> None:
        if self._profile is None:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        recorded, self._profile = self._profile, None
        recorded.stop()
        try:
            self._write(recorded)
        except StorageError as error:  # the run goes on and keeps what it measured; the missing trace is told later
            sys.stderr.write(f"{error}\n")

    def _write(self, recorded: profile) -> None:
        with atomic_path(self._path) as temporary:
            plain = temporary.with_suffix(".json")
            try:
                recorded.export_chrome_trace(str(plain))
                with plain.open("rb") as source, gzip.open(temporary, "wb", compresslevel=3) as target:
                    shutil.copyfileobj(source, target)
            finally:
                plain.unlink(missing_ok=True)
        if "tensorboard" in self._options:
            folder = self._path.parent / "tensorboard"
            folder.mkdir(exist_ok=True)
            # The plugin's own pattern: <worker>.<time>.pt.trace.json.gz.
            os.link(self._path, folder / f"rank{self._rank}.{self._path.stat().st_mtime_ns}.pt.trace.json.gz")


def _needs_sizes() -> bool:
    """Whether messages' sizes are in the trace only with shapes: NCCL's kernels carry them, gloo's spans do not."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return distributed and torch.distributed.get_world_size() > 1 and not torch.cuda.is_available()
