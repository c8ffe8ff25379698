"""A folder that appears whole or not at all."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.atomic import storage_errors
from common.errors import StorageError, UsageError, read_code


def check_new_folder(path: Path) -> None:
    """Raise UsageError where `path` is a file, a folder with something in it, or the current folder."""
    try:
        taken = path.is_symlink() and not path.exists()
        if path.is_dir():
            taken = any(path.iterdir())
        elif path.exists():
            taken = True
    except OSError as error:
        raise StorageError(read_code(error), f"cannot list {path}: {error.strerror}; choose another folder") from error
    if taken:
        raise UsageError(
            "folder-occupied", f"{path} already exists: choose a new folder, or remove the existing one first"
        )
    if path.resolve() == Path.cwd():
        raise UsageError(
            "option-value", f"{path} is the current folder: give a new folder, such as {path / 'converted'}"
        )


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; rename it to `path` on success, remove it on failure.

    What a process that was killed left of the same folder is removed first.

    Raises:
        UsageError: `path` is a file, a folder with something in it, or the current folder.
        StorageError: it cannot be written or the disk is full; nothing is left behind.
    """
    check_new_folder(path)
    final = path.resolve()
    with storage_errors(path):
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(final)
        temporary, handle = _held_folder(final)
    try:
        yield temporary
        with storage_errors(path):
            sync_folder(temporary)
            try:
                temporary.rename(final)  # over an empty folder, too
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    raise UsageError(
                        "folder-occupied", f"{path} was created by another process in the meantime: choose a new folder"
                    ) from error
                if error.errno == errno.EBUSY:
                    raise UsageError("write-failed", f"{path} is a mount point: choose a folder inside it") from error
                raise
            sync_folder(final.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        os.close(handle)


def _held_folder(final: Path) -> tuple[Path, int]:
    """Make a temporary folder, and hold it through a handle: the kernel lets go of it however the process ends."""
    while True:
        temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}.tmp")
        temporary.mkdir()
        with contextlib.suppress(FileNotFoundError):  # taken for abandoned before it was held: make another
            handle = _open(temporary)
            try:
                # Where the file system knows no locks on folders, nobody can take it for abandoned either.
                if _lock(handle) is not False and os.path.samestat(os.fstat(handle), temporary.stat()):
                    return temporary, handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)


def _remove_abandoned(final: Path) -> None:
    """Remove the temporary folders of `final` that no process holds; what cannot be removed stays."""
    pattern = re.compile(rf"\.{re.escape(final.name)}\.[0-9a-f]{{8}}\.tmp")
    with contextlib.suppress(OSError):
        for folder in [path for path in final.parent.iterdir() if pattern.fullmatch(path.name)]:
            with contextlib.suppress(OSError):
                handle = _open(folder)
                try:
                    if _lock(handle):
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(handle)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _lock(handle: int) -> bool | None:
    """Say whether the folder is held now; None where the file system (NFS) has no locks on folders."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in `folder`: they outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
