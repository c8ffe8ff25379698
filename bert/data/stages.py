"""The folder of one stage: what it was made from, which of its files are finished, and its counts.

A stage writes files whose names it knows or finds out; a file that exists under its own name is whole (it was renamed
into place). The folder's manifest says which settings and which input the files belong to, as one fingerprint; begun
with another fingerprint, the folder is emptied of the old files. So a killed run continues, and a stage run again with
the same settings does nothing. A stage's fingerprint goes into the next one's: a change at the front reaches the end.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bert.data.pool import Progress, Workers
from common.atomic import storage_errors, write_json
from common.errors import InputError, UsageError
from common.reading import read_notes

MANIFEST_FILE = "manifest.json"
_STATISTICS = ".{name}.json"
SCHEMA_VERSION = 1
Unit = TypeVar("Unit")


@dataclass(frozen=True, slots=True)
class Part:
    """The share of a stage's files that this process makes: those whose number leaves `index` divided by `count`."""

    index: int = 0
    """0 .. count - 1."""
    count: int = 1
    """Processes that share the stage, each called with its own index (a Slurm array)."""

    def __post_init__(self) -> None:
        """Refuse an invalid share."""
        if self.count < 1 or not 0 <= self.index < self.count:
            raise UsageError("option-value", f"--part {self.index}/{self.count} must be I/N with 0 <= I < N")

    def takes(self, number: int) -> bool:
        """Return whether file `number` belongs to this share."""
        return number % self.count == self.index


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


@dataclass(frozen=True, slots=True)
class Finished:
    """A stage that is complete."""

    folder: Path
    """Where its files are."""
    files: tuple[Path, ...]
    """Its files, in order."""
    fingerprint: str
    counts: Counts
    settings: dict[str, Any]


class StageFolder:
    """A stage's folder while the stage runs."""

    def __init__(
        self,
        path: Path,
        stage: str,
        version: int,
        settings: Mapping[str, Any],
        source: str,
        companions: Sequence[str] = (),
    ) -> None:
        """Name the stage.

        Args:
            path: its folder.
            stage: its name, as `--stages` takes it.
            version: raised when the code writes other bytes.
            settings: everything else its bytes depend on, as JSON values (never the number of workers).
            source: fingerprint of its input.
            companions: names of files beside the stage's own that are made with it.
        """
        self.companions = tuple(companions)
        self.changed: tuple[Path, ...] = ()
        """Files that `begin` found changed since they were finished, and removed."""
        self.path = path
        self.stage = stage
        self.settings = dict(settings)
        self.fingerprint = fingerprint_of(stage, version, self.settings, source)

    def begin(self, alone: bool = True) -> int:
        """Make the folder ready; return how many files of other settings or input were removed.

        Only files that this pipeline wrote are removed. Of the same settings and input those that have another size
        than when the stage was finished are removed, too, to be made again: `changed` names them.

        Args:
            alone: no other process works in the folder, so temporary files are left over from a killed one.

        Raises:
            InputError: the folder holds files that this pipeline did not write; the message names one.
            StorageError: the folder cannot be written.
        """
        known = read_notes(self.path / MANIFEST_FILE)
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            foreign = _foreign_files(self.path, known, self.companions)
            if foreign:
                raise InputError(
                    "folder-occupied",
                    f"{self.path} holds {len(foreign)} file(s) of others ({foreign[0].name}): give another --output",
                )
            for temporary in self.path.glob(".*.tmp") if alone else ():
                temporary.unlink(missing_ok=True)
            if known.get("fingerprint") == self.fingerprint:
                self.changed = tuple(_changed_files(self.path, known))
                for file in self.changed:
                    file.unlink(missing_ok=True)
                    (self.path / _STATISTICS.format(name=file.name)).unlink(missing_ok=True)
                return 0
        # As long as old files are there, a manifest says that they are ours, and not that they are right.
        if known:
            write_json(self.path / MANIFEST_FILE, {**known, "fingerprint": "", "complete": False})
        removed = clear_stage(self.path, self.companions if known else ())
        self._write(complete=False, files=(), counts=Counts())
        return removed

    def make(
        self,
        function: Callable[[Unit], None],
        units: Sequence[Unit],
        is_done: Callable[[Unit], bool],
        workers: Workers,
        part: Part,
        progress: Progress,
    ) -> None:
        """Make what is missing of a share of the files.

        Args:
            function: makes the file or files of a unit, and records them; runs in the workers.
            units: of all shares, in order.
            is_done: whether there is nothing to make for a unit.
            workers: processes; a unit is the work of one of them.
            part: the share.
            progress: called with the units of the share done so far.

        Raises whatever `function` raises.
        """
        mine = [unit for number, unit in enumerate(units) if part.takes(number)]
        missing = [unit for unit in mine if not is_done(unit)]
        done = len(mine) - len(missing)
        progress(self.stage, done, len(mine))
        for number, _ in enumerate(workers.map(function, missing), start=done + 1):
            progress(self.stage, number, len(mine))

    def is_done(self, name: str) -> bool:
        """Return whether a file of this name is finished."""
        return (self.path / name).is_file()

    def record(self, name: str, counts: Counts) -> None:
        """Record the counts of a file; call it before the file is renamed into place. Raises StorageError."""
        write_json(self.path / _STATISTICS.format(name=name), counts.to_json())

    def recorded(self, name: str) -> Counts:
        """Return the recorded counts of a finished file. Raises InputError if there are none."""
        return recorded_counts(self.path, name)

    def finish(self, names: Sequence[str], extra: Counts | None = None) -> Finished | None:
        """Write the manifest: complete when all of `names` are there; None while other parts are at work.

        Args:
            names: all files of the stage, in order.
            extra: what belongs to no single file.

        Raises:
            StorageError: the folder cannot be written.
        """
        counts = extra or Counts()
        if not all(self.is_done(name) for name in names):
            return None
        for name in names:
            counts.merge(self.recorded(name).to_json())
        self._write(complete=True, files=names, counts=counts)
        return read_finished(self.path, self.stage)

    def finished(self) -> Finished | None:
        """Return the stage if it is complete with these settings and this input."""
        known = read_notes(self.path / MANIFEST_FILE)
        if known.get("fingerprint") != self.fingerprint or not known.get("complete"):
            return None
        try:
            return read_finished(self.path, self.stage)
        except InputError:
            return None

    def _write(self, complete: bool, files: Sequence[str], counts: Counts) -> None:
        manifest = {
            "schema_version": SCHEMA_VERSION,
            "stage": self.stage,
            "fingerprint": self.fingerprint,
            "settings": self.settings,
            "complete": complete,
            "files": list(files),
            "sizes": {name: (self.path / name).stat().st_size for name in files},
            "counts": counts.to_json(),
        }
        write_json(self.path / MANIFEST_FILE, manifest)


