"""The stage `extract`: MediaWiki dumps -> part files of paragraph text, in parallel, restartable.

A part holds the pages of consecutive units of one dump, about 16 MiB of XML, so which pages a part holds depends on
the dump alone. Workers take units; this process writes their texts in order, so memory holds a few units, never a part.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bert.corpus import wikitext
from bert.corpus.dumps import Dump, Header, Unit, split_pages
from bert.corpus.files import Source
from bert.data.pool import Progress, Workers
from bert.data.stages import Counts, Finished, Part, StageFolder
from common.atomic import atomic_path, storage_errors
from common.errors import BertbenchError

PAGES = "pages"
REDIRECTS = "redirects"
OTHERS = "pages of other namespaces"
OTHER_MODELS = "pages that are no wikitext"
DISAMBIGUATIONS = "disambiguation pages"
EMPTY = "pages without a paragraph"
INVALID = "pages that are no valid XML, left out"
OVERSIZED = "pages over 1 MiB, cut before they were parsed"
UNCLOSED_TABLES = "tables that are never closed"
CONTROLS = "control characters taken out"
DOCUMENTS = "documents"
PARAGRAPHS = "paragraphs"
CHARACTERS = "characters"
_CONTROL_BYTES = bytes(code for code in range(32) if code not in (9, 10, 13))
_NAMESPACE = re.compile(rb"<ns>\s*(-?\d+)\s*</ns>")
_TITLE = re.compile(rb"<title>([^<]*)</title>")
_TEXT = re.compile(rb"<text[\s>/]")


class Work(NamedTuple):
    """A unit on its way to a worker."""

    part: str
    """Name of the part file that its text goes to."""
    unit: Unit
    header: Header


@dataclass(frozen=True, slots=True)
class Text:
    """What a worker made of a unit."""

    part: str
    end: int
    text: bytes
    """Paragraph text in UTF-8, a document each page."""
    counts: dict[str, Any]
    """JSON form of `Counts`."""


def extract_unit(work: Work) -> Text:
    """Turn the pages of a unit into paragraph text. Raises InputError: its compressed data are damaged."""
    counts = Counts()
    data = work.unit.pages()
    clean = data.translate(None, _CONTROL_BYTES)
    if len(clean) < len(data):
        counts.add(CONTROLS, len(data) - len(clean))
    parts: list[str] = []
    for page in split_pages(clean):
        counts.add(PAGES)
        found = _paragraphs(page, work.header, counts)
        if found:
            parts.append("\n".join(found) + "\n\n")
            counts.add(DOCUMENTS)
            counts.add(PARAGRAPHS, len(found))
            counts.add(CHARACTERS, sum(map(len, found)))
    return Text(work.part, work.unit.end, "".join(parts).encode("utf-8"), counts.to_json())


def _paragraphs(page: bytes, header: Header, counts: Counts) -> list[str]:
    text_at = _TEXT.search(page)
    head = page[: text_at.start()] if text_at else page
    namespace = _NAMESPACE.search(head)
    # Decided on the bytes: most pages of a full dump are not articles, and parsing them would cost more than that.
    if namespace is not None and namespace[1].strip(b"-0"):
        counts.add(OTHERS)
        return []
    if b"<redirect" in head:
        counts.add(REDIRECTS)
        return []
    parsed = _parse(page)
    title = _title(page)
    if parsed is None:
        counts.add(INVALID, example=title)
        return []
    text, model = parsed
    if namespace is None and _is_in(title, header):
        counts.add(OTHERS)
    elif model not in ("", "wikitext"):
        counts.add(OTHER_MODELS)
    elif wikitext.is_redirect(text):
        counts.add(REDIRECTS)
    elif wikitext.is_disambiguation(text):
        counts.add(DISAMBIGUATIONS)
    else:
        if len(text) > wikitext.MOST_CHARACTERS:
            counts.add(OVERSIZED, example=title)
        found = wikitext.read_page(text, header.hidden)
        counts.add(UNCLOSED_TABLES, found.unclosed_tables, example=title)
        if not found.paragraphs:
            counts.add(EMPTY)
        return found.paragraphs
    return []


def _parse(page: bytes) -> tuple[str, str] | None:
    """Return the wikitext of the last revision and its model; None if the page is no valid XML."""
    # The standard parser: expat refuses entities that grow without bound, and a page declares none. It is used without
    # a tree, which would take as long again: a text comes in many pieces, between its entities.
    from xml.parsers import expat  # nosec B407 # see above

    found: dict[str, list[str]] = {"text": [], "model": []}
    current: list[str] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal current
        current = []
        if name in found:
            found[name] = current

    def end(name: str) -> None:
        nonlocal current
        current = []

    parser = expat.ParserCreate(None, "}")
    parser.buffer_text, parser.buffer_size = True, len(page)
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = lambda data: current.append(data)
    try:
        parser.Parse(page, True)
    except (expat.ExpatError, ValueError):
        return None
    return "".join(found["text"]), "".join(found["model"]).strip()


def _title(page: bytes) -> str:
    title = _TITLE.search(page)
    return title[1].decode("utf-8", "replace") if title else "a page without a title"


def _is_in(title: str, header: Header) -> bool:
    prefix, colon, _ = title.partition(":")
    return bool(colon) and prefix in header.others


STAGE = "extract"
VERSION = 2
"""Raised when the same dump gives other bytes."""
PART_BYTES = 16 * 2**20
"""A part ends with the first unit that reaches this size."""
TRUNCATED = "truncated dumps"
_MEBIBYTE = 2**20


def extract(
    dumps: Sequence[Source],
    folder: StageFolder,
    workers: Workers,
    part: Part,
    progress: Progress,
    keep_truncated: bool = False,
) -> Finished | None:
    """Write the articles of the dumps as paragraph text; return the stage when all its parts are there.

    Args:
        dumps: MediaWiki dumps, in order.
        folder: of the stage, begun.
        workers: they parse; the bytes do not depend on their number.
        part: the share of the part files that this process makes.
        progress: called with the MiB of the dump files done so far.
        keep_truncated: use the whole pages of a dump that ends too early; not a setting of the bytes otherwise.
    """
    found = folder.finished()
    if found is not None:
        return found
    names: list[str] = []
    extra = Counts()
    total = sum(source.path.stat().st_size for source in dumps)
    done = 0
    progress(STAGE, 0, total // _MEBIBYTE)
    for number, source in enumerate(dumps):
        plan = _Plan(number, Dump(source.path, keep_truncated), folder, part, names)
        with _Writer(folder) as writer:
            for text in workers.map(extract_unit, plan.work()):
                writer.add(text)
                progress(STAGE, (done + text.end) // _MEBIBYTE, total // _MEBIBYTE)
            if plan.error is None:
                writer.close()
        if plan.error is not None:
            raise plan.error
        if plan.dump.is_truncated:
            extra.add(TRUNCATED, example=source.name)
        done += source.path.stat().st_size
        progress(STAGE, done // _MEBIBYTE, total // _MEBIBYTE)
    return folder.finish(names, extra)


class _Plan:
    """Which part each unit of a dump goes to."""

    def __init__(self, number: int, dump: Dump, folder: StageFolder, part: Part, names: list[str]) -> None:
        self.dump = dump
        self.error: BertbenchError | None = None
        self._number = number
        self._folder = folder
        self._part = part
        self._names = names

    def work(self) -> Iterator[Work]:
        """Yield the units whose part is to be made here; all part names are noted.

        An error of the dump ends it and is kept, so that what was handed out is finished first.
        """
        size, count, name, is_wanted = PART_BYTES, 0, "", False
        try:
            for unit in self.dump.units():
                if size >= PART_BYTES:
                    name = f"{self._number:03d}-{count:05d}.txt"
                    # Numbered through all dumps, so that many small dumps are shared evenly too.
                    is_wanted = self._part.takes(len(self._names)) and not self._folder.is_done(name)
                    self._names.append(name)
                    size, count = 0, count + 1
                size += unit.size
                if is_wanted:
                    yield Work(name, unit, self.dump.header)
        except BertbenchError as error:
            self.error = error


class _Writer:
    """Writes texts to their parts as they come; a part is renamed into place when the next one begins."""

    def __init__(self, folder: StageFolder) -> None:
        self._folder = folder
        self._name: str | None = None
        self._counts = Counts()
        self._open = ExitStack()
        self._file: BinaryIO | None = None

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *error: object) -> None:
        """Throw away a part that was not closed."""
        try:
            if self._name is not None:
                self._open.__exit__(_Unfinished, _Unfinished(), None)
        except _Unfinished:
            pass
        self._name = None

    def add(self, text: Text) -> None:
        """Append a text to its part. Raises StorageError."""
        if text.part != self._name:
            self.close()
            self._begin(text.part)
        assert self._file is not None
        with storage_errors(self._path(text.part)):
            self._file.write(text.text)
        self._counts.merge(text.counts)

    def close(self) -> None:
        """Finish the open part: its counts first, then its name. Raises StorageError."""
        if self._name is None:
            return
        self._folder.record(self._name, self._counts)
        with storage_errors(self._path(self._name)):
            self._open.close()
        self._name = None

    def _begin(self, name: str) -> None:
        self._name, self._counts, self._open = name, Counts(), ExitStack()
        temporary = self._open.enter_context(atomic_path(self._path(name)))
        self._file = self._open.enter_context(temporary.open("wb"))

    def _path(self, name: str) -> Path:
        return self._folder.path / name


class _Unfinished(Exception):  # noqa: N818
    """Tells `atomic_path` to remove what was begun."""
