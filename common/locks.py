"""A lock on a folder, held by a process: the kernel releases it however the process ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.atomic import storage_errors
from common.errors import LockedError

_LOCK_FILE = ".lock"


@contextmanager
def locked(
    folder: Path,
    holder: str,
    remedy: str,
    *,
    shared: bool = False,
    wait: bool = False,
    name: str = _LOCK_FILE,
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
        file = path.open("ab")  # nothing is written: it may be a link
    with file:
        try:
            fcntl.flock(file, mode if wait else mode | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError("folder-locked", f"{folder} is in use by {holder}: {remedy}") from None
        if remove and not os.fstat(file.fileno()).st_nlink:  # the previous holder has removed it
            with locked(folder, holder, remedy, shared=shared, wait=wait, name=name, remove=True):
                yield
            return
        try:
            yield
        finally:
            if remove:
                path.unlink(missing_ok=True)


def discard(folder: Path) -> None:
    """Remove a folder that holds nothing but its lock; leave any other."""
    with suppress(OSError):
        if [path.name for path in folder.iterdir()] == [_LOCK_FILE]:
            (folder / _LOCK_FILE).unlink()
            folder.rmdir()
