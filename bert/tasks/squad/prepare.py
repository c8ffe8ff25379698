"""A dataset to a file of features, by one process or several. Imports no torch."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import msgspec
from safetensors.numpy import load_file

from bert.data.features import (
    Columns,
    Summary,
    check_inputs,
    left_out_notes,
    packed,
    prepare_features,
    split_by_name,
    vocabulary_settings,
)
from bert.data.finished import Counts
from bert.data.pool import Progress, Workers
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.squad.features import Settings, joined
from bert.tasks.squad.reading import Dataset, Paragraph, read_dataset
from bert.tasks.squad.windows import SPECIAL_TOKENS, make_columns
from common.atomic import remove_left_overs, storage_errors
from common.errors import Code, InputError, UsageError
from common.flags import flag

Mode = Literal["merge", "spill"]
_WORDS = {"training": ("train",), "evaluation": ("dev", "test", "valid", "eval")}
UNIT_QUESTIONS = 2000
"""Questions, about, of the paragraphs that are one worker's work at a time."""
SMALL_QUESTIONS = 35_000
"""Questions up to which one process is faster than several, whose start takes longer than their work."""
DUPLICATES = "left out: duplicate ids"


@dataclass(frozen=True, kw_only=True, slots=True)
class SquadConfig:
    """SQuAD's JSON in, files of windows out; a call with the same options keeps what is finished."""

    input: tuple[Path, ...]
    """SQuAD 1.1 or 2.0 files, JSON or .gz; each becomes one file of features."""
    vocab: Path
    """BERT vocab.txt."""
    output: Path = Path("runs/squad")
    """Folder for the features."""
    split: Literal["training", "evaluation"] | None = None
    """Split of the inputs; default from their names: train, or dev, test, valid, eval in them."""
    squad_version: Literal["auto", "1.1", "2.0"] = "auto"
    """Required version of the input; auto accepts both."""
    lower_case: bool = True
    """Text is lower-cased, as for uncased models; --no-lower-case keeps case, for a cased vocabulary."""
    max_seq_length: int = 384
    """Maximum tokens of a window: [CLS] question [SEP] document [SEP]."""
    doc_stride: int = 128
    """Document tokens between the starts of two windows."""
    max_query_length: int = 64
    """Maximum word pieces of the question; longer questions are truncated."""
    drop_unanswerable_windows: bool = False
    """Skip windows of a training question that do not contain its whole answer."""
    mode: Mode = "merge"
    """How workers pass on results: merge through memory, spill through files. The result is the same."""
    workers: int | None = None
    """Worker processes, at most the number of CPUs; default CPUs - 1, or 1 for a small input."""

    def __post_init__(self) -> None:
        """Refuse invalid options."""
        check_inputs(self.input, self.split, "DATASET.json: SQuAD 1.1 or 2.0 (`bertbench data download squad` gets it)")
        for name in ("doc_stride", "max_query_length", "workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError("option-value", f"{flag(name)} {value} must be at least 1")
        smallest = self.max_query_length + SPECIAL_TOKENS + 1
        if self.max_seq_length < smallest:
            raise UsageError(
                "option-value",
                f"--max-seq-length {self.max_seq_length} has no room for --max-query-length {self.max_query_length}, "
                f"{SPECIAL_TOKENS} special tokens and a document: give {smallest} or more",
            )
        if self.drop_unanswerable_windows and self.split == "evaluation":
            raise UsageError(
                "option-conflict", "--drop-unanswerable-windows is for training: an evaluation needs every window"
            )

    def split_of(self, path: Path) -> str:
        """Return what the features of a file are for. Raises UsageError: its name does not say."""
        return self.split or split_by_name(path, _WORDS)


def prepare(config: SquadConfig, progress: Progress) -> list[Summary]:
    """Make the features of each input; those that are finished are kept. `progress` gets the units of work done.

    Raises InputError, UsageError: an input, its split or the vocabulary is not as it must be, or a worker died, which
    leaves nothing half-written; StorageError.
    """
    splits = [config.split_of(path) for path in config.input]
    vocabulary = load_vocabulary(config.vocab, config.lower_case)
    summaries = []
    for path, split in zip(config.input, splits, strict=True):
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
        make = partial(_make, config, dataset, settings, progress)
        summaries.append(
            prepare_features(config.output, settings, path, dataset.fingerprint, config.vocab, vocabulary, make)
        )
    return summaries


def cpu_count() -> int:
    """Return how many CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    make = partial(_part, settings=settings, vocab=config.vocab, folder=folder)
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
        path.write_bytes(packed(columns))
    return path, counts


@lru_cache(maxsize=1)
def _vocabulary(path: Path, lower_case: bool, fingerprint: str) -> Vocabulary:
    """Return a vocabulary, read once by each process; its tokenizer knows the words it has met."""
    return load_vocabulary(path, lower_case)
