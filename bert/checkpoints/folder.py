"""Create a folder atomically."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.atomic import storage_errors
from common.errors import UsageError


def check_new_folder(path: Path) -> None:
    """Raise UsageError if `path` is a file, a folder with something in it, or the current folder."""
    with storage_errors(path):
        taken = path.is_symlink() or path.exists()
        if path.is_dir():
            taken = any(path.iterdir()) or path.resolve() == Path.cwd()
    if taken:
        raise UsageError("folder-occupied", f"{path} already exists: choose a new folder")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; rename it to `path` on success, remove it on failure.

    Raises:
        UsageError: `path` is a file, a folder with something in it, or the current folder.
        StorageError: it cannot be written or the disk is full; nothing is left behind.
    """
    check_new_folder(path)
    final = path.resolve()
    with storage_errors(path):
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}.tmp")
        temporary.mkdir()
    try:
        yield temporary
        with storage_errors(path):
            sync_folder(temporary)
            temporary.replace(final)  # over an empty folder, too
            sync_folder(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in `folder`: they outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
