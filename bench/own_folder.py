"""Temporary folders of a process that a later one clears away where the process was killed. Linux."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_LOCK = "lock"
# One that was only just made may not be locked yet.
_YOUNG_SECONDS = 60.0


@contextlib.contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """Give an empty folder, which is removed at the end; remove those of dead processes with the same prefix first."""
    clear_stale(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / _LOCK).open("w") as held:  # known across containers too, which process ids are not
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder


def clear_stale(prefix: str) -> None:
    """Remove the folders with this prefix whose process, one of this user, is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _YOUNG_SECONDS:
                continue
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
