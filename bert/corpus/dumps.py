"""MediaWiki dumps (`pages-articles.xml`, `.bz2`, `.gz`) in units of whole pages, and the paragraphs of their articles.

A bz2 file of many streams that begin at a page each (Wikipedia's multistream dumps) is not decompressed here: its units
are byte ranges, and the worker that takes one decompresses it. All other files are read in order, and the units carry
their pages. Where a unit ends depends on the dump alone.
"""

import bz2
import html
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import unescape  # nosec B406 # replaces entities, parses nothing

from bert.corpus import wikitext
from bert.corpus.files import BLOCK_BYTES, Source, blocks, refuse_other_files
from bert.data.finished import Counts
from common.errors import InputError
from common.reading import read_errors

VERSION = 4
"""Raised when the same dump gives other bytes."""
UNIT_BYTES = 4 * 2**20
"""A unit of pages ends with the first page that reaches this size."""
RANGE_BYTES = 2**20
"""A unit of compressed streams ends with the first stream that reaches this size."""
_MOST_HEADER_BYTES = 2**20
_END_OF_PAGE = b"</page>"
_END_OF_DUMP = b"</mediawiki>"
_PAGE = re.compile(rb"<page[\s>].*?</page>", re.DOTALL)
_ENTITIES = {"&quot;": '"', "&apos;": "'"}
_NUMBERED = re.compile(r"&#(?:\d{1,7}|x[0-9a-fA-F]{1,6});")
_NAMESPACE_OF_PAGE = re.compile(rb"<ns>\s*(-?\d+)\s*</ns>")
_MODEL = re.compile(rb"<model>\s*(?!wikitext\s*<)[^<]")
_NAMESPACE = re.compile(r'<namespace key="(-?\d{1,9})"[^>]*>([^<]*)</namespace>')
_HIDDEN = ("-2", "6", "14")
"""Numbers of the namespaces whose links are no text: media, files, categories."""
_STREAM = re.compile(rb"BZh[1-9]1AY&SY")


@dataclass(frozen=True, slots=True)
class DumpUnit:
    """Some whole pages of a dump."""

    name: str
    """Name of the file that their text goes to."""
    size: int
    """Bytes of the dump file it stands for."""
    hidden: tuple[str, ...]
    """Names of the namespaces whose links are no text, in the language of the dump."""
    path: Path
    data: bytes | None
    """The pages as XML in UTF-8; None if they are compressed in the file."""
    start: int = 0
    """First byte of the compressed range."""

    def documents(self, counts: Counts) -> Iterator[list[str]]:
        """Yield the paragraphs of each article; pages that are none are counted."""
        data = self.data
        if data is None:
            data = _decompress(self.path, self.start, self.start + self.size)
            if data.count(b"<page>") != data.count(_END_OF_PAGE):
                raise InputError(
                    "file-format",
                    f"{self.path}: the bz2 stream at byte {self.start} cuts a page: give the .xml (bunzip2)",
                )
        for page in _PAGE.finditer(data):
            counts.add("pages")
            found = _paragraphs(page[0], self.hidden, counts)
            if found:
                yield found


def _paragraphs(page: bytes, hidden: tuple[str, ...], counts: Counts) -> list[str]:
    # Decided on the bytes: most pages of a full dump are not articles.
    head = page.partition(b"<text")[0]
    namespace = _NAMESPACE_OF_PAGE.search(head)
    if namespace is not None and namespace[1].strip(b"-0"):
        counts.add("pages of other namespaces")
    elif b"<redirect" in head:
        counts.add("redirects")
    elif _MODEL.search(head) is not None:
        counts.add("pages that are no wikitext")
    else:
        text = _text(page)
        if wikitext.is_disambiguation(text):
            counts.add("disambiguation pages")
        else:
            found = wikitext.paragraphs(text, hidden)
            counts.add("pages without a paragraph", int(not found))
            return found
    return []


def _text(page: bytes) -> str:
    """Return the wikitext of the last revision."""
    tag, _, text = page[max(0, page.rfind(b"<text")) :].partition(b">")
    if tag.endswith(b"/"):
        return ""
    decoded = text.partition(b"</text>")[0].decode("utf-8", "replace")
    if "&#" in decoded:
        decoded = _NUMBERED.sub(lambda number: html.unescape(number[0]), decoded)
    return unescape(decoded, _ENTITIES)


