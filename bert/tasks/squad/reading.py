"""The published JSON of SQuAD: articles of paragraphs, each a context with its questions. Imports no torch."""

import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bert.corpus.files import refuse_other_files
from common.errors import Code, InputError
from common.reading import read_content, read_errors

MOST_BYTES = 2 * 2**30
"""Decompressed size beyond which a file is taken for something else (SQuAD 2.0's training set has 42 MB)."""
_REMEDY = "give the JSON of SQuAD 1.1 or 2.0, plain or .gz (`bertbench data download squad` gets it)"
# An unescaped quote ends a JSON string, so this is a name and nothing inside a text.
_NAME_IN_2_0 = b'"is_impossible"'
_MARK_OF_2_0 = re.compile(_NAME_IN_2_0 + rb"\s*:(?!\s*null)")
_TWO = re.compile(r"(?<![\d.])2(?![\d])")


class Answer(msgspec.Struct, gc=False):
    """A gold answer."""

    text: str
    """As written in the context."""
    answer_start: int | None = None
    """Its first character in the context, in code points."""


class Question(msgspec.Struct, gc=False):
    """A question about one context."""

    id: str
    question: str
    answers: list[Answer] | None = None
    """The gold answers, one per annotator."""
    is_impossible: bool | None = None
    """It has no answer (2.0)."""


class Paragraph(msgspec.Struct):
    """A context with its questions."""

    context: str
    qas: list[Question]


class _Article(msgspec.Struct):
    paragraphs: list[msgspec.Raw]
    title: Any = ""


class _File(msgspec.Struct):
    data: list[_Article]
    version: Any = ""


class Place(NamedTuple):
    """Position of a paragraph in its file."""

    article: int
    """Number of its article, from 1."""
    title: str
    number: int
    """Of the paragraph in its article, from 1."""

    def __str__(self) -> str:
        """Return the position in words."""
        return f"{_article_name(self.article, self.title)}, paragraph {self.number}"


@dataclass(frozen=True, slots=True)
class RawParagraph:
    """A paragraph that has not been looked at."""

    place: Place
    """Its position."""
    json: msgspec.Raw
    """Its JSON, not copied."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A file, read as far as its paragraphs."""

    path: Path
    fingerprint: str
    """Hash of its decompressed bytes."""
    version: str
    """'1.1' or '2.0', by its content."""
    paragraphs: tuple[RawParagraph, ...]
    articles: int


def check_there(path: Path) -> None:
    """Raise InputError if the file does not exist."""
    with read_errors(path, _REMEDY):
        path.stat()


def content_of(path: Path) -> bytes:
    """Return the JSON of a file, decompressed where it is gzip."""
    content = read_content(path, "SQuAD dataset", _REMEDY, MOST_BYTES, packed=True)
    refuse_other_files(path)
    return content.removeprefix(b"\xef\xbb\xbf")


def fingerprint_of_content(content: bytes) -> str:
    """Return a hash of a file's decompressed content."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def read_dataset(path: Path, version: str = "auto") -> Dataset:
    """Read a file as far as its paragraphs; `parse` reads what they hold.

    Args:
        path: JSON, or JSON in gzip.
        version: what the file must be: '1.1', '2.0', or 'auto' for either.
    """
    content = content_of(path)
    with ThreadPoolExecutor(1) as beside:
        return _read(path, content, version, beside.submit(fingerprint_of_content, content))


def _read(path: Path, content: bytes, version: str, fingerprint: Future[str]) -> Dataset:
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.ValidationError, UnicodeDecodeError) as error:
        raise InputError(_code(error, "file-format"), f"{path} is not a SQuAD file ({error}): {_REMEDY}") from error
    except msgspec.DecodeError as error:
        raise InputError("file-damaged", f"{path} is damaged or not JSON ({error}): {_REMEDY}") from error
    has_mark = _NAME_IN_2_0 in content and _MARK_OF_2_0.search(content)  # the fast search recognizes most files of 1.1
    found = "2.0" if has_mark or declares_2_0(file.version) else "1.1"
    _check_version(path, found, version)
    paragraphs = tuple(
        RawParagraph(Place(article, _title(part.title), number), raw)
        for article, part in enumerate(file.data, start=1)
        for number, raw in enumerate(part.paragraphs, start=1)
    )
    if not paragraphs:
        raise InputError("file-empty", f"{path} holds no paragraphs: {_REMEDY}")
    return Dataset(path, fingerprint.result(), found, paragraphs, len(file.data))


def declares_2_0(version: object) -> bool:
    """Return whether the `version` of a file is 2: "v2.0", "2", "SQuAD 2.0"."""
    return _TWO.search(str(version)) is not None


def together(paragraphs: Sequence[RawParagraph]) -> bytes:
    """Return paragraphs as one JSON array, which `parse` reads."""
    return b"[%s]" % b",".join(paragraph.json for paragraph in paragraphs)


def parse(path: Path, places: Sequence[Place], content: bytes) -> list[Paragraph]:
    """Return paragraphs of a file.

    Args:
        path: the file.
        places: their positions in it.
        content: a JSON array of them.

    Raises:
        InputError: a field is missing or has another type; it says where.
    """
    try:
        return msgspec.json.decode(content, type=list[Paragraph])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        for place, raw in zip(places, msgspec.json.decode(content, type=list[msgspec.Raw]), strict=True):
            _parse_alone(path, place, raw)
        raise InputError(_code(error, "file-format"), f"{path}: {error}; {_REMEDY}") from error


def _parse_alone(path: Path, place: Place, raw: msgspec.Raw) -> None:
    try:
        msgspec.json.decode(raw, type=Paragraph)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            _code(error, "rows-invalid"), f"{path}, {place}: {error}; correct the file or download it again"
        ) from error


def _check_version(path: Path, found: str, asked: str) -> None:
    if asked in ("auto", found):
        return
    if found == "2.0":
        reason = "is a file of SQuAD 2.0 (by its version or by questions with `is_impossible`), but 1.1 was requested"
    else:
        reason = "is a file of SQuAD 1.1 (no question has `is_impossible`), but 2.0 was requested"
    raise InputError("data-mismatch", f"{path} {reason}: give --squad-version {found} (or auto), or another --input")


def _code(error: Exception, otherwise: Code) -> Code:
    return "file-encoding" if isinstance(error, UnicodeDecodeError) else otherwise


def _article_name(number: int, title: str) -> str:
    return f"article {number} ({title!r})" if title else f"article {number}"


def _title(value: object) -> str:
    return value[:80] if isinstance(value, str) else ""
