"""Programs and packages that only some commands need: find them, read their version, run them with a time limit."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from common.errors import InputError, MissingToolError
from common.redact import without_secrets

Version = tuple[int, ...]
_DISTRIBUTIONS = {"sklearn": "scikit-learn"}


def need(what: str, extra: str, *modules: str) -> None:
    """Raise MissingToolError where `what` needs a module, of an extra of bertbench, that is not installed."""
    missing = [_DISTRIBUTIONS.get(name, name) for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        problem = f"{what} needs {' and '.join(missing)}: pip install 'bertbench[{extra}]'"
        raise MissingToolError("package-missing", problem)


def find_tool(name: str, remedy: str) -> Path:
    """Return the path of a tool. Raises MissingToolError, with the remedy, if it is not on PATH."""
    path = shutil.which(name)
    if path is None:
        raise MissingToolError("tool-missing", f"{name} is not on PATH: {remedy}")
    return Path(path)


def version_in(text: str) -> Version | None:
    """Return the version that the output of `--version` states, such as (2022, 4, 2); None if it states none."""
    match = re.search(r"[Vv]ersion:?\s+(?:\D*\s)?(\d+(?:\.\d+)+)", text) or re.search(r"\b(\d{2,4}(?:\.\d+)+)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def dotted(version: Version) -> str:
    """Return a version, or a compute capability, as 2022.4.2."""
    return ".".join(map(str, version))


class Output(NamedTuple):
    """What a program left."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def message(self) -> str:
        """The first 300 characters that it printed, stderr first."""
        return " ".join(f"{self.stderr} {self.stdout}".split())[:300]


def run_program(argv: list[str], timeout_seconds: float) -> Output:
    """Run a program that ends by itself, whatever its exit code; it gets no secrets of the environment.

    Raises:
        MissingToolError: it cannot be started.
        InputError: it exceeded the time limit and was killed.
    """
    environment = without_secrets(os.environ)
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_seconds, env=environment, check=False
        )
    except OSError as error:
        raise MissingToolError("tool-missing", f"cannot start {argv[0]} ({error.strerror}): reinstall it") from error
    except subprocess.TimeoutExpired as error:
        raise InputError("tool-failed", f"{' '.join(argv[:2])} did not end within {timeout_seconds:g} s") from error
    return Output(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
