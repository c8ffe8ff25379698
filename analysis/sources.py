"""Opens whatever a profiler, a log or a run left: one file, a folder of ranks, a tar, a trial, a run directory.

The kind of every file is found out from its content. What cannot be read is named with the reason; the rest is read.
"""

import dataclasses
import lzma
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from analysis.counters import KernelCounters, Summary, rules_file
from analysis.readers.registry import SUPPORTED, Reader, find_reader, read_head
from analysis.timeline import Timeline
from common.errors import InputError, MissingToolError, SchemaError, content_code
from common.redact import redact_text
from records.run import COLLECTED_FILE, RunDirectory, TrialDirectory
from records.trial import Trial

MOST_FILES = 4096
"""Files of one folder or tar that are looked at."""
MOST_BYTES_OF_A_TAR = 64 << 30
"""Bytes that are unpacked from one tar at most, and ..."""
UNPACKED_BYTES_ALWAYS, UNPACKED_TIMES = 1 << 30, 100
"""... the first, or so many times the tar's own size, whichever is more: packed traces are a tenth of themselves."""
_MOST_HEADER_BYTES = 1 << 20

_REMEDIES = {
    ".nsys-rep": "copy it again, or export it: nsys export --type=sqlite FILE",
    ".qdrep": "copy it again, or export it: nsys export --type=sqlite FILE",
    ".ncu-rep": "copy it again, or export it: ncu --import FILE --csv --page raw > FILE.csv",
    ".ncu-repz": "export it: ncu --import FILE --csv --page raw > FILE.csv",
    ".nvprof": "give what `nvprof --export-profile` wrote",
}
# What a profiler's folder holds besides: pictures, bertbench's own notes.
_PASSED_OVER = (".md", ".png", ".html")
_DATABASES = (".sqlite", ".sqlite.gz")
_EXPORTS = {".nsys-rep": _DATABASES, ".qdrep": _DATABASES, ".ncu-rep": (".csv", ".csv.gz")}
"""Suffixes of the export that says the same as a report beside it."""
_NAMED = 4
_OWN_FILES = (COLLECTED_FILE, "summary.json", "trial.json", "result.json", "env.json", "sweep.json")


class _Member(tarfile.TarInfo):
    """A file of a tar whose long name or attributes fit: the library reads them into memory, whatever their size."""

    def _proc_member(self, tar: tarfile.TarFile) -> Self:
        """Continue after a header, as the library lets subclasses do. Raises tarfile.ReadError for no name."""
        if self.type in _LONG_HEADERS and self.size > _MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        found: Self = super()._proc_member(tar)  # type: ignore[misc]
        return found


_LONG_HEADERS = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What was read."""

    path: Path
    """What was asked for; of several, the first."""
    given: int = 1
    """How many paths were asked for."""
    kinds: tuple[str, ...] = ()
    """Names in registry.READERS of what was read, each once."""
    timelines: tuple[Timeline, ...] = ()
    """Traces, by rank; ranks are distinct or all unknown."""
    counters: tuple[KernelCounters, ...] = ()
    """Tables of counters, in the order of `counter_files`."""
    counter_files: tuple[Path, ...] = ()
    """The files that `counters` were read from."""
    summaries: tuple[Summary, ...] = ()
    """Tables of totals, readings and events."""
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
        StorageError: the export of a report cannot be kept.
    """
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bertbench-") as scratch:
        files: list[Path] = []
        for number, path in enumerate(paths):
            files += _files(path, Path(scratch) / str(number), problems)
        files = _each_once(files)
        single = len(files) == 1
        try:
            by_reader = _recognised(files, problems, single)
            source = _read(paths[0], by_reader, problems, single)
        except InputError as error:
            raise InputError(error.code, _of_tars(str(error), scratch, paths)) from error
    problems = [_of_tars(text, scratch, paths) for text in source.problems]
    source = dataclasses.replace(source, given=len(paths), problems=tuple(problems))
    if not (source.timelines or source.counters or source.summaries):
        reason = source.problems[0] if source.problems else SUPPORTED
        raise InputError("data-missing", f"{', '.join(map(str, paths))} has no data to analyze: {reason}")
    return source


