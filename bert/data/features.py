"""Feature files, one for each table or dataset: write, find, open, check and resume them. Imports no torch.

Each is a safetensors file of columns whose metadata say what it was made of and with, in a folder with its vocabulary
and a JSON beside it. A task declares its columns (`Column`), how they become its features, and how its `data` command
is spelled (`FeatureForm`); everything else is the same for all of them.
"""

import dataclasses
import json
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from bert.data.columns import (
    CHECKSUM,
    Column,
    Columns,
    NotWholeError,
    check_columns,
    check_content,
    damage_code,
    joined,
    map_columns,
    read_header,
    write_columns,
)
from bert.data.finished import Counts, fingerprint_of
from bert.data.vocabulary import VOCABULARY_FILE, Vocabulary, load_vocabulary
from common.atomic import atomic_path, storage_errors, write_json
from common.errors import InputError, SchemaError, UsageError
from common.flags import flag
from common.reading import read_errors, read_notes

SUFFIX = ".safetensors"
OWN_VOCABULARY = ".vocab.txt"
"""Ending of the vocabulary of one feature file, where vocab.txt is another one."""
_NAMES = re.compile(r"bertbench \w+ features")
"""FeatureForm.name of every task."""
_FOREIGN = "it is not a features file"
_MOST_NAMES = 5
_OTHER_CONTENT = (ValueError, KeyError, TypeError, RecursionError, InputError, UsageError)
"""What is raised of metadata and columns that are not those of a task."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FeatureSettings:
    """Everything features depend on besides the content they were made of, as JSON values. Those of a task inherit
    these fields."""

    split: str
    """What they are for."""
    lower_case: bool
    """Text is lowercased and accents are stripped before it is cut into pieces."""
    vocabulary: str
    """Vocabulary.fingerprint."""
    vocab_size: int
    max_seq_length: int
    """Maximum tokens of a row."""


class Features(Protocol):
    """What a task makes of the columns of a file."""

    @property
    def settings(self) -> Any:
        """The FeatureSettings that they were made with."""


S = TypeVar("S", bound=FeatureSettings)
F = TypeVar("F", bound=Features)


class FeatureForm(ABC, Generic[S, F]):
    """The feature files of one task: what they are known by, and what is done with them."""

    task: str
    """Its `data` command and the beginning of the files' names."""
    title: str
    """What people call it."""
    version = 1
    """Raised when the columns change or hold other values for the same content and settings: a file of a newer one is
    refused."""
    settings: type[S]
    columns: Mapping[str, Column]
    further = "pad_id"
    """Name of the one metadatum that is not common to all tasks."""
    inputs: Mapping[str, str]
    """What stands for the input of the command that makes them: by split, and "" for any."""
    source = "input"
    """Name, in the JSON beside the features, of what they were made of."""
    has_groups = False
    """Whether the task has several tables of each split, one for each group (GLUE's tasks)."""
    any_split = False
    """Whether a file that is named is taken for what it is wanted."""
    keeps_vocabulary = True
    """Whether the vocabulary is copied beside them."""
    tells_counts = True
    """Whether the JSON beside them has their settings and counts."""

    @property
    def name(self) -> str:
        """Format name stored in each file."""
        return f"bertbench {self.task} features"

    @abstractmethod
    def whole(self, settings: S, fingerprint: str, further: str, columns: Columns) -> F:
        """Make features of columns that fit `self.columns`. Raises ValueError, KeyError, TypeError or InputError where
        they are not those of this task."""

    def further_of(self, vocabulary: Vocabulary) -> str:
        """Return the further metadatum."""
        return str(vocabulary.pad_id)

    def kind(self, settings: S) -> tuple[str, ...]:
        """Return the words that a file's name begins with, after the task."""
        return (settings.split,)

    def lengths(self, settings: S) -> tuple[object, ...]:
        """Return the words of a file's name after max_seq_length."""
        return ()

    def content_of(self, source: Path) -> str:
        """Return the hash of what features were made of, where the JSON beside them has it. Raises InputError."""
        raise NotImplementedError

    def _absent(self, folder: Path, what: str, splits: Sequence[str], group: str | None) -> InputError:
        made = self.command(next(iter(splits), None), group, output=folder)
        return InputError("data-unprepared", f"{folder} holds no {what}: create them with `{made}`")

    # Names, and the command that makes them.

    def file_name(self, settings: S, content: str) -> str:
        """Return the name of a file: everything that changes its content; hashes have their first 8 digits."""
        casing = "uncased" if settings.lower_case else "cased"
        before = (self.task, *self.kind(settings), casing, settings.vocabulary[:8], settings.max_seq_length)
        return "-".join(map(str, (*before, *self.lengths(settings), content[:8]))) + SUFFIX

    def fingerprint(self, settings: S, content: str) -> str:
        """Return a hash of everything that the columns depend on; `content` is the hash of what they were made of."""
        return fingerprint_of(self.name, self.version, dataclasses.asdict(settings), content)

    def command(
        self,
        split: str | None = None,
        group: str | None = None,
        *,
        source: Path | None = None,
        vocabulary: Path | None = None,
        output: Path | None = None,
        settings: S | None = None,
        max_seq_length: int | None = None,
    ) -> str:
        """Return the command that makes features; what is not known stands for itself in capitals."""
        if settings is not None:
            split, group = settings.split, self.kind(settings)[0]
        words = ["bertbench", "data", self.task, *(["--task", group or "TASK"] if self.has_groups else [])]
        words += ["--input", str(source or self.inputs.get(split or "", self.inputs[""]))]
        words += ["--vocab", str(vocabulary or "VOCAB.txt"), *(["--split", split] if split and source else [])]
        words += [] if max_seq_length is None else ["--max-seq-length", str(max_seq_length)]
        for field in () if settings is None else dataclasses.fields(settings):
            value = getattr(settings, field.name)
            if field.default not in (dataclasses.MISSING, value):
                words += [flag(field.name), *([] if value is True else [str(value)])]
        words += ["--no-lower-case"] if settings is not None and not settings.lower_case else []
        return shlex.join([*words, *(["--output", str(output)] if output else [])])

    def _remake(self, path: Path, settings: S | None = None) -> str:
        """Return the command that makes a file again, as exactly as the JSON beside it and its name say."""
        notes = read_notes(path.with_suffix(".json"))
        try:
            settings = settings or self.settings(**notes["settings"])
            source, vocabulary = Path(notes["input"]), Path(notes["vocab"])
            return self.command(source=source, vocabulary=vocabulary, output=path.parent, settings=settings)
        except (KeyError, TypeError):
            words = path.name.split("-")
            group, split = words[1:3] if self.has_groups and len(words) > 3 else [None, *words[1:2], None][:2]
            return self.command(split, group, output=path.parent, settings=settings)

    # Writing.

    def write(
        self,
        path: Path,
        parts: Sequence[Columns],
        settings: S,
        fingerprint: str,
        vocabulary: Vocabulary,
        counts: Counts,
    ) -> None:
        """Write a file of parts, joined by `joined`, atomically. Raises StorageError."""
        metadata = {
            "format": self.name,
            "schema_version": str(self.version),
            "settings": _json(dataclasses.asdict(settings)),
            "fingerprint": fingerprint,
            self.further: self.further_of(vocabulary),
            "counts": _json(counts.to_json()),
        }
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            write_columns(file, joined(parts, self.columns), metadata, checksum=True)

    def keep_beside(self, path: Path, origin: Mapping[str, Any], vocabulary: Path, settings: S, counts: Counts) -> None:
        """Write what belongs beside a file, unless it is there and says the same: the vocabulary, and a JSON of what it
        was made of (`origin`), with what, and its counts.

        Raises:
            InputError: the vocabulary cannot be read any more.
            StorageError: they cannot be written.
        """
        if self.keeps_vocabulary:
            _keep_vocabulary(path, vocabulary)
        notes = {"schema_version": self.version, "features": path.name, **origin, "vocab": str(vocabulary.resolve())}
        if self.tells_counts:
            notes["settings"] = dataclasses.asdict(settings)
            # Sorted, as the feature file gives them back.
            notes |= {
                "counts": dict(sorted(counts.numbers.items())),
                "examples": dict(sorted(counts.names.items())),
            }
        place = path.with_suffix(".json")
        if read_notes(place) != notes:
            write_json(place, notes)

    def finished(self, path: Path, fingerprint: str, notes: list[str]) -> Counts | None:
        """Return the counts of a finished file after checking its checksum; None if it must be made.

        Args:
            path: the file.
            fingerprint: that of the file it would be.
            notes: receives the reason why an existing file is created again.

        Raises:
            InputError: it was not made here.
            SchemaError: a newer version wrote it.
        """
        if not path.exists():
            return None
        try:
            _, known, counts = self.described(path, read_header(path)[0])
            check_content(path)
        except (NotWholeError, OSError) as error:
            if str(error) == _FOREIGN:
                raise InputError(
                    "folder-occupied", f"{path} was not written by bertbench: move it, or give another --output"
                ) from error
            notes.append(f"{path.name} was truncated or damaged and is created again")
            return None
        if known == fingerprint:
            return counts
        notes.append(f"{path.name} was written by another version and is created again")
        return None

    # Finding and opening.

    def files_in(self, folder: Path, split: str = "*", group: str | None = None) -> list[Path]:
        """Return the files of a split in a folder, by name."""
        kind = f"{group or '*'}-{split}" if self.has_groups else split
        found = folder.glob(f"{self.task}-{kind}-*{SUFFIX}")
        return sorted(path for path in found if not path.name.startswith("."))

    def find(self, folder: Path, *splits: str, group: str | None = None) -> Path:
        """Return the one file of the first of these splits that a folder holds any of; of any split where none is
        named. Raises InputError: there is none, or several.
        """
        for split in splits or ("*",):
            found = self.files_in(folder, split, group)
            what = self._what([split] if splits else (), group)
            if len(found) == 1:
                return found[0]
            if found:
                names = ", ".join(path.name for path in found[:_MOST_NAMES]) + ", ..." * (len(found) > _MOST_NAMES)
                otherwise = ", or --task" if self.has_groups and group is None else ""
                raise InputError(
                    "data-ambiguous",
                    f"{folder} holds {len(found)} files of {what}: give one of them{otherwise}: {names}",
                )
        raise self._absent(folder, self._what(splits, group), splits, group)

    def _what(self, splits: Sequence[str], group: str | None) -> str:
        of = f" of {group or 'any task'}" if self.has_groups else ""
        return f"{self.title} features{of}" + (f" for {' or '.join(splits)}" if splits else "")

    def open(self, path: Path, *splits: str, group: str | None = None) -> F:
        """Return the features of a file, or of a folder that holds exactly one file of a split.

        Args:
            path: the file or the folder.
            splits: what they may be for; in a folder the first of them that there is. Without any all will do.
            group: whose they must be; None = any.

        Raises:
            InputError: there are none, several, or those of another split or group; they are damaged, or their dataset
                has changed since. The message has the command that makes them.
            SchemaError: a newer version wrote them.
        """
        file = self.find(path, *splits, group=group) if path.is_dir() else path
        split = splits[0] if splits else None
        if not file.is_file():
            made = self.command(split, group, output=file.parent if file.suffix == SUFFIX else file)
            raise InputError("data-unprepared", f"{path} does not exist: create {self.title} features with `{made}`")
        if file.suffix != SUFFIX and not is_features(file):
            source = None if self.has_groups else file
            made = self.command(split, group, source=source)
            raise InputError("data-unprepared", f"{file} holds no features: create them with `{made}`")
        features = self.read(file)
        self._check_wanted(file, features.settings, splits, group)
        return features

    def _check_wanted(self, file: Path, settings: S, splits: Sequence[str], group: str | None) -> None:
        own = self.kind(settings)[0] if self.has_groups else None
        if group not in (None, own):
            raise InputError(
                "data-mismatch",
                f"{file} is of {own}: give --task {own}, or run `{self.command(None, group, output=file.parent)}`",
            )
        if splits and settings.split not in splits and not self.any_split:
            raise InputError(
                "data-mismatch",
                f"{file} holds features of the split {settings.split}, but {' or '.join(splits)} is needed: "
                f"give another file, or create one with `{self.command(splits[0], own, output=file.parent)}`",
            )

    def read(self, path: Path) -> F:
        """Read a file: check it against its checksum and map its columns into memory.

        Files of earlier versions have no checksum: of them the size alone is looked at.

        Raises:
            InputError: it cannot be read, is damaged, is something else, or its dataset has changed since; the message
                has the command that makes it.
            SchemaError: a newer version wrote it.
        """
        try:
            metadata, columns = map_columns(path)
            settings, fingerprint, _ = self.described(path, metadata)
            check_columns(columns, self.columns)
            features = self.whole(settings, fingerprint, metadata[self.further], columns)
            check_content(path)
        except SchemaError:
            raise
        except (NotWholeError, OSError, *_OTHER_CONTENT) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InputError(
                damage_code(error),
                f"{path} is not a complete file of {self.title} features ({reason}): create it with "
                f"`{self._remake(path)}`",
            ) from error
        self._check_source(path, settings)
        return features

    def described(self, path: Path, metadata: Mapping[str, str]) -> tuple[S, str, Counts]:
        """Return the settings, the fingerprint and the counts in a file's metadata.

        Raises:
            NotWholeError: they are damaged, or those of something else.
            SchemaError: a newer version wrote them.
        """
        if metadata.get("format") != self.name:
            raise NotWholeError("file-format", _FOREIGN)
        try:
            version = int(metadata["schema_version"])
            if version > self.version:
                raise SchemaError(
                    "record-version",
                    f"{path} has schema version {version}, this bertbench reads {self.version}: update it",
                )
            settings = self.settings(**json.loads(metadata["settings"]))
            counts = Counts()
            counts.merge(json.loads(metadata["counts"]))
            found = settings, metadata["fingerprint"], counts
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise NotWholeError("file-damaged", f"its metadata is damaged: {error!r}") from error
        known = {"format", "schema_version", "settings", "fingerprint", "counts", self.further, CHECKSUM}
        strange = sorted(metadata.keys() - known)
        if strange:
            raise NotWholeError("file-damaged", f"its metadata is damaged: unknown key {strange[0][:60]!r}")
        return found

    def _check_source(self, path: Path, settings: S) -> None:
        notes = read_notes(path.with_suffix(".json"))
        source, content = notes.get(self.source), notes.get("input_fingerprint")
        if not isinstance(source, str) or content is None:
            return
        try:
            if not Path(source).is_file():
                return
            state = Path(source).stat()
            if (state.st_size, state.st_mtime_ns) == (notes.get("input_bytes"), notes.get("input_modified_ns")):
                return
            same = self.content_of(Path(source)) == content
        except (OSError, InputError):
            same = False
        if not same:
            raise InputError(
                "data-mismatch",
                f"{path} was created from {source}, which has changed since: create it again with "
                f"`{self._remake(path, settings)}`, or restore that file",
            )

    def made_of(self, path: Path, split: str = "*") -> Path | None:
        """Return what features were made of, a file or a folder with those of a split, as the JSON beside them says;
        None if that no longer exists."""
        files = self.files_in(path, split) if path.is_dir() else [path]
        named = read_notes(files[0].with_suffix(".json")).get(self.source) if files else None
        return Path(named) if isinstance(named, str) and Path(named).is_file() else None

    def vocabulary_of(self, path: Path, settings: S, given: Path | None = None) -> Vocabulary:
        """Return the vocabulary that features were made with: where it lay then, beside them, or the one `given`.

        Args:
            path: what `open` was given.
            settings: of the features there.
            given: a vocab.txt to take instead of those.

        Raises:
            InputError: it is at none of these places, or the one that was given is another one.
        """
        file = self.find(path, settings.split) if path.is_dir() else path
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
            f"the vocabulary of {file} ({settings.vocab_size:,} pieces) is not {' or '.join(map(str, places))}: "
            "put its vocab.txt beside the features",
        )


