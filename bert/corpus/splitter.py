"""Paragraphs cut into sentences, by blingfire (a compiled finite-state machine) or by a few rules in Python.

A splitter takes the paragraphs of a block, as UTF-8 with single blanks, and returns the sentences of all of them in
order. It neither loses nor adds a character, blanks aside, and cuts each paragraph as it would alone.
"""

import platform
import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

from bert.corpus.abbreviations import DOUBTFUL_ENDS, MOST_CHARACTERS, goes_on
from common.errors import MissingToolError, UsageError

Splitter = Callable[[Sequence[bytes]], list[bytes]]
RULES_VERSION = 3
"""Raised when the rules cut elsewhere."""

_CLOSERS = "\"'\u2019\u201d)\\]\u00bb"
_OPENERS = "\"'\u2018\u201c(\\[\u00ab\u2014_"
# A stop with its closing quotes, white space, then what can begin a sentence; or a CJK stop, which needs no space.
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

# Blingfire ends a sentence at a paragraph separator wherever it stands; with a blank after it, what follows is cut as
# at the beginning of a text, and a paragraph is always followed by one, so that its last words are seen alike.
_PARAGRAPH_SEPARATOR = "\u2029".encode()
_SEPARATORS = re.compile(b"\xe2\x80[\xa8\xa9]")


def load_splitter(name: str) -> Splitter:
    """Return a splitter by its name: blingfire or rules.

    Raises:
        UsageError: there is no splitter of that name.
        MissingToolError: blingfire is not installed, or not made for this machine.
    """
    if name not in SPLITTERS:
        raise UsageError("option-choice", f"--splitter {name} must be one of {', '.join(SPLITTERS)}")
    return SPLITTERS[name]()


def splitter_version(name: str) -> str:
    """Return what the sentences of a splitter depend on. Raises as load_splitter."""
    load_splitter(name)
    if name == "rules":
        return str(RULES_VERSION)
    from importlib.metadata import version

    return version("blingfire")


def split_sentences(paragraph: str) -> list[str]:
    """Return the sentences of one paragraph by rules, white space made single blanks.

    A sentence ends at `.`, `!`, `?` or an ellipsis with its closing quotes, when white space and something that can
    begin a sentence follow (not a small letter of any script); not after a known abbreviation (`abbreviations.py`) or
    initial ("Mr.", "J.").
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
        blank = text.rfind(" ", max(begin, end - MOST_CHARACTERS), end)
        return text[end - 1] == "." and goes_on(
            text[max(begin, blank + 1) : end - 1], text[next_begin : next_begin + 24]
        )
    if goes_on(word[1], text[next_begin : next_begin + 24]):
        return True
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
def _blingfire() -> Splitter:
    """Return a splitter that calls the library with all paragraphs at once and cuts at the offsets it finds."""
    try:
        from blingfire import blingfire as library

        find = library.TextToSentencesWithOffsets
    except (ImportError, OSError, AttributeError) as error:
        raise MissingToolError(
            "package-missing",
            f"the sentence splitter blingfire does not run here ({platform.system()} {platform.machine()}: {error}): "
            "use --splitter rules, or `pip install blingfire` (Linux x86-64, macOS, Windows)",
        ) from error
    import ctypes

    import numpy as np

    # The library's text output drops invisible characters between sentences (U+200B), so only its offsets are used:
    # cut behind each sentence, such characters go with the next one.
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
        lines = _without_false_ends(b"\n".join(pieces), pieces)
        return [found for line in lines.replace(_PARAGRAPH_SEPARATOR, b"\n").split(b"\n") if (found := line.strip())]

    return split


def _without_false_ends(lines: bytes, pieces: list[bytes]) -> bytes:
    """Join again what was cut behind an abbreviation or ordinal; `lines` are the pieces with line feeds between."""
    doubtful = [number for number, piece in enumerate(pieces) if piece[piece.rfind(b" ") + 1 :] in DOUBTFUL_ENDS]
    if not doubtful:
        return lines
    ends = {number for number in doubtful if number + 1 < len(pieces) and _goes_on(pieces[number], pieces[number + 1])}
    return b"".join(piece + b"\n"[number in ends :] for number, piece in enumerate(pieces))


def _goes_on(before: bytes, after: bytes) -> bool:
    after = after[:80].lstrip()
    if after.startswith(_PARAGRAPH_SEPARATOR):
        return False
    word = before[before.rfind(b" ") + 1 : -1]
    return goes_on(word.decode("utf-8", "ignore"), after.decode("utf-8", "ignore"))


SPLITTERS: dict[str, Callable[[], Splitter]] = {"blingfire": _blingfire, "rules": lambda: _by_rules}
"""Name -> what loads it; the first is the default."""
