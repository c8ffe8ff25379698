"""SQuAD's JSON, and files of answers by question id. Imports no torch."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from common.errors import Code, InputError
from common.reading import read_content

if TYPE_CHECKING:
    from bert.tasks.squad.features import SquadFeatures

MOST_BYTES = 2 * 2**30
"""Decompressed size beyond which a file is taken for something else (SQuAD 2.0's training set has 42 MB)."""
_REMEDY = "give the JSON of SQuAD 1.1 or 2.0, plain or .gz (`bertbench data download squad` gets it)"
Value = TypeVar("Value", str, float)


class Answer(msgspec.Struct, gc=False):
    """A gold answer."""

    text: str
    """As written in the context."""
    answer_start: int | None = None
    """Its first character in the context, in code points."""


class Question(msgspec.Struct, gc=False):
    """A question about one context."""

    id: str
    question: str = ""
    answers: list[Answer] = []
    """The gold answers, one per annotator."""
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


def read_dataset(path: Path, version: str = "auto") -> Dataset:
    """Read a file of SQuAD, JSON or JSON in gzip.

    It is of 2.0 where it says so ("version": "v2.0") or a question has an `is_impossible`.

    Args:
        path: the file.
        version: what it must be: '1.1', '2.0', or 'auto' for either.

    Raises:
        InputError: it cannot be read, is no SQuAD, or of another version.
    """
    content = _content(path)
    file = _decoded(path, content, _File, "SQuAD's JSON", _REMEDY)
    paragraphs = [paragraph for article in file.data for paragraph in article.paragraphs]
    if not paragraphs:
        raise InputError("file-empty", f"{path} holds no paragraphs: {_REMEDY}")
    flagged = any(question.is_impossible is not None for one in paragraphs for question in one.qas)
    found = "2.0" if flagged or str(file.version).removeprefix("v").startswith("2") else "1.1"
    if version not in ("auto", found):
        raise InputError("data-mismatch", f"{path} is SQuAD {found}, not {version}: give --squad-version {found}")
    return Dataset(path, hashlib.blake2b(content, digest_size=16).hexdigest(), found, paragraphs)


@dataclass(frozen=True, slots=True)
class Golds:
    """The questions of a dataset in the order of the file, an id that comes twice included twice.

    Raises:
        InputError: a question of 1.1 has no gold answer.
    """

    version: str
    """'1.1' or '2.0': whose rules score them."""
    ids: Sequence[str]
    answers: Sequence[Sequence[str]]
    """Texts of each question's gold answers; none where it has no answer (2.0)."""

    def __post_init__(self) -> None:
        """Refuse questions that cannot be scored."""
        if self.version == "1.1" and (without := sum(not found for found in self.answers)):
            raise InputError(
                "labels-invalid",
                f"{without:,} of {len(self.ids):,} questions have no gold answer, which SQuAD 1.1 cannot score: give a "
                'dataset with answers, or "version": "v2.0" in it',
            )


def read_golds(path: Path) -> Golds:
    """Read the gold answers of a file of SQuAD; raises as `read_dataset` does."""
    dataset = read_dataset(path)
    questions = [question for paragraph in dataset.paragraphs for question in paragraph.qas]
    if not questions:
        raise InputError("file-empty", f"{path} holds no questions: {_REMEDY}")
    answers = [[answer.text for answer in question.answers] for question in questions]
    return Golds(dataset.version, [question.id for question in questions], answers)


def golds_of(features: "SquadFeatures", numbers: Sequence[int] | None = None) -> Golds:
    """Return the gold answers kept beside the features of questions: of those with these numbers, or of all."""
    ids, texts, bounds = features.question_ids.texts(), features.answers.texts(), features.question_answers.tolist()
    chosen = range(len(ids)) if numbers is None else numbers
    answers = [texts[bounds[number] : bounds[number + 1]] for number in chosen]
    return Golds(features.settings.version, [ids[number] for number in chosen], answers)


def read_answers(path: Path, kind: type[Value]) -> dict[str, Value]:
    """Read {"question id": value, ...}, JSON or JSON in gzip; of an id that comes twice the last value counts.

    Args:
        path: the file.
        kind: str for answers, "" being none; float for no-answer scores.
    """
    values: dict[str, Value] = _decoded(
        path,
        _content(path),
        dict[str, kind],  # type: ignore[valid-type]
        f'{{"question id": {"answer" if kind is str else "no-answer score"}}}',
        "give a file of `bertbench predict squad`",
    )
    return values


def _content(path: Path) -> bytes:
    return read_content(path, "file of SQuAD", _REMEDY, MOST_BYTES, packed=True).removeprefix(b"\xef\xbb\xbf")


def _decoded(path: Path, content: bytes, kind: Any, what: str, remedy: str) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        code: Code = "file-format" if isinstance(error, msgspec.ValidationError) else "file-damaged"
        raise InputError(code, f"{path} is not {what} ({error}): {remedy}") from error
