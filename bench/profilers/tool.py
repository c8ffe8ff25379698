"""Profilers that are external tools: get their version, run them with a time limit."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from bench.profilers.ranges import RangeProfiler
from common.errors import InputError, MissingToolError
from common.tools import Version, dotted, find_tool, run_program, version_in


def tool_version(path: Path) -> Version:
    """Return the version of a tool, such as (2022, 4, 2). Raises MissingToolError if it is unknown."""
    text = run_tool([str(path), "--version"], timeout_seconds=60)
    version = version_in(text)
    if version is None:
        raise MissingToolError("tool-version", f"{path} --version prints no version ({text[:200]!r}): reinstall it")
    return version


def run_tool(argv: list[str], timeout_seconds: float, any_exit_code: bool = False) -> str:
    """Run a tool and return its standard output.

    Args:
        argv: the command, the tool's path first.
        timeout_seconds: time limit in s, after which it is killed.
        any_exit_code: accept every exit code (`nsys stats --help-reports` exits with 1).
    """
    done = run_program(argv, timeout_seconds)
    if done.exit_code != 0 and not any_exit_code:
        output = (done.stderr.strip() or done.stdout.strip() or "nothing")[-800:]
        raise InputError("tool-failed", f"{Path(argv[0]).name} {argv[1]} failed (exit code {done.exit_code}): {output}")
    return done.stdout


class ToolProfiler(RangeProfiler):
    """An NVIDIA profiler whose switches are read from its --help output."""

    REMEDY: ClassVar[str]
    """How to get the tool."""
    HELP: ClassVar[tuple[str, ...]] = ("--help",)
    """What prints its switches."""

    @cached_property
    def _path(self) -> Path:
        return find_tool(self.NAME, self.REMEDY)

    @cached_property
    def _version(self) -> Version:
        return tool_version(self._path)

    @cached_property
    def _help(self) -> str:
        return run_tool([str(self._path), *self.HELP], timeout_seconds=60, any_exit_code=True)

    @property
    @abstractmethod
    def _switches(self) -> frozenset[str]:
        """Those that the help names."""

    def _check_version(self, oldest: Version, reason: str, needed: Sequence[str]) -> None:
        """Raise MissingToolError if the tool is older, for this reason, or lacks one of the needed switches."""
        found = f"{self.NAME} {dotted(self._version)} at {self._path}"
        if self._version[:2] < oldest:
            raise MissingToolError("tool-version", f"{found} is too old{reason}: {self.REMEDY}")
        lacking = [name for name in needed if name not in self._switches]
        if lacking:
            raise MissingToolError("tool-version", f"{found} lacks {', '.join(lacking)}: {self.REMEDY}")
