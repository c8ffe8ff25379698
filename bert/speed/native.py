"""Code that is compiled on this machine: the loops of bert/speed/elementwise.c by its C compiler, once, and the kernels
of bert.speed.kernels by Triton. Imports no torch.
"""

import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sysconfig
from pathlib import Path

from common.errors import MissingToolError

# "0": PyTorch's functions compute what would be compiled, as in tests that are not about it.
VARIABLE = "BERTBENCH_COMPILE"
_SOURCE = Path(__file__).with_name("elementwise.c")
# Nothing that changes how other code of the process computes, as -ffast-math does when it is linked.
_FLAGS = (
    "-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros",
    "-fassociative-math", "-fopenmp", "-shared", "-fPIC",
)  # fmt: skip
_LONGEST_SECONDS = 120.0


@functools.cache
def triton_missing() -> MissingToolError | None:
    """Return what is missing to run Triton kernels; None if nothing is. PyTorch's builds for CUDA include Triton.

    Triton needs a C compiler and Python's headers for the code that launches kernels.
    """
    if importlib.util.find_spec("triton") is None:
        return MissingToolError("tool-missing", "Triton is not installed: pip install triton")
    if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang")))):
        return MissingToolError("tool-missing", "Triton needs a C compiler: install gcc, or name another one with CC=")
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        return MissingToolError("tool-missing", f"Triton needs {headers}/Python.h: install python3-dev")
    return None


def loops() -> ctypes.CDLL | None:
    """Return the loops, after torch has been imported: both then share the threads of one OpenMP.

    None where they cannot be compiled, or are not wanted.
    """
    found = None if os.environ.get(VARIABLE) == "0" else _loaded()
    return found if isinstance(found, ctypes.CDLL) else None


def loops_missing() -> MissingToolError | None:
    """Return what is missing to compile the loops; None if nothing is, or they are not wanted."""
    found = None if os.environ.get(VARIABLE) == "0" else _loaded()
    return found if isinstance(found, MissingToolError) else None


@functools.cache
def _loaded() -> ctypes.CDLL | MissingToolError:
    try:
        return ctypes.CDLL(os.fspath(compiled()))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().partition("\n")[0][:300]
        problem = f"{_SOURCE.name} cannot be compiled ({said}): install gcc, or name another C compiler with CC="
        return MissingToolError("tool-failed", problem)


def compiled() -> Path:
    """Return the library, compiled where it is not in the folder of the user's cache yet.

    Raises OSError or SubprocessError where it cannot be, RuntimeError for a user without a home.
    """
    command = [os.environ.get("CC", "cc"), *_FLAGS, os.fspath(_SOURCE), "-lm", "-o"]
    # Homes are shared by nodes of different processors.
    key = hashlib.sha256("\0".join([_SOURCE.read_text(), *command, _processor()]).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertbench"
    library = folder / f"elementwise-{key}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        made = folder / f".{library.name}.{platform.node()}.{os.getpid()}"
        subprocess.run([*command, made], check=True, capture_output=True, text=True, timeout=_LONGEST_SECONDS)
        made.replace(library)  # other processes see all of it or nothing
    return library


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
