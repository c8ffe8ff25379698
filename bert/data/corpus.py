"""Plain text in, documents of sentences out; and a generated corpus for machines without any text.

A document is a file. A file of more than `DOCUMENT_CHARACTERS` characters (a book) is cut at blank lines into documents
of about that size, so that a second segment can come from another document even in a corpus of one book.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from common.errors import InputError, UsageError

DOCUMENT_CHARACTERS = 32_768
"""A document is closed at the first blank line after this many characters."""
PREPARED_PREFIX = "hdf5_lower_case_"
"""Beginning of the names of the folders that `data pretrain` writes."""
MOST_NUL_SHARE = 0.01
# Bytes no text has, apart from tab, line feed, form feed and carriage return.
MOST_CONTROL_SHARE = 0.01
_CONTROL_CODES = [code for code in range(1, 32) if code not in (9, 10, 12, 13)]
"""A file with a larger share of NUL bytes is not text."""

# Gutenberg's licence is no part of the book; the markers are those of every release since about 2000.
_GUTENBERG_START = re.compile(r"^\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG EBOOK.*$", re.MULTILINE)
_GUTENBERG_END = re.compile(r"^\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG EBOOK.*$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n[^\S\n]*(?:\n[^\S\n]*)+")
_CLOSERS = "\"'\u2019\u201d)\\]\u00bb"
_OPENERS = "\"'\u2018\u201c(\\[\u00ab\u2014_"
# A stop with its closing quotes, white space, then what can begin a sentence; or a CJK stop, which needs no space.
# Possessive, and begun only at the head of a run of stops: a line of dots must not take quadratic time.
_BOUNDARY = re.compile(
    rf"(?<![.!?…])[.!?…]++[{_CLOSERS}_]*+(\s+)(?=[{_OPENERS}]*[^\W_a-z])|[\u3002\uff01\uff1f][\u201d\u300d\u300f\uff09]*+()(?=\S)"
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


@dataclass(frozen=True, slots=True)
class Document:
    """A run of sentences in their order; the next-sentence task draws its random segments from other documents."""

    name: str
    """File name relative to the corpus, with `#k` for the k-th document of a file that was cut."""
    sentences: tuple[str, ...]
    """Sentences without line breaks, at least one."""


@dataclass(slots=True)
class CorpusReport:
    """What was met while reading."""

    files: int = 0
    """Files read."""
    documents: int = 0
    """Documents found in them."""
    sentences: int = 0
    """Sentences found in them."""
    characters: int = 0
    """Characters of text, Gutenberg's frame left out."""
    empty_files: int = 0
    """Files without any sentence."""
    nul_bytes: int = 0
    """NUL bytes that were taken out."""
    framed_files: int = 0
    """Files whose Project Gutenberg header or footer was taken off."""
    latin1_files: list[str] = field(default_factory=list)
    """Files that are not UTF-8 and were read as latin-1."""

    def notes(self) -> list[str]:
        """Return what a user should know, one sentence each."""
        found = []
        if self.latin1_files:
            names = ", ".join(self.latin1_files[:5]) + (", ..." if len(self.latin1_files) > 5 else "")
            found.append(f"{len(self.latin1_files)} file(s) are not UTF-8 and were read as latin-1: {names}")
        if self.empty_files:
            found.append(f"{self.empty_files} empty file(s) were left out")
        if self.nul_bytes:
            found.append(f"{self.nul_bytes} NUL byte(s) were taken out")
        if self.framed_files:
            found.append(f"the Project Gutenberg header and footer of {self.framed_files} file(s) were left out")
        return found


