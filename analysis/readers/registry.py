"""The readers, and which of them a file is for: found out from its content, never from its name."""

import importlib
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.readers.packed import read_start
from common.errors import BertbenchError, InputError, MissingToolError

# In this order they are asked. A module holds `recognises(head)` and `read(path)`, which returns a Timeline,
# KernelCounters or Summary, or several of them; `read_contents(path)` where a file holds more than `read` returns.
READERS: dict[str, str] = {
    "kineto": "analysis.readers.kineto.reader",
    "nsys": "analysis.readers.nsys",
    "nvvp": "analysis.readers.nvvp",
    "nsys_csv": "analysis.readers.nsys_csv",
    "ncu": "analysis.readers.ncu",
    "nccl": "analysis.readers.nccl",
}
SUPPORTED = (
    "supported are traces of the PyTorch profiler (JSON), nsys (.nsys-rep, SQLite, CSV of `nsys stats --format csv`) "
    "and nvprof (.nvvp), counters of ncu (.ncu-rep, CSV), logs of nccl-tests and JSON lines of NCCL Inspector"
)
"""What READERS read, for messages."""

# Formats that are known and not read: how a file begins, what it is, and what to give instead.
_NOT_READ = {
    rb"version https://git-lfs": "is a Git LFS pointer, not the file itself: run `git lfs pull`",
    rb'\s*\[\s*\{"name": "[^"]*", "cat": "(?:GROUP|COLL|P2P|KERNEL_LAUNCH|PROXY|NET)(?:_API)?", "ph": "b"': (
        "is a trace of NCCL's example profiler plugin: give the lines of NCCL Inspector (NCCL_INSPECTOR_ENABLE=1 with "
        "libnccl-profiler-inspector.so), or a trace of the PyTorch profiler or nsys"
    ),
    rb"(?s)\n.*\x00": (
        "is a Perfetto trace (protobuf): give the .json trace that the profiler wrote, or convert it with "
        "`traceconv json FILE FILE.json`"
    ),
}

_HEAD_BYTES = 1 << 16
PAYS_FROM_BYTES = 16 << 20
"""Size of all files, packed ones counted _PACKED_RATIO times, from which more processes are faster: below it one reads
them in 0.2 s, and each further one begins without what is known of names and sends its tables back."""
_PACKED_RATIO = 15


@dataclass(frozen=True, slots=True)
class Head:
    """What a file begins with; compressed ones are unpacked."""

    path: Path
    data: bytes
    """The first 64 KiB of its content."""

    @property
    def text(self) -> str:
        """The same as text; what is no UTF-8 is replaced."""
        return self.data.decode("utf-8", errors="replace")


def read_head(path: Path) -> Head:
    """Return what a file begins with. Raises InputError when it cannot be read or is empty."""
    data = read_start(path, _HEAD_BYTES)
    if not data.strip():
        raise InputError("file-empty", f"{path} is empty: nothing was recorded, or the disk was full; record again")
    return Head(path, data)


def find_reader(head: Head) -> str | None:
    """Return the name in READERS of the reader that a file is for; None where it is none that is known.

    Raises InputError for a known format that is not read.
    """
    for begin, what in _NOT_READ.items():
        if re.match(begin, head.data):
            raise InputError("file-format", f"{head.path} {what}")
    return next((name for name, module in READERS.items() if importlib.import_module(module).recognises(head)), None)


def read_all(name: str, paths: Sequence[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield (file, what is in it) in the order given, several times for a file that holds several; where it fails, the
    error: InputError, or MissingToolError where a tool must read the file and is not installed.

    Traces of PyTorch are read in processes beside this one where that pays: forked, so that no other thread may hold a
    lock.
    """
    sizes = (path.stat().st_size * (_PACKED_RATIO if path.suffix == ".gz" else 1) for path in paths if path.exists())
    workers = min(len(paths), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    if name != "kineto" or workers < 2 or threading.active_count() > 1 or sum(sizes) < PAYS_FROM_BYTES:
        for path in paths:
            yield from ((path, content) for content in _contents(name, path))
        return
    import multiprocessing  # 40 ms, which one small trace does not need
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        for path, future in [(path, pool.submit(_contents, name, path)) for path in paths]:
            try:
                contents = future.result()
            except BrokenProcessPool:  # a process died, for want of memory: its file is left to this one
                contents = _contents(name, path)
            yield from ((path, content) for content in contents)


def _contents(name: str, path: Path) -> list[Any]:
    try:
        module = importlib.import_module(READERS[name])
        content = getattr(module, "read_contents", module.read)(path)
        return [*content] if isinstance(content, list | tuple) else [content]
    except (InputError, MissingToolError) as error:
        return [error]
    except BertbenchError:
        raise
    except Exception as error:  # a file that no tool wrote like this
        what = f"{path} cannot be read as a file of {name} ({type(error).__name__}: {error})"
        return [InputError("file-damaged", f"{what}: copy it again, or record again")]
