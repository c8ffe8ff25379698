"""The PyTorch profiler (Kineto): one Chrome trace per rank, with the steps [start, stop) and nothing else."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bench.profilers.base import Profiler, Scope, written
from bert.observer import Observer
from common.errors import InputError


class TorchProfiler(Profiler):
    """Runs inside every rank; needs nothing but torch."""

    OPTIONS: ClassVar[Mapping[str, str]] = {
        "shapes": "record the shapes of every operator's inputs",
        "stacks": "record Python's call stacks (slow)",
        "memory": "record allocations",
        "tensorboard": "also put the traces into profile/tensorboard, for TensorBoard's PyTorch plugin",
    }

    def observer(self, scope: Scope, rank: int) -> Observer:
        """Return what starts and stops the recording on one rank."""
        from bench.profilers.kineto_trace import TraceObserver

        return TraceObserver(_trace(scope.directory, rank), rank, scope.start, scope.stop, frozenset(self.options))

    def collect(self, scope: Scope) -> list[Path]:
        """List the traces, one per rank. Raises InputError where one is missing or empty."""
        traces = [_trace(scope.directory, rank) for rank in range(scope.trial.world_size)]
        missing = [str(rank) for rank, trace in enumerate(traces) if not trace.exists()]
        if missing and len(missing) < len(traces):
            raise InputError(f"{scope.directory} lacks the trace of rank {', '.join(missing)}; see log.txt beside it")
        return written([trace for trace in traces if trace.exists()], "trace", scope.directory)


def _trace(directory: Path, rank: int) -> Path:
    return directory / f"trace-rank{rank}.json.gz"
