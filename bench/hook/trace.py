"""The profile of some steps of a script: one Chrome trace per rank, like those of `bertbench profile`.

A process has one PyTorch profiler: a second one fails, ends the first one or crashes the process. One of the script's
own goes first: ours does not begin while that one is prepared or runs, and ends before that one begins.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from typing import Any

_ONE = "PyTorch runs one profiler per process"


class Profile:
    """The profile of the steps [start, stop) of a process; an error never reaches the script.

    Args:
        window: start and stop.
        folder: of the traces.
        note: leaves a note for the harness: its name, its text.
    """

    def __init__(self, window: tuple[int, int], folder: str, note: Callable[..., None]) -> None:
        self._start, self._stop = window
        self._folder, self._note = folder, note
        self._trace: Any = None
        self._over = False
        self._busy = False  # whether it is our own profiler that begins or ends
        self._of_script = False  # whether one of the script's is prepared or runs

    def next_step(self, number: int, rank: int, device: Any, ranks: int) -> bool:
        """Begin, continue or end the profile before step `number`; return whether that took time of no step.

        Args:
            number: of the step that begins.
            rank: of this process.
            device: of the optimizer's parameters where that is a GPU, else None.
            ranks: number of ranks.
        """
        if self._over or not self._start <= number <= self._stop:
            return False
        if number == self._start:
            self._guarded(lambda: self._begin(rank, device, ranks))
        elif number == self._stop:
            self._guarded(lambda: self._end(whole=True))
        if self._trace is not None:
            self._guarded(lambda: self._trace.mark(number))
        return number in (self._start, self._stop)

    def script_begins(self) -> None:
        """Take in that a profiler of the script is about to be prepared or started."""
        if self._busy:
            return
        self._give_way("the script's own profiler began after step {}: " + _ONE)
        self._of_script = True

    def script_ends(self) -> None:
        """Take in that a profiler of the script has ended."""
        if not self._busy:
            self._of_script = False

    def finish(self) -> None:
        """End the profile where the script ends."""
        self._give_way("the script ended after step {}, before --stop")

    def leave(self) -> None:
        """In a child process: the profile is the parent's."""
        self._trace, self._over = None, True

    def _begin(self, rank: int, device: Any, ranks: int) -> None:
        torch = sys.modules["torch"]
        if self._of_script or torch.autograd._profiler_enabled():
            self._over = True
            self._note("profile", f"a profiler of the script's own was running before step {self._start}: {_ONE}\n")
            return
        path = os.path.join(self._folder, f"trace-rank{rank}.json.gz")  # noqa: PTH118
        self._trace = Trace(path, rank, device, ranks)

    def _give_way(self, why: str) -> None:
        if self._trace is not None:
            self._note("profile", why.format(self._trace.number - 1) + "\n")
            self._guarded(lambda: self._end(whole=False))

    def _end(self, whole: bool) -> None:
        trace, self._trace, self._over = self._trace, None, True
        if trace is not None:
            trace.end(whole)

    def _guarded(self, work: Callable[[], None]) -> None:
        self._busy = True
        try:
            work()
        except Exception as error:  # such as of a full disk
            self._trace, self._over = None, True
            self._note("profile", f"{type(error).__name__}: {error}\n")
        finally:
            self._busy = False


class Trace:
    """Records with the PyTorch profiler of the script's own torch.

    Args:
        path: of the trace, ending in .json.gz.
        rank: of this process.
        device: of the optimizer's parameters where that is a GPU, else None.
        ranks: number of ranks.
    """

    def __init__(self, path: str, rank: int, device: Any, ranks: int) -> None:
        from torch.profiler import ProfilerActivity, profile, record_function

        self._path, self._device, self._range = path, device, record_function
        kinds = [ProfilerActivity.CPU] if device is None else [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        # NCCL's kernels record the sizes of messages, gloo's spans do not: there, shapes are needed.
        self._profile: Any = profile(activities=kinds, record_shapes=ranks > 1 and device is None)
        self._profile.prepare_trace()
        self._profile.add_metadata_json("bertbench", json.dumps({"rank": rank, "host": socket.gethostname()}))
        self._profile.start_trace()
        self._step: Any = None
        self._first = self.number = -1

    def mark(self, number: int) -> None:
        """End the mark of the step before, if there is one, and begin that of step `number`."""
        self._end_mark()
        self._first = number if self._first < 0 else self._first
        self.number = number
        self._step = self._range(f"ProfilerStep#{number}")
        self._step.__enter__()

    def end(self, whole: bool) -> None:
        """Write the trace, if it has a finished step.

        Args:
            whole: whether the step that is marked has ended too; if not, the trace does not name it a step.
        """
        self._end_mark()
        self._wait()
        self._profile.stop_trace()
        if not whole and self.number <= self._first:
            return
        unfinished = b"" if whole else f'"ProfilerStep#{self.number}"'.encode()
        plain, packed = f"{self._path}.{os.getpid()}.json", f"{self._path}.{os.getpid()}"
        try:
            self._profile.export_chrome_trace(plain)
            with open(plain, "rb") as source, gzip.open(packed, "wb", compresslevel=3) as target:  # noqa: PTH123
                if unfinished:
                    target.writelines(line.replace(unfinished, b'"unfinished step"') for line in source)
                else:
                    shutil.copyfileobj(source, target)
            os.replace(packed, self._path)  # noqa: PTH105
        finally:
            for left in (plain, packed):
                if os.path.exists(left):  # noqa: PTH110
                    os.remove(left)  # noqa: PTH107

    def _end_mark(self) -> None:
        if self._step is not None:
            self._wait()
            self._step.__exit__(None, None, None)
            self._step = None

    def _wait(self) -> None:
        if self._device is not None:  # the mark of a step ends when its kernels do
            import torch

            torch.cuda.synchronize(self._device)
