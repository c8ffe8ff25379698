"""Files of features, one for each table or dataset: what those of SQuAD, GAP and GLUE have in common. Imports no torch.

Each is a safetensors file of columns whose metadata say what it was made of and with, in a folder with its vocabulary.
"""

import dataclasses
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from bert.data.json_notes import read_notes
from bert.data.stages import Counts, fingerprint_of
from bert.data.tensor_file import CHECKSUM, NotWholeError, check_content, read_header, write_columns
from bert.data.vocabulary import VOCABULARY_FILE
from common.atomic import atomic_path, remove_left_overs, storage_errors, write_json
from common.errors import InputError, SchemaError, UsageError, read_code
from common.locks import discard, locked

SUFFIX = ".safetensors"
OWN_VOCABULARY = ".vocab.txt"
"""Ending of the vocabulary of one features file, where vocab.txt is another one."""
_NAMES = re.compile(r"bertbench \w+ features")
"""FeatureForm.name of every task."""
_FOREIGN = "it holds something else"
_MOST_NAMES = 5

Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True)
class FeatureForm(Generic[Settings]):
    """What the files of one task are known by."""

    name: str
    """Stands in each of them."""
    version: int
    """Of the columns: a file of a newer one is refused."""
    settings: type[Settings]
    """What the columns depend on besides the content they were made of: a dataclass of JSON values."""
    further: str
    """Name of the one metadatum that is not common to all tasks."""

    def fingerprint(self, settings: Settings, content: str) -> str:
        """Return a hash of everything that the columns depend on; `content` is the hash of what they were made of."""
        return fingerprint_of(self.name, self.version, _plain(settings), content)

    def write(
        self,
        path: Path,
        columns: Mapping[str, Sequence[npt.NDArray[Any]]],
        settings: Settings,
        fingerprint: str,
        counts: Counts,
        further: str,
    ) -> None:
        """Write a file, whole or not at all. Raises StorageError."""
        metadata = {
            "format": self.name,
            "schema_version": str(self.version),
            "settings": _json(_plain(settings)),
            "fingerprint": fingerprint,
            self.further: further,
            "counts": _json(counts.to_json()),
        }
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            write_columns(file, columns, metadata, checksum=True)

    def read(self, path: Path, metadata: Mapping[str, str]) -> tuple[Settings, str, Counts]:
        """Return the settings, the fingerprint and the counts that stand in a file's metadata.

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
                    "record-newer",
                    f"{path} has schema version {version}, and this version of bertbench reads {self.version}: update "
                    "bertbench, or make the features again",
                )
            settings = self.settings(**json.loads(metadata["settings"]))
            counts = Counts()
            counts.merge(json.loads(metadata["counts"]))
            found = settings, metadata["fingerprint"], counts
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise NotWholeError("file-damaged", f"its metadata are damaged: {error!r}") from error
        known = {"format", "schema_version", "settings", "fingerprint", "counts", self.further, CHECKSUM}
        strange = sorted(metadata.keys() - known)
        if strange:
            raise NotWholeError("file-damaged", f"its metadata are damaged: {strange[0][:60]!r} is none of them")
        return found

    def finished(self, path: Path, fingerprint: str, notes: list[str]) -> Counts | None:
        """Return the counts of a file that was made before, its checksum looked at; None where it has to be made.

        Args:
            path: the file.
            fingerprint: that of the file it would be.
            notes: is told why a file that is there is made again.

        Raises:
            InputError: it was not made here.
            SchemaError: a newer version wrote it.
        """
        if not path.exists():
            return None
        try:
            _, known, counts = self.read(path, read_header(path)[0])
            check_content(path)
        except (NotWholeError, OSError) as error:
            if str(error) == _FOREIGN:
                raise InputError(
                    "folder-occupied",
                    f"{path} was not made here and will not be touched: move it, or give another --output",
                ) from error
            notes.append(f"{path.name} was cut off or damaged and is made again")
            return None
        if known == fingerprint:
            return counts
        notes.append(f"{path.name} was made by another version and is made again")
        return None


@contextmanager
def new_folder(folder: Path) -> Iterator[None]:
    """Leave no folder that was not there before where nothing came of it."""
    existed = folder.exists()
    try:
        yield
    except (InputError, UsageError):
        if not existed:
            discard(folder)
        raise


@contextmanager
def lock_for_features(folder: Path, all_finished: Callable[[], bool]) -> Iterator[None]:
    """Hold a folder while features are made in it, and remove what killed preparations left there; it waits.

    One that cannot be written is not held where `all_finished` says that there is nothing to make.

    Raises as common.locks.locked.
    """
    if folder.exists() and not os.access(folder, os.W_OK) and all_finished():
        yield
        return
    with locked(folder, "another preparation", "wait for it, or give another --output", wait=True):
        remove_left_overs(folder)
        yield


def keep_vocabulary(path: Path, vocabulary: Path) -> None:
    """Copy a vocabulary beside the features: as vocab.txt, or under their own name where that is another one.

    Raises:
        InputError: it cannot be read any more.
        StorageError: it cannot be written.
    """
    try:
        content = vocabulary.read_bytes()
    except OSError as error:
        raise InputError(
            read_code(error), f"cannot read the vocabulary {vocabulary}: {error.strerror}; put it back"
        ) from error
    place = path.with_name(VOCABULARY_FILE)
    with storage_errors(place):
        if place.exists() and place.read_bytes() != content:
            place = path.with_suffix(OWN_VOCABULARY)
        if not place.exists() or place.read_bytes() != content:
            with atomic_path(place) as temporary:
                temporary.write_bytes(content)


def keep_notes(path: Path, notes: Mapping[str, Any]) -> None:
    """Write a JSON beside features, unless it is there and says the same. Raises StorageError."""
    place = path.with_suffix(".json")
    if read_notes(place) != notes:
        write_json(place, notes)


def made_of(path: Path, pattern: str, key: str) -> Path | None:
    """Return the file that features were made of, as the JSON beside them says; None where that is not there any more.

    Args:
        path: the features, or the folder they lie in.
        pattern: as files_in takes it.
        key: under which the JSON names it.
    """
    files = files_in(path, pattern) if path.is_dir() else [path]
    named = read_notes(files[0].with_suffix(".json")).get(key) if files else None
    return Path(named) if isinstance(named, str) and Path(named).is_file() else None


def is_features(path: Path) -> bool:
    """Whether a file holds the features of a task, whole; weights are in files of the same kind."""
    try:
        return _NAMES.fullmatch(read_header(path)[0].get("format", "")) is not None
    except (NotWholeError, OSError):
        return False


def files_in(folder: Path, pattern: str) -> list[Path]:
    """Return the files of features in a folder whose names begin as a glob pattern says, by name."""
    return sorted(path for path in folder.glob(f"{pattern}-*{SUFFIX}") if not path.name.startswith("."))


def only_one(found: Sequence[Path], folder: Path, what: str, made: str, otherwise: str = "") -> Path:
    """Return the one file of features that was found in a folder.

    Args:
        found: the files.
        folder: where.
        what: which features, in words.
        made: the command that makes them.
        otherwise: what else than naming one would tell several apart.

    Raises:
        InputError: there are none, or several.
    """
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError("data-unprepared", f"{folder} holds no {what}: make them with `{made}`")
    names = ", ".join(path.name for path in found[:_MOST_NAMES]) + (", ..." if len(found) > _MOST_NAMES else "")
    raise InputError(
        "data-ambiguous", f"{folder} holds {len(found)} files of {what}: give one of them{otherwise}: {names}"
    )


def check_types(columns: Mapping[str, npt.NDArray[Any]], types: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError where a column is missing or of none of its types."""
    for name, kinds in types.items():
        if name not in columns or columns[name].dtype not in [np.dtype(kind) for kind in kinds]:
            raise ValueError(f"the column {name} is missing or of another type")


def check_ends(name: str, ends: npt.NDArray[Any], last: int) -> None:
    """Raise ValueError where offsets of rows [rows + 1] do not go from 0 to `last`."""
    if not len(ends) or ends[0] != 0 or ends[-1] != last or (np.diff(ends) < 0).any():
        raise ValueError(f"the offsets of {name} do not fit")


def _plain(settings: Any) -> dict[str, Any]:
    return dataclasses.asdict(settings)


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)
