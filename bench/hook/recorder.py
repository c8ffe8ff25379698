"""Counts the optimizer steps of a process of `bertbench measure` and writes the records of its rank.

A step lasts from the end of one optimizer step to the end of the next. The first optimizer that steps sets the pace;
steps of a further one are not counted. The process that makes the first step claims its rank's steps-<rank>.csv; no
other process, and no child of its own, writes that file. An error of this module never reaches the script: it ends the
measurement, and leaves a note.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_FLUSH_NS = 500_000_000  # rows made together find the caches warm: 0.1 s costs twice as much
_RECORD_NS = 5_000_000_000
_UNSEEN = "not visible from the optimizer of a script"
_UNKNOWN = {
    **dict.fromkeys(("forward_ms", "backward_ms", "communication_ms"), _UNSEEN),
    **dict.fromkeys(("mfu", "model_flops_per_second", "measured_peak_flops"), "FLOPs of a script are unknown"),
}
_IN_STEP = "the optimizer's step contains more than the update: a closure, or what torch.compile put together"


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Have a method of Recorder do nothing once the measurement has ended, and an error in it end the measurement."""

    @functools.wraps(method)
    def run(self: Recorder, *args: Any, **kwargs: Any) -> None:
        if self.claimed is False:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # whatever it is, it must not end the script
            self.claimed = False
            self.note("problem", f"{type(error).__name__}: {error}\n")

    return run


