"""The readers, and which of them a file is for: found out from its content, never from its name."""

import importlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.readers.packed import read_start
from common.errors import BertbenchError, InputError, MissingToolError

# In this order they are asked. A module holds `recognises(head)` and `read(path)`.
READERS: dict[str, str] = {
    "nsys": "analysis.readers.nsys.reader",
    "nvvp": "analysis.readers.nvvp",
    "nsys_csv": "analysis.readers.nsys.stats_csv",
    "nccl-inspector": "analysis.readers.nccl_inspector",
    "kineto": "analysis.readers.kineto.reader",
    "ncu": "analysis.readers.ncu.reader",
    "nccl-tests": "analysis.readers.nccl_tests",
}
SUPPORTED = (
    "supported are traces of the PyTorch profiler (JSON), nsys (.nsys-rep, SQLite, CSV of `nsys stats --format csv`) "
    "and nvprof (.nvvp), counters of ncu (.ncu-rep, CSV), logs of nccl-tests and JSON lines of NCCL Inspector"
)
"""What READERS read, for messages."""

# Formats that are known and not read: how a file begins, what it is, and what to give instead.
_NOT_READ: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (
        re.compile(
            rb'\s*\[\s*\{"name": "[^"]*", "cat": "(?:GROUP|COLL|P2P|KERNEL_LAUNCH|PROXY|NET)(?:_API)?", "ph": "b"'
        ),
        "is a trace of NCCL's example profiler plugin: give the lines of NCCL Inspector (NCCL_INSPECTOR_ENABLE=1 with "
        "libnccl-profiler-inspector.so), or a trace of the PyTorch profiler or nsys",
    ),
    (
        re.compile(rb"\s*<\?xml.*nv(?:idia|vp)", re.DOTALL | re.IGNORECASE),
        "is a session of NVIDIA's Visual Profiler (XML): give the output of `nvprof --export-profile FILE.nvvp`",
    ),
    (
        re.compile(rb"\n.*\x00", re.DOTALL),
        "is a Perfetto trace (protobuf): give the .json trace that the profiler wrote, or convert it with "
        "`traceconv json FILE FILE.json`",
    ),
)

_HEAD_BYTES = 1 << 16


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


@dataclass(frozen=True, slots=True)
class Reader:
    """One kind of file."""

    name: str
    module: Any
    """Its module: `recognises(head) -> bool`, `read(path)` -> Timeline, KernelCounters or Summary, or a list of them. A
    module that reads many files faster together has `read_many(paths)`, which yields what `read_all` yields."""

    def read_all(self, paths: Sequence[Path]) -> Iterator[tuple[Path, Any]]:
        """Yield (file, what is in it), several times for a file that holds several; where it fails, the error.

        Errors are InputError, and MissingToolError where a tool must read the file and is not installed.
        """
        if hasattr(self.module, "read_many"):
            yield from self.module.read_many(paths)
            return
        for path in paths:
            try:
                found = self.module.read(path)
            except (InputError, MissingToolError) as error:
                yield path, error
                continue
            except BertbenchError:
                raise
            except Exception as error:  # a file that no tool wrote like this
                what = f"{path} cannot be read as a file of {self.name} ({type(error).__name__}: {error})"
                yield path, InputError("file-damaged", f"{what}: copy it again, or record again")
                continue
            for item in found if isinstance(found, list | tuple) else [found]:
                yield path, item


def read_head(path: Path) -> Head:
    """Return what a file begins with. Raises InputError when it cannot be read, is empty or a Git LFS pointer."""
    data = read_start(path, _HEAD_BYTES)
    if not data.strip():
        raise InputError("file-empty", f"{path} is empty: nothing was recorded, or the disk was full; record again")
    return Head(path, data)


def find_reader(head: Head) -> Reader | None:
    """Return the reader that a file is for; None where it is none that is known.

    Raises InputError for a known format that is not read.
    """
    for begin, what in _NOT_READ:
        if begin.match(head.data):
            raise InputError("file-format", f"{head.path} {what}")
    for name, target in READERS.items():
        module = importlib.import_module(target)
        if module.recognises(head):
            return Reader(name, module)
    return None
