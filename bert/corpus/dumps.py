"""MediaWiki dumps (`pages-articles.xml`, `.bz2`, `.gz`) read as a stream of units of whole pages.

Memory is bounded by the longest page. A bz2 file of many streams that begin at a page each (Wikipedia's multistream
dumps) is not decompressed here: its units are byte ranges, and whoever takes one decompresses it (`Unit.pages`). Where
the streams cut pages (pbzip2), and for all other files, the units carry their pages, read in order.

Where a unit ends depends on the dump alone.
"""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bert.corpus import streams
from common.errors import InputError, read_code

UNIT_BYTES = 2**20
"""A unit of pages ends with the first page that reaches this size."""
RANGE_BYTES = 2**18
"""A unit of compressed streams ends with the first stream that reaches this size."""
COMPRESSION = 4
"""Wikitext per byte of bz2, for the sizes of parts: an estimate that never changes."""
MOST_PAGE_BYTES = 2**28
"""A longer page is no page: MediaWiki itself refuses 2 MiB."""
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
    """The pages as XML in UTF-8; None where they are compressed in the file."""
    start: int
    """First byte of the compressed range."""
    end: int
    """Behind its last byte; for pages, how far the file was read (progress)."""
    size: int
    """Bytes of XML, for a compressed range an estimate."""

    def pages(self) -> bytes:
        """Return the pages as XML in UTF-8. Raises InputError: the range is damaged, or a stream cuts a page."""
        if self.data is not None:
            return self.data
        data = streams.decompress(self.path, self.start, self.end)
        first = _START_OF_PAGE.search(data)
        begin, end = (first.start(), data.rfind(_END_OF_PAGE) + len(_END_OF_PAGE)) if first else (0, 0)
        if begin > end or data[:begin].strip() or data[end:].strip() not in (b"", b"</mediawiki>"):
            raise InputError(
                "file-format",
                f"{self.path}: the bz2 stream at byte {self.start} does not begin and end at a page, as the streams "
                "before it do: decompress the file with bunzip2 and give the .xml",
            )
        return data[begin:end]


@dataclass(frozen=True, slots=True)
class Header:
    """What a dump says about itself."""

    namespaces: dict[int, str]
    """Number -> name in the dump's language; empty where it says nothing."""

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
            InputError: it is no dump or cannot be read; the message says what it is.
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
        starts = streams.page_streams(self.path)
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
            for block, position in streams.blocks(self.path, offset):
                yield from self._remember(cutter.feed(block, position))
        except (EOFError, OSError, zlib.error) as error:
            problem = f"its compressed data end too early or are damaged ({error})"
        yield from self._remember(cutter.rest())
        if not problem and not cutter.is_complete:
            problem = "</mediawiki> is missing at its end"
        if problem:
            if self._title is None and previous is not None:
                titles = _TITLE.findall(streams.decompress(self.path, previous, offset))
                self._title = titles[-1] if titles else None
            self.is_truncated = True
            if not self._keep:
                raise InputError("file-truncated", f"{self.path} is truncated: {problem}. {self._remedy()}")
        elif not cutter.has_pages and offset == 0:
            raise InputError("file-empty", f"{self.path} holds no page: get the file again (pages-articles.xml.bz2)")

    def _remember(self, units: Iterator[Unit]) -> Iterator[Unit]:
        for unit in units:
            assert unit.data is not None
            at = unit.data.rfind(b"<title>")
            title = _TITLE.match(unit.data, at) if at >= 0 else None
            self._title = title[1] if title else self._title
            yield unit

    def _remedy(self) -> str:
        last = f'The last whole page is "{self._title.decode(errors="replace")}"' if self._title else "No page is whole"
        return (
            f"{last}. Finished parts are kept; get the file again (`bertbench data download` resumes it), or pass "
            "--keep-truncated to use the whole pages before the end"
        )

    def _read_header(self) -> Header:
        data = b""
        try:
            streams.refuse_other_files(self.path)
            for block, _ in streams.blocks(self.path, 0):
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
            raise InputError("file-format" if data else "file-damaged", streams.not_a_dump(self.path, data))
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
                "file-damaged",
                f"{self._path}: no page ends within {MOST_PAGE_BYTES // 2**20} MiB: the file is damaged, get it again",
            )

    def rest(self) -> Iterator[Unit]:
        """Yield what is left in whole pages, and find out whether the dump is complete."""
        at = self._buffer.rfind(_END_OF_PAGE)
        if self._is_begun and at >= 0:
            yield self._cut(at + len(_END_OF_PAGE))
        left = bytes(self._buffer).strip()
        self.is_complete = left.endswith(b"</mediawiki>") or not (left or self._must_end)

    def _begin(self) -> bool:
        """Drop what is before the first page."""
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
