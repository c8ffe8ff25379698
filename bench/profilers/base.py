"""What a profiler is to the harness."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bert.train.observer import Observer
from common.errors import InputError, UsageError
from records.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """What is profiled, and where its files go."""

    trial: Trial
    """The trial, with its window [start_iteration, stop_iteration)."""
    directory: Path
    """trials/<id>/profile, which exists."""

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
    """Steps that become one trace of the PyTorch profiler."""

    warm_up: int
    """First step with the profiler on, whose records are dropped up to `start`."""
    start: int
    stop: int


class Profiler:
    """One profiling tool; `bench.profilers.PROFILERS` lists them. Subclasses override what they need."""

    NAME: ClassVar[str]
    """What `--profiler` calls it."""

    OPTIONS: ClassVar[Mapping[str, str]] = {}
    """Options of `--with`, by name: what each does. "name=value" gives one a value."""

    LEAVES_FILES: ClassVar[bool] = True
    """Whether a profile is made of files, which another call need not make again."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        """Take the options of `--with`. Raises UsageError for one that this tool does not know."""
        self.options = dict(options or {})
        for name in self.options:
            if name not in self.OPTIONS:
                known = ", ".join(sorted(self.OPTIONS)) or "it has none"
                raise UsageError(
                    "option-unknown", f"--with {name}: no option of --profiler {self.NAME}; known: {known}"
                )

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError or UsageError, with the remedy, where this tool cannot profile `trial` here."""

    def environment(self, scope: Scope) -> dict[str, str]:
        """Return the environment variables that the profiled program needs."""
        return {}

    def wrap(self, argv: list[str], scope: Scope) -> list[str]:
        """Return the command that runs `argv` (a node's launcher) under a tool that launches the program."""
        return argv

    def observer(self, scope: Scope, rank: int) -> Observer:
        """Return what works inside the program, on one rank."""
        return Observer()

    def collect(self, scope: Scope) -> list[Path]:
        """Finish what the tool left (export it) and list its files. Raises InputError where it left nothing usable."""
        return []


def parse_options(words: tuple[str, ...]) -> dict[str, str]:
    """Return "name" and "name=value" words as a mapping; a bare name has the value ""."""
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def whole_number(options: Mapping[str, str], name: str, default: int) -> int:
    """Return an option that has to be a positive whole number. Raises UsageError."""
    text = options.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise UsageError("option-value", f"--with {name}={text}: give a whole number above 0")
    return int(text)


def written(files: list[Path], what: str, directory: Path) -> list[Path]:
    """Return `files`. Raises InputError when there is none, or one is empty."""
    if not files:
        raise InputError(
            "run-incomplete",
            f"{directory} holds no {what}: the run ended before the window was over; see log.txt beside it",
        )
    for file in files:
        if file.stat().st_size == 0:
            raise InputError(
                "file-empty", f"{file} is empty: the disk was full or the profiler was killed; record again"
            )
    return files
