"""Reads one large trace in two processes that take turns at its pieces.

A piece ends at the last boundary of a block, whatever came before it: both processes find the same pieces. The second
one makes tables of every second piece, which this one appends in their place, so that tables, names and their numbers
are those of one process. A piece that ends elsewhere, as damage or a boundary inside an event makes it, ends the turns:
this process reads all that follows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from analysis.readers.kineto import processes
from analysis.readers.kineto.events import Chunk
from analysis.readers.kineto.stream import Elsewhere, EventStream
from analysis.readers.kineto.tables import Tables

PAYS_FROM_BYTES = 48 << 20
"""Size of a trace from which a second process is faster."""

Part = Elsewhere[Tables]


@contextmanager
def second_reader(path: Path) -> Iterator["_Turns | None"]:
    """Start a process that reads every second piece, where that pays; it ends with the context."""
    if processes.estimated_bytes(path) < PAYS_FROM_BYTES or not processes.may_fork():
        yield None
        return
    child = processes.Child(partial(_every_second, path))
    try:
        yield _Turns(child.results())
    finally:
        child.end()


class _Turns:
    def __init__(self, parts: Iterator[Part]) -> None:
        self._parts = parts

    def __call__(self, number: int) -> Part | None:
        """Return the piece of that number if it is the other process's and whole; None: to be read here."""
        return next(self._parts, None) if number % 2 else None


def _every_second(path: Path) -> Iterator[Part]:
    """In the other process: yield tables of each of its pieces, up to one that does not end as expected."""
    stream = EventStream(path)
    lost = 0
    for piece in stream.pieces(lambda number: None if number % 2 else Elsewhere(Tables())):
        if not stream.in_turn:
            return
        if isinstance(piece, Chunk):
            tables = Tables()
            tables.add(piece)
            if tables.unknown.crowded:
                return
            yield Elsewhere(tables, stream.lost - lost)
            lost = stream.lost
            del tables
        del piece
