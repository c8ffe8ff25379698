"""The PyTorch profiler (Kineto): one Chrome trace per rank with only the steps [start, stop)."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

from bench.profilers import Profiler, window
from bert.observer import Observer
from common.errors import InputError, UsageError
from records.trial import Trial

SCHEDULE = frozenset({"wait", "warmup", "active", "repeat"})
"""Options of several cycles."""


class Cycle(NamedTuple):
    """The steps of one trace."""

    warm_up: int
    """First step with the profiler on; records before `start` are dropped."""
    start: int
    stop: int


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
        self.cycles(*window(trial))

    def observer(self, trial: Trial, folder: Path, rank: int) -> Observer:
        """Return the observer that starts and stops the recording on one rank."""
        from bench.profilers.kineto_trace import TraceObserver

        return TraceObserver(folder / _trace(rank), rank, self.cycles(*window(trial)), frozenset(self.options))

    def collect(self, trial: Trial, folder: Path) -> list[Path]:
        """List the traces, one per rank. Raises InputError if one is missing."""
        traces = [folder / _trace(rank) for rank in range(trial.ranks)]
        missing = [str(rank) for rank, trace in enumerate(traces) if not trace.exists()]
        if missing:
            problem = f"{folder} lacks the trace of rank {', '.join(missing)}: see log.txt beside it"
            raise InputError("run-incomplete", problem)
        return traces

    def cycles(self, start: int, stop: int) -> list[Cycle]:
        """Return the recorded parts of the window [start, stop): one, or those of a schedule. Raises UsageError."""
        if not SCHEDULE & set(self.options):
            return [Cycle(start, start, stop)]
        wait, warmup = self.whole_number("wait", 1), self.whole_number("warmup", 1)
        active, repeat = self.whole_number("active", 3, least=1), self.whole_number("repeat", 0)
        length = wait + warmup + active
        fitting = (stop - start) // length
        if fitting < max(1, repeat):
            raise UsageError(
                "option-conflict",
                f"{max(1, repeat)} x {wait} + {warmup} + {active} steps (wait, warmup, active) do not fit into --start "
                f"{start} --stop {stop}: give --stop {start + length * max(1, repeat)} or more",
            )
        begins = (start + number * length + wait for number in range(repeat or fitting))
        return [Cycle(begin, begin + warmup, begin + warmup + active) for begin in begins]


def _trace(rank: int) -> str:
    return f"trace-rank{rank}.json.gz"
