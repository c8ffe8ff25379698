"""Merge the run directories of several nodes without loss: the steps of every rank and the sensors of every node."""

import contextlib
import filecmp
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from analysis.metrics.throughput import summarize
from bench.plan.sweep import write_results
from common import locks
from common.atomic import atomic_path
from common.errors import InputError, UsageError
from records.documents import Request, Result, read_document
from records.files import read_record, write_record
from records.run import RunDirectory, TrialDirectory

RECORD = "collected.json"
NODES = "nodes"
# Files that are not merged: computed from the merged data, or specific to one process.
_LEFT_OUT = {"results.csv", "report", locks.LOCK_FILE, NODES, RECORD}
_RANK_FILE = re.compile(r"(steps|rank|failure)-(\d+)\.(csv|json)")
_TELEMETRY = re.compile(r"telemetry-(\d+)\.csv")


@dataclass(slots=True)
class Collected:
    """The result of a call."""

    trials: int = 0
    copied: int = 0
    sources: dict[str, str] = field(default_factory=dict)
    """Path of every source so far, by its name in the merged folder."""
    joined: list[str] = field(default_factory=list)
    """Trials whose ranks come from several sources."""
    contested: list[str] = field(default_factory=list)
    """Trials on which two sources disagree, each with the source whose files are kept separately."""
    damaged: list[str] = field(default_factory=list)
    """Trials of a source with unreadable records, with the reason; their files are kept separately."""
    incomplete: list[str] = field(default_factory=list)
    """Measured trials without the steps of some ranks, with those ranks: a file or the folder of a node is missing."""
    apart: list[str] = field(default_factory=list)
    """Files that differ between the sources, by their paths below nodes/."""
    left_out: list[str] = field(default_factory=list)
    """Skipped entries that are not regular files."""


def collect(sources: Sequence[Path], out: Path) -> Collected:
    """Merge run directories into `out`; a later call with the same or more directories updates it.

    New files are copied. If a file differs between sources, the first one is kept and the other is stored below
    nodes/<source>/. Newer files of a source replace its older ones. Sensor readings are numbered by node. If step
    records of the same rank differ, the trial was measured twice: the second trial is stored as a whole in the run
    directory nodes/<source>. An unreadable trial is also stored there, whichever source comes first, until its source
    is complete.

    Raises:
        InputError: a source is not a run directory, or cannot be read.
        UsageError: a source is inside `out` or contains it, or sources are different training runs.
        StorageError: `out` cannot be written.
        LockedError: another program uses `out`.
    """
    folders = list(dict.fromkeys(path.resolve() for path in sources))
    out = out.resolve()
    for folder in folders:
        if folder == out or out in folder.parents or folder in out.parents:
            raise UsageError("option-conflict", f"{folder} and --out {out} contain each other: give another --out")
        RunDirectory(folder).require()
        if (folder / RECORD).exists():
            raise UsageError("run-mismatch", f"{folder} is itself collected: give the folders that its {RECORD} names")
    with locks.locked(out, "another call", "wait for it, or choose another --out"):
        gathering = _Gathering(out)
        _check_one_training([out, *folders])
        for folder in folders:
            gathering.take(folder)
        gathering.finish()
        write_results(RunDirectory(out))
    return gathering.told


