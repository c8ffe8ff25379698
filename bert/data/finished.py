"""The folder of a stage: a file under its final name is whole, and one hash says what all of them were made from.

A file is renamed into place when it and the record of its counts are written, so a killed run continues. The folder's
manifest holds the hash of the stage's settings, input and version; a folder with another hash is refused. The hash of a
stage goes into the next one's: a change at the front reaches the end.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from bert.data.pool import Progress, Workers
from common.atomic import atomic_path, remove_left_overs, storage_errors, write_json
from common.errors import InputError
from common.reading import read_json, read_notes

MANIFEST_FILE = "manifest.json"


def fingerprint_of(*values: Any) -> str:
    """Return a hash of JSON values, 32 hexadecimal digits."""
    content = json.dumps(values, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(content.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(slots=True)
class Counts:
    """Counts of a stage, added up over its files."""

    numbers: dict[str, int] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    """What happened -> the files, pages or documents it happened to (the first few)."""

    MOST_NAMES = 5

    def add(self, name: str, count: int = 1, example: str | None = None) -> None:
        """Count something, and keep the name of what it happened to."""
        self.numbers[name] = self.numbers.get(name, 0) + count
        if example is not None and count:
            examples = self.names.setdefault(name, [])
            if len(examples) < self.MOST_NAMES:
                examples.append(example)

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the JSON form of another one."""
        for name, count in other["numbers"].items():
            self.numbers[name] = self.numbers.get(name, 0) + int(count)
        for name, examples in other["names"].items():
            self.names[name] = [*self.names.get(name, []), *examples][: self.MOST_NAMES]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"numbers": self.numbers, "names": self.names}

    def get(self, name: str) -> int:
        """Return a count, 0 if nothing was counted."""
        return self.numbers.get(name, 0)


class Unit(Protocol):
    """What a file of a stage is made from; picklable."""

    @property
    def name(self) -> str:
        """Name of the file."""

    @property
    def size(self) -> int:
        """Its share of the progress."""


Write = Callable[[Any, Path], Counts]
"""Writes the file of a unit to a path; runs in the workers."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A stage that is complete."""

    folder: Path
    """Where its files are."""
    files: tuple[Path, ...]
    """Its files, in order."""
    fingerprint: str
    counts: Counts


class Stage:
    """A stage's folder while the stage runs."""

    def __init__(self, path: Path, name: str, version: int, settings: Mapping[str, Any], source: str) -> None:
        """Make the folder ready.

        `version` is raised when the code writes other bytes, `settings` are everything else that these depend on, as
        JSON values (never the number of workers), and `source` is the fingerprint of the input. Raises InputError: the
        folder holds files of other settings or input, or of others.
        """
        self.path, self.name = path, name
        self.fingerprint = fingerprint_of(name, version, settings, source)
        self._from = {**settings, "version": version, "input": source}
        known = read_notes(path / MANIFEST_FILE)
        with storage_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            others = [file.name for file in sorted(path.iterdir()) if not file.name.startswith(".")]
        remedy = "give another folder, or remove that one"
        if not known:
            if others:
                raise InputError("folder-occupied", f"{path} holds files of others ({others[0]}): {remedy}")
            self._write({})
        elif known.get("fingerprint") != self.fingerprint:
            before = known.get("made_from", {})
            differ = [
                f"{key} {before.get(key)}, now {now}" for key, now in self._from.items() if before.get(key) != now
            ]
            raise InputError("folder-occupied", f"{path} was made from {'; '.join(differ)}: {remedy}")
        remove_left_overs(path)

    def finished(self) -> Finished | None:
        """Return the stage if it is complete and all of its files are there."""
        known = read_notes(self.path / MANIFEST_FILE)
        files = tuple(self.path / name for name in known.get("files", ()))
        if not files or not all(file.is_file() for file in files):
            return None
        return Finished(self.path, files, self.fingerprint, Counts(**known["counts"]))

    def is_done(self, name: str) -> bool:
        """Return whether a file of this name is whole."""
        return (self.path / name).is_file()

    def make(
        self, write: Write, units: Iterable[Unit], workers: Workers, progress: Progress, total: int, extra: Counts
    ) -> Finished:
        """Make the files that are missing, each unit the work of one process; return the stage.

        `progress` is called with the name of the stage and the sizes of the units done so far, of the `total` of all;
        `extra` are counts of no single file.
        """
        names: list[str] = []
        done = 0

        def missing() -> Iterator[Unit]:
            nonlocal done
            for unit in units:
                names.append(unit.name)
                if self.is_done(unit.name):
                    done += unit.size
                else:
                    yield unit

        progress(self.name, 0, total)
        for size in workers.map(partial(_make, write, self.path), missing()):
            done += size
            progress(self.name, min(done, total), total)
        progress(self.name, total, total)
        return self.finish(names, extra)

    def finish(self, names: Sequence[str], extra: Counts | None = None) -> Finished:
        """Write the manifest of a complete stage: its files in order, and their counts and `extra` added up."""
        counts = extra or Counts()
        for name in names:
            path = self.path / name
            counts.merge(read_json(_record(path), f"remove {path} and run again"))
        return self.complete(names, counts)

    def complete(self, names: Sequence[str], counts: Counts) -> Finished:
        """Write the manifest of a complete stage whose counts are known."""
        self._write({"files": list(names), "counts": counts.to_json()})
        return Finished(self.path, tuple(self.path / name for name in names), self.fingerprint, counts)

    def _write(self, more: Mapping[str, Any]) -> None:
        manifest = {"stage": self.name, "fingerprint": self.fingerprint, "made_from": self._from, **more}
        write_json(self.path / MANIFEST_FILE, manifest)


def _make(write: Write, folder: Path, unit: Unit) -> int:
    make_file(folder / unit.name, partial(write, unit))
    return unit.size


def make_file(path: Path, write: Callable[[Path], Counts]) -> None:
    """Write a file and the record of the counts that `write` returns; it has its name when both are whole."""
    with atomic_path(path) as temporary:
        write_json(_record(path), write(temporary).to_json())


def _record(path: Path) -> Path:
    return path.with_name(f".{path.name}.json")
