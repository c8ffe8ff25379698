"""A folder that appears whole or not at all."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.atomic import storage_errors
from common.errors import StorageError, UsageError


def check_new_folder(path: Path) -> None:
    """Raise UsageError where `path` is a file, a folder with something in it, or the current folder."""
    try:
        taken = path.is_symlink() and not path.exists()
        if path.is_dir():
            taken = any(path.iterdir())
        elif path.exists():
            taken = True
    except OSError as error:
        raise StorageError(f"cannot look into {path}: {error.strerror}; choose another folder") from error
    if taken:
        raise UsageError(f"{path} is there already: choose a new folder, or remove what is there first")
    if path.resolve() == Path.cwd():
        raise UsageError(f"{path} is the current folder: give a new folder, such as {path / 'converted'}")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; rename it to `path` on success, remove it on failure.

    Raises:
        UsageError: `path` is a file, a folder with something in it, or the current folder.
        StorageError: it cannot be written or the disk is full; nothing is left behind.
    """
    check_new_folder(path)
    final = path.resolve()
    temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}.tmp")
    with storage_errors(path):
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    try:
        yield temporary
        with storage_errors(path):
            _sync(temporary)
            try:
                temporary.rename(final)  # over an empty folder, too
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise UsageError(f"{path} was written by somebody else meanwhile: choose a new folder") from error
                if error.errno == errno.EBUSY:
                    raise UsageError(f"{path} is a mounted disk: choose a folder inside it") from error
                raise
            _sync(final.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _sync(folder: Path) -> None:
    """Make the names in `folder` outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
