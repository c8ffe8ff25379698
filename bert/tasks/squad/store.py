"""The file of features: one safetensors file, mapped into memory, and a readable JSON beside it. Imports no torch."""

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.feature_files import (
    OWN_VOCABULARY,
    SUFFIX,
    FeatureForm,
    check_ends,
    check_types,
    files_in,
    keep_notes,
    keep_vocabulary,
    only_one,
)
from bert.data.json_notes import read_notes
from bert.data.stages import Counts
from bert.data.tensor_file import NotWholeError, check_content, damage_code, map_columns
from bert.data.vocabulary import VOCABULARY_FILE, Vocabulary, load_vocabulary
from bert.tasks.squad.features import Ragged, Settings, SquadFeatures
from bert.tasks.squad.reading import content_of, fingerprint_of_content
from common.errors import InputError
from common.flags import flag

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


SCHEMA_VERSION = 1
"""Raised when the columns change or hold other values for the same dataset and settings."""
FORM = FeatureForm("bertbench squad features", SCHEMA_VERSION, Settings, "special_ids")
"""What files of these features are known by."""
_LENGTHS = ("max_seq_length", "doc_stride", "max_query_length")


def file_name(settings: Settings, dataset: str) -> str:
    """Return the name of the file: everything that changes its content; hashes have their first 8 digits."""
    words = (
        "squad",
        settings.split,
        f"v{settings.version}",
        "uncased" if settings.lower_case else "cased",
        settings.vocabulary[:8],
        settings.max_seq_length,
        settings.doc_stride,
        settings.max_query_length,
        *(("answered",) if settings.drop_unanswerable_windows else ()),
        dataset[:8],
    )
    return "-".join(map(str, words)) + SUFFIX


def command(
    split: str | None = None,
    source: Path | None = None,
    vocabulary: Path | None = None,
    output: Path | None = None,
    settings: Settings | None = None,
) -> str:
    """Return the command that makes features; what is not known stands for itself in capitals."""
    split = settings.split if settings else split
    given = "TRAIN.json" if split == "training" else "DEV.json" if split == "evaluation" else "DATASET.json"
    words = ["bertbench", "data", "squad", "--input", str(source or given), "--vocab", str(vocabulary or "VOCAB.txt")]
    words += ["--split", split] if split and source else []
    if settings is not None:
        lengths = ((field, getattr(settings, field.name)) for field in dataclasses.fields(Settings))
        for field, value in lengths:
            if field.name in _LENGTHS and value != field.default:
                words += [flag(field.name), str(value)]
        words += [] if settings.lower_case else ["--no-lower-case"]
        words += ["--drop-unanswerable-windows"] if settings.drop_unanswerable_windows else []
    words += ["--output", str(output)] if output else []
    return shlex.join(words)


def write_features(
    path: Path,
    parts: Sequence[Mapping[str, Array]],
    settings: Settings,
    fingerprint: str,
    vocabulary: Vocabulary,
    counts: Counts,
) -> None:
    """Write the file, whole or not at all. Raises StorageError."""
    special = {"pad": vocabulary.pad_id, "cls": vocabulary.cls_id, "sep": vocabulary.sep_id}
    further = json.dumps(special, sort_keys=True)
    FORM.write(path, joined(parts), settings, fingerprint, counts, further)


def write_notes(path: Path, source: Path, dataset: str, vocabulary: Path, settings: Settings, counts: Counts) -> None:
    """Write what belongs beside the file: a JSON of what it was made of, with what, and what was met; the vocabulary.

    Raises:
        InputError: the vocabulary cannot be read any more.
        StorageError: they cannot be written.
    """
    keep_vocabulary(path, vocabulary)
    state = source.stat()
    keep_notes(
        path,
        {
            "schema_version": SCHEMA_VERSION,
            "features": path.name,
            "input": str(source.resolve()),
            "input_bytes": state.st_size,
            "input_modified_ns": state.st_mtime_ns,
            "input_fingerprint": dataset,
            "vocab": str(vocabulary.resolve()),
            "settings": dataclasses.asdict(settings),
            # Sorted, as the file of features gives them back.
            "counts": dict(sorted(counts.numbers.items())),
            "examples": dict(sorted(counts.names.items())),
        },
    )


