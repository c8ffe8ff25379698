"""Files of GLUE features: safetensors, mapped into memory, with a readable JSON beside each. Imports no torch."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.feature_files import SUFFIX, FeatureForm, check_ends, check_types, files_in, keep_notes, only_one
from bert.data.ragged import Ragged
from bert.data.rows import TokenRows
from bert.data.stages import Counts
from bert.data.tensor_file import NotWholeError, check_content, damage_code, map_columns
from bert.tasks.glue.features import DEFAULT_MAX_SEQ_LENGTH, GlueFeatures, Settings
from bert.tasks.glue.tasks import TASKS, TRAIN
from common.errors import InputError, UsageError

SCHEMA_VERSION = 1
"""Raised when the columns change or hold other values for the same table and settings."""
FORM = FeatureForm("bertbench glue features", SCHEMA_VERSION, Settings, "pad_id")
"""What files of these features are known by."""
_TYPES = {
    "ids.values": ("<u2", "<i4"),
    "ids.offsets": ("<i8",),
    "second": ("<i8",),
    "labels": ("<i8", "<f4"),
    "index": ("<i8",),
}


def file_name(settings: Settings, table: str) -> str:
    """Return the name of the file: everything that changes its content; hashes have their first 8 digits."""
    casing = "uncased" if settings.lower_case else "cased"
    words = (settings.split, casing, settings.vocabulary[:8], settings.max_seq_length, table[:8])
    return "-".join(map(str, ("glue", settings.task, *words))) + SUFFIX


def command(task: str | None = None, output: Path | None = None, max_seq_length: int | None = None) -> str:
    """Return the command that makes features; what is not known stands for itself in capitals."""
    words = ["bertbench", "data", "glue", "--task", task or "TASK", "--input", "FOLDER", "--vocab", "VOCAB.txt"]
    if max_seq_length not in (None, DEFAULT_MAX_SEQ_LENGTH):
        words += ["--max-seq-length", str(max_seq_length)]
    return shlex.join([*words, *(["--output", str(output)] if output else [])])


def write_features(
    path: Path,
    columns: Mapping[str, Sequence[npt.NDArray[Any]]],
    settings: Settings,
    fingerprint: str,
    pad_id: int,
    counts: Counts,
) -> None:
    """Write the file, whole or not at all. Raises StorageError."""
    FORM.write(path, columns, settings, fingerprint, counts, str(pad_id))


def write_notes(path: Path, source: Path, vocabulary: Path, settings: Settings, counts: Counts) -> None:
    """Write a JSON beside the file, unless it is there: what it was made of, with what, and what was met.

    Raises:
        StorageError: it cannot be written.
    """
    notes = {
        "schema_version": SCHEMA_VERSION,
        "features": path.name,
        "table": str(source),
        "vocab": str(vocabulary.resolve()),
        "settings": dataclasses.asdict(settings),
        # Sorted, as the file of features gives them back.
        "counts": dict(sorted(counts.numbers.items())),
        "examples": dict(sorted(counts.names.items())),
    }
    keep_notes(path, notes)


def read_features(path: Path) -> GlueFeatures:
    """Read a file of features: hold it against its checksum and map its columns into memory.

    Raises:
        InputError: it cannot be read, is damaged, or is something else; the message has the command that makes it.
        SchemaError: a newer version wrote it.
    """
    try:
        metadata, columns = map_columns(path)
        settings, fingerprint, _ = _metadata(path, metadata)
        features = _features(settings, fingerprint, int(metadata["pad_id"]), columns)
        check_content(path)
    except (NotWholeError, OSError, ValueError, KeyError, TypeError, InputError) as error:
        raise _damaged(path, error) from error
    return features


def open_features(path: Path, splits: Sequence[str], task: str | None = None) -> GlueFeatures:
    """Return the features of a file, or of a folder that holds exactly one file of a task and split.

    Args:
        path: the file or the folder.
        splits: what they may be of; in a folder the first of them that there is.
        task: whose they have to be; None = any.

    Raises:
        InputError: there are none, several, or those of another task or split, or they are damaged. The message has
            the command that makes them.
        SchemaError: a newer version wrote them.
    """
    file = find_features(path, splits, task) if path.is_dir() else path
    if not file.is_file():
        made = command(task, file.parent if file.suffix == SUFFIX else file)
        raise InputError("data-unprepared", f"there are no GLUE features at {path}: make them with `{made}`")
    if file.name.endswith((".tsv", ".tsv.gz")):
        raise InputError(
            "data-unprepared", f"{file} is a table, and features of it are needed: make them with `{command(task)}`"
        )
    features = read_features(file)
    settings = features.settings
    if task not in (None, settings.task):
        raise InputError(
            "data-mismatch",
            f"{file} holds features of {settings.task}, and {task} was asked for: give --task {settings.task}, or make "
            f"others with `{command(task, file.parent)}`",
        )
    if settings.split not in splits:
        raise InputError(
            "data-mismatch",
            f"{file} holds features of the split {settings.split}, and those of {' or '.join(splits)} are needed: give "
            f"another file, or make them with `{command(settings.task, file.parent)}`",
        )
    return features


def find_features(folder: Path, splits: Sequence[str], task: str | None = None) -> Path:
    """Return the file of a task in a folder, of the first split that is there. Raises InputError: none, or several."""
    for split in splits:
        if found := files_in(folder, f"glue-{task or '*'}-{split}"):
            what = f"GLUE features for {split}"
            return only_one(found, folder, what, command(task, folder), "" if task else ", or --task")
    what = f"GLUE features of {task or 'any task'} for {' or '.join(splits)}"
    others = [split for split in TASKS[task].splits if files_in(folder, f"glue-{task}-{split}")] if task else []
    if task is not None and others:
        tables = " or ".join(f"{TASKS[task].folder}/{split}.tsv" for split in splits)
        raise InputError(
            "data-missing",
            f"{folder} holds no {what}, only for {', '.join(others)}: `bertbench data glue` found no table {tables}; "
            f"put it there and make them with `{command(task, folder)}`",
        )
    return only_one([], folder, what, command(task, folder))


def find_all(folder: Path, task: str | None = None) -> list[Path]:
    """Return the files of a task in a folder that are not of its training table, in the order of its splits.

    Args:
        folder: where to look.
        task: whose; None where there is only one.

    Raises:
        InputError: there are none, of several tasks, or several of one split.
    """
    tasks = sorted({path.name.split("-")[1] for path in folder.glob(f"glue-*{SUFFIX}")} & TASKS.keys())
    if task is None and len(tasks) > 1:
        raise InputError(
            "data-ambiguous", f"{folder} holds features of {', '.join(tasks)}: say with --task which are meant"
        )
    names = [task] if task is not None else tasks
    splits = [(name, split) for name in names for split in TASKS[name].splits if split != TRAIN]
    found = [
        find_features(folder, (split,), name) for name, split in splits if files_in(folder, f"glue-{name}-{split}")
    ]
    if not found:
        raise InputError(
            "data-unprepared",
            f"{folder} holds no GLUE features of {task or 'any task'} to predict: make them with "
            f"`{command(task, folder)}`",
        )
    return found


def training_splits(split: str, task: str | None = None) -> tuple[str, ...]:
    """Return the splits that serve for 'training' or 'evaluation', of a task or of any."""
    if split == "training":
        return (TRAIN,)
    return TASKS[task].evaluations if task is not None else ("dev", "dev_matched", "dev_mismatched")


def _features(
    settings: Settings, fingerprint: str, pad_id: int, columns: Mapping[str, npt.NDArray[Any]]
) -> GlueFeatures:
    """Raise ValueError or InputError where the columns do not fit together."""
    check_types(columns, _TYPES)
    offsets = columns["ids.offsets"]
    check_ends("ids", offsets, len(columns["ids.values"]))
    spec, labels = settings.spec, columns["labels"]
    if (labels.dtype == np.float32) != spec.is_regression or len(columns["index"]) != len(offsets) - 1:
        raise ValueError("its labels or index do not fit")
    if len(labels) and not spec.is_regression and not 0 <= int(labels.min()) <= int(labels.max()) < spec.labels:
        raise ValueError("a label is no class")
    rows = TokenRows(
        ids=Ragged(columns["ids.values"], offsets),
        second=columns["second"],
        labels=labels,
        fingerprint=fingerprint,
        vocab_size=settings.vocab_size,
        vocabulary=settings.vocabulary,
        pad_id=pad_id,
        max_seq_length=settings.max_seq_length,
    )
    return GlueFeatures(settings, rows, columns["index"])


def _metadata(path: Path, metadata: Mapping[str, str]) -> tuple[Settings, str, Counts]:
    """As FeatureForm.read; raises NotWholeError too where the task has no such split."""
    settings, fingerprint, counts = FORM.read(path, metadata)
    try:
        known = settings.split in settings.spec.splits
    except UsageError as error:
        raise NotWholeError("file-damaged", f"its metadata are damaged: {error}") from error
    if not known:
        raise NotWholeError("file-damaged", f"its metadata are damaged: {settings.task} has no split {settings.split}")
    return settings, fingerprint, counts


def _damaged(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else error
    name = path.name.split("-")
    task = name[1] if len(name) > 2 and name[0] == "glue" and name[1] in TASKS else None
    made = command(task, path.parent)
    return InputError(
        damage_code(error), f"{path} is not a whole file of GLUE features ({reason}): make it with `{made}`"
    )
