"""External programs: find them on PATH, tell their version, run them with a time limit."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from common.errors import InputError, MissingToolError
from common.redact import without_secrets

Version = tuple[int, ...]
_LONGEST_MESSAGE = 300


def find_tool(name: str, remedy: str) -> Path:
    """Return the path of a tool. Raises MissingToolError, with the remedy, if it is not on PATH."""
    found = shutil.which(name)
    if found is None:
        raise MissingToolError("tool-missing", f"{name} is not on PATH: {remedy}")
    return Path(found)


def version_in(text: str) -> Version | None:
    """Return the version that the output of `--version` states, such as (2022, 4, 2); None if it states none."""
    match = re.search(r"[Vv]ersion:?\s+(?:\D*\s)?(\d+(?:\.\d+)+)", text) or re.search(r"\b(\d{2,4}(?:\.\d+)+)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def dotted(version: Version) -> str:
    """Return a version, or a compute capability, as 2022.4.2."""
    return ".".join(map(str, version))


@dataclass(frozen=True, slots=True)
class Output:
    """What a program left."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def message(self) -> str:
        """What it printed, stderr first, in one line of at most 300 characters."""
        lines = [line.strip() for line in f"{self.stderr}\n{self.stdout}".splitlines() if line.strip()]
        text = "; ".join(dict.fromkeys(lines)) or "nothing"
        return text if len(text) <= _LONGEST_MESSAGE else f"{text[: _LONGEST_MESSAGE - 3]}..."


def run_program(argv: list[str], timeout_seconds: float) -> Output:
    """Run a program that reads files and ends by itself, whatever its exit code; it gets no secrets of the environment.

    Its whole process group is killed at the time limit, and when this process is interrupted.

    Raises:
        MissingToolError: it cannot be started.
        InputError: it exceeded the time limit.
    """
    name = Path(argv[0]).name
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=without_secrets(os.environ),
            start_new_session=True,
        )
    except OSError as error:
        raise MissingToolError(
            "tool-missing", f"{argv[0]} cannot be started ({error.strerror}): reinstall it"
        ) from error
    try:
        stdout, stderr = process.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise InputError(
            "tool-failed", f"{name} {argv[1]} did not end within {timeout_seconds:g} s and was killed"
        ) from error
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Output(process.returncode, stdout, stderr)
