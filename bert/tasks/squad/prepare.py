"""`bertbench data squad`: a dataset to a file of features, by one process or several. Imports no torch."""

import dataclasses
import functools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bert.data.columns import Array, Columns, map_columns, write_columns
from bert.data.pool import LostWorkerError, Progress, Workers
from bert.data.preparation import (
    PARTS,
    Source,
    Summary,
    examples_of,
    keep_or_make,
    new_folder,
    other_files,
    unknown_tokens,
    vocabulary_notes,
)
from bert.data.stages import Counts
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.squad.config import Mode, SquadConfig, cpu_count
from bert.tasks.squad.features import FORM, Settings
from bert.tasks.squad.reading import Dataset, RawParagraph, check_there, read_dataset, together
from bert.tasks.squad.unit import Part, SharedFile, Unit, make_part, new_shared_file, shares_memory, warm_up
from bert.tasks.squad.windows import NO_ANSWER
from common.atomic import storage_errors
from common.errors import InputError, StorageError, UsageError

UNITS_PER_WORKER = 4
LEAST_UNIT_BYTES, MOST_UNIT_BYTES = 2**17, 2**20
"""Bytes of JSON in a unit of work."""
MOST_UNITS = 100
"""Of larger files the units are larger: each keeps a file open until all are written, and 256 may be the limit."""
Place = Path | Literal["memory"] | None
"""Where a part's columns go: into files of a folder, into shared memory, or back with the part."""


