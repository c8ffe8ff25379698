"""A lock on a folder, held by a process: the kernel lets go of it however the process ends."""

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
    """Hold `folder`, made where it is missing, for this process.

    Args:
        folder: what nobody else may use meanwhile.
        holder: what uses it, in words: "another sweep".
        remedy: what to do when it is in use.
        shared: others may hold it too, if they also ask for a share.
        wait: until it is free, instead of failing.
        name: of the file in it that is locked, where only a part of the folder is meant.
        remove: the file is gone afterwards; to be given by all who lock it.

    Raises:
        LockedError: another process holds it; the message names the folder and that process.
        StorageError: it cannot be written.
    """
    path = folder / name
    while True:
        with storage_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            # Without a buffer a full disk is met in the write, not again in the close. A link is not followed: what
            # it leads to would be written over.
            file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b", buffering=0)
        with file:
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                file.seek(0)
                process = file.read().decode("ascii", "replace").strip() or "unknown"
                raise LockedError(
                    "folder-locked", f"{folder} is in use by {holder} (process {process}): {remedy}"
                ) from None
            if remove and not _is_there(path, file.fileno()):
                continue  # the previous holder has removed it: another process may hold the next one
            try:
                with storage_errors(path):
                    file.truncate(file.write(str(os.getpid()).encode()))
                yield
            finally:
                if remove:
                    path.unlink(missing_ok=True)
            return


def _is_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def discard(folder: Path) -> None:
    """Remove a folder that holds nothing but the lock of one who is done with it; leave any other."""
    with suppress(OSError):
        if [path.name for path in folder.iterdir()] == [LOCK_FILE]:
            (folder / LOCK_FILE).unlink()
            folder.rmdir()
