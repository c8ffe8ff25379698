"""Feature files: columns in safetensors and a header, one file for each table or dataset. Imports no torch.

A file's name ends in a hash of everything its columns depend on, and it has that name only when it is whole: one that
exists is reused. Its vocabulary lies beside it as vocab.txt.
"""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bert.data.finished import Counts, fingerprint_of
from bert.data.rows import Int64, Labels, Ragged, TokenRows
from bert.data.vocabulary import VOCABULARY_FILE, Vocabulary, load_vocabulary, vocabulary_notes
from common.atomic import remove_left_overs, write_bytes
from common.errors import InputError, SchemaError, UsageError, read_code
from common.locks import locked

SUFFIX = ".safetensors"
VERSION = 2
"""Raised when the columns of a task change or hold other values for the same content and settings."""
_HEADER = "bertbench features"
"""Name of the one metadatum: safetensors does not keep the order of several."""
_MOST_NAMES = 5

Columns = Mapping[str, npt.NDArray[Any]]
Make = Callable[[], tuple[Columns, Counts]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureSettings:
    """Everything features depend on besides the content they were made of. Those of a task inherit these fields."""

    split: str
    """What they are for."""
    lower_case: bool
    """Text is lowercased and accents are stripped before it is cut into pieces."""
    vocabulary: str
    """Vocabulary.fingerprint."""
    vocab_size: int
    pad_id: int
    """Id of [PAD]."""
    max_seq_length: int
    """Maximum tokens of a row."""

    @property
    def kind(self) -> str:
        """The words that a file's name begins with, task and split first."""
        raise NotImplementedError

    @property
    def lengths(self) -> tuple[object, ...]:
        """The lengths in a file's name."""
        return (self.max_seq_length,)


def vocabulary_settings(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the settings that follow from a vocabulary."""
    return {
        "lower_case": vocabulary.lower_case,
        "vocabulary": vocabulary.fingerprint,
        "vocab_size": len(vocabulary.pieces),
        "pad_id": vocabulary.pad_id,
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Result of a preparation for one source."""

    input: Path
    features: Path
    settings: FeatureSettings
    kept: bool
    """Whether it was finished before."""
    counts: Counts
    seconds: float
    notes: tuple[str, ...]
    """Notes about the data."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self), default=str))
        return {**plain, "counts": self.counts.numbers, "examples": self.counts.names}


def prepare_features(
    folder: Path,
    settings: FeatureSettings,
    source: Path,
    content: str,
    vocab: Path,
    vocabulary: Vocabulary,
    make: Make,
) -> Summary:
    """Make a file of features, unless it is finished, and sum up.

    One preparation at a time is at work in a folder, others wait. `content` is the hash of the `source`. The file
    `vocab` is copied into the folder. Raises InputError (it holds features of another vocabulary), StorageError.
    """
    began = time.monotonic()
    values = dataclasses.asdict(settings)
    fingerprint = fingerprint_of(settings.kind, VERSION, values, content)
    casing = "uncased" if settings.lower_case else "cased"
    words = (settings.kind, casing, settings.vocabulary[:8], *settings.lengths, fingerprint[:8])
    path = folder / ("-".join(map(str, words)) + SUFFIX)
    with locked(folder, "another preparation", "wait for it, or give another --output", wait=True):
        kept = path.is_file()
        if kept:
            counts = read_features(path).counts
        else:
            remove_left_overs(folder)
            _keep_vocabulary(folder / VOCABULARY_FILE, vocab)
            columns, counts = make()
            header = {
                "version": VERSION,
                "kind": settings.kind,
                "settings": values,
                "fingerprint": fingerprint,
                "counts": dataclasses.asdict(counts),
                "source": str(source.resolve()),
            }
            write_bytes(path, packed(columns, {_HEADER: json.dumps(header, sort_keys=True)}))
    return Summary(
        input=source,
        features=path,
        settings=settings,
        kept=kept,
        counts=counts,
        seconds=time.monotonic() - began,
        notes=(*left_out_notes(counts), *vocabulary_notes(vocabulary, counts.numbers)),
    )


def _keep_vocabulary(place: Path, vocab: Path) -> None:
    content = vocab.read_bytes()
    if not place.exists():
        write_bytes(place, content)
    elif place.read_bytes() != content:
        raise InputError("folder-occupied", f"{place} is another vocabulary than {vocab}: give another --output")


def left_out_notes(counts: Counts) -> list[str]:
    """Return what was left out, by reason: how many and the first few."""
    return [
        f"{count:,} {name}, such as {'; '.join(counts.names.get(name, []))}"
        for name, count in counts.numbers.items()
        if name.startswith("left out") and count
    ]


def packed(columns: Columns, metadata: dict[str, str] | None = None) -> bytes:
    """Return what a file of columns holds."""
    return save({name: np.ascontiguousarray(column) for name, column in columns.items()}, metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureFile:
    """A file of features: what its header says, and its columns."""

    path: Path
    version: int
    kind: str
    """Such as squad-training-v1.1."""
    settings: dict[str, Any]
    """The fields of a FeatureSettings."""
    fingerprint: str
    """Hash of version, settings and content."""
    counts: Counts
    source: str
    """The file or data set it was made of."""
    columns: Columns

    def ragged(self, name: str) -> Ragged:
        """Return a column of rows of different lengths."""
        return Ragged(self.columns[f"{name}.values"], self.columns[f"{name}.offsets"])

    def token_rows(self, ids: str, second: Int64 | None = None, columns: Columns | None = None) -> TokenRows:
        """Return the rows of word pieces of the column `ids`, with their labels; without `second` each is one text."""
        pieces = self.ragged(ids)
        labels: Labels = self.columns["labels"]
        about = {name: self.settings[name] for name in ("vocab_size", "vocabulary", "pad_id", "max_seq_length")}
        begins = pieces.lengths if second is None else second
        return TokenRows(
            ids=pieces, second=begins, labels=labels, columns=columns or {}, fingerprint=self.fingerprint, **about
        )


@dataclass(frozen=True, slots=True)
class RowFeatures:
    """A file of features, and its rows."""

    file: FeatureFile
    rows: TokenRows


def features_in(folder: Path, kind: str) -> list[Path]:
    """Return the files of a kind in a folder, by name."""
    return sorted(folder.glob(f"{kind}-*{SUFFIX}"))


def find_features(path: Path, *kinds: str) -> Path:
    """Return a file, or the one file that a folder holds of the first of these kinds that it has any of.

    Kinds are what its name begins with, patterns such as glue-*-train. Raises InputError: there is none, or several.
    """
    files = [path] if path.is_file() else next(filter(None, (features_in(path, kind) for kind in kinds)), [])
    if not files:
        raise InputError("data-unprepared", f"{path} holds no {' or '.join(kinds)} features: {_remedy(kinds)}")
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:_MOST_NAMES])
        raise InputError("data-ambiguous", f"{path} holds {len(files)} files of them: give one, or a --task: {names}")
    return files[0]


def read_features(path: Path, *kinds: str) -> FeatureFile:
    """Read a file as `find_features` finds it.

    Raises InputError (there is none, it is damaged, or of another kind; any will do where none is given), SchemaError.
    """
    place = find_features(path, *kinds)
    try:
        with safe_open(place, "numpy") as file:
            header = json.loads((file.metadata() or {}).get(_HEADER, "null"))
            columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        code = read_code(error) if isinstance(error, OSError) else "file-damaged"
        raise InputError(code, f"{place} holds no whole features ({error}): {_remedy(kinds)}") from error
    if header is None:
        raise InputError("file-format", f"{place} holds no features: {_remedy(kinds)}")
    version, kind = header["version"], header.get("kind")
    if version != VERSION:
        problem = f"{place} has version {version}, this bertbench reads {VERSION}"
        raise SchemaError("record-version", f"{problem}: {_remedy(kinds)}")
    if kinds and not any(fnmatch(f"{kind}-", f"{wanted}-*") for wanted in kinds):
        raise InputError("data-mismatch", f"{place} holds {kind} features, not {' or '.join(kinds)}: {_remedy(kinds)}")
    return FeatureFile(path=place, columns=columns, **{**header, "counts": Counts(**header["counts"])})


def describe(path: Path) -> dict[str, Any]:
    """Return the header of a features file and the types and sizes of its columns; raises as `read_features` does."""
    file = read_features(path)
    columns = {name: f"{column.dtype} {list(column.shape)}" for name, column in sorted(file.columns.items())}
    plain = {**dataclasses.asdict(dataclasses.replace(file, columns={})), "columns": columns}
    return {"file": str(plain.pop("path")), **plain, "counts": file.counts.numbers}


def _remedy(kinds: Sequence[str]) -> str:
    task = kinds[0].partition("-")[0] if kinds else "TASK"
    return f"create them with `bertbench data {task} --input INPUT --vocab VOCAB.txt`"


def made_of(path: Path, kind: str) -> Path | None:
    """Return what features were made of, a file or a folder with those of a kind; None if that no longer exists."""
    source = Path(read_features(path, kind).source)
    return source if source.is_file() else None


def vocabulary_of(path: Path, settings: FeatureSettings, given: Path | None = None) -> Vocabulary:
    """Return the vocabulary that a file or folder of features was made with: the one beside them, or the one `given`.

    Raises InputError: there is none, or it is another one.
    """
    place = given or (path if path.is_dir() else path.parent) / VOCABULARY_FILE
    vocabulary = load_vocabulary(place, settings.lower_case)
    if vocabulary.fingerprint != settings.vocabulary:
        raise InputError("vocabulary-mismatch", f"{place} is not the vocabulary of {path}: give --vocab")
    return vocabulary


# What the `data` commands of tasks share.


def check_inputs(inputs: Sequence[Path], split: str | None, what: str) -> None:
    """Refuse no input, and one split for several; `what` is an --input that is meant, in words."""
    if not inputs:
        raise UsageError("option-missing", f"give --input {what}")
    if split is not None and len(inputs) > 1:
        raise UsageError("option-conflict", f"--split {split} needs one --input, not {len(inputs)}")


def split_by_name(path: Path, splits: Mapping[str, Sequence[str]]) -> str:
    """Return what a file is for by its name; `splits` are the words that tell each of them."""
    matches = [split for split, words in splits.items() if any(word in path.name.lower() for word in words)]
    if len(matches) == 1:
        return matches[0]
    options = " or ".join(f"--split {split}" for split in splits)
    split = " and ".join(matches) or "nothing"
    raise UsageError("option-missing", f"the name {path.name} says {split} about the split: give {options}")
