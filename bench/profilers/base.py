"""What a profiler is to the harness."""

from pathlib import Path
from typing import Protocol

from bert.observer import Observer


class Profiler(Protocol):
    """One profiling tool; bench.profilers.PROFILERS lists them. Iterations [start, stop) are captured."""

    def check(self) -> None:
        """Raise MissingToolError or UsageError, with the remedy, where this tool cannot run here."""

    def wrap(self, argv: list[str], directory: Path) -> list[str]:
        """Return the command that runs `argv` under a tool that launches the program; others return `argv`."""

    def observer(self, directory: Path, rank: int, start: int, stop: int) -> Observer:
        """Return the observer of tools that work inside the program."""

    def collect(self, directory: Path) -> list[Path]:
        """List what the tool wrote. Raises InputError where it wrote nothing."""
