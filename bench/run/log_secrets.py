"""Secrets that a program printed are taken out of its log when it has ended."""

from pathlib import Path

from common.atomic import atomic_path
from common.redact import redact_text

_PIECE_BYTES = 1 << 20


def hide_secrets(log: Path) -> None:
    """Replace what `redact_text` finds in the lines of a log; one without is not touched. Raises StorageError."""
    with log.open("rb") as file:
        lines = iter(lambda: file.readline(_PIECE_BYTES), b"")
        if all(_without(line) == line for line in lines):
            return
        file.seek(0)
        with atomic_path(log) as temporary, temporary.open("wb") as hidden:
            hidden.writelines(map(_without, iter(lambda: file.readline(_PIECE_BYTES), b"")))


def _without(line: bytes) -> bytes:
    # Bytes that are no UTF-8 stay as they are.
    return redact_text(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
