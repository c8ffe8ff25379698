"""Rows of tables that wait in a temporary file: what a trace holds may be more than the memory."""

import errno
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from analysis.readers.kineto.events import CommunicationArguments
from common.errors import StorageError

HostCall = tuple[str, str, int, int, CommunicationArguments]
"""A call of a collective: name, thread, start, end, arguments."""
Part = dict[str, npt.NDArray[Any]]


class Spill:
    """Parts of tables, in the order in which they came. The file has no name and goes with this object."""

    def __init__(self) -> None:
        """Make the file, in the folder for temporary files (TMPDIR). Raises StorageError where none can be written."""
        with _stored():
            self._file: IO[bytes] = tempfile.TemporaryFile(prefix="bertbench-")  # noqa: SIM115 # closed with the object
        self._end = 0
        self._parts: dict[str, list[tuple[int, int, dict[str, np.dtype[Any]]]]] = {}
        self._calls: list[tuple[int, int]] = []

    def put(self, table: str, part: Part) -> None:
        """Append rows of a table: arrays of one length. Raises StorageError where the disk is full."""
        rows = len(next(iter(part.values())))
        self._parts.setdefault(table, []).append((self._end, rows, {name: a.dtype for name, a in part.items()}))
        self._write(*(np.ascontiguousarray(values).data.cast("B") for values in part.values() if rows))

    def put_calls(self, of_kernels: Mapping[int, CommunicationArguments], of_host: Sequence[HostCall]) -> None:
        """Append arguments of communication, of kernels by row. Raises StorageError where the disk is full."""
        kernels = [(place, _plain(said)) for place, said in of_kernels.items()]
        text = json.dumps([kernels, [(*call[:4], _plain(call[4])) for call in of_host]]).encode()
        self._calls.append((self._end, len(text)))
        self._write(text)

    def parts(self, table: str) -> Iterator[Part]:
        """Yield the rows of a table, one part after another."""
        for place, rows, types in self._parts.get(table, ()):
            self._file.seek(place)
            yield {name: np.fromfile(self._file, dtype=kind, count=rows) for name, kind in types.items()}

    def calls(self) -> Iterator[tuple[dict[int, CommunicationArguments], list[HostCall]]]:
        """Yield the arguments of communication, as they were given."""
        for place, size in self._calls:
            self._file.seek(place)
            kernels, host = json.loads(self._file.read(size))
            yield {row: _arguments(said) for row, said in kernels}, [(*call[:4], _arguments(call[4])) for call in host]

    def _write(self, *pieces: Any) -> None:
        with _stored():
            self._file.seek(self._end)
            for piece in pieces:
                self._file.write(piece)
            self._end = self._file.tell()


@contextmanager
def _stored() -> Iterator[None]:
    """Raise StorageError where the folder for temporary files cannot be written."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            "disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "write-failed",
            f"cannot keep the tables of a trace in a temporary file: {error.strerror}; it takes a tenth of the trace: "
            "set TMPDIR to a folder with enough room",
        ) from error


_IS_TEXT = [field.type is Raw for field in msgspec.structs.fields(CommunicationArguments)]


def _plain(said: CommunicationArguments) -> list[Any]:
    """Return arguments as plain values: JSON in them as it was read, even where it is malformed."""
    return [
        bytes(value).decode("latin-1") if isinstance(value, Raw) else value for value in msgspec.structs.astuple(said)
    ]


def _arguments(values: Sequence[Any]) -> CommunicationArguments:
    pairs = zip(values, _IS_TEXT, strict=True)
    found: list[Any] = [Raw(value.encode("latin-1")) if text else value for value, text in pairs]
    return CommunicationArguments(*found)
