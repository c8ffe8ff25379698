"""Temporary folders of a process that a later one clears away where the process was killed. Linux."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

AGENT_FOLDER = "bertbench-agent-"
"""Prefix of the folders of torchrun's agents."""
_LOCK = "lock"
# In front of the prefix, until the folder is locked.
_NEW = ".new-"
# One that is not locked this long after it was made never will be.
_YOUNG_SECONDS = 60.0


@contextlib.contextmanager
def own_folder(prefix: str) -> Iterator[Path]:
    """Give an empty folder, which is removed at the end; remove those of dead processes with the same prefix first."""
    clear_stale(prefix)
    folder = Path(tempfile.mkdtemp(prefix=f"{_NEW}{prefix}"))
    try:
        with (folder / _LOCK).open("w") as held:  # known across containers too, which process ids are not
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder = folder.rename(folder.with_name(folder.name.removeprefix(_NEW)))
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_stale(prefix: str) -> None:
    """Remove the folders with this prefix whose process, one of this user, is gone."""
    place = Path(tempfile.gettempdir())
    for folder in [*place.glob(f"{prefix}*"), *place.glob(f"{_NEW}{prefix}*")]:
        with contextlib.suppress(OSError):
            found = folder.lstat()
            is_young = time.time() - found.st_mtime < _YOUNG_SECONDS
            if found.st_uid != os.geteuid() or (is_young and folder.name.startswith(_NEW)):
                continue
            with (folder / _LOCK).open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
