"""The interface of a profiler."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bert.train.observer import Observer
from common.errors import InputError, UsageError
from records.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """The profiled trial and the folder for the profile."""

    trial: Trial
    """The trial, with its window [start_iteration, stop_iteration)."""
    directory: Path
    """Existing folder trials/<id>/profile."""

    @property
    def window(self) -> tuple[int, int]:
        """First recorded iteration, and one past the last."""
        assert self.trial.start_iteration is not None and self.trial.stop_iteration is not None
        return self.trial.start_iteration, self.trial.stop_iteration


@dataclass(frozen=True, slots=True)
class Cycle:
    """The steps of one trace of the PyTorch profiler."""

    warm_up: int
    """First step with the profiler on; records before `start` are dropped."""
    start: int
    stop: int


class Profiler:
    """A profiling tool; `bench.profilers.PROFILERS` lists them. Subclasses override methods as needed."""

    NAME: ClassVar[str]
    """Its name for `--profiler`."""

    OPTIONS: ClassVar[Mapping[str, str]] = {}
    """Descriptions of the options of `--with`, by name. "name=value" sets a value."""

    CHOICES: ClassVar[Mapping[str, Collection[str]]] = {}
    """Values of options that have only a few."""

    LEAVES_FILES: ClassVar[bool] = True
    """Whether a profile consists of files, which a later call can reuse."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        """Store the options of `--with`. Raises UsageError if one or its value is unknown."""
        self.options = dict(options or {})
        for name, value in self.options.items():
            if name not in self.OPTIONS:
                known = ", ".join(sorted(self.OPTIONS)) or "none"
                raise UsageError(
                    "option-unknown", f"--with {name} is not an option of --profiler {self.NAME}: use one of {known}"
                )
            if value not in (choices := self.CHOICES.get(name, [value])):
                raise UsageError("option-choice", f"--with {name}={value}: choose one of {', '.join(choices)}")

    def whole_number(self, name: str, default: int, least: int = 0) -> int:
        """Return the value of an option. Raises UsageError if it is no whole number, or smaller than `least`."""
        text = self.options.get(name, str(default))
        if not text.isdigit() or int(text) < least:
            raise UsageError("option-value", f"--with {name}={text}: give a whole number, {least} or more")
        return int(text)

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError or UsageError, with the remedy, if this tool cannot profile `trial` here."""

    def waits_at_step_ends(self, trial: Trial) -> bool:
        """Return whether each recorded step ends by waiting for the GPU, which idles until the next step begins."""
        return False

    def environment(self, scope: Scope) -> dict[str, str]:
        """Return the environment variables of the profiled program."""
        return {}

    def wrap(self, argv: list[str], scope: Scope) -> list[str]:
        """Return the command that runs `argv`, the launcher of a node, under the tool."""
        return argv

    def observer(self, scope: Scope, rank: int) -> Observer:
        """Return the observer that runs inside the program, on one rank."""
        return Observer()

    def collect(self, scope: Scope) -> list[Path]:
        """Export the output of the tool and list its files. Raises InputError if there is no usable output."""
        return []


def check_written(file: Path) -> None:
    """Raise InputError if a file is empty or not there."""
    if not file.exists() or file.stat().st_size == 0:
        raise InputError("file-empty", f"{file} is empty: the disk was full or the profiler was killed; record again")
