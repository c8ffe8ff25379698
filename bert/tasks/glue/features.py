"""Features of GLUE's tables, a file for each split: [CLS] sentence [SEP] or [CLS] first [SEP] second [SEP].

Imports no torch.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.features import (
    Columns,
    FeatureSettings,
    RowFeatures,
    Summary,
    features_in,
    find_features,
    prepare_features,
    read_features,
    vocabulary_settings,
)
from bert.data.finished import Counts
from bert.data.pool import Progress
from bert.data.rows import offsets_of
from bert.data.vocabulary import Vocabulary, load_vocabulary
from bert.tasks.glue.tables import TASKS, TRAIN, GlueSpec, GlueTable, find_table, read_hub, read_table, task_of
from common.atomic import write_text
from common.errors import InputError, UsageError

_LEAST_LENGTH = 5
"""[CLS] a [SEP] b [SEP]."""
CUT = "rows cut to the sequence length"
_BATCH = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class GlueConfig:
    """GLUE's tables in, features out, a file for each split; a call with the same options keeps what is finished."""

    tasks: tuple[str, ...] = ()
    """Tasks of GLUE: cola sst2 mrpc qqp stsb mnli qnli rte wnli; default all whose tables exist, with --dataset all."""
    input: Path | None = None
    """Folder of the GLUE archive (CoLA, SST-2, ...), or of one task (train.tsv, dev.tsv, test.tsv)."""
    dataset: str | None = None
    """Instead of --input: data set for datasets.load_dataset, nyu-mll/glue or a local folder in that format."""
    vocab: Path | None = None
    """BERT vocab.txt, for features."""
    text: Path | None = None
    """Instead of --vocab: folder for the sentences of the training tables as text, which `bertbench data pretrain
    --input` reads."""
    output: Path = Path("runs/glue-data")
    """Folder for the features."""
    lower_case: bool = True
    """Text is lower-cased, as for uncased models; --no-lower-case keeps case, for a cased vocabulary."""
    max_seq_length: int = 128
    """Maximum tokens of a row: [CLS] first [SEP] second [SEP]; longer rows are truncated."""

    def __post_init__(self) -> None:
        """Refuse options no features can be made with."""
        for name in self.tasks:
            task_of(name)
        for one, other, remedy in (
            (self.input, self.dataset, "--input FOLDER with GLUE's tables, or --dataset nyu-mll/glue"),
            (self.vocab, self.text, "--vocab VOCAB.txt for features, or --text FOLDER for text"),
        ):
            if (one is None) == (other is None):
                raise UsageError("option-missing" if one is None else "option-conflict", f"give either {remedy}")
        if self.max_seq_length < _LEAST_LENGTH:
            raise UsageError("option-value", f"--max-seq-length {self.max_seq_length}: give {_LEAST_LENGTH} or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings(FeatureSettings):
    """Settings of GLUE features."""

    task: str
    """A name in bert.tasks.glue.tables.TASKS."""

    @property
    def kind(self) -> str:
        """Task and split."""
        return f"glue-{self.task}-{self.split}"

    @property
    def spec(self) -> GlueSpec:
        """The task."""
        return TASKS[self.task]


def prepare(config: GlueConfig, progress: Progress) -> list[Summary]:
    """Make the features of each table; finished ones are kept.

    Raises InputError (a table or the vocabulary is not as it must be), MissingToolError (`datasets`), StorageError.
    """
    assert config.vocab is not None
    vocab, vocabulary = config.vocab, load_vocabulary(config.vocab, config.lower_case)
    about = {**vocabulary_settings(vocabulary), "max_seq_length": config.max_seq_length}
    done: list[Summary] = []
    for spec, split, table in _tables(config, progress):
        settings = Settings(task=spec.name, split=split, **about)
        make = partial(make_columns, table, settings, vocabulary)
        source, content = table.source, table.fingerprint
        done.append(prepare_features(config.output, settings, source, content, vocab, vocabulary, make))
    return done


def write_texts(config: GlueConfig, progress: Progress) -> list[Path]:
    """Write the text of each training table, a paragraph for each row; raises as `prepare` does."""
    assert config.text is not None
    files = []
    for spec, split, table in _tables(config, progress):
        if split == TRAIN:
            files.append(config.text / f"{spec.name}.txt")
            write_text(
                files[-1], "".join(f"{' '.join(filter(None, (row.first, row.second)))}\n\n" for row in table.rows)
            )
    return files


def _tables(config: GlueConfig, progress: Progress) -> Iterator[tuple[GlueSpec, str, GlueTable]]:
    """Yield the tables of the tasks that are wanted, of a folder those that it has; raises as `prepare` does."""
    specs, folder = [TASKS[name] for name in config.tasks or TASKS], config.input
    if folder is not None:
        present = [spec for spec in specs if any(find_table(folder, spec, split) for split in spec.splits)]
        missing = [f"{spec.folder}/{spec.splits[0]}.tsv" for spec in specs if spec not in present]
        if missing and (config.tasks or not present):
            raise InputError("data-missing", f"{folder} does not hold {', '.join(missing)}: give GLUE's tables")
        specs = present
    for number, spec in enumerate(specs):
        progress("tasks of GLUE", number, len(specs))
        if folder is None:
            tables = read_hub(str(config.dataset), spec)
        else:
            paths = {split: find_table(folder, spec, split) for split in spec.splits}
            tables = {split: read_table(path, spec, split) for split, path in paths.items() if path}
        yield from ((spec, split, table) for split, table in tables.items())
    progress("tasks of GLUE", len(specs), len(specs))


def make_columns(table: GlueTable, settings: Settings, vocabulary: Vocabulary) -> tuple[Columns, Counts]:
    """Return the columns of the feature file of a table, and the table's counts with tokens and rows that were cut.

    Where two sentences are too long together, the longer loses its last piece until they fit, the second one on a tie
    (google-research/bert, run_classifier.py).
    """
    counts = table.counts
    kind = np.dtype(np.uint16 if len(vocabulary.pieces) <= 2**16 else np.int32)
    pairs = len(settings.spec.texts) > 1
    ids: list[npt.NDArray[Any]] = []
    lengths: list[int] = []
    second: list[int] = []
    for begin in range(0, len(table.rows), _BATCH):
        rows, flat = table.rows[begin : begin + _BATCH], list[int]()
        first = vocabulary.encode([row.first for row in rows])
        other = vocabulary.encode([row.second for row in rows if row.second is not None])
        for first_ids, second_ids in zip(first, other or ([] for _ in first), strict=True):
            kept = fitted(len(first_ids), len(second_ids), settings.max_seq_length - 2 - pairs)
            counts.add(CUT, kept != (len(first_ids), len(second_ids)))
            row = [vocabulary.cls_id, *first_ids[: kept[0]], vocabulary.sep_id]
            second.append(len(row))
            row += [*second_ids[: kept[1]], vocabulary.sep_id] if pairs else []
            lengths.append(len(row))
            flat += row
        ids.append(np.array(flat, dtype=kind))
    counts.add("tokens", sum(lengths))
    labels = [row.label for row in table.rows if row.label is not None]
    return {
        "ids.values": np.concatenate(ids),
        "ids.offsets": offsets_of(lengths),
        "second": np.array(second, dtype=np.int64),
        "labels": np.array(labels, dtype=np.float32 if settings.spec.is_regression else np.int64),
        "index": np.array([row.index for row in table.rows], dtype=np.int64),
    }, counts


def fitted(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the pieces that are kept of two sentences of so many pieces."""
    while first + second > room:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    return first, second


def open_features(path: Path, *splits: str, task: object = None) -> RowFeatures:
    """Return the features of a file, or of the one file that a folder has of the first split that it has any of.

    The file's column `index` is the number of each row in its table [N].
    """
    file = read_features(path, *(f"glue-{task or '*'}-{split}" for split in splits or ("*",)))
    return RowFeatures(file, file.token_rows("ids", file.columns["second"]))


def to_predict(path: Path, task: str | None) -> list[Path]:
    """Return a file, or those of a folder's tables that are not trained on, in the order of the task's splits.

    Raises InputError: there are none, or those of several tasks where `task` is None.
    """
    if not path.is_dir():
        return [path]
    tasks = {file.name.split("-")[1] for file in features_in(path, "glue")} if task is None else {task}
    if len(tasks) > 1:
        raise InputError("data-ambiguous", f"{path} holds features of {', '.join(sorted(tasks))}: give those of one")
    kinds = [f"glue-{name}-{split}" for name in tasks for split in TASKS[name].splits if split != TRAIN]
    files = [find_features(path, kind) for kind in kinds if features_in(path, kind)]
    if not files:
        raise InputError("data-unprepared", f"{path} holds no GLUE features of {task or 'any task'}: run `data glue`")
    return files
