"""The stage `sentences`: dumps and texts in, one sentence per line out, an empty line after each document."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from textwrap import wrap
from typing import Any

from bert.corpus import dumps, texts
from bert.corpus.dumps import DumpUnit, dump_units
from bert.corpus.files import Source
from bert.corpus.texts import TextUnit, text_units
from bert.data.finished import Counts, Finished, Stage
from bert.data.pool import Progress, Workers
from common.errors import InputError

VERSION = 5
"""Raised when the same input gives other bytes."""
MOST_SENTENCE_CHARACTERS = 4_096
"""A longer sentence (text without stops) is cut at whitespace; the longest instance has room for about 2,500."""

_CLOSERS = "\"'\u2019\u201d)\\]\u00bb"
_OPENERS = "\"'\u2018\u201c(\\[\u00ab\u2014_"
# A stop with its closing quotes, whitespace, then what can begin a sentence; or a CJK stop, which needs no space.
# Possessive, and begun only at the head of a run of stops: a line of dots must not take quadratic time.
_BOUNDARY = re.compile(
    rf"(?<![.!?…])[.!?…]++[{_CLOSERS}_]*+(\s+)(?=[{_OPENERS}]*([^\W_]))"
    rf"|[\u3002\uff01\uff1f][\u201d\u300d\u300f\uff09]*+()(?=\S)"
)
_ABBREVIATION = re.compile(
    r"(?<!\w)(?:[^\W\d_a-zI]|(?:Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Col|Capt|Lt|Sgt|Gov|Sen|Rep|Hon|St|Jr|Sr|Jan|Feb|Apr|Aug|Sept?"
    r"|Oct|Nov|Dec|Inc|Ltd|Co|Corp|vs|etc|cf|al|e\.g|i\.e))\.$"
)
_BEFORE_NUMBERS = re.compile(r"(?<!\w)(?:No|Nos|Fig|Figs|Vol|Vols|Ch|p|pp)\.$", re.IGNORECASE)
# Where blingfire cuts although the sentence goes on: after Dr. and Św., and after p., pp. and S. before a page number.
_FALSE_ENDS = re.compile(r"(?<![^\s(])((?:Dr|Św)\.(?=\n(?![\u2000-\u2fff])\S)|(?:pp?|S)\.(?=\n(?:\d|[IVXLCDM]+\b)))\n")
# Blingfire ends a sentence at a paragraph separator wherever it stands; with a space after it, what follows is cut as
# at the beginning of a text, and a paragraph is always followed by one, so that its last words are seen alike.
_SEPARATOR = "\u2029"


def stage_settings() -> dict[str, Any]:
    """Return what the bytes depend on besides the input: the splitter (blingfire where it is installed, else rules) and
    the versions of the code.
    """
    splitter = "rules" if _blingfire() is None else f"blingfire {version('blingfire')}"
    return {"splitter": splitter, "versions": [VERSION, dumps.VERSION, texts.VERSION]}


def split_sentences(paragraphs: Sequence[str]) -> list[str]:
    """Return the sentences of paragraphs whose whitespace is single spaces."""
    split = _blingfire()
    if split is not None:
        text = _FALSE_ENDS.sub(r"\1 ", split("".join(f"{paragraph}{_SEPARATOR} " for paragraph in paragraphs)))
        lines = text.replace(_SEPARATOR, "\n").split("\n")
        return [sentence for line in lines if (sentence := line.strip())]
    return [sentence for paragraph in paragraphs for sentence in by_rules(paragraph)]


def by_rules(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph: each ends at `.`, `!`, `?` or an ellipsis with its closing quotes, when
    whitespace and something that can begin a sentence follow; not after an English abbreviation or initial.
    """
    begin = 0
    for match in _BOUNDARY.finditer(paragraph):
        if match[2] is not None:
            end = match.start(1)
            last = paragraph[max(begin, end - 8) : end]
            if match[2].islower() or _ABBREVIATION.search(last):
                continue
            if match[2].isdigit() and _BEFORE_NUMBERS.search(last):
                continue
        else:
            end = match.end()
        yield paragraph[begin:end]
        begin = match.end()
    if begin < len(paragraph):
        yield paragraph[begin:]


@cache
def _blingfire() -> Callable[[str], str] | None:
    try:
        from blingfire import text_to_sentences
    except (ImportError, OSError):
        return None
    return text_to_sentences  # type: ignore[no-any-return]


def segment(
    dumps_found: Sequence[Source],
    texts_found: Sequence[Source],
    stage: Stage,
    workers: Workers,
    progress: Progress,
    keep_truncated: bool = False,
) -> Finished:
    """Write the sentences of dumps and text files, in this order; a unit of a few MiB is the work of one process.

    With `keep_truncated` the whole pages of a dump that ends too early are used. Raises InputError: a file cannot be
    read or is no dump, or there is no text in any of them.
    """
    extra = Counts()

    def units() -> Iterator[DumpUnit | TextUnit]:
        yield from dump_units(dumps_found, keep_truncated, extra)
        yield from text_units(texts_found)

    sources = (*dumps_found, *texts_found)
    total = sum(source.path.stat().st_size for source in sources)
    finished = stage.make(write_sentences, units(), workers, progress, total, extra)
    if not finished.counts.get("documents"):
        raise InputError("data-missing", f"the {len(sources)} input file(s) hold no text: give some with text")
    return finished


def write_sentences(unit: DumpUnit | TextUnit, path: Path) -> Counts:
    """Write the documents of a unit; return its counts."""
    counts = Counts()
    with path.open("wb") as out:
        for paragraphs in unit.documents(counts):
            sentences = [piece for sentence in split_sentences(paragraphs) for piece in _bounded(sentence)]
            if sentences:
                out.write("\n".join([*sentences, "", ""]).encode("utf-8", errors="replace"))
                counts.add("documents")
                counts.add("sentences", len(sentences))
    return counts


def _bounded(sentence: str) -> list[str]:
    if len(sentence) <= MOST_SENTENCE_CHARACTERS:
        return [sentence]
    return wrap(sentence, MOST_SENTENCE_CHARACTERS, break_on_hyphens=False)
