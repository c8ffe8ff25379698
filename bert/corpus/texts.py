"""Books and other plain text as documents of paragraphs, and synthetic text.

Small files are taken together, large ones cut at line ends. A document is a file; a file of more than
`DOCUMENT_CHARACTERS` characters (a book) is cut at blank lines into documents of about that size, so that a second
segment can come from another document even in a corpus of one book.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert.corpus.files import Source, find_encoding
from bert.data.finished import Counts
from common.atomic import write_bytes
from common.errors import UsageError
from common.reading import read_errors

VERSION = 2
"""Raised when the same input gives other bytes."""
UNIT_BYTES = 16 * 2**20
DOCUMENT_CHARACTERS = 32_768
"""A document is closed by the paragraph that brings it to this many characters."""
_CREDIT_PARAGRAPHS = 4
"""Paragraphs after the header among which the people who made the file are named."""

_FLAGS = re.MULTILINE | re.IGNORECASE
# Since about 2000 in the first form, in several words; before that the "small print" stood between header and book.
# The title inside the marker may be wrapped over several lines.
_BEGIN = re.compile(
    r"^[ \t]*\*{2,3} ?START OF (?:THE |THIS )?PROJECT GUTENBERG E-?(?:BOOK|TEXT)\b(?:[^*\n]|\n(?!\s*\n))*\**[^\n]*"
    r"|^[^\n]*\*END ?\*? ?THE SMALL PRINT[^\n]*",
    _FLAGS,
)
_END = re.compile(
    r"^[ \t]*\*{2,3} ?END OF (?:THE |THIS )?PROJECT GUTENBERG E-?(?:BOOK|TEXT)\b"
    r"|^[^\n]*\*START ?\*{0,2} ?THE SMALL PRINT"
    r"|^[^\w\n]*(?:THE )?END OF (?:THE |THIS )?PROJECT GUTENBERG\b",
    _FLAGS,
)
_CREDIT = re.compile(
    r"\W*(?:This (?:e-?book|e-?text|file) was )?(?:(?:e-?book|e-?text) )?"
    r"(?:produced|prepared|transcribed|scanned|digiti[sz]ed|proofread|HTML version)(?: and \w+)? (?:by|from)\b",
    re.IGNORECASE,
)
_BLANK_LINES = re.compile(r"\n\s*\n")
_LETTER = re.compile(r"[^\W\d_]")
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]+")


@dataclass(frozen=True, slots=True)
class TextUnit:
    """Some files, or a stretch of a large one."""

    name: str
    """Name of the file that their text goes to."""
    size: int
    """Bytes."""
    sources: tuple[Source, ...]
    begin: int = 0
    """The stretch begins behind the first line end from this byte on; 0 is the file's beginning."""
    end: int | None = None
    """And ends behind the first line end from here on; None is the file's end."""

    def documents(self, counts: Counts) -> Iterator[list[str]]:
        """Yield the paragraphs of each document, whitespace normalized."""
        for source in self.sources:
            raw = self._read(source)
            codec, kind = find_encoding(source.path, raw)
            counts.add("files")
            if kind is not None:
                counts.add(kind, example=source.name)
            text = _CONTROLS.sub("", raw.decode(codec, "replace").replace("\r\n", "\n").replace("\r", "\n"))
            inner = without_frame(text)
            counts.add("Gutenberg frames", int(len(inner) < len(text)), source.name)
            documents = list(_documents(inner))
            counts.add("empty files", int(not documents), source.name)
            yield from documents

    def _read(self, source: Source) -> bytes:
        with read_errors(source.path, "restore it and run again"), source.path.open("rb") as file:
            if self.begin:
                file.seek(self.begin)
                file.readline()
            if self.end is None:
                return file.read()
            return file.read(max(0, self.end - file.tell())) + (file.readline() if file.tell() <= self.end else b"")


def text_units(files: Sequence[Source]) -> Iterator[TextUnit]:
    """Yield the units of text files in order."""
    groups: list[list[Source]] = []
    sizes: list[int] = []
    for source in files:
        with read_errors(source.path, "restore it and run again"):
            size = source.path.stat().st_size
        if groups and sizes[-1] + size <= UNIT_BYTES:
            groups[-1].append(source)
            sizes[-1] += size
        else:
            groups.append([source])
            sizes.append(size)
    number = 0
    for group, size in zip(groups, sizes, strict=True):
        for begin in range(0, max(size, 1), UNIT_BYTES):
            end = begin + UNIT_BYTES if begin + UNIT_BYTES < size else None
            yield TextUnit(f"text-{number:06d}.txt", (end or size) - begin, tuple(group), begin, end)
            number += 1