class _Gathering:
    """One call: the contents of the folder and the source of each file."""

    def __init__(self, out: Path) -> None:
        self._out = out
        record = read_record(out / RECORD) if (out / RECORD).exists() else {}
        self.told = Collected(sources=dict(record.get("sources", {})))
        # Path in the folder -> (source, path there).
        self._origin: dict[str, tuple[str, str]] = {k: (v[0], v[1]) for k, v in record.get("files", {}).items()}
        if not record and out.is_dir() and any(path.name != locks.LOCK_FILE for path in out.iterdir()):
            raise UsageError(
                "folder-occupied",
                f"--out {out} is not empty and was not written by `bertbench collect`: give another folder",
            )
        self._record()  # before the first file, so that an interrupted call can be repeated

    def take(self, folder: Path) -> None:
        """Merge the files of one source."""
        label = self._label(folder)
        found: dict[str, list[str]] = {}
        for name in _files(folder, self.told.left_out.append):
            parts = PurePosixPath(name).parts
            trial = parts[1] if parts[0] == "trials" and len(parts) > 2 else ""
            found.setdefault(trial, []).append(name)
        for trial, names in found.items():
            damage = _damage(RunDirectory(folder).trial(trial)) if trial else ""
            if damage:
                self.told.damaged.append(f"{trial} of {folder}: {damage}")
                for name in names:
                    self._place(folder, label, name, True, known=False)
                continue
            contested = bool(trial) and self._contested(folder, label, names)
            if trial:
                self._forget_damaged(f"{NODES}/{label}/trials/{trial}")
            if contested:
                self.told.contested.append(f"{trial} of {folder}")
            for name in names:
                self._place(folder, label, name, contested)
        self._record()

    def finish(self) -> None:
        """Combine the records of all ranks and write the origin of every file."""
        run = RunDirectory(self._out)
        for trial in run.trials():
            prefix = f"trials/{trial.path.name}/"
            origins = {
                self._origin[f"{prefix}{path.name}"][0]
                for path in trial.path.glob("steps-*.csv")
                if f"{prefix}{path.name}" in self._origin
            }
            if len(origins) > 1:
                self._join(trial, prefix)
                self.told.joined.append(trial.path.name)
            missing = _ranks_without_steps(trial)
            if missing:
                self.told.incomplete.append(f"{trial.path.name}: no steps of ranks {', '.join(map(str, missing))}")
        self._join_requests()
        self._record()
        self.told.trials = len(run.trials())

    def _record(self) -> None:
        origins = {name: list(origin) for name, origin in sorted(self._origin.items())}
        write_record(self._out / RECORD, {"sources": self.told.sources, "files": origins})

    def _label(self, folder: Path) -> str:
        """Return the name of a source: that of its folder, with as many parents as make it unique."""
        for label, path in self.told.sources.items():
            if path == str(folder):
                return label
        parts = [re.sub(r"[^A-Za-z0-9._-]", "_", part) for part in folder.parts[1:]]
        label = next(
            (name for depth in range(1, len(parts) + 1) if (name := "-".join(parts[-depth:])) not in self.told.sources),
            f"{'-'.join(parts)}-{len(self.told.sources)}",
        )
        self.told.sources[label] = str(folder)
        return label

    def _contested(self, folder: Path, label: str, names: Sequence[str]) -> bool:
        """Return whether another source has different records of one of these ranks."""
        for name in names:
            if not _RANK_FILE.fullmatch(PurePosixPath(name).name) or len(PurePosixPath(name).parts) != 3:
                continue
            origin = self._origin.get(name)
            if origin and origin[0] != label and not _same(folder / name, self._out / name):
                return True
        return False

    def _forget_damaged(self, aside: str) -> None:
        """Remove the separate files of a trial that was unreadable before."""
        if not any(target.startswith(f"{aside}/") for target in self._origin):
            shutil.rmtree(self._out / aside, ignore_errors=True)

    def _place(self, folder: Path, label: str, name: str, contested: bool, known: bool = True) -> None:
        """Copy one file to its place; if not `known`, later calls ignore it."""
        aside = f"{NODES}/{label}/{name}"
        target = aside if contested else self._target(folder, label, name)
        if target == aside and aside not in self.told.apart:
            self.told.apart.append(aside)
        destination = self._out / target
        if not (destination.is_file() and _same(folder / name, destination)):
            _copy(folder / name, destination)
            self.told.copied += 1
        if known:
            self._origin.setdefault(target, (label, name))

    def _target(self, folder: Path, label: str, name: str) -> str:
        aside = f"{NODES}/{label}/{name}"
        if aside in self._origin:
            return aside
        origin = self._origin.get(name)
        if origin is None or origin == (label, name):
            return name
        if _TELEMETRY.fullmatch(PurePosixPath(name).name):
            return self._telemetry(folder, label, name)
        return name if _same(folder / name, self._out / name) else aside

    def _telemetry(self, folder: Path, label: str, name: str) -> str:
        """Return the sensor file of this source, or the next free one of the trial."""
        path = PurePosixPath(name)
        for target, origin in self._origin.items():
            if origin == (label, name) and not target.startswith(f"{NODES}/"):
                return target
        if _same(folder / name, self._out / name):
            return name
        taken = {
            int(match[1])
            for target in self._origin
            if PurePosixPath(target).parent == path.parent
            and (match := _TELEMETRY.fullmatch(PurePosixPath(target).name))
        }
        return str(path.with_name(f"telemetry-{max(taken) + 1}.csv"))

    def _join(self, trial: TrialDirectory, prefix: str) -> None:
        """Compute the result of all ranks; the results of each source are kept separately."""
        said = self._versions(f"{prefix}result.json", Result)
        if not said:
            return
        worst = next((result for result in said if result["status"] != "ok"), said[0])
        metrics: dict[str, Any] = {}
        if worst["status"] == "ok":
            steps = {rank: trial.read_steps(rank) for rank in trial.ranks()}
            read = trial.read_environment(), trial.read_telemetry()
            metrics = summarize(trial.read_trial(), steps, trial.read_ranks(), *read, None)
        write_record(trial.result_json, {**worst, **metrics})

    def _join_requests(self) -> None:
        """Make sweep.json list all trials and all requests."""
        if not any(name.startswith(f"{NODES}/") and name.count("/") == 2 for name in self._sweeps()):
            return
        first, *others = self._versions("sweep.json", Request)
        earlier: list[Any] = list(first.get("earlier", []))
        for record in others:
            for request in [*record.get("earlier", []), record.get("request")]:
                if request is not None and request != first.get("request") and request not in earlier:
                    earlier.append(request)
        trials = list(dict.fromkeys(trial for record in (first, *others) for trial in record.get("trials", [])))
        write_record(self._out / "sweep.json", {**first, "trials": trials, "earlier": earlier})

    def _sweeps(self) -> list[str]:
        return [name for name in self._origin if PurePosixPath(name).name == "sweep.json"]

    def _versions(self, name: str, kind: type) -> list[dict[str, Any]]:
        """Read each source's version of a record that a combined one replaces; move the first version aside."""
        origin = self._origin.get(name)
        if origin is None:
            return []
        kept = f"{NODES}/{origin[0]}/{name}"
        if kept not in self._origin:
            _copy(self._out / name, self._out / kept)
            self._origin[kept] = origin
        others = [f"{NODES}/{label}/{name}" for label in self.told.sources if label != origin[0]]
        return [read_document(self._out / path, kind) for path in (kept, *others) if path in self._origin]


