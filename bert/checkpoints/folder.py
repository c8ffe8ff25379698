"""Create a folder atomically."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.atomic import storage_errors
from common.errors import StorageError, UsageError, read_code


def check_new_folder(path: Path) -> None:
    """Raise UsageError if `path` is a file, a folder with something in it, or the current folder."""
    try:
        taken = path.is_symlink() and not path.exists()
        if path.is_dir():
            taken = any(path.iterdir())
        elif path.exists():
            taken = True
    except OSError as error:
        raise StorageError(read_code(error), f"cannot list {path}: {error.strerror}; choose another folder") from error
    if taken:
        raise UsageError("folder-occupied", f"{path} already exists: choose a new folder")
    if path.resolve() == Path.cwd():
        raise UsageError(
            "option-value", f"{path} is the current folder: give a new folder, such as {path / 'converted'}"
        )


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
            try:
                temporary.replace(final)  # over an empty folder, too
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise UsageError(
                        "folder-occupied", f"{path} was created by another process: choose a new folder"
                    ) from error
                if error.errno == errno.EBUSY:
                    raise UsageError("write-failed", f"{path} is a mount point: choose a folder inside it") from error
                raise
            sync_folder(final.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in `folder`: they outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
