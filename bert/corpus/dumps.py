"""MediaWiki dumps (`pages-articles.xml`, `.bz2`, `.gz`) read as a stream of units of whole pages.

Memory is bounded by the longest page. A bz2 file of many streams that begin at a page each (Wikipedia's multistream
dumps) is not decompressed here: its units are byte ranges, and the worker that takes one decompresses it
(`Unit.pages`). Where the streams cut pages (pbzip2), and for all other files, the units carry their pages, read in
order.

Where a unit ends depends on the dump alone.
"""

import bz2
import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bert.corpus.files import BLOCK_BYTES, blocks, refuse_other_files
from common.errors import InputError, read_code

UNIT_BYTES = 2**20
"""A unit of pages ends with the first page that reaches this size."""
RANGE_BYTES = 2**18
"""A unit of compressed streams ends with the first stream that reaches this size."""
COMPRESSION = 4
"""Wikitext per byte of bz2, for the sizes of parts: an estimate that never changes."""
MOST_PAGE_BYTES = 2**28
"""Longest page: MediaWiki itself refuses 2 MiB."""
_MOST_HEADER_BYTES = 2**20
_END_OF_PAGE = b"</page>"
_START_OF_PAGE = re.compile(rb"<page[\s>]")
_TITLE = re.compile(rb"<title>([^<]*)</title>")
_NAMESPACE = re.compile(r'<namespace key="(-?\d{1,9})"[^>]*>([^<]*)</namespace>')
_FILES, _MEDIA, _CATEGORIES = 6, -2, 14


@dataclass(frozen=True, slots=True)
class Unit:
    """Some whole pages of a dump."""

    path: Path
    data: bytes | None
    """The pages as XML in UTF-8; None if they are compressed in the file."""
    start: int
    """First byte of the compressed range."""
    end: int
    """One past its last byte; for pages, how far the file was read (progress)."""
    size: int
    """Bytes of XML, for a compressed range an estimate."""

    def pages(self) -> bytes:
        """Return the pages as XML in UTF-8. Raises InputError: the range is damaged, or a stream cuts a page."""
        if self.data is not None:
            return self.data
        data = decompress(self.path, self.start, self.end)
        first = _START_OF_PAGE.search(data)
        begin, end = (first.start(), data.rfind(_END_OF_PAGE) + len(_END_OF_PAGE)) if first else (0, 0)
        if begin > end or data[:begin].strip() or data[end:].strip() not in (b"", b"</mediawiki>"):
            raise InputError(
                "file-format", f"{self.path}: the bz2 stream at byte {self.start} cuts a page: give the .xml (bunzip2)"
            )
        return data[begin:end]


@dataclass(frozen=True, slots=True)
class Header:
    """What a dump says about itself."""

    namespaces: dict[int, str]
    """Number -> name in the dump's language; empty if it says nothing."""

    @property
    def hidden(self) -> tuple[str, ...]:
        """Names of the namespaces whose links are no text: files and categories."""
        return tuple(self.namespaces[key] for key in (_MEDIA, _FILES, _CATEGORIES) if self.namespaces.get(key))

    @property
    def others(self) -> tuple[str, ...]:
        """Names of all namespaces but the articles'."""
        return tuple(name for key, name in self.namespaces.items() if key and name)


class Dump:
    """One dump; read it with `units`, once."""

    def __init__(self, path: Path, keep_truncated: bool = False) -> None:
        """Open a dump.

        Args:
            path: the file; what is in it decides, not its suffix.
            keep_truncated: a file that ends too early gives the whole pages before the end.

        Raises:
            InputError: it is not a dump or cannot be read; the message says what it is.
        """
        self.path = path
        self.is_truncated = False
        self._keep = keep_truncated
        self._title: bytes | None = None
        self.header = self._read_header()

    def units(self) -> Iterator[Unit]:
        """Yield units of whole pages in order.

        Raises:
            InputError: the file ends too early or is damaged, and truncated files are not to be kept. All pages
                before were yielded.
        """
        starts = page_streams(self.path)
        if starts is None:
            yield from self._in_order(0)
            return
        begin = starts[1]
        for end in starts[2:]:
            if end - begin >= RANGE_BYTES or end == starts[-1]:
                yield Unit(self.path, None, begin, end, (end - begin) * COMPRESSION)
                begin = end
        # Read here, because it tells whether the file is whole.
        yield from self._in_order(starts[-1], starts[-2])

    def _in_order(self, offset: int, previous: int | None = None) -> Iterator[Unit]:
        cutter = _Cutter(self.path, is_begun=offset > 0)
        problem = ""
        try:
            for block, position in blocks(self.path, offset):
                yield from self._remember(cutter.feed(block, position))
        except (EOFError, OSError, zlib.error) as error:
            problem = f"its compressed data is truncated or damaged ({error})"
        yield from self._remember(cutter.rest())
        if not problem and not cutter.is_complete:
            problem = "</mediawiki> is missing at its end"
        if problem:
            if self._title is None and previous is not None:
                titles = _TITLE.findall(decompress(self.path, previous, offset))
                self._title = titles[-1] if titles else None
            self.is_truncated = True
            if not self._keep:
                raise InputError("file-truncated", f"{self.path} is truncated: {problem}. {self._remedy()}")
        elif not cutter.has_pages and offset == 0:
            raise InputError("file-empty", f"{self.path} holds no page: download the file again")

    def _remember(self, units: Iterator[Unit]) -> Iterator[Unit]:
        for unit in units:
            assert unit.data is not None
            at = unit.data.rfind(b"<title>")
            title = _TITLE.match(unit.data, at) if at >= 0 else None
            self._title = title[1] if title else self._title
            yield unit

    def _remedy(self) -> str:
        last = (
            f'The last complete page is "{self._title.decode(errors="replace")}"'
            if self._title
            else "No page is complete"
        )
        return (
            f"{last}. Finished parts are kept; download the file again (`bertbench data download` resumes), or pass "
            "--keep-truncated to use the complete pages"
        )

    def _read_header(self) -> Header:
        data = b""
        try:
            refuse_other_files(self.path)
            for block, _ in blocks(self.path, 0):
                data += block
                if _START_OF_PAGE.search(data) or b"</siteinfo>" in data or len(data) > _MOST_HEADER_BYTES:
                    break
        except (EOFError, zlib.error):
            pass
        except OSError as error:
            if error.errno is not None:
                raise InputError(
                    read_code(error), f"cannot read {self.path}: {error.strerror}; check its permissions"
                ) from error
        if b"<mediawiki" not in data[:65536] and not _START_OF_PAGE.search(data[:65536]):
            raise InputError("file-format" if data else "file-damaged", not_a_dump(self.path, data))
        text = data.split(b"<page", 1)[0].decode("utf-8", "replace")
        return Header({int(key): name for key, name in _NAMESPACE.findall(text)})


