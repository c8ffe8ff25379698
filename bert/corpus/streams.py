"""The bytes of a dump: decompressed block by block, in UTF-8, and the streams a bz2 file is made of."""

import bz2
import codecs
import gzip
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from common.errors import InputError

BLOCK_BYTES = 2**20
"""Bytes read or decompressed at a time."""
MOST_BYTES = 2**29
"""Bytes that a range of streams unpacks to at most: a hundred pages of 2 MiB are fewer."""
_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
_STREAM_BYTES = 10
_FOOTER = 0x177245385090
_FOOTER_BITS = 48
_CHECKSUM_BITS = 32
_SAMPLES = 8
"""Streams looked into before a file counts as cut at pages."""
_OTHER_FILES = (
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it first (7z x), or get the .bz2 of the same dump"),
    (b"\xfd7zXZ", "an xz archive: unpack it first (unxz)"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive: unpack it first (unzstd)"),
    (b"PK\x03\x04", "a zip archive: unpack it first (unzip)"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself: run `git lfs pull`"),
)


def blocks(path: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """Yield the decompressed bytes of a file in UTF-8, and how far the file was read, block by block.

    Args:
        path: plain, gzip or bz2 (told by its first bytes), UTF-8 or UTF-16.
        offset: where to begin: 0, or the start of a bz2 stream.

    Raises:
        EOFError: the compressed data end too early.
        OSError, zlib.error: they are damaged, or the file cannot be read.
    """
    with path.open("rb") as raw:
        start = raw.read(4)
        raw.seek(offset)
        reader: BinaryIO | bz2.BZ2File | gzip.GzipFile = raw
        if start.startswith(b"BZh"):
            reader = bz2.BZ2File(raw)
        elif start.startswith(b"\x1f\x8b"):
            reader = gzip.GzipFile(fileobj=raw)
        decoder: codecs.IncrementalDecoder | None = None
        is_first = True
        # read1, because read would lose what came before an error.
        while block := (reader.read(BLOCK_BYTES) if reader is raw else reader.read1(BLOCK_BYTES)):  # type: ignore[union-attr]
            if is_first:
                is_first = False
                decoder = _decoder(block)
                block = block.removeprefix(codecs.BOM_UTF8)
            if decoder is not None:
                block = decoder.decode(block).encode("utf-8", "replace")
            yield block, raw.tell()


def _decoder(start: bytes) -> codecs.IncrementalDecoder | None:
    """Return what turns UTF-16 into text, None for UTF-8."""
    name = None
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = "utf-16"
    elif start.startswith(b"<\0"):
        name = "utf-16-le"
    elif start.startswith(b"\0<"):
        name = "utf-16-be"
    return codecs.getincrementaldecoder(name)(errors="replace") if name else None


def page_streams(path: Path) -> list[int] | None:
    """Return where the streams of a multistream bz2 dump begin; None where they cut pages, or there are under three.

    A stream that begins inside the data of another one is told by what stands before it: the end mark and checksum of
    the stream before (at any bit).
    """
    with path.open("rb") as file:
        if file.read(3) != b"BZh":
            return None
        starts = list(_stream_starts(file))
    if len(starts) < 3:
        return None
    sampled = {*starts[1:-1][: _SAMPLES // 2], *starts[1:-1][:: max(1, len(starts) // (_SAMPLES // 2))]}
    if all(_begin_of(path, start).lstrip().startswith(b"<page") for start in sorted(sampled)):
        return starts
    return None


def decompress(path: Path, start: int, end: int) -> bytes:
    """Return what the bz2 streams of a byte range hold, at most a few MiB. Raises InputError: they are damaged."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(end - start)
        return _unpacked(data)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            "file-damaged",
            f"{path}: the bz2 data from byte {start} to {end} are damaged ({error}): get the file again; finished "
            "parts are kept",
        ) from error


def _unpacked(data: bytes) -> bytes:
    """Unpack streams. Raises OSError, ValueError where they end too early or hold more than pages can."""
    parts: list[bytes] = []
    left = MOST_BYTES
    while data:
        stream = bz2.BZ2Decompressor()
        try:
            parts.append(stream.decompress(data, left + 1))
        except OSError:
            if parts:
                break  # what follows the last stream is none, as for bz2.decompress
            raise
        left -= len(parts[-1])
        if left < 0:
            raise ValueError(f"more than {MOST_BYTES >> 20} MiB come out of them")
        if not stream.eof:
            raise ValueError("they end too early")
        data = stream.unused_data
    return b"".join(parts)


def refuse_other_files(path: Path) -> None:
    """Raise InputError, with a remedy, for an empty file and for archives that are not read."""
    with path.open("rb") as file:
        start = file.read(64)
    if not start:
        raise InputError("file-empty", f"{path} is empty: get it again")
    for magic, what in _OTHER_FILES:
        if start.startswith(magic):
            raise InputError("file-format", f"{path} is {what}")


def not_a_dump(path: Path, data: bytes) -> str:
    """Say what a file is that does not begin as a dump."""
    start = data[:4096].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        what = "an HTML page, most likely the server's error message: get the file again"
    elif not data:
        what = "damaged from its first byte on: get the file again"
    else:
        shown = start[:60].decode("utf-8", "replace")
        what = f"no MediaWiki dump (it begins with {shown!r}): give a pages-articles.xml, .xml.bz2 or .xml.gz"
    return f"{path} is {what}"


def _stream_starts(file: BinaryIO) -> Iterator[int]:
    """Find the streams by their first bytes, reading the file once."""
    file.seek(0, os.SEEK_SET)
    position, kept = 0, b""
    overlap = _STREAM_BYTES + 16
    last = -1
    while block := file.read(4 * BLOCK_BYTES):
        data = kept + block
        for match in _STREAM.finditer(data):
            start = position - len(kept) + match.start()
            before = data[max(0, match.start() - 11) : match.start()]
            if start > last and (start == 0 or _ends_a_stream(before)):
                yield start
                last = start
        position += len(block)
        kept = data[-overlap:]


def _ends_a_stream(before: bytes) -> bool:
    bits = int.from_bytes(before, "big")
    mask = (1 << _FOOTER_BITS) - 1
    return any((bits >> (_CHECKSUM_BITS + padding)) & mask == _FOOTER for padding in range(8))


def _begin_of(path: Path, start: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        decompressor = bz2.BZ2Decompressor()
        data = b""
        while len(data) < 64 and not decompressor.eof and (block := file.read(BLOCK_BYTES)):
            try:
                data += decompressor.decompress(block, 64)
            except OSError:
                break
        return data
