"""The PyTorch profiler (Kineto): one Chrome trace per rank with only the steps [start, stop)."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bench.profilers.base import Cycle, Profiler, Scope, written
from bert.train.observer import Observer
from common.errors import InputError, UsageError
from records.trial import Trial

# Options of a schedule and their defaults; without `repeat` all cycles that fit.
_SCHEDULE = {"wait": 1, "warmup": 1, "active": 3, "repeat": 0}


class TorchProfiler(Profiler):
    """Runs inside every rank; needs only torch."""

    NAME: ClassVar[str] = "torch"
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "shapes": "record the shapes of every operator's inputs",
        "stacks": "record Python call stacks (slow)",
        "memory": "record allocations",
        "tensorboard": "also write the traces to profile/tensorboard, for TensorBoard's PyTorch plugin",
        "wait": "steps of each cycle in [start, stop) without the profiler (1 if another of these four is given)",
        "warmup": "following steps with the profiler on and its records dropped (1)",
        "active": "following steps that are recorded (3); the trace of each cycle goes to profile/tensorboard/cycles",
        "repeat": "number of cycles (as many as fit); the trace of the first cycle is analyzed",
    }

    def check(self, trial: Trial) -> None:
        """Raise UsageError if the schedule is not valid or does not fit into the window."""
        _cycles(self.options, trial.start_iteration or 0, trial.stop_iteration)

    def waits_at_step_ends(self, trial: Trial) -> bool:
        """Return whether the marks of steps wait for their kernels."""
        return trial.device == "cuda"

    def observer(self, scope: Scope, rank: int) -> Observer:
        """Return the observer that starts and stops the recording on one rank."""
        from bench.profilers.kineto_trace import TraceObserver

        cycles = _cycles(self.options, scope.start, scope.stop)
        return TraceObserver(_trace(scope.directory, rank), rank, cycles, frozenset(self.options))

    def collect(self, scope: Scope) -> list[Path]:
        """List the traces, one per rank. Raises InputError if one is missing or empty."""
        traces = [_trace(scope.directory, rank) for rank in range(scope.trial.ranks)]
        missing = [str(rank) for rank, trace in enumerate(traces) if not trace.exists()]
        if missing and len(missing) < len(traces):
            raise InputError(
                "run-incomplete",
                f"{scope.directory} lacks the trace of rank {', '.join(missing)}: see log.txt beside it",
            )
        return written([trace for trace in traces if trace.exists()], "trace", scope.directory)


def _cycles(options: Mapping[str, str], start: int, stop: int | None) -> list[Cycle]:
    """Return the recorded parts of the window [start, stop): one, or those of a schedule. Raises UsageError."""
    given = {name: options[name] for name in _SCHEDULE if name in options}
    if not given or stop is None:
        return [Cycle(start, start, start if stop is None else stop)]
    for name, text in given.items():
        if not text.isdigit() or (name == "active" and int(text) < 1):
            least = "1 or more" if name == "active" else "0 or more"
            raise UsageError("option-value", f"--with {name}={text}: give a whole number of steps, {least}")
    wait, warmup, active, repeat = ({**_SCHEDULE, **{name: int(text) for name, text in given.items()}}).values()
    length = wait + warmup + active
    fitting = (stop - start) // length
    if fitting < max(1, repeat):
        cycles = f"{repeat} cycles" if repeat > 1 else "a cycle"
        raise UsageError(
            "option-conflict",
            f"{cycles} of {wait} + {warmup} + {active} steps (wait, warmup, active) do not fit into the {stop - start} "
            f"of --start {start} --stop {stop}: give --stop {start + length * max(1, repeat)} or more",
        )
    begins = (start + number * length + wait for number in range(repeat or fitting))
    return [Cycle(begin, begin + warmup, begin + warmup + active) for begin in begins]


def _trace(directory: Path, rank: int) -> Path:
    return directory / f"trace-rank{rank}.json.gz"