@contextmanager
def parts_place(mode: Mode, path: Path, workers: int) -> Iterator[Place]:
    """Yield where parts go; a folder of part files beside `path` exists no longer than needed.

    Raises:
        StorageError: it cannot be made.
    """
    if mode == "merge":
        yield "memory" if workers > 1 and shares_memory() else None
        return
    with storage_errors(path):
        folder = Path(tempfile.mkdtemp(prefix=f".{path.stem}.", suffix=PARTS, dir=path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_and_keep(unit: Unit, place: Place) -> Part:
    """Make a part, and put its columns where the parent finds them."""
    part = make_part(unit)
    if place is None:
        return part
    assert isinstance(part.columns, dict)
    columns = {name: [values] for name, values in part.columns.items()}
    if place == "memory":
        part.columns = _in_memory(columns) or part.columns
        return part
    part.columns = path = place / f"{unit.number}.safetensors"
    with storage_errors(path), path.open("wb") as file:
        write_columns(file, columns, {})
    return part


def _in_memory(columns: Mapping[str, list[Array]]) -> SharedFile | None:
    """None if there is no descriptor or no memory left: then the columns go back with the part."""
    shared = None
    try:
        shared, file = new_shared_file()
        with file:
            write_columns(file, columns, {})
    except OSError:
        if shared is not None:
            os.close(shared.descriptor)
        return None
    return shared


def received(part: Part) -> Part:
    """Return a part with its columns, wherever they were put.

    Raises:
        LostWorkerError: the process that holds them has ended.
        StorageError: this process has no descriptor or no memory left for them.
    """
    if isinstance(part.columns, dict):
        return part
    path = part.columns.path if isinstance(part.columns, SharedFile) else part.columns
    try:
        return dataclasses.replace(part, columns=map_columns(path)[1])
    except OSError as error:
        if isinstance(part.columns, Path):
            raise
        # For a zombie process, users other than root get a permission error instead of "no such process".
        if isinstance(error, FileNotFoundError) or part.columns.is_lost():
            raise LostWorkerError("a worker ended before it handed over a part") from error
        raise StorageError(
            "path-unreadable",
            f"cannot receive the result of a worker: {error}; use fewer --workers, or raise `ulimit -n`",
        ) from error


def cut(paragraphs: Sequence[RawParagraph], workers: int) -> Iterator[Sequence[RawParagraph]]:
    """Yield runs of paragraphs of about equal size."""
    sizes = [len(memoryview(paragraph.json)) for paragraph in paragraphs]
    size = sum(sizes)
    most = max(min(max(size // (workers * UNITS_PER_WORKER), LEAST_UNIT_BYTES), MOST_UNIT_BYTES), size // MOST_UNITS)
    run: list[RawParagraph] = []
    taken = 0
    for paragraph, own in zip(paragraphs, sizes, strict=True):
        run.append(paragraph)
        taken += own
        if taken >= most:
            yield run
            run, taken = [], 0
    if run:
        yield run


_GZIP_RATIO = 5
"""Of SQuAD's JSON, about."""
SMALL_BYTES = 16 * 2**20
"""Bytes of JSON up to which one process is faster than several, whose start takes longer than their work."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SquadSummary(Summary):
    """Result for one dataset."""

    TOLD = (
        *("input", "features", "settings", "kept", "counts", "examples"),
        *("workers", "mode", "seconds", "notes"),
    )

    features: Path
    settings: Settings
    workers: int
    mode: Mode


def prepare(config: SquadConfig, progress: Progress, pool: Workers | None = None) -> list[SquadSummary]:
    """Make the features of each input; those that are finished are kept.

    Args:
        config: what to make.
        progress: called with the number of finished units of work.
        pool: processes to use instead of own ones.

    Raises:
        InputError: an input or the vocabulary is not as it must be, or no question can be used.
        UsageError: the split of an input is ambiguous, or a worker died; nothing half-written is left.
        StorageError: the output cannot be written.
    """
    for path in config.input:
        check_there(path)
    splits = [config.split_of(path) for path in config.input]
    with new_folder(config.output):
        return [_prepare(config, path, split, progress, pool) for path, split in zip(config.input, splits, strict=True)]


def _prepare(config: SquadConfig, path: Path, split: str, progress: Progress, pool: Workers | None) -> SquadSummary:
    began = time.monotonic()
    vocabulary = load_vocabulary(config.vocab, config.lower_case)
    count, notes = (pool.count, []) if pool else _worker_count(config, path)
    with nullcontext(pool) if pool else Workers(count) as workers:
        # Most likely there is nothing to do where the folder holds such features.
        is_new = not FORM.files_in(config.output, split)
        with _started(workers, config.vocab, vocabulary) if is_new and not pool else nullcontext():
            dataset = read_dataset(path, config.squad_version)
            settings = _settings(config, split, dataset.version, vocabulary)
        work = _Work(config, dataset, settings, progress, workers)
        source = Source(content=dataset.fingerprint, settings=settings, origin=_origin(dataset), make=work.make)
        features, counts, kept = keep_or_make(FORM, config.output, source, vocabulary, config.vocab, notes)
    if not kept:
        notes += sorted({part.note for part in work.parts if part.note})
    return SquadSummary(
        input=path,
        features=features,
        settings=settings,
        kept=kept,
        counts=counts,
        workers=count,
        mode=config.mode,
        seconds=time.monotonic() - began,
        notes=(
            *notes,
            *_notes_of(config, counts),
            *other_files(FORM, features, settings),
            *vocabulary_notes(vocabulary),
        ),
    )


def _origin(dataset: Dataset) -> dict[str, Any]:
    """Description of the dataset in the JSON beside the features, used to detect a later change of it."""
    state = dataset.path.stat()
    return {
        "input": str(dataset.path.resolve()),
        "input_bytes": state.st_size,
        "input_modified_ns": state.st_mtime_ns,
        "input_fingerprint": dataset.fingerprint,
    }


def _settings(config: SquadConfig, split: str, version: str, vocabulary: Vocabulary) -> Settings:
    return Settings(
        split=split,
        version=version,
        lower_case=config.lower_case,
        vocabulary=vocabulary.fingerprint,
        vocab_size=len(vocabulary.pieces),
        max_seq_length=config.max_seq_length,
        doc_stride=config.doc_stride,
        max_query_length=config.max_query_length,
        drop_unanswerable_windows=config.drop_unanswerable_windows and split == "training",
    )


@contextmanager
def _started(workers: Workers, path: Path, vocabulary: Vocabulary) -> Iterator[None]:
    """Start the processes while the body runs, and wait for them after it."""
    if workers.count == 1:
        yield
        return
    begin = functools.partial(warm_up, path, vocabulary.lower_case)
    thread = threading.Thread(target=_start_all, args=(workers, begin, vocabulary.fingerprint))
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _start_all(workers: Workers, begin: Callable[[str], None], fingerprint: str) -> None:
    # An error here occurs again, and is reported, when there is work.
    with suppress(Exception):
        list(workers.map(begin, [fingerprint] * workers.count))


@dataclass(slots=True)
class _Work:
    """One file to make."""

    config: SquadConfig
    dataset: Dataset
    settings: Settings
    progress: Progress
    workers: Workers
    parts: list[Part] = field(default_factory=list)
    """What `make` made."""

    def make(self) -> tuple[list[Columns], Counts]:
        """Make the parts of the file, by all workers; return them and their counts."""
        path = self.config.output / FORM.file_name(self.settings, self.dataset.fingerprint)
        with parts_place(self.config.mode, path, self.workers.count) as place:
            self.parts = list(self._parts(place))
        counts = Counts({"articles": self.dataset.articles})
        for part in self.parts:
            counts.merge(part.counts.to_json())
        if not counts.get("questions"):
            raise _nothing(self.dataset.path, counts)
        columns: list[Columns] = [part.columns for part in self.parts if isinstance(part.columns, dict)]
        assert len(columns) == len(self.parts), "every part has been received"
        return columns, counts

    def _parts(self, place: Place) -> Iterator[Part]:
        runs = list(cut(self.dataset.paragraphs, self.workers.count))
        units = (self._unit(number, run) for number, run in enumerate(runs))
        function = functools.partial(make_and_keep, place=place)
        seen: set[str] = set()
        title = f"features of {self.dataset.path.name}"
        self.progress(title, 0, len(runs))
        try:
            for number, part in enumerate(self.workers.map(function, units)):
                known = seen.intersection(part.ids)
                if known:
                    unit = dataclasses.replace(self._unit(number, runs[number]), known_ids=frozenset(known))
                    part = function(unit)
                seen.update(part.ids)
                yield received(part)
                self.progress(title, number + 1, len(runs))
        except (UsageError, LostWorkerError) as error:
            if isinstance(error, UsageError) and not isinstance(error.__cause__, LostWorkerError):
                raise
            raise UsageError(
                "worker-lost",
                "a worker process ended unexpectedly, most likely out of memory, and nothing was written: run the "
                f"same command again with fewer than --workers {self.workers.count}",
            ) from error

    def _unit(self, number: int, run: Sequence[RawParagraph]) -> Unit:
        places = tuple(paragraph.place for paragraph in run)
        return Unit(number, self.dataset.path, places, together(run), self.settings, self.config.vocab)


def _worker_count(config: SquadConfig, source: Path) -> tuple[int, list[str]]:
    cpus = cpu_count()
    if config.workers is None:
        size = source.stat().st_size if source.is_file() else 0
        is_small = size * (_GZIP_RATIO if source.suffix == ".gz" else 1) <= SMALL_BYTES
        return 1 if is_small else max(1, cpus - 1), []
    if config.workers > cpus:
        return cpus, [f"--workers {config.workers} exceeds the {cpus} CPUs: {cpus} are used"]
    return config.workers, []


def _nothing(path: Path, counts: Counts) -> InputError:
    reasons = "; ".join(f"{name}: {count:,}" for name, count in counts.numbers.items() if name.startswith("left out"))
    return InputError(
        "rows-invalid" if reasons else "file-empty",
        f"no question of {path} is usable ({reasons or 'it holds none'}): give another --input or --split",
    )


def _notes_of(config: SquadConfig, counts: Counts) -> list[str]:
    """Return notes about the data."""
    said = []
    for name, count in counts.numbers.items():
        if name.startswith("left out") and count:
            said.append(f"{count:,} question(s) {name}, such as {', '.join(examples_of(counts, name))}")
    for name in (
        "empty contexts",
        "misaligned answers",
        "answers without a start",
        "impossible questions with answers",
        "questions without answers",
    ):
        is_told = name == "questions without answers" and counts.get(NO_ANSWER)
        if counts.get(name) and not is_told:
            said.append(f"{counts.get(name):,} {name}, such as {counts.names[name][0]}")
    return [
        *said,
        *unknown_tokens(counts, "unknown context tokens", "context tokens", config.vocab, "text's tokens"),
    ]
