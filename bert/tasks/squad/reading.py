"""SQuAD's JSON, and files of answers by question id. Imports no torch."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from common.errors import Code, InputError
from common.reading import read_content

_REMEDY = "give the JSON of SQuAD 1.1 or 2.0, plain or .gz"
Value = TypeVar("Value", str, float)


class Answer(msgspec.Struct, gc=False):
    """A gold answer."""

    text: str
    answer_start: int | None = None
    """Its first character in the context, in code points."""


class Question(msgspec.Struct, gc=False):
    """A question about one context."""

    id: str
    question: str = ""
    answers: list[Answer] = []
    """One per annotator."""
    is_impossible: bool | None = None
    """It has no answer (2.0)."""


class Paragraph(msgspec.Struct):
    """A context with its questions."""

    context: str
    qas: list[Question]


class _Article(msgspec.Struct):
    paragraphs: list[Paragraph]


class _File(msgspec.Struct):
    data: list[_Article]
    version: str | float = ""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A file of questions."""

    path: Path
    fingerprint: str
    """Hash of its decompressed bytes."""
    version: str
    """'1.1' or '2.0'."""
    paragraphs: list[Paragraph]


@dataclass(frozen=True, slots=True)
class Golds:
    """The questions of a dataset in the order of the file, an id that comes twice included twice."""

    version: str
    """'1.1' or '2.0': whose rules score them."""
    ids: Sequence[str]
    answers: Sequence[Sequence[str]]
    """Texts of each question's gold answers; none where it has no answer (2.0)."""

    def __post_init__(self) -> None:
        """Refuse questions that cannot be scored."""
        if self.version == "1.1" and (without := sum(not texts for texts in self.answers)):
            raise InputError(
                "labels-invalid",
                f"{without:,} of {len(self.ids):,} questions have no gold answer, which SQuAD 1.1 needs: give others",
            )


def read_dataset(path: Path, version: str = "auto") -> Dataset:
    """Read a file of SQuAD, JSON or JSON in gzip, of this version or, for 'auto', of either.

    It is of 2.0 where it says so ("version": "v2.0") or a question has an `is_impossible`. Raises InputError.
    """
    content, file = _read(path, _File, _REMEDY)
    paragraphs = [paragraph for article in file.data for paragraph in article.paragraphs]
    if not paragraphs:
        raise InputError("file-empty", f"{path} holds no paragraphs: {_REMEDY}")
    flagged = any(question.is_impossible is not None for one in paragraphs for question in one.qas)
    found = "2.0" if flagged or str(file.version).removeprefix("v").startswith("2") else "1.1"
    if version not in ("auto", found):
        raise InputError("data-mismatch", f"{path} is SQuAD {found}, not {version}: give --squad-version {found}")
    return Dataset(path, hashlib.blake2b(content, digest_size=16).hexdigest(), found, paragraphs)


def read_golds(path: Path) -> Golds:
    """Read the gold answers of a file of SQuAD; raises as `read_dataset` does."""
    dataset = read_dataset(path)
    questions = [question for paragraph in dataset.paragraphs for question in paragraph.qas]
    if not questions:
        raise InputError("file-empty", f"{path} holds no questions: {_REMEDY}")
    answers = [[answer.text for answer in question.answers] for question in questions]
    return Golds(dataset.version, [question.id for question in questions], answers)


def read_answers(path: Path, kind: type[Value]) -> dict[str, Value]:
    """Read {"question id": value, ...}, JSON or JSON in gzip; of an id that comes twice the last value counts. Values
    are str for answers, "" being none, or float for no-answer scores."""
    remedy = f'give {{"question id": {"answer" if kind is str else "no-answer score"}}}'
    values: dict[str, Value] = _read(path, dict[str, kind], remedy)[1]  # type: ignore[valid-type]
    return values


def _read(path: Path, kind: Any, remedy: str) -> tuple[bytes, Any]:
    content = read_content(path, "file of SQuAD", remedy, packed=True).removeprefix(b"\xef\xbb\xbf")
    try:
        return content, msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        code: Code = "file-format" if isinstance(error, msgspec.ValidationError) else "file-damaged"
        raise InputError(code, f"cannot read {path} ({error}): {remedy}") from error
