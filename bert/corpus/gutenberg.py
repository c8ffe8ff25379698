"""Project Gutenberg's frame around a book: header, licence and credits are no part of the text."""

import re
from collections.abc import Iterable, Iterator

from bert.data.stages import Counts

HEAD_CHARACTERS = 131_072
"""A header ends within this many characters; the old licence alone takes about 15,000."""
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
    """Yield the paragraphs of one file (lines with their line ends) that belong to the book, or to any of its books.

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
