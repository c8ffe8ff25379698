"""The interface of a profiler."""

from collections.abc import Mapping
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
    def start(self) -> int:
        """First recorded iteration."""
        assert self.trial.start_iteration is not None
        return self.trial.start_iteration

    @property
    def stop(self) -> int:
        """One past the last recorded iteration."""
        assert self.trial.stop_iteration is not None
        return self.trial.stop_iteration


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

    LEAVES_FILES: ClassVar[bool] = True
    """Whether a profile consists of files, which a later call can reuse."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        """Store the options of `--with`. Raises UsageError if one is unknown."""
        self.options = dict(options or {})
        for name in self.options:
            if name not in self.OPTIONS:
                known = ", ".join(sorted(self.OPTIONS)) or "none"
                raise UsageError(
                    "option-unknown", f"--with {name} is not an option of --profiler {self.NAME}: use one of {known}"
                )

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


def parse_options(words: tuple[str, ...]) -> dict[str, str]:
    """Return "name" and "name=value" words as a mapping; a bare name has the value ""."""
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def whole_number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that must be a positive whole number. Raises UsageError."""
    text = options.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise UsageError("option-value", f"--with {name}={text}: give a whole number above 0")
    return int(text)


def written(files: list[Path], what: str, directory: Path) -> list[Path]:
    """Return `files`. Raises InputError if there are none, or one is empty."""
    if not files:
        raise InputError(
            "run-incomplete",
            f"{directory} has no {what}, since the run ended before the end of the window: see log.txt beside it",
        )
    for file in files:
        if file.stat().st_size == 0:
            raise InputError(
                "file-empty", f"{file} is empty: the disk was full or the profiler was killed; record again"
            )
    return files
