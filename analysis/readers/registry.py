"""The readers, and which of them a file is for: found out from its content, never from its name."""

import gzip
import importlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import InputError

# In this order they are asked. A module holds FORM, `recognises(head)` and `read(path)`.
READERS: dict[str, str] = {
    "nsys": "analysis.readers.nsys",
    "kineto": "analysis.readers.kineto",
    "ncu": "analysis.readers.ncu",
}
FORMS = ("timelines", "counters", "summaries")

_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Head:
    """What a file begins with; compressed ones are unpacked."""

    path: Path
    """The file."""
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
    """Name in READERS."""
    module: Any
    """Its module: FORM (one of FORMS), `recognises(head) -> bool`, `read(path)` -> one of that form, or several."""

    def read(self, path: Path) -> tuple[Any, ...]:
        """Read a file. Raises InputError where nothing of it can be used."""
        found = self.module.read(path)
        return tuple(found) if isinstance(found, Sequence) else (found,)


def read_head(path: Path) -> Head:
    """Return what a file begins with. Raises InputError when it cannot be read, is empty or a Git LFS pointer."""
    try:
        with path.open("rb") as file:
            data = file.read(_HEAD_BYTES)
            if data[:2] == b"\x1f\x8b":
                file.seek(0)
                with gzip.open(file) as unpacked:
                    data = unpacked.read(_HEAD_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}; the file is damaged or cut short, copy it again") from error
    if not data.strip():
        raise InputError(f"{path} is empty: nothing was recorded, or the disk was full; record again")
    if data.startswith(b"version https://git-lfs"):
        raise InputError(f"{path} is a Git LFS pointer, not the file itself: run `git lfs pull`, then try again")
    return Head(path, data)


def find_reader(head: Head) -> Reader | None:
    """Return the reader that a file is for; None where it is none that is known."""
    for name, target in READERS.items():
        module = importlib.import_module(target)
        if module.recognises(head):
            return Reader(name, module)
    return None
