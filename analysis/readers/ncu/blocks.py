"""The blocks of a report of Nsight Compute (.ncu-rep): which process each result is of, and whether all of it is there.

The package that reads reports takes one that is cut short for a smaller one, so the lengths are followed first. The
format is in the folder extras/FileFormat of Nsight Compute (ProfilerReport.proto): the bytes "NVR\\0", a header, then
blocks. A block is a header and its payload, one entry per source and result. Headers and entries are messages of
Protocol Buffers behind their length, 4 bytes, least significant first.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from common.errors import InputError, content_code

MAGIC = b"NVR\x00"
"""What a report begins with."""
_LONGEST_HEADER = 256 << 20
# Fields of a block's header: results of kernels, ranges, command lists and graphs; bytes of the payload; the process.
_RESULTS, _SOURCES, _PAYLOAD, _PROCESS = (2, 7, 8, 9), 1, 5, 6
_PROCESS_ID, _HOST = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class ResultOf:
    """Where one result was recorded."""

    host: str
    process: int
    """The system's number; 0 where the report does not say."""


def results_of(report: Path, given: Path) -> list[ResultOf]:
    """Follow all lengths of a report to its end; return the origin of every result, in the order of the file.

    A report that is cut exactly between two blocks is taken for a whole one: the format has no end mark and no count
    of its blocks.

    Args:
        report: the report, unpacked.
        given: the file that the user gave, for messages.
    """
    try:
        with report.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            if file.read(len(MAGIC)) != MAGIC:
                raise InputError("file-format", f"{given} is no report of Nsight Compute: give a .ncu-rep file")
            reader = _Reader(file, size, given)
            reader.message(_LONGEST_HEADER)
            found = _block(reader)
            while not reader.at_end:
                found += _block(reader)
            return found
    except OSError as error:
        raise InputError(content_code(error), f"cannot read {given}: {error.strerror}; copy it again") from error


def _block(reader: "_Reader") -> list[ResultOf]:
    header = dict(reader.fields(reader.message(_LONGEST_HEADER)))
    counts = [value if isinstance(value := header.get(number, 0), int) else 0 for number in (_SOURCES, *_RESULTS)]
    entries = reader.skip(value if isinstance(value := header.get(_PAYLOAD, 0), int) else 0)
    if entries < sum(counts):
        raise reader.damaged(f"a block holds {entries:,} of {sum(counts):,} results")
    about = header.get(_PROCESS, b"")
    process = dict(reader.fields(about)) if isinstance(about, bytes) else {}
    number, host = process.get(_PROCESS_ID, 0), process.get(_HOST, b"")
    origin = ResultOf(
        host=host.decode(errors="replace") if isinstance(host, bytes) else "",
        process=number if isinstance(number, int) and number < 1 << 53 else 0,
    )
    return [origin] * sum(counts[1:])


class _Reader:
    """A report that is read from front to back."""

    def __init__(self, file: BinaryIO, size: int, given: Path) -> None:
        self._file, self._size, self._given = file, size, given

    @property
    def at_end(self) -> bool:
        """Whether every byte was read."""
        return self._file.tell() >= self._size

    def message(self, most: int) -> bytes:
        """Return the next message. Raises InputError where the file ends before it does."""
        length = self._length(self._size)
        if length > most:
            raise self.damaged(f"a header of {length:,} bytes")
        return self._file.read(length)

    def skip(self, payload: int) -> int:
        """Step over a payload of so many bytes; return how many entries it has."""
        end = self._file.tell() + payload
        if end > self._size:
            raise self._truncated(end)
        entries = 0
        while self._file.tell() < end:
            self._file.seek(self._length(end), 1)
            entries += 1
        return entries

    def _length(self, end: int) -> int:
        """Read the length of the next message, which must end at `end` or before."""
        start = self._file.tell()
        if start + 4 > end:
            raise self._truncated(start + 4) if end == self._size else self.damaged("a length outside of its block")
        length: int = struct.unpack("<I", self._file.read(4))[0]
        if start + 4 + length > end:
            raise self._truncated(start + 4 + length) if end == self._size else self.damaged("a result outside a block")
        return length

    def fields(self, message: bytes) -> Iterator[tuple[int, int | bytes]]:
        """Yield (number, value) of the fields of a message; messages and texts as bytes."""
        at = 0
        while at < len(message):
            key, at = self._varint(message, at)
            number, kind = key >> 3, key & 7
            if kind == _VARINT:
                value, at = self._varint(message, at)
                yield number, value
                continue
            if kind == _BYTES:
                length, at = self._varint(message, at)
            elif kind in (_FIXED64, _FIXED32):
                length = 8 if kind == _FIXED64 else 4
            else:
                raise self.damaged(f"a field of the unknown kind {kind}")
            if at + length > len(message):
                raise self.damaged("a field that ends outside of its message")
            yield number, message[at : at + length]
            at += length

    def _varint(self, message: bytes, at: int) -> tuple[int, int]:
        value = shift = 0
        while at < len(message) and shift < 70:
            byte = message[at]
            value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
            if byte < 128:
                return value, at
        raise self.damaged("a number without an end")

    def damaged(self, what: str) -> InputError:
        """Return the error for a report whose parts contradict each other."""
        return InputError("file-damaged", f"{self._given} is damaged ({what}): copy it again, or record again")

    def _truncated(self, needed: int) -> InputError:
        return InputError(
            "file-truncated",
            f"{self._given} is truncated: {self._size:,} of at least {needed:,} bytes (ncu was killed while writing, "
            "or the disk was full); copy it again, or record again",
        )
