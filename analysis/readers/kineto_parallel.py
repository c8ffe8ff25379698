"""Reads several files in several processes where that is faster than one after another."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from common.errors import InputError

PAYS_FROM_BYTES = 16 << 20
"""Size of all files, packed ones counted PACKED_RATIO times, from which more processes are faster."""
PACKED_RATIO = 15


def each(
    read: Callable[[Path], Any], paths: Sequence[Path], pays_from_bytes: int | None = None
) -> Iterator[tuple[Path, Any]]:
    """Yield (file, what `read` returns, or the InputError that it raises) in the order given.

    Args:
        read: a function of a module, called in another process where it pays.
        paths: the files.
        pays_from_bytes: in place of PAYS_FROM_BYTES, for results that are smaller.
    """
    workers = min(len(paths), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    done = 0
    if workers > 1 and _pays(paths, pays_from_bytes) and not multiprocessing.current_process().daemon:
        try:
            with ProcessPoolExecutor(workers, mp_context=_context()) as pool:
                for path, content in zip(paths, pool.map(_Caught(read), paths), strict=True):
                    done += 1
                    yield path, content
        except (BrokenProcessPool, OSError):
            pass  # killed for memory, or no process may be started: the rest is read here
    for path in paths[done:]:
        yield path, _Caught(read)(path)


class _Caught:
    def __init__(self, read: Callable[[Path], Any]) -> None:
        self._read = read

    def __call__(self, path: Path) -> Any:
        try:
            return self._read(path)
        except InputError as error:
            return InputError(str(error))


def _pays(paths: Sequence[Path], least: int | None) -> bool:
    return sum(map(_estimated_bytes, paths)) >= (PAYS_FROM_BYTES if least is None else least)


def _estimated_bytes(path: Path) -> int:
    try:
        size = path.stat().st_size
    except OSError:
        return 0
    return size * PACKED_RATIO if path.suffix == ".gz" else size


def _context() -> Any:
    """Fork costs nothing but is unsafe beside other threads; those of numerical libraries only wait."""
    alone = threading.active_count() == 1
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("fork" if alone and "fork" in methods else "spawn")