class _Cutter:
    """Cuts a stream of XML into units; where, depends on the bytes alone, not on how they arrive."""

    def __init__(self, path: Path, is_begun: bool) -> None:
        self._path = path
        self._buffer = bytearray()
        self._searched = 0
        self._position = 0
        self._is_begun = is_begun
        self._must_end = is_begun
        self.has_pages = False
        self.is_complete = False

    def feed(self, block: bytes, position: int) -> Iterator[Unit]:
        """Take the next bytes, and yield the units that are whole."""
        self._buffer += block
        self._position = position
        while self._is_begun or self._begin():
            at = self._buffer.find(_END_OF_PAGE, max(UNIT_BYTES, self._searched))
            if at < 0:
                break
            yield self._cut(at + len(_END_OF_PAGE))
        self._searched = max(0, len(self._buffer) - len(_END_OF_PAGE) + 1)
        if len(self._buffer) > MOST_PAGE_BYTES:
            raise InputError(
                "file-damaged", f"{self._path}: no page ends within {MOST_PAGE_BYTES // 2**20} MiB: download it again"
            )

    def rest(self) -> Iterator[Unit]:
        """Yield what is left in whole pages, and find out whether the dump is complete."""
        at = self._buffer.rfind(_END_OF_PAGE)
        if self._is_begun and at >= 0:
            yield self._cut(at + len(_END_OF_PAGE))
        left = bytes(self._buffer).strip()
        self.is_complete = left.endswith(b"</mediawiki>") or not (left or self._must_end)

    def _begin(self) -> bool:
        first = _START_OF_PAGE.search(self._buffer, self._searched)
        if first is None:
            return False
        self._must_end = b"<mediawiki" in self._buffer[: first.start()]
        del self._buffer[: first.start()]
        self._is_begun = True
        return True

    def _cut(self, end: int) -> Unit:
        data = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._searched = 0
        self.has_pages = True
        return Unit(self._path, data, 0, self._position, len(data))


def split_pages(data: bytes) -> Iterator[bytes]:
    """Yield each `<page>...</page>` of a unit."""
    position = 0
    while (end := data.find(_END_OF_PAGE, position)) >= 0:
        end += len(_END_OF_PAGE)
        first = _START_OF_PAGE.search(data, position, end)
        if first is not None:
            yield data[first.start() : end]
        position = end


_STREAM = re.compile(rb"BZh[1-9]1AY&SY")
_STREAM_BYTES = 10
_FOOTER = 0x177245385090
_FOOTER_BITS = 48
_CHECKSUM_BITS = 32
_SAMPLES = 8
"""Streams looked into before a file counts as cut at pages."""


def page_streams(path: Path) -> list[int] | None:
    """Return where the streams of a multistream bz2 dump begin; None if they cut pages, or there are under three.

    A stream that begins inside the data of another one is recognized by what precedes it: the end mark and checksum of
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
        return bz2.decompress(data)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(
            "file-damaged", f"{path}: the bz2 data from byte {start} to {end} is damaged ({error}): download it again"
        ) from error


def not_a_dump(path: Path, data: bytes) -> str:
    """Return an error that names the type of a file that is not a dump."""
    start = data[:4096].lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        what = "an HTML page, most likely the server's error message: download the file again"
    elif not data:
        what = "damaged from its first byte: download the file again"
    else:
        shown = start[:60].decode("utf-8", "replace")
        what = f"not a MediaWiki dump (it starts with {shown!r}): give a pages-articles.xml, .xml.bz2 or .xml.gz"
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
