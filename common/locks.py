"""A lock on a folder, held by a process: the kernel releases it however the process ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.atomic import storage_errors
from common.errors import LockedError


@contextmanager
def locked(folder: Path, holder: str, remedy: str, *, wait: bool = False, name: str = ".lock") -> Iterator[None]:
    """Hold `folder`, made where it is missing, or its file `name` alone, for this process.

    `holder` (what else may use it, in words) and `remedy` are for messages; `wait` waits instead of failing.

    Raises:
        LockedError: another process holds it.
        StorageError: it cannot be written.
    """
    path = folder / name
    with storage_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")  # nothing is written: it may be a link
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError("folder-locked", f"{folder} is in use by {holder}: {remedy}") from None
        yield
