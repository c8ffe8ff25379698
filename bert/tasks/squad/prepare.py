"""A dataset to a file of features, by one process or several. Imports no torch."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from safetensors.numpy import load_file

from bert.data.features import (
    Columns,
    Summary,
    left_out_notes,
    prepare_features,
    vocabulary_settings,
    write_columns,
)
from bert.data.finished import Counts
from bert.data.pool import Progress, Workers
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.squad.config import SquadConfig, cpu_count
from bert.tasks.squad.features import Settings, joined
from bert.tasks.squad.reading import Dataset, Paragraph, read_dataset
from bert.tasks.squad.windows import make_columns
from common.atomic import remove_left_overs, storage_errors
from common.errors import Code, InputError

UNIT_QUESTIONS = 2000
"""Questions, about, of the paragraphs that are one worker's work at a time."""
SMALL_QUESTIONS = 35_000
"""Questions up to which one process is faster than several, whose start takes longer than their work."""
DUPLICATES = "left out: duplicate ids"


def prepare(config: SquadConfig, progress: Progress) -> list[Summary]:
    """Make the features of each input; those that are finished are kept.

    Args:
        config: what to make.
        progress: called with the number of finished units of work.

    Raises:
        InputError: an input or the vocabulary is not as it must be, or no question can be used.
        UsageError: the split of an input is ambiguous, or a worker died; nothing half-written is left.
        StorageError: the output cannot be written.
    """
    splits = [config.split_of(path) for path in config.input]
    vocabulary = load_vocabulary(config.vocab, config.lower_case)
    return [
        _prepare(config, path, split, vocabulary, progress) for path, split in zip(config.input, splits, strict=True)
    ]


def _prepare(config: SquadConfig, path: Path, split: str, vocabulary: Vocabulary, progress: Progress) -> Summary:
    dataset = read_dataset(path, config.squad_version)
    settings = Settings(
        split=split,
        version=dataset.version,
        **vocabulary_settings(vocabulary),
        max_seq_length=config.max_seq_length,
        doc_stride=config.doc_stride,
        max_query_length=config.max_query_length,
        drop_unanswerable_windows=config.drop_unanswerable_windows and split == "training",
    )
    return prepare_features(
        config.output,
        settings,
        path,
        dataset.fingerprint,
        config.vocab,
        vocabulary,
        lambda: _make(config, dataset, settings, progress),
    )


def worker_count(config: SquadConfig, dataset: Dataset) -> int:
    """Return how many processes make the features of a dataset."""
    questions = sum(len(paragraph.qas) for paragraph in dataset.paragraphs)
    usual = 1 if questions <= SMALL_QUESTIONS else max(1, cpu_count() - 1)
    return min(config.workers or usual, cpu_count())


def _make(config: SquadConfig, dataset: Dataset, settings: Settings, progress: Progress) -> tuple[Columns, Counts]:
    """Return the columns of a dataset, and what was counted."""
    count = worker_count(config, dataset)
    counts = Counts()
    _drop_duplicates(dataset.paragraphs, counts)
    units = list(_cut(dataset.paragraphs))
    work = enumerate(map(msgspec.msgpack.encode, units) if count > 1 else units)
    folder = config.output if config.mode == "spill" else None
    make = functools.partial(_part, settings=settings, vocab=config.vocab, folder=folder)
    title = f"features of {dataset.path.name}"
    parts: list[Columns] = []
    try:
        with Workers(count) as workers:
            for done, (part, part_counts) in enumerate(workers.map(make, work)):
                progress(title, done, len(units))
                parts.append(load_file(part) if isinstance(part, Path) else part)
                counts.merge(part_counts.to_json())
    finally:
        remove_left_overs(config.output)
    progress(title, len(units), len(units))
    if not counts.get("windows"):
        reasons = "; ".join(left_out_notes(counts)) or "none has a window"
        code: Code = "rows-invalid" if any(paragraph.qas for paragraph in dataset.paragraphs) else "file-empty"
        raise InputError(code, f"no question of {dataset.path} is usable ({reasons}): give another --input or --split")
    return joined(parts), counts


def _drop_duplicates(paragraphs: Sequence[Paragraph], counts: Counts) -> None:
    """Leave out, and count, the questions that have the id of an earlier one."""
    seen: set[str] = set()
    for paragraph in paragraphs:
        kept = []
        for question in paragraph.qas:
            if question.id in seen:
                counts.add(DUPLICATES, 1, question.id)
            else:
                seen.add(question.id)
                kept.append(question)
        paragraph.qas = kept


def _cut(paragraphs: Sequence[Paragraph]) -> Iterator[Sequence[Paragraph]]:
    """Yield runs of paragraphs with about UNIT_QUESTIONS questions."""
    first = questions = 0
    for number, paragraph in enumerate(paragraphs, start=1):
        questions += 1 + len(paragraph.qas)
        if questions >= UNIT_QUESTIONS or number == len(paragraphs):
            yield paragraphs[first:number]
            first, questions = number, 0


def _part(
    unit: tuple[int, Sequence[Paragraph] | bytes], settings: Settings, vocab: Path, folder: Path | None
) -> tuple[Columns | Path, Counts]:
    """Make the columns of a unit; where there is a folder, spill them to a temporary file there."""
    number, paragraphs = unit
    if isinstance(paragraphs, bytes):
        paragraphs = msgspec.msgpack.decode(paragraphs, type=list[Paragraph])
    vocabulary = _vocabulary(vocab, settings.lower_case, settings.vocabulary)
    columns, counts = make_columns(paragraphs, settings, vocabulary)
    if folder is None:
        return columns, counts
    path = folder / f".part.{number:08}.tmp"  # a name of those that `remove_left_overs` removes
    with storage_errors(path):
        write_columns(path, columns)
    return path, counts


@functools.lru_cache(maxsize=1)
def _vocabulary(path: Path, lower_case: bool, fingerprint: str) -> Vocabulary:
    """Return a vocabulary, read once by each process; its tokenizer knows the words it has met."""
    return load_vocabulary(path, lower_case)
