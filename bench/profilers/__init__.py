"""The profilers, by name. An entry is "module:class"; `load_profiler` imports it on demand."""

from typing import TYPE_CHECKING

from common.registry import load

if TYPE_CHECKING:
    from bench.profilers.base import Profiler

PROFILERS = {
    "torch": "bench.profilers.kineto:TorchProfiler",
    "nsys": "bench.profilers.nsys:NsightSystems",
    "ncu": "bench.profilers.ncu:NsightCompute",
    "nvprof": "bench.profilers.nvprof:Nvprof",
}


def load_profiler(name: str, options: tuple[str, ...] = ()) -> "Profiler":
    """Return the profiler `name` with its options ("name" or "name=value"). Raises UsageError if one is unknown."""
    values = {option: value for option, _, value in (word.partition("=") for word in options)}
    profiler: Profiler = load(PROFILERS, name, "profiler")(values)
    return profiler