def is_features(path: Path) -> bool:
    """Whether a file holds the features of a task, whole; weights are in files of the same kind."""
    try:
        return _NAMES.fullmatch(read_header(path)[0].get("format", "")) is not None
    except (NotWholeError, OSError):
        return False


def features_header(path: Path) -> dict[str, Any]:
    """Return the format, settings, counts and columns of a features file. Raises InputError: it is none."""
    try:
        metadata, columns, _ = read_header(path)
        if not _NAMES.fullmatch(metadata.get("format", "")):
            raise NotWholeError("file-format", _FOREIGN)
        check_content(path)
        return {
            "file": str(path),
            "format": metadata["format"],
            "settings": json.loads(metadata["settings"]),
            "counts": json.loads(metadata["counts"]),
            "columns": {name: f"{np.dtype(kind)} [{rows}]" for name, (kind, rows, *_) in columns.items()},
        }
    except (NotWholeError, OSError, KeyError, ValueError) as error:
        raise InputError(damage_code(error), f"{path} holds no whole features ({error}): create them again") from error


def _keep_vocabulary(path: Path, vocabulary: Path) -> None:
    """Copy a vocabulary beside the features: as vocab.txt, or under their own name where that is another one."""
    with read_errors(vocabulary, "restore it"):
        content = vocabulary.read_bytes()
    place = path.with_name(VOCABULARY_FILE)
    with storage_errors(place):
        if place.exists() and place.read_bytes() != content:
            place = path.with_suffix(OWN_VOCABULARY)
        if not place.exists() or place.read_bytes() != content:
            with atomic_path(place) as temporary:
                temporary.write_bytes(content)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
