"""Counts the optimizer steps of a process of `bertbench measure` and writes the records of its rank.

A step lasts from the end of one optimizer step to the end of the next. The first optimizer that steps sets the pace;
steps of a further one are not counted. In a process that makes no optimizer of torch.optim, a step is the backward
passes between two batches. Marks divide a step into phases: from a batch, or what ended before, to the backward pass is
forward, and what no phase has is the rest. The process that makes the first step claims its rank's steps-<rank>.csv; no
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
_UNSEEN = "no backward pass or optimizer step was seen"
BY_PASSES = "backward passes between two batches"
"""In place of an optimizer's name, where a step is these."""
PER_STEP = "BERTBENCH_PER_STEP"
"""Environment variable: samples, real and padded tokens of a step as JSON, null for what the DataLoader shows."""
_PHASES = ("forward", "backward", "optimizer")
_UNKNOWN = {
    "communication_ms": "not visible from outside of a script: backward_ms contains what is exposed",
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
        self.framework: dict[str, float] = {}  # figures that a framework reports of its training
        self._aside: dict[str, tuple[int, int]] = {}  # how often and how long, in ns, what is no step took
        self._is_aside = False
        self.has_optimizer = False  # whether one of torch.optim was made
        self.device: Any = None  # of the latest loss
        self._passes = self._depth = 0  # backward passes since the last step, open ones
        self._mark: tuple[int | None, Any] = (None, None)  # host time and event on the GPU of the latest mark
        self._phases: list[tuple[str, tuple[int | None, Any], tuple[int | None, Any]]] = []  # of this step
        self._steps = self._others = 0
        self._rank, self._world = 0, 1
        self._facts: dict[str, Any] = {}
        self._leader: Callable[[], Any] = lambda: None
        self._device: Any = None  # the GPU of the optimizer's parameters
        # Unix time, host time and event on the GPU.
        self._began: tuple[int | None, int | None, Any] = (None, None, None)
        # Whether the optimizer's step contains more than the update, and the passes before it.
        self._update: tuple[bool, int] = (False, 0)
        self._seen: set[str] = set()  # phases
        self._hidden = False  # whether phases of a step were inside the optimizer's step
        # A row, its events on a GPU (begin, end), and its phases.
        self._pending: deque[tuple[dict[str, Any], Any, Any, Any]] = deque()
        self._file = -1
        self._stop = str(settings.get("stop", ""))
        self._given = json.loads(os.environ.get(PER_STEP, "[null, null, null]"))
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
        if self._passes and not self.has_optimizer:
            self._end_step(began_ns, time.time_ns() - (now - began_ns), None)
        if self._began[1] is None:
            self._began = (time.time_ns() - (now - began_ns), began_ns, None)
        self.loads.waited_ns = waited_ns + now - began_ns
        take(*given)
        self.mark()

    @_guarded
    def mark(self, phase: str = "") -> None:
        """Count the time since the mark before as that of a phase, if any."""
        mark = time.perf_counter_ns(), self._event()
        if phase:
            self._phases.append((phase, self._mark, mark))
        self._mark = mark

    @_guarded
    def backward(self, begins: bool) -> None:
        """Note that a backward pass begins or ends; one inside another is a part of it."""
        self._depth += 1 if begins else -1
        if self._depth == int(begins):
            self._passes += begins
            self.mark("forward" if begins else "backward")

    def aside(self, kind: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call what evaluates or saves; one inside another is a part of it."""
        if self._is_aside:
            return call(*args, **kwargs)
        self._is_aside, began = True, time.perf_counter_ns()
        try:
            return call(*args, **kwargs)
        finally:
            self._is_aside, (count, ns) = False, self._aside.get(kind, (0, 0))
            self._aside[kind] = (count + 1, ns + time.perf_counter_ns() - began)

    @_guarded
    def begin_update(self, visible: bool = True) -> None:
        """Note that an optimizer begins its step; not `visible` is one that contains more than the update."""
        self.mark()
        self._update = (not visible, self._passes)

    @_guarded
    def end_step(self, optimizer: Any) -> None:
        """Take in the end of an optimizer's step."""
        self.mark("optimizer")
        now, unix = time.perf_counter_ns(), time.time_ns()
        self.ended += 1
        leader = self._leader()
        if leader is None:
            self._leader = weakref.ref(optimizer)
        elif leader is not optimizer:
            self._others += 1
            return
        more, passes = self._update
        if more and self._passes - passes != 1:  # a closure with one pass ends with the update
            self._phases = [one for one in self._phases if one[0] == "backward"]
            self._hidden = True
        self._end_step(now, unix, optimizer)

    def _end_step(self, now: int, unix: int, optimizer: Any) -> None:
        if self.claimed is None:
            self._claim(optimizer)
        if not self.claimed:
            return
        event = self._event()
        wait_ns, *seen = self.loads.end_step()
        samples, *tokens = map(lambda one, given: one if given is None else given, seen, self._given)
        rate = None if optimizer is None else optimizer.param_groups[0].get("lr")
        began_unix, began, began_event = self._began
        row = {
            "step": self._steps,
            "start_ns": began_unix,
            "step_time_ms": _milliseconds(began, now),
            "data_wait_ms": _milliseconds(0, wait_ns),
            "samples": samples,
            "real_tokens": tokens[0],
            "padded_tokens": tokens[1],
            "learning_rate": rate if isinstance(rate, float) else None,
        }
        self._pending.append((row, began_event, event, self._phases))
        self._seen |= {phase for phase, *_ in self._phases}
        self._phases, self._passes = [], 0
        self._steps += 1
        drained, at = self._drain(now), (self._steps, self._rank, self._device, self._world)
        if (self.profile is not None and self.profile.next_step(*at)) or self._steps == 1:  # it made the files
            now, unix, event = time.perf_counter_ns(), time.time_ns(), self._event()
            self._mark = now, event
        self._began = (unix, now, event)
        if drained and os.path.exists(self._stop):  # noqa: PTH110
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
        device = self.device
        if optimizer is not None:
            device = next(one.device for group in optimizer.param_groups for one in group["params"])
        self._device = device if device.type == "cuda" else None
        self._facts = {
            "pid": os.getpid(),
            "script": getattr(sys.modules.get("__main__"), "__file__", None),
            "device": "cpu" if self._device is None else "cuda",
            "optimizer": BY_PASSES if optimizer is None else type(optimizer).__name__,
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
            row, began, end, phases = self._pending[0]
            if end is not None:
                if wait:
                    end.synchronize()
                if not end.query():
                    break
                row["step_time_ms"] = row["step_time_ms"] if began is None else began.elapsed_time(end)
            for phase, begin, last in phases:
                passed = [mark[1] for mark in (begin, last) if mark[1] is not None and mark[1].query()]
                time_ms = passed[0].elapsed_time(passed[1]) if passed[1:] else _milliseconds(begin[0], last[0])
                row[f"{phase}_ms"] = row.get(f"{phase}_ms", 0.0) + (time_ms or 0.0)
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
            "libraries": _versions(),
            "framework": self.framework,
            "aside": {name: {"count": count, "seconds": ns / 1e9} for name, (count, ns) in self._aside.items()},
            "steps_skipped": self.skipped,
            "other_optimizer_steps": self._others,
            **_memory(self._device),
            "unknown": {
                **_UNKNOWN,
                **{f"{phase}_ms": _UNSEEN for phase in _PHASES if phase not in self._seen},
                **(dict.fromkeys(("forward_ms", "optimizer_ms"), _IN_STEP) if self._hidden else {}),
            },
            **({} if self._rank else {"ranks": list(range(self._world))}),
        }
        self._write_json(f"rank-{self._rank}.json", record)

    def _write_json(self, name: str, record: Mapping[str, Any]) -> None:
        temporary = self.folder / f"{name}.{os.getpid()}"
        temporary.write_text(json.dumps({"schema_version": self.version, **record}), encoding="utf-8")
        temporary.replace(self.folder / name)


def _versions() -> dict[str, str]:
    """Versions of the packages that the script has imported, by name; that of transformers is in its `_objects`."""
    known = {}
    for name, module in list(sys.modules.items()):
        own = vars(module) if module is not None and "." not in name else {}
        if "__path__" in own and name not in getattr(sys, "stdlib_module_names", ()):
            known[name] = own.get("__version__") or own.get("_objects", {}).get("__version__")
    return {name: str(version) for name, version in sorted(known.items()) if version}


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
