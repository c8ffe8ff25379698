"""Reads several files in several processes where that is faster than one after another.

A process is forked for each further core, and takes every n-th file; this process takes its own share meanwhile. A fork
costs a few milliseconds, where a pool of processes would cost more than small traces take to read. Where forking is not
safe (another thread runs, a daemon, no fork) everything is read here.
"""

import os
import pickle  # nosec B403 # between this process and its own children
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import InputError

PAYS_FROM_BYTES = 16 << 20
"""Size of all files, packed ones counted PACKED_RATIO times, from which more processes are faster."""
PACKED_RATIO = 15


def each(read: Callable[[Path], Any], paths: Sequence[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield (file, what `read` returns, or the InputError that it raises) in the order given.

    Args:
        read: called in another process where it pays; what it returns is pickled there.
        paths: the files.
    """
    workers = min(len(paths), _cores())
    if workers < 2 or not _may_fork() or not _pays(paths):
        for path in paths:
            yield path, _caught(read, path)
        return
    children = [_Child(read, paths[share::workers]) for share in range(1, workers)]
    try:
        own = [_caught(read, path) for path in paths[::workers]]
        shares = [own, *(child.results() for child in children)]
    finally:
        for child in children:
            child.end()
    for place, path in enumerate(paths):
        share = shares[place % workers]
        # A child that died, for want of memory, leaves its files to this process.
        yield path, share[place // workers] if place // workers < len(share) else _caught(read, path)


class _Child:
    """A forked process that reads its share and sends it back."""

    def __init__(self, read: Callable[[Path], Any], paths: Sequence[Path]) -> None:
        self._count = len(paths)
        reading, writing = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:  # no process may be started: nothing comes back
            os.close(writing)
            self._pid, self._pipe = 0, os.fdopen(reading, "rb")
            return
        if self._pid == 0:
            os.close(reading)
            _send(read, paths, os.fdopen(writing, "wb"))
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb")

    def results(self) -> list[Any]:
        """Return what came back; less than its share where the process died."""
        found: list[Any] = []
        try:
            while len(found) < self._count:
                found.append(pickle.load(self._pipe))  # noqa: S301 # nosec B301 # written by our own child
        except (EOFError, OSError, pickle.UnpicklingError):
            pass
        return found

    def end(self) -> None:
        """Close the pipe and wait for the process, which is ended where it still works."""
        self._pipe.close()
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _send(read: Callable[[Path], Any], paths: Sequence[Path], pipe: BinaryIO) -> None:
    """In the child: send every result, then end without what a process does at its end, which is the parent's."""
    try:
        # All first: the parent takes them when its own share is read, and a pipe holds little.
        for result in [_caught(read, path) for path in paths]:
            pickle.dump(result, pipe, protocol=pickle.HIGHEST_PROTOCOL)
        pipe.flush()
    finally:
        os._exit(0)


def _caught(read: Callable[[Path], Any], path: Path) -> Any:
    try:
        return read(path)
    except InputError as error:
        return InputError(error.code, str(error))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _may_fork() -> bool:
    """Whether no other thread runs that could hold a lock; those of numerical libraries only wait."""
    return hasattr(os, "fork") and threading.active_count() == 1


def _pays(paths: Sequence[Path]) -> bool:
    return sum(map(_estimated_bytes, paths)) >= PAYS_FROM_BYTES


def _estimated_bytes(path: Path) -> int:
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    return size * PACKED_RATIO if path.suffix == ".gz" else size
