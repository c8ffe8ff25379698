"""How the parts of a file become whole columns, and these the features. Imports no torch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.feature_files import check_ends, check_types
from bert.tasks.squad.features import Ragged

Array = npt.NDArray[Any]

RAGGED = (
    "contexts",
    "tokens",
    "question_ids",
    "questions",
    "queries",
    "answers",
    "input_ids",
    "max_context",
)
"""Rows of different lengths: NAME.values and NAME.rows (lengths) in a part, NAME.offsets in a file."""
PLAIN = ("token_words", "impossible", "window_first", "window_tokens", "start_positions", "end_positions")
NUMBERING = {"question_context": "contexts.rows", "window_question": "question_windows"}
"""Numbers that count from 0 in each part -> the column with one row for each thing that is numbered."""
COUNTED = ("question_answers", "question_windows")
"""How many there are in a part; where each one's begin, and the end of the last, in a file."""
TYPES: dict[str, tuple[str, ...]] = {
    **{f"{name}.offsets": ("<i8",) for name in RAGGED},
    **{f"{name}.values": ("|u1",) for name in ("contexts", "question_ids", "questions", "answers", "max_context")},
    **{f"{name}.values": ("<u2", "<i4") for name in ("tokens", "queries", "input_ids")},
    **dict.fromkeys(COUNTED, ("<i8",)),
    **dict.fromkeys((*PLAIN, *NUMBERING), ("<i4",)),
    "impossible": ("|b1",),
}
"""Columns of a file -> the types they may have."""


def joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, list[Array]]:
    """Return the columns of a file, each as the parts it consists of.

    Args:
        parts: at least one, in order.
    """
    found: dict[str, list[Array]] = {}
    for name in RAGGED:
        found[f"{name}.values"] = [part[f"{name}.values"] for part in parts]
        found[f"{name}.offsets"] = [offsets([part[f"{name}.rows"] for part in parts])]
    for name in PLAIN:
        found[name] = [part[name] for part in parts]
    for name, numbered in NUMBERING.items():
        before = np.cumsum([0, *(len(part[numbered]) for part in parts)])
        found[name] = [part[name] + np.int32(start) for part, start in zip(parts, before[:-1], strict=True)]
    for name in COUNTED:
        found[name] = [offsets([part[name] for part in parts])]
    return found


def offsets(lengths: Sequence[Array]) -> npt.NDArray[np.int64]:
    """Return where rows of these lengths begin, and the end of the last."""
    return np.concatenate([[0], np.cumsum(np.concatenate(lengths), dtype=np.int64)])


def whole(columns: Mapping[str, Array]) -> dict[str, Any]:
    """Return the columns of a file as the fields of SquadFeatures. Raises ValueError: they do not fit together."""
    check_types(columns, TYPES)
    ragged = {name: Ragged(columns[f"{name}.values"], columns[f"{name}.offsets"]) for name in RAGGED}
    for name, rows in ragged.items():
        check_ends(name, rows.offsets, len(rows.values))
    questions, windows = len(columns["question_context"]), len(columns["window_question"])
    ends = {"question_answers": len(ragged["answers"]), "question_windows": windows}
    for name in COUNTED:
        check_ends(name, columns[name], ends[name])
    rows_of = (
        (len(ragged["contexts"]), (len(ragged["tokens"]),)),
        (len(columns["tokens.values"]), (len(columns["token_words"]),)),
        (
            questions,
            (
                *(len(ragged[name]) for name in ("question_ids", "questions", "queries")),
                *(len(columns[name]) - 1 for name in COUNTED),
                len(columns["impossible"]),
            ),
        ),
        (
            windows,
            (
                *(len(ragged[name]) for name in ("input_ids", "max_context")),
                *(len(columns[name]) for name in ("window_first", "window_tokens", "start_positions", "end_positions")),
            ),
        ),
    )
    if any(rows != count for count, every in rows_of for rows in every):
        raise ValueError("its columns have different lengths")
    _check_numbers("question_context", columns["question_context"], len(ragged["contexts"]))
    _check_numbers("window_question", columns["window_question"], questions)
    return {**ragged, **{name: columns[name] for name in (*PLAIN, *NUMBERING, *COUNTED)}}


def _check_numbers(name: str, numbers: Array, count: int) -> None:
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < count:
        raise ValueError(f"{name} names what is not there")
