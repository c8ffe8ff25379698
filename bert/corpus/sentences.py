"""Split paragraph text into sentence text: one sentence per line, an empty line after each document, part by part."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from bert.data.pool import Progress, Workers
from bert.data.stages import Counts, Finished, Part, StageFolder
from common.atomic import atomic_path
from common.errors import UsageError
from common.reading import read_errors

Splitter = Callable[[Sequence[bytes]], list[bytes]]
RULES_VERSION = 4
"""Raised when the rules cut elsewhere."""

_CLOSERS = "\"'\u2019\u201d)\\]\u00bb"
_OPENERS = "\"'\u2018\u201c(\\[\u00ab\u2014_"
# A stop with its closing quotes, whitespace, then what can begin a sentence; or a CJK stop, which needs no space.
# Possessive, and begun only at the head of a run of stops: a line of dots must not take quadratic time.
_BOUNDARY = re.compile(
    rf"(?<![.!?…])[.!?…]++[{_CLOSERS}_]*+(\s+)(?=[{_OPENERS}]*([^\W_]))|[\u3002\uff01\uff1f][\u201d\u300d\u300f\uff09]*+()(?=\S)"
)
_LAST_WORD = re.compile(r"([^\W\d_]+(?:\.[^\W\d_]+)*)\.$")
_ABBREVIATION_LIST = """
    adm al apr aug bros capt cf ch cmdr co col corp dec dept dr e.g ed eds esq etc feb fig figs ft gen gov hon
    i.e inc jan jr jul jun lt ltd maj mar messrs mlle mme mr mrs ms mt no nos nov oct p pp prof rep rev
    sen sep sept sgt sr st univ viz vol vols vs
