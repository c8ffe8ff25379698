"""Counts the optimizer steps of a process of `bertbench measure` and writes the records of its rank.

A step lasts from the end of one optimizer step to the end of the next. The first optimizer that steps sets the pace; a
step of an optimizer inside another one's, or of a further optimizer, is none of its own. The process that makes the
first step claims its rank's steps-<rank>.csv; no other process, and no child of its own, writes that file. An error of
this module never reaches the script: it ends the measurement, and leaves a note.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any, NoReturn

_FLUSH_NS = 500_000_000  # rows made together find the caches warm: 0.1 s costs twice as much
_RECORD_NS = 5_000_000_000
_UNSEEN = "not visible from the optimizer of a script"
_UNKNOWN = {
    **dict.fromkeys(("forward_ms", "backward_ms", "communication_ms"), _UNSEEN),
    **dict.fromkeys(("mfu", "model_flops_per_second", "measured_peak_flops"), "FLOPs of a script are unknown"),
}
_IN_STEP = "the optimizer's step contains more than the update: a closure, or what torch.compile put together"

# Number; times in ns: begin (Unix and host), begin of the optimizer's step, end; load: wait in ns, counts; learning
# rate; events on a GPU: begin, begin of the optimizer's step, end.
_Step = tuple[int, tuple[Any, Any, Any, int], Any, Any, tuple[Any, Any, Any]]


class Recorder:
    """Writes the steps of this process into the trial's folder.

    Args:
        settings: folder (of the trial), columns (of steps-<rank>.csv), schema_version, profile ([start, stop) of the
            steps to profile, or null).
        note: leaves a note for the harness: its name, its text.
        load: returns another module of this folder.
    """

    def __init__(self, settings: Mapping[str, Any], note: Callable[..., None], load: Callable[[str], Any]) -> None:
        self.folder, self.columns = str(settings["folder"]), list(settings["columns"])
        self.version = settings["schema_version"]
        self.note = note
        window = settings.get("profile")
        self.profile: Any = window and load("trace").Profile(window, os.path.join(self.folder, "profile"), note)  # noqa: PTH118
        self.compiling: Callable[[], bool] = lambda: False
        self.compiled: Any = None  # an optimizer that has stepped inside a function of torch.compile
        self.loads: Any = load("loads").Loads()
        self._of_framework: dict[str, Any] = {}
        self._ended_before = 0
        self.claimed: bool | None = None  # None until this process's first step, False where it writes nothing
        self.rank, self.world = 0, 1
        self.steps = self.skipped = self.other_steps = self.ended_count = 0
        self._nested = threading.local()
        self._leader: Any = None
        self._begin_ns: int | None = None
        self._begin_unix_ns: int | None = None
        self._before: int | None = None  # host time at which the optimizer's step began; None where that is no update
        self._before_event: Any = None
        self._whole = False  # whether a step of the optimizer contained more than the update
        self._begin_event: Any = None
        self._device: Any = None
        self._pending: deque[_Step] = deque()
        self._file = -1
        self._flushed_ns = self._recorded_ns = 0
        self._facts: dict[str, Any] = {}

    def forked(self) -> None:
        """In a child: what the parent measures is the parent's alone."""
        if self.claimed:
            self.claimed = False
        if self.profile is not None:
            self.profile.leave()

    # What PyTorch calls.

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note that an optimizer begins its step."""
        if self.compiling():
            self.compiled = optimizer
            return
        if self.claimed is False:
            return
        open_steps, frame = self._open_steps(), sys._getframe(1)
        # A step that ended with an exception has no end: it is not around one that has no frame of it below.
        while open_steps and not _is_below(open_steps[-1][1], frame):
            open_steps.pop()
        open_steps.append((id(optimizer), frame))
        if len(open_steps) == 1:
            whole = kwargs.get("closure") is not None or (len(args) > 1 and args[1] is not None)
            self._before = None if whole else time.perf_counter_ns()
            self._before_event = None
            if self._device is not None and not whole:
                self.guarded(self._mark_before)

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Note that an optimizer has ended its step."""
        if self.compiling() or self.claimed is False:
            return
        open_steps = self._open_steps()
        while open_steps and open_steps[-1][0] != id(optimizer):
            open_steps.pop()
        if not open_steps:
            return
        open_steps.pop()  # a class that calls the step of its parent has two for itself
        if not open_steps:
            self.guarded(lambda: self._ended(optimizer))

    def compiled_step(self) -> None:
        """Take in a step inside a function of torch.compile, which has just returned."""
        optimizer, self.compiled = self.compiled, None
        self._step_of_another(optimizer)

    def engine_begins(self) -> None:
        """Note that a framework begins a step."""
        self._ended_before = self.ended_count

    def engine_ends(self, optimizer: Any) -> None:
        """Take in a step of a framework, unless an optimizer of torch has made it."""
        if optimizer is not None and self.ended_count == self._ended_before:
            self._step_of_another(optimizer)

    def framework(self, **facts: Any) -> None:
        """Take in which framework trains, and its settings."""
        self._of_framework = {name: value for name, value in facts.items() if isinstance(value, (str, int))}

    def _step_of_another(self, optimizer: Any) -> None:
        if self.claimed is not False:
            self._before = self._before_event = None
            self.guarded(lambda: self._ended(optimizer))

    def skipped_step(self, optimizer: Any) -> None:
        """Take in a step that a gradient scaler left out."""
        if self.claimed is False:
            return
        self._before, self._before_event = time.perf_counter_ns(), None
        self.skipped += 1
        self.guarded(lambda: self._ended(optimizer))

    def waited(self, began_ns: int, waited_ns: int, take: Callable[[], None]) -> None:
        """Take in what a DataLoader has just done.

        Args:
            began_ns: host time at which it began.
            waited_ns: `loads.waited_ns` then; a loader that reads another one in this process is timed alone.
            take: tells `loads` of it.
        """
        if self.claimed is False:
            return
        now = time.perf_counter_ns()
        if self._begin_ns is None:
            self._begin_ns, self._begin_unix_ns = began_ns, time.time_ns() - (now - began_ns)
        self.loads.waited_ns = waited_ns + now - began_ns
        self.guarded(take)

    def release(self, held: deque[Any]) -> None:
        """Take in the first of the batches that were read ahead: the script gets it now."""
        if self.claimed is not False:
            self.guarded(lambda: self.loads.release(held))

    # What comes of it.

    def _mark_before(self) -> None:
        self._before_event = self._event()

    def _open_steps(self) -> list[tuple[int, FrameType]]:
        found: list[tuple[int, FrameType]] | None = getattr(self._nested, "steps", None)
        if found is None:
            found = self._nested.steps = []
        return found

    def guarded(self, work: Callable[[], None]) -> None:
        """Do something; an error ends the measurement, not the script."""
        try:
            work()
        except Exception as error:  # whatever it is, it must not end the script
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        self.claimed = False
        self.note("problem", f"{type(error).__name__}: {error}\n")

    def _ended(self, optimizer: Any) -> None:
        now, unix = time.perf_counter_ns(), time.time_ns()
        self.ended_count += 1
        leader = None if self._leader is None else self._leader()
        if leader is None:
            self._leader = _reference(optimizer)
        elif leader is not optimizer:
            self.other_steps += 1
            return
        if self.claimed is None:
            self._claim(optimizer)
        if not self.claimed:
            return
        event = self._event()
        load = self.loads.end_step()
        groups = getattr(optimizer, "param_groups", None)
        rate = groups[0].get("lr") if groups else None
        times = (self._begin_unix_ns, self._begin_ns, self._before, now)
        self._pending.append((self.steps, times, load, rate, (self._begin_event, self._before_event, event)))
        self._whole |= self._before is None
        self.steps += 1
        if self.profile is not None and self.profile.next_step(self.steps, self.rank, self._device, self.world):
            now, unix, event = time.perf_counter_ns(), time.time_ns(), self._event()
        self._begin_ns, self._begin_unix_ns, self._begin_event = now, unix, event
        self._drain(now)

    def _claim(self, optimizer: Any) -> None:
        self.rank, self.world = _place()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        path = os.path.join(self.folder, f"steps-{self.rank}.csv")  # noqa: PTH118
        try:
            self._file = os.open(path, flags, 0o644)
        except FileExistsError:
            self.claimed = False
            self.note(f"second-{os.getpid()}")
            return
        self.claimed = True
        os.write(self._file, (",".join(self.columns) + "\n").encode())
        device = _device_of(optimizer)
        self._device = device if device is not None and device.type == "cuda" else None
        self._facts = _facts(optimizer, device)
        self._write_record()
        atexit.register(self.finish)
        _before_os_exit(self.finish)
        _after_exception(self._failed)

    def _event(self) -> Any:
        """Mark the present instant on the time line of the GPU; None on a CPU and while a CUDA graph is recorded."""
        if self._device is None:
            return None
        cuda = sys.modules["torch"].cuda
        if cuda.is_current_stream_capturing():
            return None
        event = cuda.Event(enable_timing=True)
        event.record(cuda.current_stream(self._device))
        return event

    def _drain(self, now: int, wait: bool = False) -> None:
        if not wait and now - self._flushed_ns < _FLUSH_NS:
            return
        self._flushed_ns = now
        lines = []
        while self._pending:
            end = self._pending[0][-1][-1]
            if end is not None and wait:
                end.synchronize()
            if end is not None and not end.query():
                break
            row = _row(self._pending.popleft())
            lines.append(",".join([_text(row.get(name)) for name in self.columns]))
        if lines:
            os.write(self._file, ("\n".join(lines) + "\n").encode())
        if wait or now - self._recorded_ns >= _RECORD_NS:
            self._write_record()

    def _write_record(self) -> None:
        self._recorded_ns = time.perf_counter_ns()
        record = {
            "schema_version": self.version,
            "rank": self.rank,
            "world_size": self.world,
            **self._facts,
            "steps": self.steps,
            "steps_skipped": self.skipped,
            "other_optimizer_steps": self.other_steps,
            "framework": self._of_framework or None,
            **_memory(self._device),
            "unknown": {**_UNKNOWN, "optimizer_ms": _IN_STEP} if self._whole else _UNKNOWN,
        }
        if self.rank == 0:
            record["ranks"] = list(range(self.world))
        self._write_json(f"rank-{self.rank}.json", record)

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        path = os.path.join(self.folder, name)  # noqa: PTH118
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(value, file)
        os.replace(f"{path}.{os.getpid()}", path)  # noqa: PTH105

    def _failed(self, kind: type[BaseException], error: BaseException) -> None:
        if not self.claimed:
            return
        refused = kind.__name__ in ("OutOfMemoryError", "MemoryError") or "out of memory" in str(error)
        why = f"{kind.__name__}: {error}".strip()[:500]
        status = "oom" if refused else "crashed"
        failure = {"schema_version": self.version, "status": status, "reason": why, "time": time.time()}
        self.guarded(lambda: self._write_json(f"failure-{self.rank}.json", failure))

    def finish(self) -> None:
        """Write what is left; called when the process ends."""
        if self.claimed:
            self.guarded(lambda: self._drain(time.perf_counter_ns(), wait=True))
            if self.claimed:
                self.guarded(self._write_record)
            if self.profile is not None:
                self.profile.finish()
            self.claimed = False


