"""Reads traces in forked processes beside this one, where that is faster."""

import os
import pickle  # nosec B403 # between this process and its own children
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import InputError

PAYS_FROM_BYTES = 4 << 20
"""Size of all files, packed ones counted PACKED_RATIO times, from which more processes are faster."""
PACKED_RATIO = 15
_PIPE_BYTES = 1 << 20


def each(read: Callable[[Path], Any], paths: Sequence[Path]) -> Iterator[tuple[Path, Any]]:
    """Yield (file, what `read` returns, or the InputError that it raises) in the order given.

    Args:
        read: called in another process where it pays; what it returns is pickled there.
        paths: the files.
    """
    workers = min(len(paths), _cores())
    if workers < 2 or not may_fork() or sum(map(estimated_bytes, paths)) < PAYS_FROM_BYTES:
        for path in paths:
            yield path, _caught(read, path)
        return
    children = [_reader(read, paths[share::workers]) for share in range(1, workers)]
    try:
        own = [_caught(read, path) for path in paths[::workers]]
        shares = [own, *(list(child.results()) for child in children)]
    finally:
        for child in children:
            child.end()
    for place, path in enumerate(paths):
        share = shares[place % workers]
        # A child that died, for want of memory, leaves its files to this process.
        yield path, share[place // workers] if place // workers < len(share) else _caught(read, path)


def _reader(read: Callable[[Path], Any], paths: Sequence[Path]) -> "Child":
    # All first: the parent takes them when its own share is read, and a pipe holds little.
    return Child(lambda: [_caught(read, path) for path in paths])


class Child:
    """A forked process that works and sends its results back, each when it is there."""

    def __init__(self, work: Callable[[], Iterable[Any]]) -> None:
        """Start it.

        Args:
            work: called in the process; what it gives is pickled. If it raises, nothing more comes back.
        """
        reading, writing = os.pipe()
        with suppress(ImportError, AttributeError, OSError):  # Linux alone; a pipe of the usual size does too
            import fcntl

            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            self._pid = os.fork()
        except OSError:  # no process may be started: nothing comes back
            os.close(writing)
            self._pid, self._pipe = 0, os.fdopen(reading, "rb")
            return
        if self._pid == 0:
            os.close(reading)
            _send(work, os.fdopen(writing, "wb"))
        os.close(writing)
        self._pipe = os.fdopen(reading, "rb")

    def results(self) -> Iterator[Any]:
        """Yield what comes back; fewer results where the process died."""
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                yield pickle.load(self._pipe)  # noqa: S301 # nosec B301 # written by our own child

    def end(self) -> None:
        """Close the pipe and wait for the process, which is ended where it still works."""
        self._pipe.close()
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0


def _send(work: Callable[[], Iterable[Any]], pipe: BinaryIO) -> None:
    """In the child: send every result, then end without what a process does at its end, which is the parent's."""
    try:
        for result in work():
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


def may_fork() -> bool:
    """Whether a second core is there, and no other thread that could hold a lock; numerical libraries' only wait."""
    return _cores() > 1 and hasattr(os, "fork") and threading.active_count() == 1


def estimated_bytes(path: Path) -> int:
    """Return the size of a file, unpacked; 0 where it is unknown."""
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    return size * PACKED_RATIO if path.suffix == ".gz" else size