"""
_ABBREVIATIONS = frozenset(_ABBREVIATION_LIST.split())
# Words that are also abbreviations end a sentence unless a number follows.
_BEFORE_NUMBERS = frozenset(("ch", "ed", "fig", "figs", "jun", "mar", "no", "nos", "p", "pp", "vol", "vols"))

# Blingfire ends a sentence at a paragraph separator wherever it stands; with a space after it, what follows is cut as
# at the beginning of a text, and a paragraph is always followed by one, so that its last words are seen alike.
_PARAGRAPH_SEPARATOR = "\u2029".encode()
_SEPARATORS = re.compile(b"\xe2\x80[\xa8\xa9]")
# Where blingfire cuts although the sentence goes on: after Dr. and Św., and after p., pp. and S. before a page number.
_FALSE_ENDS = re.compile(rb"(?<![^\s(])((?:Dr|\xc5\x9aw)\.(?=\n +[^\xe2 ])|(?:pp?|S)\.(?=\n +(?:\d|[IVXLCDM]+\b)))\n")


def splitter_settings() -> dict[str, str]:
    """Return the sentence splitter of this machine and its version: blingfire where it is installed, else rules."""
    if _blingfire() is None:
        return {"splitter": "rules", "version": str(RULES_VERSION)}
    return {"splitter": "blingfire", "version": version("blingfire")}


def split_sentences(paragraph: str) -> list[str]:
    """Return the sentences of one paragraph by rules, whitespace made single spaces.

    A sentence ends at `.`, `!`, `?` or an ellipsis with its closing quotes, when whitespace and something that can
    begin a sentence follow (not a small letter of any script); not after an English abbreviation or initial
    ("Mr.", "J.").
    """
    text = " ".join(paragraph.split())
    sentences = []
    begin = 0
    for match in _BOUNDARY.finditer(text):
        if match.group(2) is not None and match.group(2).islower():
            continue
        end = match.start(1) if match.group(1) is not None else match.end()
        if match.group(1) is not None and _is_abbreviation(text, begin, end, match.end()):
            continue
        sentences.append(text[begin:end])
        begin = match.end()
    if begin < len(text):
        sentences.append(text[begin:])
    return sentences


def _is_abbreviation(text: str, begin: int, end: int, next_begin: int) -> bool:
    # The longest abbreviation has 7 letters; looking at 24 characters keeps this linear.
    word = _LAST_WORD.search(text, max(begin, end - 24), end)
    if word is None:
        return False
    last = word[1].lower()
    if last in _BEFORE_NUMBERS:
        return text[next_begin : next_begin + 1].isdigit()
    return last in _ABBREVIATIONS or (len(last) == 1 and last != "i" and word[1].isupper())


def _by_rules(paragraphs: Sequence[bytes]) -> list[bytes]:
    return [
        sentence.encode("utf-8", errors="replace")
        for paragraph in paragraphs
        for sentence in split_sentences(paragraph.decode("utf-8", errors="replace"))
    ]


@cache
def _blingfire() -> Splitter | None:
    """Return a splitter that calls the library with all paragraphs at once and cuts at the offsets it finds."""
    try:
        from blingfire import blingfire as library
    except (ImportError, OSError):
        return None
    import ctypes

    import numpy as np

    find = library.TextToSentencesWithOffsets

    # The library's text output drops invisible characters between sentences (U+200B), so only its offsets are used:
    # cut after each sentence, such characters go with the next one.
    text, begins, ends = np.empty(0, np.uint8), np.empty(0, np.int32), np.empty(0, np.int32)

    def split(paragraphs: Sequence[bytes]) -> list[bytes]:
        nonlocal text, begins, ends
        clean = [_SEPARATORS.sub(b" ", paragraph) for paragraph in paragraphs]
        raw = b"".join(paragraph + _PARAGRAPH_SEPARATOR + b" " for paragraph in clean)
        if 2 * len(raw) > len(text):
            text = np.empty(4 * len(raw), np.uint8)
            begins, ends = np.empty(4 * len(raw), np.int32), np.empty(4 * len(raw), np.int32)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (text, begins, ends)]
        size = find(ctypes.c_char_p(raw), ctypes.c_int(len(raw)), *pointers, ctypes.c_int(len(text)))
        # Less than 1 is a refusal, which valid UTF-8 does not meet: then each paragraph is a sentence.
        count = int(np.count_nonzero(text[: size - 1] == ord("\n"))) + 1 if size > 0 else 0
        cuts = [0, *(ends[: max(0, count - 1)] + 1).tolist(), len(raw)]
        pieces = [raw[begin:end] for begin, end in pairwise(cuts)]
        lines = _FALSE_ENDS.sub(rb"\1", b"\n".join(pieces))
        return [found for line in lines.replace(_PARAGRAPH_SEPARATOR, b"\n").split(b"\n") if (found := line.strip())]

    return split


MOST_SENTENCE_CHARACTERS = 4_096
"""A longer sentence (text without stops) is cut at whitespace; the longest instance has room for about 2,500."""
VERSION = 3
"""Raised when the same input gives other bytes."""
BLOCK_BYTES = 2**16
"""Paragraphs of one document are given to the splitter together up to this size."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """A part that is to be made."""

    folder: StageFolder
    source: Path
    name: str


def segment(
    parts: Sequence[Path], folder: StageFolder, workers: Workers, part: Part, progress: Progress
) -> Finished | None:
    """Write the sentences of each part of paragraph text to `folder`, one file per part.

    A file is named as its part with the stage's folder in front (extracted/books/part-000000.txt becomes
    extracted-part-000000.txt), so that parts of both stages go together.

    Args:
        parts: paragraph text, in the order it is to have.
        folder: where the sentences go; files that are finished are kept.
        workers: processes; a part is the work of one of them.
        part: the share to make.
        progress: called with the parts done so far.

    Returns:
        The stage; None while other shares of it are not finished.
    """
    names = [f"{path.parent.parent.name}-{path.name}" for path in parts]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError("data-ambiguous", f"two text files would both become {twice}: rename the folder of one")
    units = [_Unit(folder, path, name) for path, name in zip(parts, names, strict=True)]
    folder.make(_segment_unit, units, lambda unit: folder.is_done(unit.name), workers, part, progress)
    return folder.finish(names)


def _segment_unit(unit: _Unit) -> None:
    split = _blingfire() or _by_rules
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
    with read_errors(path, "run the previous stage again"), path.open("rb") as file:
        for line in file:
            # What is read here is the first paragraph; the document's iterator reads the others.
            if line != b"\n":
                yield _sentences(line, file, split, counts)


def _sentences(first: bytes, file: BinaryIO, split: Splitter, counts: Counts) -> Iterator[list[bytes]]:
    block: list[bytes] = []
    size = 0
    line = first
    while line not in (b"\n", b""):
        paragraph = line.rstrip(b"\n")
        block.append(paragraph)
        size += len(paragraph)
        if size >= BLOCK_BYTES:
            yield _bounded(split(block), counts)
            block, size = [], 0
        line = file.readline()
    yield _bounded(split(block), counts)


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