def _of_tars(text: str, scratch: str, paths: Sequence[Path]) -> str:
    """Name the tar and its member in a message about a file that was unpacked into `scratch`."""
    return re.sub(rf"{re.escape(scratch)}/(\d+)/[^/ ]+/", lambda found: f"{paths[int(found[1])]}: ", text)


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
    for directory in map(TrialDirectory, folders):
        with suppress(OSError):
            if directory.trial_json.is_file():
                return directory
    return None


def is_run(path: Path) -> bool:
    """Return whether a path is a run directory."""
    try:
        return (path / "trials").is_dir()
    except OSError:  # a name longer than any: reading it says so
        return False


def runs_below(path: Path) -> list[Path]:
    """Return a run directory itself, or those below a folder, by name; links are not followed.

    Raises:
        InputError: there is none, or the folder cannot be read.
    """
    if is_run(path):
        return [path]
    if not path.is_dir():
        raise InputError(
            "path-kind" if path.exists() else "path-missing",
            f"{path} is not a folder: give run directories, or a folder that contains some",
        )
    found: list[Path] = []
    for folder, names, _ in os.walk(path):
        if is_run(Path(folder)):
            found.append(Path(folder))
            names.clear()
        names.sort()
    if not found:
        raise InputError(
            "run-incomplete",
            f"{path} contains no run directory: give the output of `bertbench throughput`, or a folder of several",
        )
    return found


def _files(path: Path, scratch: Path, problems: list[str]) -> list[Path]:
    try:
        return _files_of(path, scratch, problems)
    except PermissionError as error:  # a folder that may not be entered, or that the path lies in
        remedy = "ask the owner of the folders for permission (chmod -R +rX)"
        raise InputError("path-unreadable", f"cannot read {str(path)[:200]}: permission denied; {remedy}") from error
    except OSError as error:  # a name longer than any
        raise InputError(
            content_code(error), f"cannot look at {str(path)[:200]}: {error.strerror}; check the path"
        ) from error


def _files_of(path: Path, scratch: Path, problems: list[str]) -> list[Path]:
    if not path.exists():
        raise InputError(
            "path-missing", f"{path} does not exist: give a trace, a folder of ranks, a tar or a run directory"
        )
    if is_run(path):
        trials = profiled_trials(RunDirectory(path))
        if len(trials) != 1:
            named = "; ".join(str(trial) for trial in trials[:8])
            more = f" and {len(trials) - 8} more" if len(trials) > 8 else ""
            remedy = f"give one of them: {named}{more}" if trials else "run `bertbench profile` into it first"
            raise InputError(
                "data-ambiguous" if trials else "run-incomplete",
                f"{path} is a run directory with {len(trials)} profiled trials: {remedy}",
            )
        path = trials[0]
    if path.is_dir():
        if (path / "trial.json").exists():
            return _in_folder(path / "profile", [])  # it has deeper folders that are no traces of their own
        return _in_folder(path, problems)
    if path.is_file() and _is_tar(path):
        return _unpacked(path, scratch, problems)
    if not path.is_file():
        raise InputError(
            "path-kind", f"{path} is neither a file nor a folder: give a trace, a folder of ranks or a tar"
        )
    return [path]


def _is_tar(path: Path) -> bool:
    try:
        tarfile.open(path, tarinfo=_Member).close()
        return True
    except (
        tarfile.TarError,
        EOFError,
        OSError,
        ValueError,
        zlib.error,
        lzma.LZMAError,
    ):  # compressed, and damaged: the readers say how
        return False


def _in_folder(folder: Path, problems: list[str]) -> list[Path]:
    """The files of a folder and of those in it; of deeper ones where these have none, otherwise they are named."""
    try:
        files, deeper = _level([folder] if folder.is_dir() else [])
        inner, deeper = _level(deeper)
        files += inner
        while deeper and not files:
            files, deeper = _level(deeper)
        files = _once(files)
        left = [path for path in deeper if any(inside for _, _, inside in os.walk(path))] if files else []
        if left:
            some = ", ".join(map(str, left[:_NAMED])) + (
                f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
            )
            problems.append(f"left out, as they are deeper in {folder} than other files: {some}; give them by name")
    except OSError as error:
        raise InputError(
            content_code(error), f"cannot list {folder}: {error.strerror}; ask its owner for permission (chmod -R +rX)"
        ) from error
    if not files:
        raise InputError(
            "file-empty", f"{folder} contains no files: give a trace, a folder of ranks, a tar or a run directory"
        )
    if len(files) > MOST_FILES:
        raise InputError(
            "file-limit", f"{folder} holds {len(files):,} files (limit {MOST_FILES:,}): give the files of one profile"
        )
    kept = [file for file in files if file.name not in _OWN_FILES and file.suffix not in _PASSED_OVER]
    if not kept:
        remedy = next(
            (_REMEDIES[file.suffix] for file in files if file.suffix in _REMEDIES), "give the files of a profile"
        )
        raise InputError("file-format", f"{folder} holds nothing that can be read: {remedy}")
    return kept