def text_files(folder: Path) -> list[Path]:
    """Return the `.txt` files at any depth below `folder`, sorted by their relative name.

    Prepared folders (`hdf5_lower_case_...`) are no text: their vocabularies are left out.

    Raises:
        InputError: there is no such folder, or no `.txt` file in it.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}: give a folder that holds .txt files")
    files = [
        path
        for path in folder.rglob("*")
        if path.suffix.lower() == ".txt"
        and path.is_file()
        and not any(part.startswith(PREPARED_PREFIX) for part in path.relative_to(folder).parts)
    ]
    if not files:
        raise InputError(f"{folder} holds no .txt file: give a folder of plain text files, one book or article each")
    return sorted(files, key=lambda path: path.relative_to(folder).as_posix())


def read_documents(
    files: list[Path], folder: Path, report: CorpusReport, document_characters: int = DOCUMENT_CHARACTERS
) -> Iterator[Document]:
    """Yield the documents of `files`, one file in memory at a time; `report` is brought up to date on the way.

    Raises:
        InputError: a file cannot be read or is not text; the message names it.
    """
    for path in files:
        name = path.relative_to(folder).as_posix()
        text = read_text(path, name, report)
        report.files += 1
        report.characters += len(text)
        documents = [found for part in _cut(text, document_characters) if (found := _sentences_of(part))]
        report.empty_files += not documents
        for number, sentences in enumerate(documents, start=1):
            report.documents += 1
            report.sentences += len(sentences)
            yield Document(name if len(documents) == 1 else f"{name}#{number}", tuple(sentences))


def read_text(path: Path, name: str, report: CorpusReport) -> str:
    r"""Return the text of one file: decoded, line ends made `\n`, NUL bytes and Gutenberg's frame taken out.

    UTF-8 with or without a byte order mark, UTF-16 with one; what is not valid UTF-8 is read as latin-1 and reported.

    Raises:
        InputError: the file cannot be read, or more than 1 % of it are NUL bytes.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; check its permissions or take it out") from error
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = raw.decode("utf-16", errors="replace")
    else:
        nul_bytes = raw.count(b"\0")
        if nul_bytes > MOST_NUL_SHARE * len(raw):
            raise InputError(
                f"{path} is not a text file ({nul_bytes} of its {len(raw)} bytes are NUL): "
                "take it out of the folder, or convert it to UTF-8"
            )
        report.nul_bytes += nul_bytes
        raw = raw.replace(b"\0", b"")
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError:
            controls = sum(raw.count(bytes([code])) for code in _CONTROL_CODES)
            if controls > MOST_CONTROL_SHARE * len(raw):
                raise InputError(
                    f"{path} is not a text file ({controls} of its {len(raw)} bytes are control characters): "
                    "take it out of the folder, or convert it to UTF-8"
                ) from None
            text = raw.decode("latin-1")
            report.latin1_files.append(name)
    return _strip_frame(text.replace("\r\n", "\n").replace("\r", "\n"), report)


def _strip_frame(text: str, report: CorpusReport) -> str:
    start, end = _GUTENBERG_START.search(text), _GUTENBERG_END.search(text)
    if start is None and end is None:
        return text
    report.framed_files += 1
    return text[start.end() if start else 0 : end.start() if end else len(text)]


def _cut(text: str, characters: int) -> Iterator[list[str]]:
    """Yield lists of paragraphs; a list is closed by the paragraph that brings it to `characters` or more."""
    paragraphs: list[str] = []
    size = 0
    for paragraph in _BLANK_LINES.split(text):
        paragraphs.append(paragraph)
        size += len(paragraph)
        if size >= characters:
            yield paragraphs
            paragraphs, size = [], 0
    if paragraphs:
        yield paragraphs


def _sentences_of(paragraphs: list[str]) -> list[str]:
    return [sentence for paragraph in paragraphs for sentence in split_sentences(paragraph)]


def split_sentences(paragraph: str) -> list[str]:
    """Return the sentences of one paragraph, white space made single blanks.

    A sentence ends at `.`, `!`, `?` or an ellipsis with its closing quotes, when white space and something that can
    begin a sentence follow (not a lower-case Latin letter); not after a known abbreviation or initial ("Mr.", "J.").
    """
    text = " ".join(paragraph.split())
    sentences = []
    begin = 0
    for match in _BOUNDARY.finditer(text):
        end = match.start(1) if match.group(1) is not None else match.end()
        if match.group(1) is not None and _is_abbreviation(text, begin, end, match.end()):
            continue
        sentences.append(text[begin:end])
        begin = match.end()
    if begin < len(text):
        sentences.append(text[begin:])
    return [sentence for sentence in sentences if any(map(str.isalnum, sentence))]


def _is_abbreviation(text: str, begin: int, end: int, next_begin: int) -> bool:
    # The longest abbreviation has 7 letters; looking at 24 characters keeps this linear.
    word = _LAST_WORD.search(text, max(begin, end - 24), end)
    if word is None:
        return False
    last = word[1].lower()
    if last in _BEFORE_NUMBERS:
        return text[next_begin : next_begin + 1].isdigit()
    return last in _ABBREVIATIONS or (len(last) == 1 and last != "i" and word[1].isupper())


def generate_corpus(folder: Path, seed: int, size_bytes: int) -> list[Path]:
    """Write a made-up text corpus of at least `size_bytes` bytes (at most a paragraph more) as `generated-<i>.txt`.

    Words are pronounceable and follow Zipf's law (frequency ~ 1 / (rank + 2)); sentences have 4 to 40 words. All draws
    are integers, so the same seed gives the same bytes on every machine. Older generated files in `folder` are removed.

    Raises:
        UsageError: fewer than 10,000 bytes are asked for, which no split into documents makes sense of.
        StorageError: the folder cannot be written.
    """
    from bert.data.generated import SMALLEST_CORPUS, documents
    from common.atomic import atomic_path

    if size_bytes < SMALLEST_CORPUS:
        raise UsageError(f"a generated corpus of {size_bytes} bytes is too small: ask for {SMALLEST_CORPUS} or more")
    files = []
    for number, text in enumerate(documents(seed, size_bytes)):
        path = folder / f"generated-{number:06d}.txt"
        with atomic_path(path) as temporary:
            temporary.write_bytes(text)
        files.append(path)
    for stale in set(folder.glob("generated-*.txt")) - set(files):
        stale.unlink()
    return files
