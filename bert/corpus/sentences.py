"""Paragraph text made sentence text: one sentence per line, an empty line after each document, part by part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bert.corpus.splitter import Splitter, load_splitter
from bert.data.pool import Progress, Workers
from bert.data.stages import Counts, Finished, Part, StageFolder
from common.atomic import atomic_path
from common.errors import InputError, UsageError, read_code

MOST_SENTENCE_CHARACTERS = 4_096
"""A longer sentence (text without stops) is cut at white space; the longest instance has room for about 2,500."""
VERSION = 2
"""Raised when the same input gives other bytes."""
COUNTS = ("documents", "empty documents", "sentences", "characters", "cut sentences")
"""Names of what is counted."""
BLOCK_BYTES = 2**16
"""Paragraphs of one document are given to the splitter together up to this size."""
WINDOW_BYTES = 2**18
"""A longer paragraph is given to the splitter in windows of this size, each begun at the last sentence's beginning."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """A part that is to be made."""

    folder: StageFolder
    source: Path
    name: str
    splitter: str


def segment(
    parts: Sequence[Path], folder: StageFolder, workers: Workers, part: Part, progress: Progress, splitter: str
) -> Finished | None:
    """Write the sentences of each part of paragraph text to `folder`, one file per part.

    A file is named as its part with the stage's folder in front (extracted/books/part-000000.txt becomes
    extracted-part-000000.txt), so that parts of both stages go together.

    Args:
        parts: paragraph text, in the order it is to have.
        folder: where the sentences go; files that are finished are kept.
        workers: processes; a part is the work of one of them.
        part: the share to make.
        progress: told the parts that are done.
        splitter: blingfire or rules.

    Returns:
        The stage; None while other shares of it are not finished.

    Raises:
        UsageError: there is no such splitter, or two parts have the same name.
        MissingToolError: the splitter does not run on this machine.
        InputError: a part cannot be read.
        StorageError: the folder cannot be written.
    """
    done = folder.finished()
    if done is not None:
        return done
    load_splitter(splitter)
    names = [f"{path.parent.parent.name}-{path.name}" for path in parts]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError("data-ambiguous", f"two parts of text would both become {twice}: rename the folder of one")
    units = [_Unit(folder, path, name, splitter) for path, name in zip(parts, names, strict=True)]
    mine = [unit for number, unit in enumerate(units) if part.takes(number) and not folder.is_done(unit.name)]
    progress("sentences", 0, len(mine))
    for number, _ in enumerate(workers.map(_segment_unit, mine), start=1):
        progress("sentences", number, len(mine))
    return folder.finish(names)


def _segment_unit(unit: _Unit) -> None:
    split = load_splitter(unit.splitter)
    counts = Counts()
    with atomic_path(unit.folder.path / unit.name) as temporary:
        with temporary.open("wb") as out:
            for sentences in _documents(unit.source, split, counts):
                _write_document(out, sentences, counts)
        unit.folder.record(unit.name, counts)


def _write_document(out: BinaryIO, blocks: Iterator[list[bytes]], counts: Counts) -> None:
    found = 0
    for sentences in blocks:
        if sentences:
            text = b"\n".join(sentences)
            counts.add("characters", len(text.decode("utf-8", errors="replace")) - len(sentences) + 1)
            found += len(sentences)
            out.write(text + b"\n")
    counts.add("documents" if found else "empty documents")
    counts.add("sentences", found)
    if found:
        out.write(b"\n")


def _documents(path: Path, split: Splitter, counts: Counts) -> Iterator[Iterator[list[bytes]]]:
    """Yield the documents of a part, each as blocks of sentences that are to be used up before the next document."""
    try:
        with path.open("rb") as file:
            for line in file:
                # What is read here is the first paragraph; the document's iterator reads the others.
                if line != b"\n":
                    yield _sentences(line, file, split, counts)
    except OSError as error:
        raise InputError(
            read_code(error), f"cannot read {path}: {error.strerror}; run the stage before it again"
        ) from error


def _sentences(first: bytes, file: BinaryIO, split: Splitter, counts: Counts) -> Iterator[list[bytes]]:
    block: list[bytes] = []
    size = 0
    line = first
    while line not in (b"\n", b""):
        paragraph = line.rstrip(b"\n")
        if len(paragraph) > WINDOW_BYTES:
            yield _bounded(split(block), counts)
            block, size = [], 0
            for sentences in _of_long_paragraph(paragraph, split):
                yield _bounded(sentences, counts)
        else:
            block.append(paragraph)
            size += len(paragraph)
            if size >= BLOCK_BYTES:
                yield _bounded(split(block), counts)
                block, size = [], 0
        line = file.readline()
    yield _bounded(split(block), counts)


def _of_long_paragraph(paragraph: bytes, split: Splitter) -> Iterator[list[bytes]]:
    """Yield the sentences of a paragraph window by window: time and memory stay linear without any stop in it.

    The last sentence of a window may go on behind it, so the next window begins with it, unless it is the only one.
    """
    begin = 0
    while len(paragraph) - begin > WINDOW_BYTES:
        end = paragraph.rfind(b" ", begin + 1, begin + WINDOW_BYTES)
        if end < 0:
            end = _character_start(paragraph, begin + WINDOW_BYTES)
        window = paragraph[begin:end]
        sentences = split([window])
        if len(sentences) > 1 and window.endswith(sentences[-1]):
            end -= len(sentences.pop())
        yield sentences
        begin = end
    yield split([paragraph[begin:]])


def _bounded(sentences: list[bytes], counts: Counts) -> list[bytes]:
    if all(len(sentence) <= MOST_SENTENCE_CHARACTERS for sentence in sentences):
        return sentences
    found: list[bytes] = []
    for sentence in sentences:
        pieces = list(_pieces(sentence.decode("utf-8", errors="replace")))
        counts.add("cut sentences", int(len(pieces) > 1))
        found += [piece.encode() for piece in pieces]
    return found


def _pieces(sentence: str) -> Iterator[str]:
    begin = 0
    while len(sentence) - begin > MOST_SENTENCE_CHARACTERS:
        end = sentence.rfind(" ", begin + 1, begin + MOST_SENTENCE_CHARACTERS + 1)
        end = end if end > 0 else begin + MOST_SENTENCE_CHARACTERS
        yield sentence[begin:end].strip(" ")
        begin = end + (sentence[end] == " ")
    yield sentence[begin:]


def _character_start(text: bytes, position: int) -> int:
    """Return the nearest position not after `position` where a UTF-8 character begins."""
    while text[position] & 0xC0 == 0x80:
        position -= 1
    return position