def without_frame(text: str) -> str:
    """Return a book without the header, credits and license of Project Gutenberg; any other text as it is."""
    if "Gutenberg" not in text and "GUTENBERG" not in text and "SMALL PRINT" not in text:
        return text
    begin = _BEGIN.search(text)
    body = text[begin.end() :] if begin else text
    end = _END.search(body)
    body = body[: end.start()] if end else body
    if begin is None:
        return body
    *first, rest = re.split(r"(?<=\S)\n\s*\n(?=\s*\S)", body, maxsplit=_CREDIT_PARAGRAPHS)
    return "\n\n".join([*(paragraph for paragraph in first if not _CREDIT.match(paragraph)), rest])


def _documents(text: str) -> Iterator[list[str]]:
    paragraphs: list[str] = []
    size = 0
    for raw in _BLANK_LINES.split(text):
        paragraph = " ".join(raw.split())
        if _LETTER.search(paragraph) is None:
            continue
        paragraphs.append(paragraph)
        size += len(paragraph)
        if size >= DOCUMENT_CHARACTERS:
            yield paragraphs
            paragraphs, size = [], 0
    if paragraphs:
        yield paragraphs


SMALLEST_CORPUS = 10_000
"""Bytes below which there are too few documents to draw random second segments from."""
WORDS = 24_000
"""Different words; a text of 200,000 words meets about two thirds of them."""

_ONSETS = [
    "b", "c", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "br", "ch", "cl", "dr", "fl",
    "gr", "pl", "pr", "sh", "st", "th", "tr",
]  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "a", "e", "o", "ai", "ea", "ou")
_CODAS = ["", "", "", "n", "r", "s", "l", "t", "nd", "st", "m", "ng"]


def generate_corpus(folder: Path, seed: int, size_bytes: int) -> list[Path]:
    """Write a synthetic text corpus of at least `size_bytes` bytes (at most a paragraph more) as `generated-<i>.txt`.

    Words are pronounceable and follow Zipf's law (frequency ~ 1 / (rank + 2)); sentences have 4 to 40 words. All draws
    are integers, so the same seed gives the same bytes on every machine. Older generated files in `folder` are removed.
    """
    if size_bytes < SMALLEST_CORPUS:
        raise UsageError(
            "option-value", f"a corpus of {size_bytes} bytes is too small: ask for {SMALLEST_CORPUS} or more"
        )
    files = []
    for number, text in enumerate(documents(seed, size_bytes)):
        path = folder / f"generated-{number:06d}.txt"
        write_bytes(path, text)
        files.append(path)
    for stale in set(folder.glob("generated-*.txt")) - set(files):
        stale.unlink()
    return files


def documents(seed: int, size_bytes: int) -> Iterator[bytes]:
    """Yield documents (ASCII, one paragraph per line block) until their sizes add up to `size_bytes` or more."""
    rng = np.random.default_rng([seed, 0x7E87])
    words = _lexicon(rng)
    # 1e12 / rank fits into int64 even summed up, and integer sums are the same on every machine.
    cumulative = np.cumsum(10**12 // np.arange(3, WORDS + 3, dtype=np.int64))
    mean_document = min(40_000, max(1_200, size_bytes // 100))
    written = 0
    while written < size_bytes:
        wanted = min(int(rng.integers(mean_document // 2, mean_document * 3 // 2)), size_bytes - written)
        paragraphs: list[str] = []
        size = 0
        while size < wanted:
            paragraphs.append(_paragraph(rng, words, cumulative))
            size += len(paragraphs[-1]) + 2
        text = "\n\n".join(paragraphs) + "\n\n"
        written += len(text)
        yield text.encode("ascii")


def _lexicon(rng: np.random.Generator) -> list[str]:
    """Return distinct words, the most frequent first; frequent words are short, as in natural text."""
    syllables = [onset + vowel + coda for onset in _ONSETS for vowel in _VOWELS for coda in _CODAS]
    words: dict[str, None] = {}
    while len(words) < WORDS:
        # 1 syllable among the first 200 words, 1-2 among the next 2,000, then 2-4.
        low, high = (1, 1) if len(words) < 200 else (1, 2) if len(words) < 2_200 else (2, 4)
        count = int(rng.integers(low, high + 1))
        words["".join(syllables[i] for i in rng.integers(0, len(syllables), count))] = None
    return list(words)


def _paragraph(rng: np.random.Generator, words: list[str], cumulative: np.ndarray) -> str:
    sentences = []
    for _ in range(int(rng.integers(2, 9))):
        # The sum of two draws makes middle lengths the most frequent: 4 to 40 words, 22 on average.
        length = int(rng.integers(2, 21)) + int(rng.integers(2, 21))
        ranks = np.searchsorted(cumulative, rng.integers(0, int(cumulative[-1]), length), side="right")
        chosen = [words[rank] for rank in ranks]
        chosen[0] = chosen[0].capitalize()
        if length > 12:
            chosen[length // 2] += ","
        sentences.append(" ".join(chosen) + ".....?!"[int(rng.integers(0, 7))])
    return " ".join(sentences)
