"""The readers, and which of them a file is for: found out from its content, never from its name."""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.readers.packed import MOST_BYTES, unpacked_stream
from common.errors import InputError, MissingToolError

# In this order they are asked. A module holds FORM, `recognises(head)` and `read(path)`.
READERS: dict[str, str] = {
    "nsys": "analysis.readers.nsys.reader",
    "nvvp": "analysis.readers.nvvp",
    "nsys_csv": "analysis.readers.nsys.summary_csv",
    "nsys_trace_csv": "analysis.readers.nsys.trace_csv",
    "kineto": "analysis.readers.kineto.reader",
    "ncu": "analysis.readers.ncu.reader",
    "nccl-tests": "analysis.readers.nccl_tests",
}
FORMS = ("timelines", "counters", "summaries")
SUPPORTED = (
    "supported are traces of the PyTorch profiler (JSON), nsys (.nsys-rep, SQLite, CSV of `nsys stats --format csv`) "
    "and nvprof (.nvvp), counters of ncu (.ncu-rep, CSV), and logs of nccl-tests"
)
"""What READERS read, for messages."""

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
    """Its module: FORM (one of FORMS), `recognises(head) -> bool`, `read(path)` -> one of that form, or a list. A
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
            for item in found if isinstance(found, list | tuple) else [found]:
                yield path, item


def read_head(path: Path) -> Head:
    """Return what a file begins with. Raises InputError when it cannot be read, is empty or a Git LFS pointer."""
    data = unpacked_stream(path, "file", most_bytes=MOST_BYTES, remedy="").read(_HEAD_BYTES)
    if not data.strip():
        raise InputError("file-empty", f"{path} is empty: nothing was recorded, or the disk was full; record again")
    return Head(path, data)


def find_reader(head: Head) -> Reader | None:
    """Return the reader that a file is for; None where it is none that is known."""
    for name, target in READERS.items():
        module = importlib.import_module(target)
        if module.recognises(head):
            return Reader(name, module)
    return None
