"""`bertbench data squad`: a dataset to a file of features, by one process or several. Imports no torch."""

import dataclasses
import functools
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert.data.columns import Columns, map_columns, write_columns
from bert.data.finished import Counts
from bert.data.pool import Progress, Workers
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
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.squad.config import Mode, SquadConfig, cpu_count
from bert.tasks.squad.features import FORM, Settings
from bert.tasks.squad.reading import Dataset, RawParagraph, check_there, read_dataset, together
from bert.tasks.squad.unit import Part, Unit, make_part, warm_up
from bert.tasks.squad.windows import NO_ANSWER
from common.atomic import storage_errors
from common.errors import InputError

UNITS_PER_WORKER = 4
LEAST_UNIT_BYTES, MOST_UNIT_BYTES = 2**17, 2**20
"""Bytes of JSON in a unit of work."""
MOST_UNITS = 100
"""Of larger files the units are larger: each keeps a file open until all are written, and 256 may be the limit."""


@contextmanager
def parts_place(mode: Mode, path: Path) -> Iterator[Path | None]:
    """Yield the folder of part files beside `path`, which exists no longer than needed; None where they are merged."""
    if mode == "merge":
        yield None
        return
    with storage_errors(path):
        folder = Path(tempfile.mkdtemp(prefix=f".{path.stem}.", suffix=PARTS, dir=path.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_and_keep(unit: Unit, place: Path | None) -> Part:
    """Make a part; write its columns into a file of the folder `place`, if there is one."""
    part = make_part(unit)
    if place is None:
        return part
    assert isinstance(part.columns, dict)
    columns = {name: [values] for name, values in part.columns.items()}
    part.columns = path = place / f"{unit.number}.safetensors"
    with storage_errors(path), path.open("wb") as file:
        write_columns(file, columns, {})
    return part


def received(part: Part) -> Part:
    """Return a part with its columns, from their file if they are in one."""
    if isinstance(part.columns, dict):
        return part
    return dataclasses.replace(part, columns=map_columns(part.columns)[1])


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
        if not pool and not FORM.files_in(config.output, split):
            workers.start(functools.partial(warm_up, config.vocab, vocabulary.lower_case, vocabulary.fingerprint))
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
        with parts_place(self.config.mode, path) as place:
            self.parts = list(self._parts(place))
        counts = Counts({"articles": self.dataset.articles})
        for part in self.parts:
            counts.merge(part.counts.to_json())
        if not counts.get("questions"):
            raise _nothing(self.dataset.path, counts)
        columns: list[Columns] = [part.columns for part in self.parts if isinstance(part.columns, dict)]
        assert len(columns) == len(self.parts), "every part has been received"
        return columns, counts

    def _parts(self, place: Path | None) -> Iterator[Part]:
        runs = list(cut(self.dataset.paragraphs, self.workers.count))
        units = (self._unit(number, run) for number, run in enumerate(runs))
        function = functools.partial(make_and_keep, place=place)
        seen: set[str] = set()
        title = f"features of {self.dataset.path.name}"
        self.progress(title, 0, len(runs))
        for number, part in enumerate(self.workers.map(function, units)):
            known = seen.intersection(part.ids)
            if known:
                unit = dataclasses.replace(self._unit(number, runs[number]), known_ids=frozenset(known))
                part = function(unit)
            seen.update(part.ids)
            yield received(part)
            self.progress(title, number + 1, len(runs))

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
