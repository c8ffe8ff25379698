"""The profile of some steps of a script: one Chrome trace per rank, like those of `bertbench profile`.

`describe` and `write` serve the latter too. A process has one PyTorch profiler: a second one fails, ends the first one
or crashes the process. One of the script's own goes first: where it begins before the end of ours, there is no profile.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

_EMPTY_BYTES = 100


def describe(profiler: Any, rank: int) -> None:
    """Have the trace of a profiler that is on name its rank and host."""
    profiler.add_metadata_json("bertbench", json.dumps({"rank": rank, "host": socket.gethostname()}))


def write(recorded: Any, path: Path) -> None:
    """Write a trace, gzipped; it has its name when it is whole. Raises OSError."""
    temporary = path.with_name(f".{path.name}")  # torch takes its ending for the wish to have it gzipped
    try:
        recorded.export_chrome_trace(str(temporary))
        if temporary.stat().st_size < _EMPTY_BYTES:  # torch first writes it there
            raise OSError(errno.ENOSPC, f"{tempfile.gettempdir()} is full")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class Profile:
    """The profile of the steps [start, stop) of a process; an error never reaches the script."""

    def __init__(self, start: int, stop: int, folder: Path, note: Callable[..., None]) -> None:
        self._start, self._stop = start, stop
        self._folder, self._note = folder, note
        self._profile: Any = None
        self._over = False
        self._busy = False  # whether it is our own profiler that begins or ends

    def next_step(self, number: int, rank: int, device: Any, ranks: int) -> bool:
        """Begin, continue or end the profile before step `number`; return whether that took time of no step.

        `device` is that of the optimizer's parameters where it is a GPU, else None.
        """
        if self._over or not self._start <= number <= self._stop:
            return False
        self._busy = True
        try:
            if device is not None:  # the mark of a step ends when its kernels do
                sys.modules["torch"].cuda.synchronize(device)
            if number == self._start:
                from torch.profiler import ProfilerAction, ProfilerActivity, profile

                self._profile = profile(
                    activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * (device is not None)],
                    schedule=lambda step: ProfilerAction.RECORD,  # marks each step as a range ProfilerStep#<number>
                    # NCCL's kernels record the sizes of messages, gloo's spans do not: there, shapes are needed.
                    record_shapes=ranks > 1 and device is None,
                )
                self._profile.step_num = self._start
                self._profile.start()
                describe(self._profile, rank)
            elif number < self._stop:
                self._profile.step()
            else:
                self._over = True
                self._profile.stop()
                write(self._profile, self._folder / f"trace-rank{rank}.json.gz")
        except Exception as error:  # such as of a full disk
            self._over = True
            self._note("profile", f"{type(error).__name__}: {error}\n")
        self._busy = False
        return number in (self._start, self._stop)

    def give_up(self, why: str) -> None:
        """End without a profile, unless there is one."""
        if self._over or self._busy:
            return
        self._over = True
        self._note("profile", f"{why}\n")
        if self._profile is not None:
            with contextlib.suppress(Exception):
                self._profile.stop()
