"""A lock on a folder, held by a process: the kernel releases it however the process ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.atomic import storage_errors
from common.errors import LockedError

LOCK_FILE = ".lock"


@contextmanager
def locked(
    folder: Path,
    holder: str,
    remedy: str,
    shared: bool = False,
    wait: bool = False,
    name: str = LOCK_FILE,
    remove: bool = False,
) -> Iterator[None]:
    """Hold `folder`, made where it is missing, or its file `name` alone, for this process.

    `holder` (what else may use it, in words) and `remedy` are for messages; `shared` lets others hold a share too;
    `wait` waits instead of failing; `remove` removes the file afterwards, and is given by all who lock it.

    Raises:
        LockedError: another process holds it.
        StorageError: it cannot be written.
    """
    path, mode = folder / name, fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    with storage_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        # A link is not followed: what it leads to would be written over.
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666), "r+b", buffering=0)
    with file:
        try:
            fcntl.flock(file, mode if wait else mode | fcntl.LOCK_NB)
        except BlockingIOError:
            process = path.read_text(errors="replace") or "unknown"
            raise LockedError(
                "folder-locked", f"{folder} is in use by {holder} (process {process}): {remedy}"
            ) from None
        if remove and not _is_there(path, file.fileno()):  # the previous holder has removed it
            with locked(folder, holder, remedy, shared, wait, name, remove):
                yield
            return
        try:
            with storage_errors(path):
                file.truncate(0)
                file.write(str(os.getpid()).encode())
            yield
        finally:
            if remove:
                path.unlink(missing_ok=True)


def _is_there(path: Path, descriptor: int) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    return False


def discard(folder: Path) -> None:
    """Remove a folder that holds nothing but its lock; leave any other."""
    with suppress(OSError):
        if [path.name for path in folder.iterdir()] == [LOCK_FILE]:
            (folder / LOCK_FILE).unlink()
            folder.rmdir()
