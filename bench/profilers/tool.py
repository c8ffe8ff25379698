"""Profilers that are programs of NVIDIA: find them, run them with a time limit, say why they left nothing."""

import re
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from bench.profilers.base import Scope
from bench.profilers.permission import ALLOW, DENIED
from bench.profilers.ranges import RangeProfiler
from common.errors import InputError, MissingToolError, UsageError
from common.tools import Version, dotted, find_tool, run_program, version_in
from records.trial import Trial

_COMPLAINT = re.compile(r"==ERROR==|==WARNING==|==\d+== (?:Error|Warning)|No space left|[Ii]mport(?:er|ation)")


class ToolProfiler(RangeProfiler):
    """A program that wraps the launcher of a node."""

    REMEDY: ClassVar[str]
    """How to get the tool."""
    OLDEST: ClassVar[Version] = ()
    GPU_ONLY: ClassVar[bool] = False

    @cached_property
    def path(self) -> str:
        """Where it is. Raises MissingToolError."""
        return str(find_tool(self.NAME, self.REMEDY))

    @cached_property
    def version(self) -> Version:
        """Such as (2022, 4, 2); () if it is unknown."""
        return version_in(self.run("--version", timeout_seconds=60)) or ()

    def check(self, trial: Trial) -> None:
        """Raise MissingToolError or UsageError, with the remedy, if it cannot profile `trial` here."""
        if self.GPU_ONLY and trial.device != "cuda":
            raise UsageError(
                "option-not-applicable",
                f"--profiler {self.NAME} needs a GPU, but this trial runs on the CPU: use --profiler torch, or "
                "--profiler nsys for NVTX ranges",
            )
        super().check(trial)
        if self.OLDEST and self.version < self.OLDEST:
            found = f"{self.NAME} {dotted(self.version)} at {self.path}"
            raise MissingToolError("tool-version", f"{found} is too old: {self.REMEDY}")

    def run(self, *words: str, timeout_seconds: float) -> str:
        """Run the tool and return its standard output. Raises InputError in its own words if it fails."""
        done = run_program([self.path, *words], timeout_seconds)
        if done.exit_code != 0:
            problem = f"{self.NAME} {words[0]} failed (exit code {done.exit_code})"
            raise InputError("tool-failed", f"{problem}: {done.message}")
        return done.stdout


def nothing_usable(scope: Scope, what: str, logs: tuple[Path, ...] = ()) -> InputError:
    """Return why a tool left no `what`: the permission that it lacks, or its complaints in log.txt and `logs`."""
    log = scope.directory.parent / "log.txt"
    lines = [
        line.strip()
        for path in (log, *logs)
        if path.exists()
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
        if _COMPLAINT.search(line)
    ]
    said = f" ({'; '.join(dict.fromkeys(lines[-3:]))})" if lines else ""
    if any(DENIED in line for line in lines):
        return InputError("permission-missing", f"{scope.directory} has no {what}{said}: {ALLOW}")
    return InputError("run-incomplete", f"{scope.directory} has no {what}{said}: see {log}")
