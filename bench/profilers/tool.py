"""External tools that start further programs: get their version, run them with a time limit."""

import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

from bench.run.processes import HARNESS_VARIABLE, MARK_VARIABLE, end_marked
from common.errors import InputError, MissingToolError
from common.redact import redact_text, without_secrets
from common.tools import Version, version_in

_REPOSITORY = Path(__file__).resolve().parents[2]


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

    Raises:
        MissingToolError: it cannot be started.
        InputError: it failed or exceeded the time limit; the message includes its output.
    """
    name, mark = Path(argv[0]).name, uuid.uuid4().hex
    # Runs under a process that kills all its children with the harness, since tools start further programs.
    watched = [sys.executable, "-m", "bench.run.processes", *argv]
    variables = {
        **without_secrets(os.environ),
        MARK_VARIABLE: mark,
        HARNESS_VARIABLE: str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(_REPOSITORY), os.environ.get("PYTHONPATH")])),
    }
    if shutil.which(argv[0]) is None:
        raise MissingToolError("tool-missing", f"{argv[0]} cannot be started (it is not a program): reinstall it")
    try:
        done = subprocess.run(
            watched,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
            errors="replace",
            env=variables,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            "tool-failed", f"{name} {argv[1]} did not end within {timeout_seconds:g} s and was killed"
        ) from error
    finally:
        end_marked(mark)
    if done.returncode != 0 and not any_exit_code:
        said = redact_text((done.stderr.strip() or done.stdout.strip() or "nothing")[-800:])
        raise InputError("tool-failed", f"{name} {argv[1]} failed (exit code {done.returncode}): {said}")
    return done.stdout
