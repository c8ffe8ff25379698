"""Files of predictions and of no-answer scores, by question id."""

import math
from pathlib import Path
from typing import Any

from bert.tasks.squad.json_file import is_dataset, kind_of, read_json
from common.errors import InputError

_REMEDY = "one answer text per question id is needed: give predictions.json"


def read_predictions(path: Path, notes: list[str] | None = None) -> dict[str, str]:
    """Read {"question id": "answer", ...}; "" means: no answer. `notes` takes what is odd about the file.

    Raises:
        InputError: the file cannot be read, or is something else; the message names the id.
    """
    found = _object(path, "predictions", notes)
    for name, value in found.items():
        if isinstance(value, str):
            continue
        if _is_n_best(value):
            raise InputError(
                "file-format", f"{path} is a file of n-best lists (question {name[:60]!r} has a list): {_REMEDY}"
            )
        if all(type(other) in (int, float) for other in found.values()):
            raise InputError(
                "file-format",
                f"{path} holds numbers (question {name[:60]!r} has {value!r}), as null_odds.json does: {_REMEDY}, "
                "and the numbers as --na-prob",
            )
        raise InputError(
            "answers-invalid",
            f"{path}: the prediction of question {name[:60]!r} is {kind_of(value)}, not text; {_REMEDY}",
        )
    return found


def read_null_odds(path: Path, notes: list[str] | None = None) -> dict[str, float]:
    """Read {"question id": number, ...}: the higher, the likelier it is that the question has no answer. `notes` takes
    what is odd about the file.

    Raises:
        InputError: the file cannot be read, is something else, or a number is not finite; the message names the id.
    """
    found = _object(path, "no-answer scores", notes)
    for name, value in found.items():
        if type(value) not in (int, float):
            raise InputError(
                "answers-invalid",
                f"{path}: question {name[:60]!r} has {kind_of(value)}, needed is one number per question id: "
                "give null_odds.json",
            )
        if not math.isfinite(value):
            raise InputError(
                "answers-invalid",
                f"{path}: question {name[:60]!r} has {value}, needed are finite numbers: predict again",
            )
    return found


def _object(path: Path, what: str, notes: list[str] | None) -> dict[str, Any]:
    repeated: list[str] = []
    content = read_json(path, f"file of {what}", repeated)
    if is_dataset(content):
        raise InputError("file-format", f"{path} is a SQuAD dataset, not a file of {what}: give it as --dataset")
    if not isinstance(content, dict):
        raise InputError(
            "file-format", f'{path} holds {kind_of(content)}, needed is {{"question id": ...}}: give a file of {what}'
        )
    if repeated and notes is not None:
        notes.append(
            f"{len(repeated):,} question id(s) stand several times among the {what} of {path}, {repeated[0][:60]!r} "
            "first: the last one counts, as in the official script"
        )
    return content


def _is_n_best(value: Any) -> bool:
    return (
        isinstance(value, list) and bool(value) and all(isinstance(entry, dict) and "text" in entry for entry in value)
    )
