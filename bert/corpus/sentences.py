"""Split paragraph text into sentence text: one sentence per line, an empty line after each document, part by part."""

import platform
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from bert.data.pool import Progress, Workers
from bert.data.stages import Counts, Finished, Part, StageFolder
from common.atomic import atomic_path
from common.errors import InputError, MissingToolError, UsageError, read_code

# Something always follows: titles, "for example", "compare", "number". A capital at the front is known as well.
_INNER = """
    dr dra drs prof profa sr sra srs sras srta sres
    bzw bspw vgl nr nrn hr hrn hrsg dipl ggf ggfs evtl inkl exkl einschl insb insbes sog zzgl geb gest gegr verh ehem
    kgl frhr pfr bd bde mio mrd tsd abb z.b d.h d.i i.d.r z.t u.u v.a o.g
    mme mmes mlle mlles mgr vve ste boul cf cfr p.ex c.-à-d
    dña gral cnel lic excmo exmo exma p.ej
    sig sigg sig.ra sig.na dott dott.ssa prof.ssa avv p.es
    dhr mevr mw bijv zgn resp d.w.z m.a.w i.p.v t.a.v
    piem akad inž ģen sv t.i
    np tzn tzw tj ul św ks m.in inż płk ppłk kpt
    např tzv mj judr mudr rndr phdr nám
    f.eks bl.a t.ex dvs d.v.s s.k jfr jf
    npr pvz šv esim örn bkz doç yrd szt sf mt
"""
# They stand before a number, Arabic or Roman, and are words elsewhere.
_NUMBERED_LIST = """
    art arts artt kap abs ziff str anm pag pagg pág págs núm núms cap fig vol chap sec séc sek lib tab taf env ca c kl
    blz plkst dz mir br č č.p tel nº n.º aprox approx p pp s
"""
# They end a sentence unless a small letter follows.
_OPEN = """
    usw etc ecc enz jh jhd jhdt chr j.-c j.c a.c d.c ud uds vd vds uu u.ä o.ä u.a aufl e.d e.a o.a v.chr n.chr
    g gg gs u.c c utt lpp tml st r w itd itp atd apod aj osv mfl m.fl m.m jne ym yms jt kt vb god av apr éd coll cie
    m.ē p.m.ē kr n.l př
"""
# What follows an ordinal with a capital letter; where it has a small one (3. oktober) no word must be known.
_BEHIND_ORDINALS = """
    Januar Jänner Februar Feber März April Mai Juni Juli August September Oktober November Dezember
    Jahrhundert Jahrhunderts Jahrtausend Jahrtausends Jh Weltkrieg Weltkriegs Weltkrieges
"""


def _with_capitals(text: str) -> frozenset[str]:
    words = text.split()
    return frozenset([*words, *(word[:1].upper() + word[1:] for word in words)])


_FIRST_HALVES = frozenset([*"abcdefghijklmnopqrstuvwxyz", "av", "apr", "pr"])
_ALWAYS = _with_capitals(_INNER) | {"MM", "EE"}
_NUMBERED = _with_capitals(_NUMBERED_LIST)
_OPEN_ENDS = _with_capitals(_OPEN)
_YEARS = map(str, range(2200))
DOUBTFUL_ENDS = frozenset(
    f"{opener}{word}.".encode()
    for word in {*_ALWAYS, *_NUMBERED, *_OPEN_ENDS, *_FIRST_HALVES, *_YEARS}
    for opener in ("", "(")
)
"""Every abbreviation and ordinal in UTF-8 with its stop, for a quick look at the last words of many sentences."""
_OPENING_SIGNS = "([{\"'\u201e\u201c\u201a\u2018\u00ab\u00bb\u2039\u203a"
_BEHIND = frozenset(_BEHIND_ORDINALS.split())
_NUMBER = re.compile(r"\d|[IVXLCDM]+\b")
_WORD = re.compile(r"\w+")
# The second half of z. B., v. Chr., a. C., and of av. J.-C.
_HALF = re.compile(r"(?:[A-ZÄÖÜ]|Chr|Kr)\.|J\.-?C")
MOST_CHARACTERS = 16
"""No abbreviation is longer, with its opening signs and its stop."""


def goes_on(word: str, after: str) -> bool:
    """Return whether the stop behind `word` ends no sentence, because of what follows.

    Args:
        word: the last word before the stop, without it.
        after: what follows the blank after the stop, at least its first word.
    """
    word, after = word.lstrip(_OPENING_SIGNS), after.lstrip(_OPENING_SIGNS)
    first = after[:1]
    is_number = word.isdigit()
    if first.islower() and (is_number or word in _OPEN_ENDS or word in _NUMBERED):
        return True
    if is_number and len(word) <= 2:
        follower = _WORD.match(after)
        return follower is not None and follower[0] in _BEHIND
    if word in _FIRST_HALVES and _HALF.match(after):
        return True
    return word in _ALWAYS or (word in _NUMBERED and _NUMBER.match(after) is not None)


Splitter = Callable[[Sequence[bytes]], list[bytes]]
RULES_VERSION = 3
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
    """Return the sentences of one paragraph by rules, whitespace made single spaces.

    A sentence ends at `.`, `!`, `?` or an ellipsis with its closing quotes, when whitespace and something that can
    begin a sentence follow (not a small letter of any script); not after a known abbreviation or
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
            f"the sentence splitter blingfire does not run on this machine ({platform.system()} {platform.machine()}: "
            f"{error}): use --splitter rules, or `pip install blingfire` (Linux x86-64, macOS, Windows)",
        ) from error
    import ctypes

    import numpy as np

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
        lines = _without_false_ends(b"\n".join(pieces), pieces)
        return [found for line in lines.replace(_PARAGRAPH_SEPARATOR, b"\n").split(b"\n") if (found := line.strip())]

    return split


def _without_false_ends(lines: bytes, pieces: list[bytes]) -> bytes:
    """Join again what was cut after an abbreviation or ordinal; `lines` are the pieces with line feeds between."""
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


MOST_SENTENCE_CHARACTERS = 4_096
"""A longer sentence (text without stops) is cut at whitespace; the longest instance has room for about 2,500."""
VERSION = 2
"""Raised when the same input gives other bytes."""
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
        progress: called with the parts done so far.
        splitter: blingfire or rules.

    Returns:
        The stage; None while other shares of it are not finished.

    Raises:
        UsageError: there is no such splitter, or two parts have the same name.
        MissingToolError: the splitter does not run on this machine.
        InputError: a part cannot be read.
        StorageError: the folder cannot be written.
    """
    load_splitter(splitter)
    names = [f"{path.parent.parent.name}-{path.name}" for path in parts]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError("data-ambiguous", f"two text files would both become {twice}: rename the folder of one")
    units = [_Unit(folder, path, name, splitter) for path, name in zip(parts, names, strict=True)]
    folder.make(_segment_unit, units, lambda unit: folder.is_done(unit.name), workers, part, progress)
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
            read_code(error), f"cannot read {path}: {error.strerror}; run the previous stage again"
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

    The last sentence of a window may continue after it, so the next window begins with it, unless it is the only one.
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
