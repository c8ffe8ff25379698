"""Code that is compiled on this machine: the loops of bert/speed/elementwise.c by its C compiler, once, and the kernels
of bert.speed.kernels by Triton. Imports no torch.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
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

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float
_RANDOM_LEVELS = (_LONG, _INT, ctypes.c_uint64, _POINTER)
_ARGUMENTS = {
    "norm_forward": (_LONG, _LONG, _INT, *3 * (_POINTER,), _INT, _FLOAT, _FLOAT, *6 * (_POINTER,)),
    "norm_backward": (_LONG, _LONG, _INT, *5 * (_POINTER,), _INT, _FLOAT, *6 * (_POINTER,)),
    "gelu_backward": (_LONG, _INT, *3 * (_POINTER,)),
    "softmax_forward": (
        _LONG,
        _LONG,
        _INT,
        *2 * (_POINTER,),
        _LONG,
        _INT,
        _FLOAT,
        _POINTER,
        _INT,
        _FLOAT,
        *2 * (_POINTER,),
    ),
    "softmax_backward": (_LONG, _LONG, _INT, *2 * (_POINTER,), *2 * (_FLOAT,), _POINTER),
}


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


@functools.cache
def cpp_missing() -> MissingToolError | None:
    """Return what is missing for torch.compile on a CPU; None if nothing is.

    Inductor compiles C++ with the compiler that CXX names, by default g++, and Python's headers.
    """
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        return MissingToolError(
            "tool-missing", f"C++ compiler {compiler!r} not found: install g++, or name another one with CXX="
        )
    headers = Path(sysconfig.get_paths()["include"])
    if not (headers / "Python.h").exists():
        return MissingToolError("tool-missing", f"torch.compile needs {headers}/Python.h on a CPU: install python3-dev")
    return None


def has_avx512_bf16() -> bool:
    """Whether this CPU multiplies bf16 numbers (AVX512-BF16)."""
    return "avx512_bf16" in _processor().split()


def is_wanted() -> bool:
    """Whether loops are to be compiled in this process."""
    return os.environ.get(VARIABLE) != "0"


@functools.cache
def loops() -> ctypes.CDLL:
    """Return the loops, after torch has been imported: both then share the threads of one OpenMP."""
    library = compiled()
    try:
        found = ctypes.CDLL(os.fspath(library))
    except OSError as error:
        raise MissingToolError(
            "file-damaged", f"{library} cannot be loaded ({error}): delete it to compile it again"
        ) from error
    types = {f"{name}_{kind}": types for name, types in _ARGUMENTS.items() for kind in ("bf16", "float")}
    for name, arguments in {"random_levels": _RANDOM_LEVELS, **types}.items():
        function = getattr(found, name)
        function.argtypes, function.restype = arguments, None
    return found


@functools.cache
def compiled() -> Path:
    """Return the library, compiled where it is not in the folder of the user's cache yet.

    Raises:
        MissingToolError: there is no C compiler, or it cannot compile it.
    """
    compiler = os.environ.get("CC", "cc")
    command = [compiler, *_FLAGS]
    key = hashlib.sha256("\0".join([_SOURCE.read_text(), *command, _processor()]).encode()).hexdigest()[:16]
    name = f"elementwise-{key}.so"
    kept = _cache() / name
    if kept.exists():
        return kept
    if shutil.which(compiler) is None:
        raise MissingToolError(
            "tool-missing", f"C compiler {compiler!r} not found: install gcc, or name another one with CC="
        )
    folder = Path(tempfile.mkdtemp(prefix="bertbench-"))
    made = folder / name
    try:
        subprocess.run(
            [*command, os.fspath(_SOURCE), "-o", os.fspath(made), "-lm"],
            check=True, capture_output=True, text=True, timeout=_LONGEST_SECONDS,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[0][:300]
        raise MissingToolError(
            "tool-failed",
            f"the C compiler {compiler!r} cannot compile {_SOURCE.name} ({said}): fix it, or name another one with CC=",
        ) from error
    return _keep(made, kept)


def _keep(made: Path, kept: Path) -> Path:
    """Move a library into the cache; other processes see all of it or nothing. Where that is full it stays."""
    own = kept.with_name(f".{kept.name}.{platform.node()}.{os.getpid()}")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(made, own)
        own.replace(kept)
    except OSError:
        with contextlib.suppress(OSError):
            own.unlink()
        return made
    shutil.rmtree(made.parent, ignore_errors=True)
    return kept


def _cache() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(folder) if folder else Path.home() / ".cache") / "bertbench"
    except RuntimeError:  # a user without a home
        return Path(tempfile.mkdtemp(prefix="bertbench-"))


def _processor() -> str:
    """What a library for one processor must not be used without: homes are shared by nodes of different ones."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