class Recorder:
    """Writes the steps of this process into the trial's folder.

    `settings` are folder (of the trial), columns (of steps-<rank>.csv), schema_version, stop (a file: once it is there,
    the script ends after its step) and profile (start and stop of the steps to profile, or null). `note` leaves a note
    for the harness; `load` returns another module of this folder.
    """

    def __init__(self, settings: Mapping[str, Any], note: Callable[..., None], load: Callable[[str], Any]) -> None:
        self.folder, self.columns = Path(settings["folder"]), list(settings["columns"])
        self.version = settings["schema_version"]
        self.note = note
        window = settings.get("profile")
        self.profile: Any = load("trace").Profile(*window, self.folder / "profile", note) if window else None
        self.loads: Any = load("loads").Loads()
        self.claimed: bool | None = None  # None until this process's first step, False where it writes nothing
        self.compiling: Callable[[], bool] = lambda: False
        self.compiled: Any = None  # an optimizer that has stepped inside a function of torch.compile
        self.ended = self.skipped = 0  # steps: of any optimizer, left out by a GradScaler
        self._steps = self._others = 0
        self._rank, self._world = 0, 1
        self._facts: dict[str, Any] = {}
        self._leader: Callable[[], Any] = lambda: None
        self._device: Any = None  # the GPU of the optimizer's parameters
        # Unix time, host time and event on the GPU.
        self._began: tuple[int | None, int | None, Any] = (None, None, None)
        # Host time and event at which the update began; None where the optimizer's step is more than that.
        self._update: tuple[int | None, Any] = (None, None)
        self._more_than_update = False
        # A row, and its events on a GPU: begin, begin of the update, end.
        self._pending: deque[tuple[dict[str, Any], Any, Any, Any]] = deque()
        self._file = -1
        self._stop = str(settings.get("stop", ""))
        self._flushed_ns = self._recorded_ns = 0

    def forked(self) -> None:
        """In a child: what the parent measures is the parent's alone."""
        self.claimed = False if self.claimed else self.claimed
        self.profile = None

    @_guarded
    def waited(self, began_ns: int, waited_ns: int, take: Callable[..., None], *given: Any) -> None:
        """Have `take` of `loads` take in what a DataLoader did since `began_ns`.

        `waited_ns` is what `loads.waited_ns` was then: a loader that reads another one is timed alone.
        """
        now = time.perf_counter_ns()
        if self._began[1] is None:
            self._began = (time.time_ns() - (now - began_ns), began_ns, None)
        self.loads.waited_ns = waited_ns + now - began_ns
        take(*given)

    @_guarded
    def begin_update(self, visible: bool = True) -> None:
        """Note that an optimizer begins its step; not `visible` is one that contains more than the update."""
        self._update = (time.perf_counter_ns(), self._event()) if visible else (None, None)

    @_guarded
    def end_step(self, optimizer: Any) -> None:
        """Take in the end of an optimizer's step."""
        now, unix = time.perf_counter_ns(), time.time_ns()
        self.ended += 1
        leader = self._leader()
        if leader is None:
            self._leader = weakref.ref(optimizer)
        elif leader is not optimizer:
            self._others += 1
            return
        if self.claimed is None:
            self._claim(optimizer)
        if not self.claimed:
            return
        event = self._event()
        wait_ns, samples, real_tokens, padded_tokens = self.loads.end_step()
        rate = optimizer.param_groups[0].get("lr")
        began_unix, began, began_event = self._began
        row = {
            "step": self._steps,
            "start_ns": began_unix,
            "step_time_ms": _milliseconds(began, now),
            "data_wait_ms": _milliseconds(0, wait_ns),
            "optimizer_ms": _milliseconds(self._update[0], now),
            "samples": samples,
            "real_tokens": real_tokens,
            "padded_tokens": padded_tokens,
            "learning_rate": rate if isinstance(rate, float) else None,
        }
        self._pending.append((row, began_event, self._update[1], event))
        self._more_than_update |= self._update[0] is None
        self._steps += 1
        if self.profile is not None and self.profile.next_step(self._steps, self._rank, self._device, self._world):
            now, unix, event = time.perf_counter_ns(), time.time_ns(), self._event()
        self._began = (unix, now, event)
        if self._drain(now) and os.path.exists(self._stop):  # noqa: PTH110
            self.finish()
            raise SystemExit(0)

    def _claim(self, optimizer: Any) -> None:
        torch: Any = sys.modules["torch"]
        dist = torch.distributed
        joined = dist.is_available() and dist.is_initialized()
        if joined:
            self._rank, self._world = int(dist.get_rank()), int(dist.get_world_size())
        elif "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            self._rank, self._world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._file = os.open(self.folder / f"steps-{self._rank}.csv", flags, 0o644)
        except FileExistsError:
            self.claimed = False
            self.note(f"second-{os.getpid()}")
            return
        self.claimed = True
        os.write(self._file, (",".join(self.columns) + "\n").encode())
        device = next(one.device for group in optimizer.param_groups for one in group["params"])
        self._device = device if device.type == "cuda" else None
        self._facts = {
            "pid": os.getpid(),
            "device": "cpu" if self._device is None else "cuda",
            "optimizer": type(optimizer).__name__,
            "backend": str(dist.get_backend()) if joined else None,
            "threads": int(torch.get_num_threads()),
            "python": sys.version.split()[0],
            "torch": str(torch.__version__),
        }
        self._write_record()
        leave = os._exit

        def finish_and_leave(status: int) -> None:  # as forked processes of multiprocessing end
            self.finish()
            leave(status)

        atexit.register(self.finish)
        os._exit = finish_and_leave  # type: ignore[assignment]

    @_guarded
    def finish(self) -> None:
        """Write what is left; called when the process ends."""
        error = getattr(sys, "last_value", None)  # what ends the script
        if error is not None:
            why = f"{type(error).__name__}: {error}".strip()
            oom = any(words in why for words in ("out of memory", "allocate memory", "OutOfMemoryError", "MemoryError"))
            failure = {"status": "oom" if oom else "crashed", "reason": why[:500], "time": time.time()}
            self._write_json(f"failure-{self._rank}.json", failure)
        self._drain(time.perf_counter_ns(), wait=True)
        if self.profile is not None:
            self.profile.give_up("the script ended before --stop")
        self.claimed = False

    def _event(self) -> Any:
        """Mark the present instant on the time line of the GPU; None on a CPU and while a CUDA graph is recorded."""
        cuda = sys.modules["torch"].cuda
        if self._device is None or cuda.is_current_stream_capturing():
            return None
        event = cuda.Event(enable_timing=True)
        event.record(cuda.current_stream(self._device))
        return event

    def _drain(self, now: int, wait: bool = False) -> bool:
        """Write the rows whose steps the GPU has passed, now and then; with `wait` all of them. Return if it did."""
        if not wait and now - self._flushed_ns < _FLUSH_NS:
            return False
        self._flushed_ns = now
        lines = []
        while self._pending:
            row, began, update, end = self._pending[0]
            if end is not None:
                if wait:
                    end.synchronize()
                if not end.query():
                    break
                row["step_time_ms"] = row["step_time_ms"] if began is None else began.elapsed_time(end)
                row["optimizer_ms"] = row["optimizer_ms"] if update is None else update.elapsed_time(end)
            self._pending.popleft()
            lines.append(",".join([_text(row.get(name)) for name in self.columns]))
        if lines:
            os.write(self._file, ("\n".join(lines) + "\n").encode())
        if wait or now - self._recorded_ns >= _RECORD_NS:
            self._write_record()
        return True

    def _write_record(self) -> None:
        self._recorded_ns = time.perf_counter_ns()
        record = {
            "rank": self._rank,
            "world_size": self._world,
            **self._facts,
            "steps": self._steps,
            "steps_skipped": self.skipped,
            "other_optimizer_steps": self._others,
            **_memory(self._device),
            "unknown": {**_UNKNOWN, "optimizer_ms": _IN_STEP} if self._more_than_update else _UNKNOWN,
            **({} if self._rank else {"ranks": list(range(self._world))}),
        }
        self._write_json(f"rank-{self._rank}.json", record)

    def _write_json(self, name: str, record: Mapping[str, Any]) -> None:
        temporary = self.folder / f"{name}.{os.getpid()}"
        temporary.write_text(json.dumps({"schema_version": self.version, **record}), encoding="utf-8")
        temporary.replace(self.folder / name)


def _milliseconds(begin: int | None, end: int | None) -> float | None:
    return None if begin is None or end is None else (end - begin) / 1e6


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.6f}" if type(value) is float and abs(value) >= 1 else str(value)


def _memory(device: Any) -> dict[str, Any]:
    if device is not None:
        peak = int(sys.modules["torch"].cuda.max_memory_allocated(device))
        return {"peak_memory_bytes": peak, "peak_memory_kind": "device allocator"}
    import resource

    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_memory_bytes": 1024 * kibibytes, "peak_memory_kind": "resident set"}