def _changed_files(folder: Path, manifest: Mapping[str, Any]) -> dict[Path, int]:
    """Return the files whose size in bytes is not the one a manifest has, and that one; earlier versions have none."""
    sizes = manifest.get("sizes")
    found = sizes.items() if isinstance(sizes, dict) else ()
    paths = {folder / name: size for name, size in found}
    return {path: size for path, size in paths.items() if path.is_file() and path.stat().st_size != size}


def _foreign_files(folder: Path, manifest: Mapping[str, Any], companions: Sequence[str]) -> list[Path]:
    listed = manifest.get("files")
    ours = {MANIFEST_FILE, *(listed if isinstance(listed, list) else ()), *(companions if manifest else ())}
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file()
        and not path.name.startswith(".")
        and path.name not in ours
        and not (folder / _STATISTICS.format(name=path.name)).is_file()
    )


def clear_stage(folder: Path, companions: Sequence[str] = ()) -> int:
    """Remove what a stage made, and nothing else; return how many of its files there were.

    Args:
        folder: of the stage; there may be none.
        companions: names of files beside the stage's own that were made with it.
    """
    removed = 0
    with storage_errors(folder):
        for record in sorted(folder.glob(_STATISTICS.format(name="*"))):
            name = record.name.removeprefix(".").removesuffix(".json")
            removed += (folder / name).is_file()
            # The record goes last: it is what says that the file is ours.
            (folder / name).unlink(missing_ok=True)
            record.unlink(missing_ok=True)
        for name in companions:
            (folder / name).unlink(missing_ok=True)
    return removed


def recorded_counts(folder: Path, name: str) -> Counts:
    """Return the recorded counts of a finished file of a stage."""
    counts = Counts()
    try:
        counts.merge(json.loads((folder / _STATISTICS.format(name=name)).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            "record-foreign", f"{folder / name} was not written by bertbench ({error}): remove it and run again"
        ) from error
    return counts


def read_finished(folder: Path, stage: str) -> Finished:
    """Read the manifest of a complete stage."""
    known = read_notes(folder / MANIFEST_FILE)
    if known.get("stage") != stage or not known.get("complete"):
        state = "unfinished" if known else "not there"
        raise InputError(
            "data-unprepared", f"{stage} is {state} in {folder}: run `bertbench data pretrain --stages {stage}`"
        )
    try:
        files = tuple(folder / name for name in known["files"])
        counts = Counts()
        counts.merge(known["counts"])
        found = Finished(folder, files, str(known["fingerprint"]), counts, dict(known["settings"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            "file-damaged", f"{folder / MANIFEST_FILE} is damaged ({error!r}): run {stage} again"
        ) from error
    missing = [file for file in found.files if not file.is_file()]
    if missing:
        raise InputError(
            "data-missing",
            f"{stage} lacks {len(missing)} file(s) ({missing[0]}): run `bertbench data pretrain --stages {stage}`",
        )
    changed = _changed_files(folder, known)
    for file, size in changed.items():
        more = f" (and {len(changed) - 1:,} more)" if len(changed) > 1 else ""
        raise InputError(
            "file-changed",
            f"{file} has {file.stat().st_size:,} bytes, not {size:,} as written{more}: run --stages {stage} again",
        )
    return found
