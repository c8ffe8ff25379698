"""Reads several traces in processes beside this one, where that is faster."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from common.errors import InputError

PAYS_FROM_BYTES = 4 << 20
"""Size of all files, packed ones counted _PACKED_RATIO times, from which more processes are faster."""
_PACKED_RATIO = 15


def each(read: Callable[[Path], Any], paths: Sequence[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield (file, what `read` returns, or the InputError that it raises) in the order given.

    Args:
        read: called in another process where it pays; what it returns is pickled there.
        paths: the files.
    """
    workers = min(len(paths), _cores())
    if workers < 2 or not _may_fork() or sum(map(_estimated_bytes, paths)) < PAYS_FROM_BYTES:
        for path in paths:
            yield path, _caught(read, path)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork")) as pool:
        for path, future in [(path, pool.submit(_caught, read, path)) for path in paths]:
            try:
                yield path, future.result()
            except BrokenProcessPool:  # a process died, for want of memory: its file is left to this one
                yield path, _caught(read, path)


def _caught(read: Callable[[Path], Any], path: Path) -> Any:
    try:
        return read(path)
    except InputError as error:
        return InputError(error.code, str(error))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _may_fork() -> bool:
    """Whether processes can be forked, and no other thread could hold a lock; numerical libraries' only wait."""
    return hasattr(os, "fork") and threading.active_count() == 1


def _estimated_bytes(path: Path) -> int:
    """Return the size of a file, unpacked; 0 where it is unknown."""
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    return size * _PACKED_RATIO if path.suffix == ".gz" else size