def read_features(path: Path) -> SquadFeatures:
    """Read a file of features: hold it against its checksum and map its columns into memory.

    Files of earlier versions have no checksum: of them the size alone is looked at.

    Raises:
        InputError: it cannot be read, is damaged, is something else, or its dataset has changed since; the message has
            the command that makes it.
        SchemaError: a newer version wrote it.
    """
    try:
        metadata, found = map_columns(path)
        settings, fingerprint, _ = FORM.read(path, metadata)
        special = json.loads(metadata["special_ids"])
        features = SquadFeatures(
            settings=settings,
            fingerprint=fingerprint,
            pad_id=int(special["pad"]),
            cls_id=int(special["cls"]),
            sep_id=int(special["sep"]),
            **whole(found),
        )
        check_content(path)
    except (NotWholeError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damaged(path, error) from error
    _check_dataset(path, settings)
    return features


def open_features(path: Path, split: str | None = None) -> SquadFeatures:
    """Return the features of a file, or of a folder that holds exactly one file of a split.

    Args:
        path: the file or the folder.
        split: 'training' or 'evaluation': what they have to be; None = either.

    Raises:
        InputError: there are none, several, or those of the other split; they are damaged, or their dataset has
            changed. The message has the command that makes them.
        SchemaError: a newer version wrote them.
    """
    file = _one_of(path, split) if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            "data-unprepared",
            f"there are no SQuAD features at {path}: make them with "
            f"`{command(split, output=file.parent if file.suffix == SUFFIX else file)}`",
        )
    if file.name.endswith((".json", ".json.gz")):
        made = command(split, source=file)
        raise InputError(
            "data-unprepared", f"{file} is a dataset, and features of it are needed: make them with `{made}`"
        )
    features = read_features(file)
    if split not in (None, features.settings.split):
        raise InputError(
            "data-mismatch",
            f"{file} holds features for {features.settings.split}, and those for {split} are needed: give another "
            f"file, or make them with `{command(split, output=file.parent)}`",
        )
    return features


def vocabulary_of(path: Path, settings: Settings, given: Path | None = None) -> Vocabulary:
    """Return the vocabulary that features were made with: where it lay then, beside them, or the one that is `given`.

    Args:
        path: what open_features was given.
        settings: of the features there.
        given: a vocab.txt to take in place of those.

    Raises:
        InputError: it is at none of these places, or the one that was given is another one.
    """
    file = _one_of(path, settings.split) if path.is_dir() else path
    noted = read_notes(file.with_suffix(".json")).get("vocab")
    places = [Path(noted)] if isinstance(noted, str) else []
    own = [file.with_suffix(OWN_VOCABULARY), file.with_name(VOCABULARY_FILE)]
    places = [given] if given is not None else [*places, *own]
    for place in places:
        if given is not None or place.is_file():
            found = load_vocabulary(place, settings.lower_case)
            if found.fingerprint == settings.vocabulary:
                return found
    raise InputError(
        "vocabulary-mismatch",
        f"the vocabulary that {file} was made with ({settings.vocab_size:,} pieces) is not "
        f"{' or '.join(map(str, places))}: put that vocab.txt beside the features, or make them with the one there is",
    )


def _one_of(folder: Path, split: str | None) -> Path:
    what = f"SQuAD features for {split}" if split else "SQuAD features"
    return only_one(files_in(folder, f"squad-{split or '*'}"), folder, what, command(split, output=folder))


def _remake(path: Path, settings: Settings | None = None) -> str:
    notes = read_notes(path.with_suffix(".json"))
    try:
        settings = settings or Settings(**notes["settings"])
        return command(None, Path(notes["input"]), Path(notes["vocab"]), path.parent, settings)
    except (KeyError, TypeError):
        split = next((split for split in ("training", "evaluation") if path.name.startswith(f"squad-{split}-")), None)
        return command(split, output=path.parent, settings=settings)


def _damaged(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else error
    return InputError(
        damage_code(error), f"{path} is not a whole file of SQuAD features ({reason}): make it with `{_remake(path)}`"
    )


def _check_dataset(path: Path, settings: Settings) -> None:
    """Raise InputError where the dataset lies where it lay, with another content."""
    notes = read_notes(path.with_suffix(".json"))
    source = notes.get("input")
    try:
        if not isinstance(source, str) or not Path(source).is_file():
            return
        state = Path(source).stat()
        if (state.st_size, state.st_mtime_ns) == (notes.get("input_bytes"), notes.get("input_modified_ns")):
            return
        same = fingerprint_of_content(content_of(Path(source))) == notes.get("input_fingerprint")
    except (OSError, InputError):
        same = False
    if not same:
        raise InputError(
            "data-mismatch",
            f"{path} was made of {source}, which has changed since: make it again with `{_remake(path, settings)}`, or "
            "put that file back",
        )