def _row(step: _Step) -> dict[str, Any]:
    number, (begin_unix, begin, before, now), (wait, samples, real, padded), rate, events = step
    begin_event, before_event, end_event = events
    step_ms = None if begin is None else (now - begin) / 1e6
    optimizer_ms = None if before is None else (now - before) / 1e6
    if end_event is not None:
        step_ms = step_ms if begin_event is None else begin_event.elapsed_time(end_event)
        optimizer_ms = optimizer_ms if before_event is None else before_event.elapsed_time(end_event)
    return {
        "step": number,
        "start_ns": begin_unix,
        "step_time_ms": step_ms,
        "data_wait_ms": None if wait is None else wait / 1e6,
        "optimizer_ms": optimizer_ms,
        "samples": samples,
        "real_tokens": real,
        "padded_tokens": padded,
        "learning_rate": rate if isinstance(rate, float) else None,
    }


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.6f}" if type(value) is float and abs(value) >= 1 else str(value)


def _reference(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # of a class with slots
        return lambda: value


def _is_below(frame: FrameType, top: FrameType) -> bool:
    found: FrameType | None = top
    while found is not None and found is not frame:
        found = found.f_back
    return found is not None and found is not top


def _place() -> tuple[int, int]:
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(dist.get_rank()), int(dist.get_world_size())
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return 0, 1


def _device_of(optimizer: Any) -> Any:
    for group in getattr(optimizer, "param_groups", None) or ():
        for parameter in group["params"]:
            return parameter.device
    return None


def _facts(optimizer: Any, device: Any) -> dict[str, Any]:
    torch = sys.modules["torch"]
    dist = sys.modules.get("torch.distributed")
    joined = dist is not None and dist.is_available() and dist.is_initialized()
    return {
        "pid": os.getpid(),
        "device": "cuda" if device is not None and device.type == "cuda" else "cpu",
        "optimizer": type(optimizer).__name__,
        "backend": str(dist.get_backend()) if joined and dist is not None else None,
        "threads": int(torch.get_num_threads()),
        "python": sys.version.split()[0],
        "torch": str(torch.__version__),
    }


def _memory(device: Any) -> dict[str, Any]:
    if device is not None:
        peak = int(sys.modules["torch"].cuda.max_memory_allocated(device))
        return {"peak_memory_bytes": peak, "peak_memory_kind": "device allocator"}
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"peak_memory_bytes": peak, "peak_memory_kind": "resident set"}


def _before_os_exit(work: Callable[[], None]) -> None:
    """Have `work` done before os._exit too: forked processes of multiprocessing end so, without Python's own exit."""
    end = os._exit

    def leave(status: int) -> NoReturn:
        work()
        end(status)

    os._exit = leave


def _after_exception(tell: Callable[[type[BaseException], BaseException], None]) -> None:
    shown = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        tell(kind, error)
        shown(kind, error, trace)

    sys.excepthook = hook
