"""Rows of tables that wait in a temporary file: what a trace holds may be more than the memory."""

import errno
import pickle  # nosec B403 # our own file, which nobody else can open
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from common.errors import StorageError

Part = dict[str, npt.NDArray[Any]]


class Spill:
    """Parts of tables, in the order in which they came. The file has no name and goes with this object."""

    def __init__(self) -> None:
        """Make the file, in the folder for temporary files (TMPDIR)."""
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="bertbench-")  # noqa: SIM115 # closed with the object
        self._end = 0
        self._parts: dict[str, list[tuple[int, int, dict[str, np.dtype[Any]]]]] = {}
        self._objects: list[int] = []

    def put(self, table: str, part: Part) -> None:
        """Append rows of a table: arrays of one length. Raises StorageError where the disk is full."""
        rows = len(next(iter(part.values())))
        self._parts.setdefault(table, []).append((self._end, rows, {name: a.dtype for name, a in part.items()}))
        self._write(*(np.ascontiguousarray(values).data.cast("B") for values in part.values() if rows))

    def put_objects(self, found: Any) -> None:
        """Append any object. Raises StorageError where the disk is full."""
        self._objects.append(self._end)
        self._write(pickle.dumps(found, protocol=pickle.HIGHEST_PROTOCOL))

    def parts(self, table: str) -> Iterator[Part]:
        """Yield the rows of a table, one part after another."""
        for place, rows, types in self._parts.get(table, ()):
            self._file.seek(place)
            yield {name: np.fromfile(self._file, dtype=kind, count=rows) for name, kind in types.items()}

    def objects(self) -> Iterator[Any]:
        """Yield the objects."""
        for place in self._objects:
            self._file.seek(place)
            yield pickle.load(self._file)  # noqa: S301 # nosec B301 # our own file

    def _write(self, *pieces: Any) -> None:
        try:
            self._file.seek(self._end)
            for piece in pieces:
                self._file.write(piece)
            self._end = self._file.tell()
        except OSError as error:
            raise StorageError(
                "disk-full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "write-failed",
                f"cannot keep the tables of a trace in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR to a "
                "folder on a disk with more room",
            ) from error
