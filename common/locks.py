"""A lock on a folder, held by a process: the kernel lets go of it however the process ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.atomic import storage_errors
from common.errors import LockedError

LOCK_FILE = ".lock"


@contextmanager
def locked(folder: Path, holder: str, remedy: str, shared: bool = False, wait: bool = False) -> Iterator[None]:
    """Hold `folder`, made where it is missing, for this process.

    Args:
        folder: what nobody else may use meanwhile.
        holder: what uses it, in words: "another sweep".
        remedy: what to do when it is in use.
        shared: others may hold it too, if they also ask for a share.
        wait: until it is free, instead of failing.

    Raises:
        LockedError: another process holds it; the message names the folder and that process.
        StorageError: it cannot be written.
    """
    path = folder / LOCK_FILE
    with storage_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        path.touch()
        file = path.open("r+b", buffering=0)  # a full disk is met in the write, not once more in the close
    with file:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.seek(0)
            process = file.read().decode("ascii", "replace").strip() or "unknown"
            raise LockedError(f"{folder} is in use by {holder} (process {process}): {remedy}") from None
        with storage_errors(path):
            file.truncate(file.write(str(os.getpid()).encode()))
        yield
