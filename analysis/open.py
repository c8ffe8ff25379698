"""Opens whatever a profiler, a log or a run left: one file, a folder of ranks, a tar, a trial, a run directory.

The kind of every file is found out from its content. What cannot be read is named with the reason; the rest is read.
"""

import dataclasses
import lzma
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from analysis.counters import KernelCounters, Summary, rules_file
from analysis.readers.registry import SUPPORTED, find_reader, read_all, read_head
from analysis.timeline import Timeline
from common.errors import Code, InputError, MissingToolError, SchemaError, read_code
from common.redact import redact_text
from records.run import COLLECTED_FILE, RunDirectory, TrialDirectory, is_run
from records.trial import Trial

_REMEDIES = {
    ".nsys-rep": "copy it again, or export it: nsys export --type=sqlite FILE",
    ".qdrep": "copy it again, or export it: nsys export --type=sqlite FILE",
    ".ncu-rep": "copy it again, or export it: ncu --import FILE --csv --page raw > FILE.csv",
    ".ncu-repz": "export it: ncu --import FILE --csv --page raw > FILE.csv",
    ".pftrace": "give the .json trace that the profiler wrote, or convert it: traceconv json FILE FILE.json",
    ".nvprof": "give what `nvprof --export-profile` wrote",
}
# What a profiler's folder holds besides: pictures, bertbench's own notes.
_PASSED_OVER = (".md", ".png", ".html")
_DATABASES = (".sqlite", ".sqlite.gz")
# What says the same as a report beside it.
_EXPORTS = {".nsys-rep": _DATABASES, ".qdrep": _DATABASES, ".ncu-rep": (".csv", ".csv.gz")}
_NAMED = 4
_COPIES = ("profile", "tensorboard")
"""Folders in which `profile` puts the same traces, and those of further cycles of its schedule."""
_OWN_FILES = (COLLECTED_FILE, "summary.json", "trial.json", "result.json", "env.json", "sweep.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What was read."""

    path: Path
    """The first of those that were given."""
    given: int = 1
    """How many paths were given."""
    kinds: tuple[str, ...] = ()
    """Names in registry.READERS, each once."""
    timelines: tuple[Timeline, ...] = ()
    """Traces, by rank; ranks are distinct or all unknown."""
    counters: tuple[KernelCounters, ...] = ()
    counter_files: tuple[Path, ...] = ()
    """The file of each of `counters`."""
    summaries: tuple[Summary, ...] = ()
    problems: tuple[str, ...] = ()
    """What could not be read and why, and what was lost: one sentence each."""


def open_sources(*paths: Path) -> Source:
    """Read everything that the paths hold, as one source: files, folders of ranks, tars, trials.

    A run directory stands for its only profiled trial.

    Args:
        paths: at least one.

    Raises:
        InputError: a path does not exist, nothing of it can be used (the reason of the first file is given), or a run
            directory has several profiled trials, which are named.
        MissingToolError: the only file is a report that a tool must read, and the tool is not installed.
        StorageError: there is no space for the export of a report.
    """
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bertbench-") as scratch:
        files: list[Path] = []
        for number, path in enumerate(paths):
            files += _files(path, Path(scratch) / str(number), problems)
        try:
            source = _read(paths, _once(files), problems)
        except InputError as error:
            raise InputError(error.code, _of_tars(str(error), scratch, paths)) from error
    source = dataclasses.replace(source, problems=tuple(_of_tars(text, scratch, paths) for text in source.problems))
    if not (source.timelines or source.counters or source.summaries):
        reason = source.problems[0] if source.problems else SUPPORTED
        raise InputError("data-missing", f"{', '.join(map(str, paths))} has no data to analyze: {reason}")
    return source


def _of_tars(text: str, scratch: str, paths: Sequence[Path]) -> str:
    """Name the tar and its member in a message about a file that was unpacked into `scratch`."""
    return re.sub(rf"{re.escape(scratch)}/(\d+)/", lambda found: f"{paths[int(found[1])]}: ", text)


def profiled_trials(run: RunDirectory) -> list[Path]:
    """Return the folders of a run's trials that a profiler left files in."""
    return [trial.path for trial in run.trials() if trial.profile.is_dir() and any(trial.profile.iterdir())]


def trial_of(path: Path) -> Trial | None:
    """Return what a profile is of, as `profile_of`; None where that is not recorded or damaged."""
    directory = profile_of(path)
    with suppress(SchemaError, OSError):
        return directory.read_trial() if directory else None
    return None


def profile_of(path: Path) -> TrialDirectory | None:
    """Return the folder of the trial that a profile is of: a trial's folder, one in it, a file there; None for others.

    Args:
        path: what `open_sources` has read.
    """
    folders = profiled_trials(RunDirectory(path)) if is_run(path) else [path, *path.absolute().parents]
    return next((one for one in map(TrialDirectory, folders) if one.trial_json.is_file()), None)


def _files(path: Path, scratch: Path, problems: list[str]) -> list[Path]:
    try:
        if not path.exists():
            raise InputError(
                "path-missing", f"{path} does not exist: give a trace, a folder of ranks, a tar or a run directory"
            )
        if is_run(path):
            trials = profiled_trials(RunDirectory(path))
            if len(trials) != 1:
                code: Code = "data-ambiguous" if trials else "run-incomplete"
                remedy = f"give one of them: {_some(trials)}" if trials else "run `bertbench profile` into it first"
                raise InputError(code, f"{path} is a run directory with {len(trials)} profiled trials: {remedy}")
            path = trials[0]
        if path.is_dir():
            # A trial's folder has deeper ones that are no traces of their own.
            return _in_folder(path / "profile" if (path / "trial.json").exists() else path)
        return _unpacked(path, scratch, problems) if path.is_file() and _is_tar(path) else [path]
    except OSError as error:  # a folder that may not be entered
        what = f"cannot read {path}: {error.strerror}"
        raise InputError(read_code(error), f"{what}; check the path and its permissions (chmod -R +rX)") from error


def _some(names: Sequence[object]) -> str:
    return ", ".join(map(str, names[:_NAMED])) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _is_tar(path: Path) -> bool:
    with suppress(OSError, EOFError, zlib.error, lzma.LZMAError):  # compressed, and damaged: the readers say how
        return tarfile.is_tarfile(path)
    return False


def _in_folder(folder: Path) -> list[Path]:
    files = _once(_walked(folder))
    readable = [file for file in files if file.name not in _OWN_FILES and file.suffix not in _PASSED_OVER]
    if not readable:
        remedy = next((_REMEDIES[file.suffix] for file in files if file.suffix in _REMEDIES), SUPPORTED)
        raise InputError(
            "file-format" if files else "file-empty", f"{folder} contains no files that can be read: {remedy}"
        )
    return readable


def _walked(folder: Path) -> list[Path]:
    """Return the files in a folder, at any depth, the least deep ones first, without the copies for TensorBoard."""

    def refuse(error: OSError) -> None:
        raise error

    paths = (Path(place) / name for place, _, names in os.walk(folder, onerror=refuse) for name in names)
    name = folder.absolute().name
    chosen = (path for path in paths if _COPIES not in pairwise([name, *path.relative_to(folder).parts]))
    return sorted((path for path in chosen if path.is_file()), key=lambda path: (len(path.parts), path))


def _once(files: Sequence[Path]) -> list[Path]:
    """Leave out what says the same again: other names of a file, and exports of one that is there."""
    databases = tuple(f"{file.with_suffix('')}_" for file in files if file.suffix == ".sqlite")
    others, rules = {*files}, {*map(rules_file, files)}
    by_inode = {(status.st_dev, status.st_ino): path for path in reversed(files) for status in [path.stat()]}
    return [
        file
        for file in reversed(by_inode.values())
        if file not in rules
        and not any(file.with_suffix(suffix) in others for suffix in _EXPORTS.get(file.suffix, ()))
        and not (file.suffix == ".csv" and str(file).startswith(databases))
    ]


def _unpacked(path: Path, scratch: Path, problems: list[str]) -> list[Path]:
    try:
        with tarfile.open(path, errorlevel=0) as archive:
            for member in archive:
                if member.isfile():
                    archive.extract(member, scratch, filter="data")
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        problems.append(f"{path} is damaged or truncated ({error}): only the files before that point are read")
    if not scratch.exists():
        raise InputError("file-empty", f"{path} is a tar without a readable file: copy it again; {problems[-1:]}")
    return _once(_walked(scratch))


def _recognised(files: Iterable[Path], problems: list[str], single: bool) -> dict[str, list[Path]]:
    by_reader: dict[str, list[Path]] = {}
    unknown: list[str] = []
    for file in files:
        try:
            if (reader := find_reader(read_head(file))) is not None:
                by_reader.setdefault(reader, []).append(file)
            elif single:
                raise InputError("file-format", _not_readable(file))
            else:
                unknown.append(file.name)
        except InputError as error:
            if single:
                raise
            problems.append(str(error))
    if unknown:
        problems.append(f"skipped {_some(unknown)}: unrecognized format")
    return by_reader


def _not_readable(file: Path) -> str:
    remedy = _REMEDIES.get(file.suffix)
    if remedy is None:
        return f"{file} is in an unrecognized format: {SUPPORTED} (see docs/how-to/analyze.md)"
    export = file.with_suffix(".sqlite")
    remedy = f"give the export that lies beside it, {export}" if export.exists() else remedy
    return f"{file} is damaged, or in a format that only its profiler reads: {remedy}"


def _read(paths: Sequence[Path], files: Sequence[Path], problems: list[str]) -> Source:
    single = len(files) == 1
    by_reader = _recognised(files, problems, single)
    timelines: list[Timeline] = []
    counters: dict[Path, KernelCounters] = {}
    summaries: list[Summary] = []
    for file, content in (found for reader, places in by_reader.items() for found in read_all(reader, places)):
        if isinstance(content, InputError | MissingToolError):
            if single:
                raise content
            problems.append(str(content))
        elif isinstance(content, Timeline):
            timelines.append(content)
        elif isinstance(content, KernelCounters):
            counters[file] = content
        else:
            summaries.append(content)
    ordered = _ranked(_whole(timelines, problems), problems)
    devices = sorted({name for one in ordered for name in one.devices.values()})
    if len(devices) > 1:
        problems.append(f"the traces are from different GPUs ({', '.join(devices)}): give the traces of one run")
    contents: list[Timeline | KernelCounters | Summary] = [*ordered, *counters.values(), *summaries]
    problems += [problem for one in contents for problem in one.problems]
    return Source(
        path=paths[0],
        given=len(paths),
        kinds=tuple(by_reader),
        timelines=tuple(ordered),
        counters=tuple(counters.values()),
        counter_files=tuple(counters),
        summaries=tuple(summaries),
        problems=tuple(dict.fromkeys(map(redact_text, problems))),
    )


def _whole(timelines: Sequence[Timeline], problems: list[str]) -> Sequence[Timeline]:
    """Leave out traces that are cut short where others are whole: their rank would seem faster."""
    cut = [one for one in timelines if one.truncated]
    if not cut or len(cut) == len(timelines):
        return timelines
    problems += [problem for one in cut for problem in one.problems]
    problems.append(
        f"{len(cut)} of {len(timelines)} traces (rank {_some([one.rank for one in cut])}) cut short: left out, as the "
        "others are whole; copy the whole files again, or give one alone"
    )
    return [one for one in timelines if not one.truncated]


def _ranked(timelines: Sequence[Timeline], problems: list[str]) -> list[Timeline]:
    """Return the timelines by rank; where ranks are unknown or not distinct they are numbered as the files are."""
    ranks = [one.rank for one in timelines]
    if len(timelines) > 1 and (None in ranks or len(set(ranks)) < len(ranks)):
        listed = _some(["unknown" if rank is None else rank for rank in ranks])
        problems.append(
            f"the {len(timelines)} traces do not have distinct ranks ({listed}): they are numbered in the order of "
            "their files; if they are of several runs, give the traces of one run"
        )
        return [one.replace(rank=number) for number, one in enumerate(timelines)]
    return sorted(timelines, key=lambda one: (one.rank is None, one.rank or 0))
