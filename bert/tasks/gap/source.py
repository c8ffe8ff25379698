"""GAP's data for plans: feature files. Imports no torch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from bert.data.finished import fingerprint_of
from bert.data.lengths import is_synthetic
from bert.data.loading.order import spread
from bert.data.rows import Int64, Ragged, TokenRows
from bert.model.config import ModelConfig
from bert.model.step import Gemm, Step, classifier, pooler
from bert.tasks.base import FINE_TUNING, Trained
from bert.tasks.classification import ClassificationTask, check_judging
from bert.tasks.gap.config import DEFAULT_LENGTH, MENTIONS, SPLITS
from bert.tasks.gap.features import FORM, GapFeatures
from bert.tasks.gap.reading import LABELS
from bert.tasks.options import TaskOption
from bert.tasks.row_data import EVALUATION
from common.errors import InputError, UsageError

TRAINING, VALIDATION, TEST = SPLITS


def training_rows(source: Path, train_on_all: bool = False, sample_limit: int | None = None) -> TokenRows:
    """Return the rows to train on.

    Args:
        source: a file of features, or a folder with one for training.
        train_on_all: those for validation that are beside them, too.
        sample_limit: maximum number of samples, evenly spaced; None is no limit.
    """
    files = training_files(source, train_on_all)
    rows = joined([features.rows for features in files])
    if sample_limit is None or sample_limit >= len(rows):
        return rows
    return chosen(rows, spread(len(rows), sample_limit))


def training_files(source: Path, train_on_all: bool = False) -> list[GapFeatures]:
    """Return the features to train on, files apart; arguments and what it raises as `training_rows` has them."""
    files = [FORM.open(source, TRAINING)]
    if train_on_all:
        files.append(FORM.open(source if source.is_dir() else source.parent, VALIDATION))
    return files


def evaluation_features(source: Path, wanted: Path | None) -> GapFeatures:
    """Return the features to evaluate on.

    Args:
        source: what is trained on, a file or folder.
        wanted: a file, or a folder with features for validation; None is the folder of `source`.

    Raises:
        InputError: there are none, several, or damaged ones.
    """
    if wanted is None:
        return FORM.open(source if source.is_dir() else source.parent, VALIDATION)
    return FORM.open(wanted, VALIDATION)


def chosen(rows: TokenRows, numbers: Int64) -> TokenRows:
    """Return the rows with these numbers, in this order, as rows of their own."""
    return TokenRows(
        ids=Ragged.of([rows.ids[number] for number in numbers.tolist()], rows.ids.values.dtype),
        second=rows.second[numbers],
        labels=rows.labels[numbers] if rows.has_labels else rows.labels,
        columns={name: column[numbers] for name, column in rows.columns.items()},
        fingerprint=fingerprint_of(rows.fingerprint, numbers.tolist()),
        vocab_size=rows.vocab_size,
        vocabulary=rows.vocabulary,
        pad_id=rows.pad_id,
        max_seq_length=rows.max_seq_length,
    )


def joined(parts: Sequence[TokenRows]) -> TokenRows:
    """Return rows of several files one after another; the longest max_seq_length holds for all.

    Raises:
        InputError: they were made with different vocabularies, or only some have labels.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    if len({part.vocabulary for part in parts}) > 1:
        raise InputError(
            "vocabulary-mismatch",
            "the features for training and validation were created with different vocabularies: their ids mean "
            "different words; create both with the same vocab.txt and casing",
        )
    if len({part.has_labels for part in parts}) > 1:
        raise InputError(
            "labels-invalid",
            "the features for validation have no labels: create them from a TSV with A-coref and B-coref",
        )
    values = [part.ids.values for part in parts]
    begins = np.cumsum([0, *(len(value) for value in values[:-1])])
    offsets = [part.ids.offsets[1:] + begin for part, begin in zip(parts, begins, strict=True)]
    return TokenRows(
        ids=Ragged(np.concatenate(values), np.concatenate([[0], *offsets])),
        second=np.concatenate([part.second for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        columns={name: np.concatenate([part.columns[name] for part in parts]) for name in first.columns},
        fingerprint=fingerprint_of(*(part.fingerprint for part in parts)),
        vocab_size=first.vocab_size,
        vocabulary=first.vocabulary,
        pad_id=first.pad_id,
        max_seq_length=max(part.max_seq_length for part in parts),
    )


HEAD_NAMES = ("concat", "mul", "segment", "span")
"""Of bert.tasks.gap.task.HEADS."""


class GapData(ClassificationTask):
    """Texts with a pronoun and two names, real or synthetic."""

    name = "gap"
    trained_by = "bert.tasks.gap.task:GapTask"
    heads = ""
    commands = MappingProxyType(
        {
            "data": (
                "bert.tasks.gap.commands:Prepare",
                "GAP's TSVs -> features: texts, a pronoun and two names in each",
            ),
            "predict": (
                "bert.tasks.gap.commands:Predict",
                "predict, for each row, which name the pronoun refers to; writes Kaggle's CSV",
            ),
            "eval": (
                "bert.tasks.gap.commands:Eval",
                "official scores of GAP, log loss, accuracy, by gender, distance and length",
            ),
        }
    )
    seq_len = DEFAULT_LENGTH
    options = (
        TaskOption(
            name="head", kind=str, default="concat", choices=HEAD_NAMES, says="method that combines pronoun and names"
        ),
        TaskOption(name="sample_limit", kind=int, says="train on only N samples, evenly spaced"),
        TaskOption(name="train_on_all", kind=bool, default=False, says="train on the validation data too"),
    )
    defaults = MappingProxyType({**FINE_TUNING, "seq_len": DEFAULT_LENGTH, "global_batch_size": 16})

    @property
    def labels(self) -> int:
        """Neither, A, B."""
        return len(LABELS)

    def rows(self, source: Path, split: str, seq_len: int | None = None) -> TokenRows:
        """Read features to train on, with what `train_on_all` and `sample_limit` say; or to evaluate on.

        Raises:
            InputError: there are none, several, damaged ones, or rows without labels are to be trained on.
        """

        if split == EVALUATION:
            return evaluation_features(source, source).rows
        limit = self.values.get("sample_limit")
        return training_rows(source, bool(self.values["train_on_all"]), None if limit is None else int(limit))

    def evaluation_rows(self, source: str, seq_len: int, wanted: str | None, training: TokenRows) -> TokenRows:
        """Return the rows to evaluate on: those that are wanted, else those for validation beside the training data.

        Raises:
            InputError: there are none with labels, they are longer than those that are trained on, or of another
                vocabulary.
            UsageError: they are trained on.
        """

        features = evaluation_features(Path(source), None if wanted is None else Path(wanted))
        rows, place = features.rows, wanted or f"{source}, for validation,"
        check_judging(rows, place, seq_len, training, source)
        trained_on = training_files(Path(source), bool(self.values["train_on_all"]))
        if any(file.fingerprint == features.fingerprint for file in trained_on):
            why = (
                "--train-on-all also trains on validation"
                if self.values["train_on_all"]
                else "as they are training data"
            )
            raise UsageError(
                "option-conflict",
                f"the rows in {place} cannot evaluate the model, {why}: give other features as --eval-data, such as "
                "those of gap-test.tsv, or --eval-every 0",
            )
        return rows

    def prepare_command(self, seq_len: int) -> str:
        """The command that makes features."""
        from bert.tasks.gap.features import FORM

        return FORM.command("training", max_seq_length=seq_len)

    def next_command(self, trained: Trained) -> list[str] | None:
        """A prediction of the test rows beside the data, else of the rows it was evaluated on."""
        from bert.tasks.gap.features import FORM

        if is_synthetic(trained.data):
            return None
        named = Path(trained.eval_data or trained.data)
        folders = dict.fromkeys((trained.folder(), named if named.is_dir() else named.parent))
        found = [
            file for split in ("test", "validation") for folder in folders for file in FORM.files_in(folder, split)
        ]
        if trained.eval_data is not None and named.is_file():
            found.insert(0, named)
        return trained.prediction(self.name, "--features", str(found[0])) if found else None

    def step(self, config: ModelConfig) -> Step:
        """The head that was chosen, and the pooler where it has one."""
        hidden, classes = config.hidden_size, len(LABELS)
        head = str(self.values["head"])
        mentions = classifier(config, classes, "mention head")
        # mul multiplies with other hidden states; its one parameter is a vector.
        gemms = {
            "concat": (replace(mentions, inner=MENTIONS * hidden),),
            "mul": (replace(mentions, own_weight=False, own_bias=False),),
            "segment": (pooler(config), mentions),
            "span": (
                Gemm(name="mention pairs", inner=3 * hidden, columns=hidden, over="sequences", rows_each=2),
                replace(mentions, columns=1, rows_each=2),
            ),
        }[head]
        return Step(config=config, head=gemms, head_vectors={"mul": hidden, "segment": MENTIONS * hidden}.get(head, 0))
