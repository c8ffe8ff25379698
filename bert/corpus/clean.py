"""Convert books and other plain text to paragraph text: one paragraph per line, an empty line after each document.

Consecutive files are grouped to parts of about `PART_BYTES`; a larger file becomes several parts. A document is a file;
a file of more than `DOCUMENT_CHARACTERS` characters (a book) is cut at blank lines into documents of about that size,
so that a second segment can come from another document even in a corpus of one book.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from bert.corpus.files import Source, TextBlocks, find_encoding
from bert.data.pool import Progress, Workers
from bert.data.stages import Counts, Finished, Part, StageFolder
from common.atomic import atomic_path
from common.reading import read_errors

HEAD_CHARACTERS = 131_072
"""A header ends within this many characters; the old license alone takes about 15,000."""
CREDIT_PARAGRAPHS = 4
"""Paragraphs after the header among which the people who made the file are named."""

_FLAGS = re.MULTILINE | re.IGNORECASE
# Since about 2000 in the first form, in several words; before that the "small print" stood between header and book.
# The title inside the marker may be wrapped over several lines.
_BEGIN = re.compile(
    r"^[ \t]*\*{2,3} ?START OF (?:THE |THIS )?PROJECT GUTENBERG E-?(?:BOOK|TEXT)\b[^*]*\**[^\n]*"
    r"|^[^\n]*\*END ?\*? ?THE SMALL PRINT[^\n]*",
    _FLAGS,
)
_END = re.compile(r"^[ \t]*\*{2,3} ?END OF (?:THE |THIS )?PROJECT GUTENBERG E-?(?:BOOK|TEXT)\b", _FLAGS)
_LICENCE = re.compile(r"^[^\n]*\*START ?\*{0,2} ?THE SMALL PRINT", _FLAGS)
# Stands before the marker, or alone in files without one: nothing but this paragraph is left out.
_LAST_WORDS = re.compile(r"^[^\w\n]*(?:THE )?END OF (?:THE |THIS )?PROJECT GUTENBERG\b", _FLAGS)
_CREDIT = re.compile(
    r"\W*(?:This (?:e-?book|e-?text|file) was )?(?:(?:e-?book|e-?text) )?"
    r"(?:produced|prepared|transcribed|scanned|digiti[sz]ed|proofread|HTML version)(?: and \w+)? (?:by|from)\b",
    re.IGNORECASE,
)


def without_frame(paragraphs: Iterable[str], counts: Counts, name: str) -> Iterator[str]:
    """Yield the paragraphs of one file (lines with their line endings) that belong to the book, or to any of its books.

    Counts "Gutenberg frames" (files that have one) and "credits" (paragraphs that name who made the file).
    """
    held: list[str] | None = []  # until it is known that no header follows
    held_size = 0
    inside, framed = True, False
    credits_left = 0
    for paragraph in paragraphs:
        kept, stays = paragraph if inside else "", inside
        if _may_be_marked(paragraph):
            begin, end = _BEGIN.search(paragraph), _END.search(paragraph)
            if begin is not None:
                kept, stays, held, credits_left = paragraph[begin.end() :], True, None, CREDIT_PARAGRAPHS
            elif end is not None:
                kept, stays = kept[: end.start()], False
            elif licence := _LICENCE.search(paragraph):
                kept, stays = kept[: licence.start()], False
            last = _LAST_WORDS.search(kept)
            kept = kept[: last.start()] if last else kept
            framed = framed or begin is not None or not stays or last is not None
            if end is not None and begin is None:
                yield from held or ()
                held = None
        inside = stays
        if not kept.strip():
            continue
        if credits_left and _CREDIT.match(kept):
            counts.add("credits")
        elif held is None:
            yield kept
        else:
            held.append(kept)
            held_size += len(kept)
            if held_size > HEAD_CHARACTERS:
                yield from held
                held = None
        credits_left = max(0, credits_left - 1)
    yield from held or ()
    counts.add("Gutenberg frames", int(framed), name)


def _may_be_marked(paragraph: str) -> bool:
    return "Gutenberg" in paragraph or "GUTENBERG" in paragraph or "SMALL PRINT" in paragraph


PART_BYTES = 16 * 2**20
"""Bytes of input that go into one part."""
DOCUMENT_CHARACTERS = 32_768
"""A document is closed by the paragraph that brings it to this many characters."""
MOST_PARAGRAPH_CHARACTERS = 2**20
"""A longer run without a blank line is cut at whitespace: memory stays bounded."""
VERSION = 1
"""Raised when the same input gives other bytes."""

# All whitespace but blank and line feed; looked for in whole blocks, which is faster than splitting each paragraph.
_OTHER_SPACES = (
    "\t\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
    "\u202f\u205f\u3000"
)
_BLANK_LINES = re.compile(r"\n *(?:\n *)+")
_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True, slots=True)
class _Unit:
    """Files that one worker turns into parts."""

    folder: StageFolder
    sources: tuple[Source, ...]
    size: int
    names: tuple[str, ...]


def _is_done(unit: _Unit) -> bool:
    return all(map(unit.folder.is_done, unit.names))


def clean(
    files: Sequence[Source], folder: StageFolder, workers: Workers, part: Part, progress: Progress
) -> Finished | None:
    """Write the paragraphs of `files` to `folder`, as `part-<i>.txt` in the order of the files.

    Args:
        files: text files, in the order they are to have.
        folder: where the parts go; those that are finished are kept.
        workers: processes; a file is the work of one of them.
        part: the share to make.
        progress: called with the groups of files done so far.

    Returns:
        The stage; None while other shares of it are not finished.
    """
    units = _units(files, folder)
    folder.make(_clean_unit, units, _is_done, workers, part, progress)
    return folder.finish([name for unit in units for name in unit.names])


def _units(files: Sequence[Source], folder: StageFolder) -> list[_Unit]:
    groups: list[list[Source]] = []
    sizes: list[int] = []
    for source in files:
        with read_errors(source.path, "restore it and run again"):
            size = source.path.stat().st_size
        if groups and sizes[-1] + size <= PART_BYTES:
            groups[-1].append(source)
            sizes[-1] += size
        else:
            groups.append([source])
            sizes.append(size)
    units: list[_Unit] = []
    made = 0
    for group, size in zip(groups, sizes, strict=True):
        count = max(1, -(-size // PART_BYTES))
        units.append(_Unit(folder, tuple(group), size, tuple(f"part-{made + i:06d}.txt" for i in range(count))))
        made += count
    return units


def _clean_unit(unit: _Unit) -> None:
    """Write the missing parts of a unit; a part without documents is an empty file."""
    counts = Counts()
    reached = 0
    for index, documents in groupby(_documents(unit, counts), key=lambda found: found[0]):
        for empty in range(reached, index):
            _write(unit, empty, (), Counts())
        _write(unit, index, (text for _, text in documents), counts)
        counts.numbers, counts.names = {}, {}
        reached = index + 1
    for empty in range(reached, len(unit.names)):
        _write(unit, empty, (), counts)
        counts.numbers, counts.names = {}, {}


def _write(unit: _Unit, index: int, documents: Iterable[str], counts: Counts) -> None:
    name = unit.names[index]
    if unit.folder.is_done(name):
        for _ in documents:
            pass
        return
    with atomic_path(unit.folder.path / name) as temporary:
        with temporary.open("wb") as out:
            for text in documents:
                out.write(text.encode("utf-8", errors="replace"))
        unit.folder.record(name, counts)


def _documents(unit: _Unit, counts: Counts) -> Iterator[tuple[int, str]]:
    """Yield documents as paragraph text, each with the number of the part that its end falls into."""
    for source in unit.sources:
        encoding = find_encoding(source)
        counts.add("files")
        counts.add("NUL bytes", encoding.nul_bytes)
        if encoding.count_name is not None:
            counts.add(encoding.count_name, example=source.name)
        blocks = TextBlocks(source, encoding)
        paragraphs = without_frame(_raw_paragraphs(blocks, counts), counts, source.name)
        kept: list[str] = []
        size = documents = 0
        for paragraph in _joined(paragraphs, counts):
            kept.append(paragraph)
            size += len(paragraph)
            if size >= DOCUMENT_CHARACTERS:
                # By the share of the file that was read, so that the number of parts is known before.
                index = (blocks.consumed_bytes - 1) * len(unit.names) // max(unit.size, blocks.consumed_bytes)
                yield index, _document(kept, size, counts)
                documents += 1
                kept, size = [], 0
        if kept:
            yield len(unit.names) - 1, _document(kept, size, counts)
        counts.add("empty files", int(not documents and not kept), source.name)


def _document(paragraphs: list[str], size: int, counts: Counts) -> str:
    counts.add("documents")
    counts.add("paragraphs", len(paragraphs))
    counts.add("characters", size)
    return "\n".join(paragraphs) + "\n\n"


def _raw_paragraphs(blocks: Iterable[str], counts: Counts) -> Iterator[str]:
    """Yield the text between blank lines with its line endings; other whitespace becomes spaces."""
    rest = ""
    for block in blocks:
        for space in _OTHER_SPACES:
            if space in block:
                block = block.replace(space, " ")
        *whole, rest = _BLANK_LINES.split(rest + block)
        yield from whole
        while len(rest) > MOST_PARAGRAPH_CHARACTERS:
            end = max(rest.rfind(blank, 0, MOST_PARAGRAPH_CHARACTERS) for blank in " \n") + 1
            end = end or MOST_PARAGRAPH_CHARACTERS
            counts.add("cut paragraphs")
            yield rest[:end]
            rest = rest[end:]
    yield rest


def _joined(paragraphs: Iterable[str], counts: Counts) -> Iterator[str]:
    """Yield paragraphs on one line each, with single spaces; those without a letter are left out."""
    for paragraph in paragraphs:
        line = paragraph.replace("\n", " ").strip(" ")
        if "  " in line:
            line = " ".join(line.split())
        if not line:
            continue
        if _LETTER.search(line) is None:
            counts.add("paragraphs without a letter")
            continue
        yield line
