"""Files that may be gzip-compressed, cut short, or a Git LFS pointer in place of the file."""

import gzip
import zlib
from pathlib import Path

from common.errors import InputError


def read_bytes(path: Path, what: str) -> bytes:
    """Return the content, unpacked where it is gzip-compressed.

    Args:
        path: the file.
        what: what it should be, such as "trace", for the message.

    Raises:
        InputError: it cannot be read, is damaged, or is a Git LFS pointer.
    """
    try:
        raw = path.read_bytes()
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}; the file is damaged or cut short, copy it again") from error
    if raw.startswith(b"version https://git-lfs"):
        raise InputError(f"{path} is a Git LFS pointer, not the {what} itself: run `git lfs pull`, then try again")
    return raw