def dump_units(sources: Sequence[Source], keep_truncated: bool, counts: Counts) -> Iterator[DumpUnit]:
    """Yield the units of dumps in order; what is in the files decides, not their suffixes.

    With `keep_truncated` a file that ends too early gives the whole pages before the end, and is counted in `counts`.
    Raises InputError: a file is no dump, damaged, or truncated and not to be kept; units before were yielded.
    """
    for number, source in enumerate(sources):
        hidden = _hidden_namespaces(source.path)
        starts = page_streams(source.path)
        pieces = _in_ranges(source.path, starts) if starts else _in_order(source.path)
        problem = ""
        for count, (data, start, size, problem) in enumerate(pieces):  # noqa: B007 # the last one's
            yield DumpUnit(f"dump-{number:03d}-{count:05d}.txt", size, hidden, source.path, data, start)
        if problem and not keep_truncated:
            raise InputError(
                "file-truncated",
                f"{source.path} is truncated ({problem}): download it again, or pass --keep-truncated to use its pages",
            )
        counts.add("truncated dumps", int(bool(problem)), source.name)


_Piece = tuple[bytes | None, int, int, str]
"""Pages or None, first byte, bytes of the file, and how the file is truncated, "" if it is not known to be."""
_NO_END = "</mediawiki> is missing at its end"


def _in_ranges(path: Path, starts: Sequence[int]) -> Iterator[_Piece]:
    end = path.stat().st_size
    try:
        problem = "" if _END_OF_DUMP in _decompress(path, starts[-1], end) else _NO_END
    except InputError:
        end, problem = starts[-1], "its last bz2 stream ends too early"
    begin = starts[0]
    for stop in sorted({*starts[1:], end}):
        if stop - begin >= RANGE_BYTES or stop == end:
            yield None, begin, stop - begin, problem
            begin = stop


def _in_order(path: Path) -> Iterator[_Piece]:
    buffer = bytearray()
    problem = ""
    before = position = 0
    try:
        for block, position in blocks(path):  # the last one's
            buffer += block
            while (at := buffer.find(_END_OF_PAGE, UNIT_BYTES)) >= 0:
                end = at + len(_END_OF_PAGE)
                yield bytes(buffer[:end]), 0, position - before, ""
                del buffer[:end]
                before = position
    except (EOFError, OSError, zlib.error) as error:
        problem = f"its compressed data is damaged: {error}"
    end = buffer.rfind(_END_OF_PAGE) + 1
    if not problem and _END_OF_DUMP not in buffer[end:]:
        problem = _NO_END
    yield bytes(buffer[: end + len(_END_OF_PAGE)]) if end else b"", 0, position - before, problem


def page_streams(path: Path) -> list[int]:
    """Return where the streams of a multistream bz2 dump begin; none if they cut pages, or there are under three."""
    starts: list[int] = []
    with path.open("rb") as file:
        if file.read(3) != b"BZh":
            return []
        file.seek(0)
        position, rest = 0, b""
        while block := file.read(4 * BLOCK_BYTES):
            data = rest + block
            starts += [position - len(rest) + match.start() for match in _STREAM.finditer(data)]
            position, rest = position + len(block), data[-9:]
    if len(starts) < 3:
        return []
    return starts if _decompress(path, starts[1], starts[2]).lstrip().startswith(b"<page") else []


def _decompress(path: Path, start: int, end: int) -> bytes:
    with read_errors(f"{path}, bytes {start} to {end}", "download it again"), path.open("rb") as file:
        file.seek(start)
        data, streams = file.read(end - start), []
        while data:  # bz2.decompress would leave out all from a damaged stream on
            stream = bz2.BZ2Decompressor()
            streams.append(stream.decompress(data))
            if not stream.eof:
                raise OSError("a bz2 stream ends too early")
            data = stream.unused_data
        return b"".join(streams)


def _hidden_namespaces(path: Path) -> tuple[str, ...]:
    """Return the names of the hidden namespaces from the header. Raises InputError if the file is no dump."""
    data = b""
    with read_errors(path, "check its permissions or download it again"):
        refuse_other_files(path)
        for block, _ in blocks(path):
            data += block
            if b"<page>" in data or b"</siteinfo>" in data or len(data) > _MOST_HEADER_BYTES:
                break
    if b"<mediawiki" not in data[:65536]:
        start = data[:60].decode("utf-8", "replace")
        raise InputError(
            "file-format",
            f"{path} is not a MediaWiki dump (it starts with {start!r}): give a pages-articles .xml, .xml.bz2 or .gz",
        )
    names = dict(_NAMESPACE.findall(data.split(b"<page", 1)[0].decode("utf-8", "replace")))
    return tuple(names[key] for key in _HIDDEN if names.get(key))