def _level(folders: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files of folders and the folders in them, without links to folders, in order of name."""
    entries = [entry for folder in folders for entry in sorted(folder.iterdir())]
    below = [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
    return [entry for entry in entries if entry.is_file()], below


def _once(files: Sequence[Path]) -> list[Path]:
    """Leave out what says the same again: further links, and reports and tables of a database beside them."""
    databases = tuple(f"{file.with_suffix('')}_" for file in files if file.suffix == ".sqlite")
    there = set(files)
    files = [
        file for file in files if not any(file.with_suffix(suffix) in there for suffix in _EXPORTS.get(file.suffix, ()))
    ]
    return _each_once([file for file in files if file.suffix != ".csv" or not str(file).startswith(databases)])


def _each_once(files: Sequence[Path]) -> list[Path]:
    """Leave out further links to a file, a file that was named again (it would count as another rank), and rules of
    ncu, which are read with their table."""
    kept: dict[tuple[int, int], Path] = {}
    rules = set(map(rules_file, files))
    for file in files:
        if file in rules:
            continue
        status = file.stat()
        kept.setdefault((status.st_dev, status.st_ino), file)
    return list(kept.values())


def _unpacked(path: Path, scratch: Path, problems: list[str]) -> list[Path]:
    """Unpack the regular files of a tar, those of a folder into one in `scratch`; links and devices are left out."""
    scratch.mkdir(parents=True)
    files: list[Path] = []
    folders: dict[PurePosixPath, int] = {}
    total = 0
    most = min(MOST_BYTES_OF_A_TAR, max(UNPACKED_BYTES_ALWAYS, UNPACKED_TIMES * path.stat().st_size))
    try:
        with tarfile.open(path, tarinfo=_Member) as archive:
            for member in archive:
                if not member.isfile():
                    continue
                total += member.size
                if total > most or len(files) >= MOST_FILES:
                    problems.append(
                        f"{path} is larger than {MOST_FILES:,} files or {most / 2**30:.0f} GiB unpacked "
                        f"(at most {UNPACKED_TIMES} times its own size): {member.name[:200]!r} and later members were "
                        "skipped; if that size is expected, unpack it and give the folder"
                    )
                    break
                folder, name = PurePosixPath(member.name).parent, PurePosixPath(member.name).name
                name = "unnamed" if name in ("", "..") else name
                target = scratch / f"{folders.setdefault(folder, len(folders)):05d}" / name
                if target.exists():
                    target = scratch / f"repeated-{len(files):05d}" / name
                target.parent.mkdir(exist_ok=True)
                content = archive.extractfile(member)
                if content is None:
                    continue
                with content, target.open("wb") as copy:
                    shutil.copyfileobj(content, copy)
                files.append(target)
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        if not files:
            raise InputError(
                content_code(error), f"cannot unpack {path}: {error}; copy it again, or unpack it and give the folder"
            ) from error
        problems.append(f"{path} is damaged or truncated ({error}): only the files before that point are read")
    if not files:
        raise InputError("file-empty", f"{path} is a tar without a regular file")
    return _once(files)


def _recognised(files: Iterable[Path], problems: list[str], single: bool) -> dict[str, tuple[Reader, list[Path]]]:
    """Group files by their reader. A single file that none is for is an error, one of several a problem."""
    found: dict[str, tuple[Reader, list[Path]]] = {}
    unknown: list[str] = []
    for file in files:
        try:
            reader = find_reader(read_head(file))
        except InputError as error:
            if single:
                raise
            problems.append(str(error))
            continue
        if reader is None and single:
            raise InputError("file-format", _not_readable(file))
        if reader is None:
            unknown.append(file.name)
        else:
            found.setdefault(reader.name, (reader, []))[1].append(file)
    if unknown:
        named = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        problems.append(f"skipped {named}: unrecognized format")
    return found


def _not_readable(file: Path) -> str:
    remedy = _REMEDIES.get(file.suffix)
    if remedy is None:
        return f"{file} is in an unrecognized format: {SUPPORTED} (see docs/how-to/analyze.md)"
    export = file.with_suffix(".sqlite")
    remedy = f"give the export that lies beside it, {export}" if export.exists() else remedy
    return f"{file} is damaged, or in a format that only its profiler reads: {remedy}"


def _read(
    path: Path,
    by_reader: dict[str, tuple[Reader, list[Path]]],
    problems: list[str],
    single: bool,
) -> Source:
    timelines: list[Timeline] = []
    counters: list[tuple[Path, KernelCounters]] = []
    summaries: list[Summary] = []
    for reader, files in by_reader.values():
        for file, content in reader.read_all(files):
            if isinstance(content, InputError | MissingToolError):
                if single:
                    raise content
                problems.append(str(content))
            elif isinstance(content, Timeline):
                timelines.append(content)
            elif isinstance(content, KernelCounters):
                counters.append((file, content))
            else:
                summaries.append(content)
    ordered = _ranked(_whole(timelines, problems), problems)
    read: list[Timeline | KernelCounters | Summary] = [*ordered, *(own for _, own in counters), *summaries]
    problems += _mixed(ordered)
    lost = [problem for found in read for problem in found.problems]
    return Source(
        path=path,
        kinds=tuple(by_reader),
        timelines=tuple(ordered),
        counters=tuple(own for _, own in counters),
        counter_files=tuple(file for file, _ in counters),
        summaries=tuple(summaries),
        problems=tuple(dict.fromkeys(map(redact_text, [*problems, *lost]))),
    )


def _mixed(timelines: Sequence[Timeline]) -> list[str]:
    """Say where traces cannot be of one job: an average over them means nothing."""
    said = []
    devices = sorted({name for found in timelines for name in found.devices.values()})
    sizes = sorted({found.world_size for found in timelines if found.world_size is not None})
    on_gpu = {bool(found.devices) for found in timelines if found.devices or len(found.kernels) == 0}
    if len(devices) > 1:
        said.append(f"the traces are from different GPUs ({', '.join(devices)})")
    if len(sizes) > 1:
        said.append(f"the traces are from jobs of different sizes ({', '.join(map(str, sizes))} ranks)")
    if len(on_gpu) > 1 and any(len(found.operators) and not len(found.kernels) for found in timelines):
        said.append("some of the traces hold work of a GPU and some hold none")
    return [f"{text}: sums and averages over them mean little; give the traces of one run" for text in said]


def _whole(timelines: Sequence[Timeline], problems: list[str]) -> Sequence[Timeline]:
    """Leave out traces that are cut short, where others are whole: their rank would seem faster, and late or absent."""
    cut = [found for found in timelines if found.truncated]
    if not cut or len(cut) == len(timelines):
        return timelines
    problems += [problem for found in cut for problem in found.problems]
    named = f" (rank{'s'[: len(cut) > 1]} {_listed([found.rank for found in cut])})"
    problems.append(
        f"{len(cut)} of {len(timelines)} traces{named} {'are' if len(cut) > 1 else 'is'} cut short: left out, as the "
        "others are whole; copy the whole files again, or give one alone"
    )
    return [found for found in timelines if not found.truncated]


def _ranked(timelines: Sequence[Timeline], problems: list[str]) -> list[Timeline]:
    """Return the timelines by rank; where ranks are unknown or not distinct they are numbered as the files are."""
    ranks = [found.rank for found in timelines]
    if len(timelines) > 1 and (None in ranks or len(set(ranks)) < len(ranks)):
        problems.append(
            f"the {len(timelines)} traces do not have distinct ranks ({_listed(ranks)}): they are numbered in the "
            "order of their files; if they are of several runs, give the traces of one run"
        )
        return [dataclasses.replace(found, rank=number) for number, found in enumerate(timelines)]
    return sorted(timelines, key=lambda found: (found.rank is None, found.rank or 0))


def _listed(ranks: Sequence[int | None]) -> str:
    words = ["unknown" if rank is None else str(rank) for rank in ranks[:8]]
    return ", ".join(words) + (", ..." if len(ranks) > 8 else "")