def _damage(trial: TrialDirectory) -> str:
    """Return why the records of a trial cannot be used, or an empty text. Missing records are no damage."""
    try:
        if trial.trial_json.exists():
            trial.read_trial()
        result = trial.read_result() or {}
        trial.read_environment()
        trial.read_ranks()
        measured = result.get("steps_measured") or 0
        for rank in trial.ranks():
            rows = len(trial.read_steps(rank))
            if rows < measured:
                return f"{trial.steps_csv(rank)} has {rows:,} of at least {measured:,} steps"
    except InputError as error:
        return str(error)
    return ""


def _ranks_without_steps(trial: TrialDirectory) -> list[int]:
    """Return the ranks of a measured trial that have no file of steps."""
    result = trial.read_result() or {}
    if result.get("status") != "ok" or not result.get("steps_measured"):
        return []
    return sorted(set(range(trial.read_trial().ranks)) - set(trial.ranks()))


def _check_one_training(folders: Sequence[Path]) -> None:
    """Refuse training runs without a common attempt, since their checkpoints and curves have the same names."""
    found = {folder: attempts for folder in folders if (attempts := _attempts(folder))}
    for (one, first), (other, second) in itertools.pairwise(found.items()):
        if not first & second:
            raise UsageError(
                "run-mismatch",
                f"{one} and {other} are different training runs, but a run directory holds one: give each its own "
                "--out, and collect only the parts of one run",
            )


def _attempts(folder: Path) -> set[str]:
    """Return the names of the trials that trained."""
    found = set()
    for directory in RunDirectory(folder).trials():
        with contextlib.suppress(InputError):
            if directory.read_trial().kind == "train":
                found.add(directory.path.name)
    return found


def _files(folder: Path, left_out: Callable[[str], None]) -> Iterator[str]:
    """Yield the regular files of a run as relative paths; report entries that are neither file nor folder."""
    for parent, folders, files in os.walk(folder, onerror=_raise):
        here = Path(parent)
        top = here == folder
        for name in sorted(folders):
            if (here / name).is_symlink():
                left_out(f"{here / name} is a link")
        folders[:] = sorted(
            name for name in folders if not (top and name in _LEFT_OUT) and not (here / name).is_symlink()
        )
        for name in sorted(files):
            path = here / name
            if (top and name in _LEFT_OUT) or name.endswith((locks.LOCK_FILE, ".tmp")):
                continue
            if path.is_symlink() or not path.is_file():
                left_out(f"{path} is {'a link' if path.is_symlink() else 'not a regular file'}")
            else:
                yield path.relative_to(folder).as_posix()


def _raise(error: OSError) -> None:
    raise InputError(
        "path-unreadable", f"cannot read {error.filename}: {error.strerror}; restore its permissions"
    ) from error


def _same(one: Path, other: Path) -> bool:
    """Return whether two files are identical. Raises InputError if the first cannot be read."""
    try:
        return other.is_file() and filecmp.cmp(one, other, shallow=False)
    except OSError as error:
        raise InputError("path-unreadable", f"cannot read {one}: {error.strerror}; restore its permissions") from error


def _copy(source: Path, target: Path) -> None:
    """Copy a file atomically, with its modification time. Raises InputError and StorageError."""
    try:
        opened = source.open("rb")
    except OSError as error:
        raise InputError(
            "path-unreadable", f"cannot read {source}: {error.strerror}; restore its permissions"
        ) from error
    with opened, atomic_path(target) as temporary, temporary.open("wb") as file:
        shutil.copyfileobj(opened, file, 1 << 20)
