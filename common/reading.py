"""Reading what may be anything: no more of a file than makes sense, and notes that may be missing or damaged."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

_CHUNK_BYTES = 2**22


class Readable(Protocol):
    """An open file of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes, none at the end."""


def read_at_most(file: Readable, most: int) -> bytes:
    """Return the content of a file, or its first `most` + 1 bytes where it is longer.

    `file.read(most + 1)` alone would ask for `most` bytes at once: refused where memory is limited, whatever the file.
    """
    return b"".join(_chunks(file, most + 1))


def _chunks(file: Readable, left: int) -> Iterator[bytes]:
    while left and (chunk := file.read(min(left, _CHUNK_BYTES))):
        left -= len(chunk)
        yield chunk


def read_notes(path: Path) -> dict[str, Any]:
    """Return the JSON object that this program keeps in a file; empty where there is none, or it is damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
