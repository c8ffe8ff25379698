"""The file of GAP features: a safetensors file, mapped into memory, and a readable TSV beside it. Imports no torch."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.feature_files import SUFFIX, FeatureForm, check_ends, check_types, files_in, only_one
from bert.data.ragged import Ragged
from bert.data.rows import TokenRows
from bert.data.stages import Counts
from bert.data.tensor_file import NotWholeError, check_content, damage_code, map_columns
from bert.data.vocabulary import Vocabulary
from bert.tasks.gap.config import MENTIONS
from bert.tasks.gap.examples import LABELS
from bert.tasks.gap.features import GENDER_NAMES, MENTION_ENDS, MENTION_STARTS, GapFeatures, Settings
from common.atomic import write_text
from common.errors import InputError

SCHEMA_VERSION = 1
"""Raised when the columns change or hold other values for the same TSV and settings."""
FORM = FeatureForm("bertbench gap features", SCHEMA_VERSION, Settings, "pad_id")
"""What files of these features are known by."""
READABLE_COLUMNS = (
    *("ID", "label", "gender", "tokens"),
    *("P-first", "P-last", "A-first", "A-last", "B-first", "B-last"),
)
"""Of the TSV beside the features; P is the pronoun, positions count from 0 = [CLS]."""
_RAGGED = ("input_ids", "example_ids", "left_out")
_TYPES: dict[str, tuple[str, ...]] = {
    **{f"{name}.offsets": ("<i8",) for name in _RAGGED},
    "input_ids.values": ("<u2", "<i4"),
    "example_ids.values": ("|u1",),
    "left_out.values": ("|u1",),
    MENTION_STARTS: ("<i4",),
    MENTION_ENDS: ("<i4",),
    "labels": ("<i8",),
    "genders": ("|u1",),
}


def file_name(settings: Settings, content: str) -> str:
    """Return the name of the file: everything that changes its content; hashes have their first 8 digits."""
    casing = "uncased" if settings.lower_case else "cased"
    words = ("gap", settings.split, casing, settings.vocabulary[:8], settings.max_seq_length, content[:8])
    return "-".join(map(str, words)) + SUFFIX


def command(split: str | None = None, output: Path | None = None, max_seq_length: int | None = None) -> str:
    """Return the command that makes features; what is not known stands for itself in capitals."""
    names = {"training": "gap-development.tsv", "validation": "gap-validation.tsv", "test": "gap-test.tsv"}
    words = ["bertbench", "data", "gap", "--input", names.get(str(split), "GAP.tsv"), "--vocab", "VOCAB.txt"]
    words += ["--max-seq-length", str(max_seq_length)] if max_seq_length else []
    return shlex.join([*words, *(["--output", str(output)] if output else [])])


def write_features(path: Path, features: GapFeatures, counts: Counts) -> None:
    """Write the file, whole or not at all. Raises StorageError."""
    rows = features.rows
    narrow = np.dtype("<u2") if features.settings.vocab_size <= np.iinfo(np.uint16).max else np.dtype("<i4")
    ragged = {"input_ids": rows.ids, "example_ids": features.example_ids, "left_out": features.left_out}
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, found in ragged.items():
        kind = narrow if name == "input_ids" else np.dtype("|u1")
        columns |= {f"{name}.values": found.values.astype(kind), f"{name}.offsets": found.offsets.astype("<i8")}
    columns |= {name: rows.columns[name].astype("<i4").ravel() for name in (MENTION_STARTS, MENTION_ENDS)}
    columns |= {"labels": rows.labels.astype("<i8"), "genders": features.genders.astype("|u1")}
    parts = {name: [column] for name, column in columns.items()}
    FORM.write(path, parts, features.settings, rows.fingerprint, counts, str(rows.pad_id))


def write_readable(path: Path, features: GapFeatures, vocabulary: Vocabulary) -> Path:
    """Write the rows as a TSV beside the features `path`, tokens as pieces; return it. Raises StorageError."""
    rows = features.rows
    starts, ends = rows.columns[MENTION_STARTS], rows.columns[MENTION_ENDS] - 1
    lines = ["\t".join(READABLE_COLUMNS)]
    for number, name in enumerate(features.ids()):
        label = LABELS[int(rows.labels[number])] if rows.has_labels else ""
        gender = GENDER_NAMES[int(features.genders[number])] or ""
        tokens = " ".join(vocabulary.pieces[token] for token in rows.ids[number].tolist())
        places = np.stack([starts[number], ends[number]], axis=1).ravel().tolist()
        lines.append("\t".join([name, label, gender, tokens, *map(str, places)]))
    beside = path.with_suffix(".tsv")
    write_text(beside, "\n".join(lines) + "\n")
    return beside


def read_features(path: Path) -> GapFeatures:
    """Read a file of features: hold it against its checksum and map its columns into memory.

    Raises:
        InputError: it cannot be read, is damaged, or is something else; the message has the command that makes it.
        SchemaError: a newer version wrote it.
    """
    try:
        metadata, columns = map_columns(path)
        settings, fingerprint, _ = FORM.read(path, metadata)
        check_content(path)
        return _whole(columns, settings, fingerprint, int(metadata["pad_id"]))
    except (NotWholeError, OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def open_features(path: Path, split: str | None = None) -> GapFeatures:
    """Return the features of a file, or of a folder that holds exactly one file of a split.

    Args:
        path: the file or the folder.
        split: what they have to be for, where `path` is a folder; a file that is named is taken for what it is wanted.

    Raises:
        InputError: there are none, or several; they are damaged. The message has the command that makes them.
        SchemaError: a newer version wrote them.
    """
    file = _one_of(path, split) if path.is_dir() else path
    if not file.is_file():
        folder = file.parent if file.suffix == SUFFIX else file
        raise InputError(
            "data-unprepared", f"there are no GAP features at {path}: make them with `{command(split, folder)}`"
        )
    if file.suffix != SUFFIX:
        raise InputError(
            "data-unprepared", f"{file} holds no features: make them of a TSV of GAP with `{command(split)}`"
        )
    return read_features(file)


def features_in(folder: Path, split: str) -> list[Path]:
    """Return the files of features of a split in a folder, by name."""
    return files_in(folder, f"gap-{split}")


def _one_of(folder: Path, split: str | None) -> Path:
    what = f"GAP features for {split}" if split else "GAP features"
    return only_one(features_in(folder, split or "*"), folder, what, command(split, folder))


def _whole(columns: Mapping[str, npt.NDArray[Any]], settings: Settings, fingerprint: str, pad_id: int) -> GapFeatures:
    """Put the columns of a file together. Raises ValueError: they do not fit."""
    check_types(columns, _TYPES)
    ragged = {name: _ragged(name, columns) for name in _RAGGED}
    ids, count = ragged["input_ids"], len(ragged["input_ids"])
    mentions = {name: columns[name].reshape(-1, MENTIONS) for name in (MENTION_STARTS, MENTION_ENDS)}
    starts, ends = mentions.values()
    labels = columns["labels"]
    if len(starts) != count or len(ends) != count or len(ragged["example_ids"]) != count:
        raise ValueError("its columns have different lengths")
    inside = (starts >= 1) & (starts < ends) & (ends < ids.lengths[:, None])
    if not inside.all() or (len(labels) and not 0 <= labels.min() <= labels.max() < len(LABELS)):
        raise ValueError("its mentions or labels are none")
    if len(columns["genders"]) != count or (columns["genders"] >= len(GENDER_NAMES)).any():
        raise ValueError("its genders are none")
    try:
        rows = TokenRows(
            ids=ids,
            second=ids.lengths,
            labels=labels,
            columns={name: column.astype(np.int64) for name, column in mentions.items()},
            fingerprint=fingerprint,
            vocab_size=settings.vocab_size,
            vocabulary=settings.vocabulary,
            pad_id=pad_id,
            max_seq_length=settings.max_seq_length,
        )
    except InputError as error:
        raise ValueError(str(error)) from error
    return GapFeatures(settings, rows, ragged["example_ids"], columns["genders"], ragged["left_out"])


def _ragged(name: str, columns: Mapping[str, npt.NDArray[Any]]) -> Ragged:
    values, offsets = columns[f"{name}.values"], columns[f"{name}.offsets"]
    check_ends(name, offsets, len(values))
    return Ragged(values, offsets)


def _damaged(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else error
    return InputError(
        damage_code(error), f"{path} is not a whole file of GAP features ({reason}): make it with `{command()}`"
    )


def texts(values: Sequence[str]) -> Ragged:
    """Return texts as rows of UTF-8 bytes."""
    return Ragged.of([np.frombuffer(value.encode(), np.uint8) for value in values], np.uint8)
