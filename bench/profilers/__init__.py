"""The profilers, by name. An entry is "module:class"; `load_profiler` imports it on demand."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bert.observer import Observer
from common.errors import UsageError
from common.registry import load, lookup
from records.trial import Trial


class Profiler:
    """A profiling tool; `bench.profilers.PROFILERS` lists them. On GPUs each step it records waits for its kernels."""

    NAME: ClassVar[str]
    """Its name for `--profiler`."""

    OPTIONS: ClassVar[Mapping[str, str]] = {}
    """Descriptions of the options of `--with`, by name. "name=value" sets a value."""

    ENVIRONMENT: ClassVar[Mapping[str, str]] = {}
    """Environment variables of the profiled program."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        """Store the options of `--with`. Raises UsageError if one is unknown."""
        self.options = dict(options or {})
        for name in self.options:
            lookup(self.OPTIONS, name, f"option --with of --profiler {self.NAME}")

    def whole_number(self, name: str, default: int, least: int = 0) -> int:
        """Return the value of an option. Raises UsageError if it is no whole number, or smaller than `least`."""
        text = self.options.get(name, str(default))
        if not text.isdigit() or int(text) < least:
            raise UsageError("option-value", f"--with {name}={text}: give a whole number, {least} or more")
        return int(text)

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError or UsageError, with the remedy, if this tool cannot profile `trial` here."""

    def wrap(self, argv: list[str], trial: Trial, folder: Path) -> list[str]:
        """Return the command that runs `argv`, the launcher of a node, under the tool; `folder` is for the profile."""
        return argv

    def observer(self, trial: Trial, folder: Path, rank: int) -> Observer:
        """Return the observer that runs inside the program, on one rank."""
        raise NotImplementedError

    def collect(self, trial: Trial, folder: Path) -> list[Path]:
        """Export the output of the tool and list its files. Raises InputError if there is no usable output."""
        raise NotImplementedError


def window(trial: Trial) -> tuple[int, int]:
    """Return the first recorded iteration, and one past the last."""
    assert trial.start_iteration is not None and trial.stop_iteration is not None
    return trial.start_iteration, trial.stop_iteration


PROFILERS = {
    "torch": "bench.profilers.kineto:TorchProfiler",
    "nsys": "bench.profilers.nsys:NsightSystems",
    "ncu": "bench.profilers.ncu:NsightCompute",
    "nvprof": "bench.profilers.nvprof:Nvprof",
}


def load_profiler(name: str, options: tuple[str, ...] = ()) -> Profiler:
    """Return the profiler `name` with its options ("name" or "name=value"). Raises UsageError if one is unknown."""
    values = {option: value for option, _, value in (word.partition("=") for word in options)}
    profiler: Profiler = load(PROFILERS, name, "profiler")(values)
    return profiler
