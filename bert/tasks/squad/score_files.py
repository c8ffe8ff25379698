"""Files of gold answers, predictions and no-answer scores, by question id.

They are read as the official scripts do: by the standard library's parser, plain or compressed with gzip.
"""

import functools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert.tasks.squad.reading import declares_2_0
from common.errors import InputError
from common.reading import read_content

if TYPE_CHECKING:
    from bert.tasks.squad.features import SquadFeatures

MOST_BYTES = 2**30
"""Size, unpacked, beyond which a file is taken for something else (SQuAD's largest has 42 MB)."""


def read_json(path: Path, what: str, repeated: list[str] | None = None) -> Any:
    """Return the content of a JSON file; whatever Python's own parser reads is read, gzip is recognized by its bytes.

    Args:
        path: the file.
        what: what it must be, for the messages ("SQuAD dataset").
        repeated: takes the keys that an object has more than once; the last value counts.

    Raises:
        InputError: the file cannot be read, is damaged, too large or no JSON.
    """
    raw = read_content(path, what, "give a JSON file", MOST_BYTES, packed=True)
    try:
        if repeated is None:
            return json.loads(raw)
        return json.loads(raw, object_pairs_hook=functools.partial(_object, repeated=repeated))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise InputError(
            "file-damaged", f"the {what} {path} is truncated or not JSON ({where}): download or write it again"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError("file-encoding", f"the {what} {path} is not UTF-8 text: give a JSON file") from error
    except (RecursionError, ValueError) as error:
        raise InputError(
            "file-limit" if isinstance(error, RecursionError) else "file-damaged",
            f"the {what} {path} is not readable as JSON ({error}): give another file",
        ) from error


def _object(pairs: list[tuple[str, Any]], repeated: list[str]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return found


def is_dataset(content: Any) -> bool:
    """Whether the content of a JSON file looks like a dataset: {"data": [...]}."""
    return isinstance(content, Mapping) and isinstance(content.get("data"), list)


def kind_of(value: Any) -> str:
    """Name a JSON value for a message: 'null', 'a number', 'a list', ..."""
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names[type(value)]


@dataclass(frozen=True, slots=True)
class Golds:
    """The questions of a dataset in the order of the file, an id that comes twice included twice."""

    version: str
    """'1.1' or '2.0': whose rules score them."""
    ids: tuple[str, ...]
    answers: tuple[tuple[str, ...], ...]
    """Texts of each question's gold answers; none where it has no answer (2.0)."""
    notes: tuple[str, ...] = ()
    """Notes about the file, for people."""

    @property
    def duplicates(self) -> int:
        """Return how many questions have the id of an earlier one."""
        return len(self.ids) - len(set(self.ids))


def read_golds(path: Path) -> Golds:
    """Read the gold answers of a SQuAD file (JSON, also .gz).

    The rules of 2.0 hold where the file says so ("version": "v2.0") or a question has an `is_impossible`, as for
    `bertbench data squad`.
    """
    content = read_json(path, "SQuAD dataset")
    if not is_dataset(content):
        raise InputError(
            "file-format",
            f'{path} is not a SQuAD dataset, {{"data": [...]}}: give train-*.json or dev-*.json',
        )
    ids, answers, flags = [], [], []
    for question, where in _questions(content["data"], path):
        ids.append(_text(question, "id", where))
        found = _field(question, "answers", list, where)
        answers.append(tuple(_text(answer, "text", f"{where}, answer {n}") for n, answer in enumerate(found, start=1)))
        flags.append(question.get("is_impossible"))
    if not ids:
        raise InputError("file-empty", f"{path} has no questions: give a dataset with questions and answers")
    declared = declares_2_0(content.get("version", ""))
    version = "2.0" if declared or any(flag is not None for flag in flags) else "1.1"
    if version == "1.1" and (without := [name for name, found in zip(ids, answers, strict=True) if not found]):
        raise InputError(
            "labels-invalid",
            f"{path}: {len(without):,} of {len(ids):,} questions have no gold answer, the first is "
            f"{without[0][:60]!r}: "
            'the rules of 1.1 cannot score them; if this is a file of 2.0, add "version": "v2.0"',
        )
    return _with_notes(Golds(version, tuple(ids), tuple(answers)), flags, declared)


def golds_of(features: "SquadFeatures") -> Golds:
    """Return the gold answers kept beside the features of a file."""
    count = len(features.question_ids)
    ids = tuple(features.question_ids.text(number) for number in range(count))
    bounds = features.question_answers.tolist()
    answers = tuple(
        tuple(features.answers.text(row) for row in range(bounds[number], bounds[number + 1]))
        for number in range(count)
    )
    return _with_notes(Golds(features.settings.version, ids, answers), [], declared=True)


def _with_notes(golds: Golds, flags: list[Any], declared: bool) -> Golds:
    notes = []
    if golds.version == "2.0" and not declared:
        notes.append('the rules of 2.0 apply, as some questions have "is_impossible", although the file lacks "v2.0"')
    against = sum(flag is not None and bool(flag) == bool(a) for flag, a in zip(flags, golds.answers, strict=False))
    if against:
        notes.append(
            f'{against:,} question(s) have an "is_impossible" that contradicts their answers: the answers count'
        )
    if golds.duplicates:
        rule = "each is scored" if golds.version == "1.1" else "the last one counts"
        notes.append(
            f"{golds.duplicates:,} question(s) repeat the id of an earlier one: {rule}, as in the official script"
        )
    return Golds(golds.version, golds.ids, golds.answers, tuple(notes))


def _questions(articles: list[Any], path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Each question with its place: file, article, paragraph, question, counted from 1."""
    for a, article in enumerate(articles, start=1):
        of_article = f"{path}, article {a}"
        if isinstance(article, dict) and isinstance(article.get("title"), str):
            of_article += f" ({article['title'][:60]!r})"
        for p, paragraph in enumerate(_field(article, "paragraphs", list, of_article), start=1):
            of_paragraph = f"{of_article}, paragraph {p}"
            for q, question in enumerate(_field(paragraph, "qas", list, of_paragraph), start=1):
                where = f"{of_paragraph}, question {q}"
                if not isinstance(question, dict):
                    raise InputError(
                        "rows-invalid",
                        f"{where} is {kind_of(question)} instead of an object with id, question, answers",
                    )
                if isinstance(question.get("id"), str):
                    where += f" ({question['id'][:60]!r})"
                yield question, where


def _field(holder: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(holder, dict):
        raise InputError("rows-invalid", f"{where} is {kind_of(holder)} instead of an object with {name!r}")
    if name not in holder:
        raise InputError("rows-invalid", f"{where} lacks {name!r}, which scoring needs")
    if not isinstance(holder[name], kind):
        needed = "a list" if kind is list else "text"
        raise InputError("rows-invalid", f"{where}: {name!r} is {kind_of(holder[name])} instead of {needed}")
    return holder[name]


def _text(holder: Any, name: str, where: str) -> str:
    text: str = _field(holder, name, str, where)
    return text


def read_predictions(path: Path, notes: list[str] | None = None) -> dict[str, str]:
    """Read {"question id": "answer", ...}; "" means: no answer. `notes` takes what is odd about the file."""
    found = _by_question(path, "predictions", notes)
    for name, value in found.items():
        if not isinstance(value, str):
            raise InputError(
                "answers-invalid",
                f"{path}: question {name[:60]!r} has {kind_of(value)} instead of text: give predictions.json",
            )
    return found


def read_null_odds(path: Path, notes: list[str] | None = None) -> dict[str, float]:
    """Read {"question id": number, ...}: the higher, the likelier it is that the question has no answer. `notes` takes
    what is odd about the file.
    """
    found = _by_question(path, "no-answer scores", notes)
    for name, value in found.items():
        if type(value) not in (int, float) or not math.isfinite(value):
            shown = value if type(value) is float else kind_of(value)
            raise InputError(
                "answers-invalid",
                f"{path}: question {name[:60]!r} has {shown} instead of a finite number: give null_odds.json",
            )
    return found


def _by_question(path: Path, what: str, notes: list[str] | None) -> dict[str, Any]:
    repeated: list[str] = []
    content = read_json(path, f"file of {what}", repeated)
    if not isinstance(content, dict) or is_dataset(content):
        raise InputError(
            "file-format",
            f'{path} is not a file of {what}, {{"question id": ...}}: give one of predict squad',
        )
    if repeated and notes is not None:
        notes.append(
            f"{len(repeated):,} question id(s) are repeated in the {what} of {path}, {repeated[0][:60]!r} "
            "first: the last one counts, as in the official script"
        )
    return content
