"""`bertbench data csv` and `bertbench predict classify`: prepare a CSV; predict the labels of its texts."""

import csv
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert.data.rows import Ragged, TokenRows
from bert.data.vocabulary import VOCABULARY_FILE, Vocabulary, load_vocabulary
from bert.tasks.base import Ready
from bert.tasks.classify.config import CsvConfig, CsvForm
from bert.tasks.commands import Host, Outcome, TaskCommand
from bert.tasks.row_data import TRAINING
from common.atomic import atomic_path
from common.errors import InputError, UsageError
from common.reading import read_json

if TYPE_CHECKING:
    from bert.predict import Opened
    from bert.tasks.classify.reading import LeftOut, TextRow

RESULTS_FORMAT, RESULTS_FILE = "bertbench classification result", "results.json"
"""What `train classify` leaves in the folder of a model; records.classification, which writes it, has both as well."""
_ENDING = "_predictions.csv"
_BATCH_TEXTS = 2000
_MOST_SHOWN = 5


class Prepare(TaskCommand):
    """Convert a CSV of texts and labels to a SQLite file for training. The same command keeps a finished file.

    Encoding and delimiter are detected and reported. Invalid rows are skipped, counted and listed.

    Examples:
        bertbench data csv reviews.csv --vocab vocab.txt
        bertbench data csv reviews.csv --vocab vocab.txt --text review --label stars --delimiter tab
    """

    options = CsvConfig

    def run(self, options: CsvConfig, host: Host) -> Outcome:
        """Make the database; the document has every line that was left out."""
        from bert.tasks.classify.prepare import prepare
        from bert.tasks.classify.store import left_out
        from bert.tasks.classify.summary import notes, summary_facts

        summary = prepare(options, host.progress)
        lines = [{"line": line, "reason": reason} for line, reason in left_out(summary.source.path)]
        document = {**summary.to_json(), "left_out": lines}
        return Outcome(document=document, shown=[summary_facts(summary)], notes=notes(summary))


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """Of `bertbench predict classify`."""

    checkpoint: Path
    """*_trained_model of `bertbench train classify`, its run directory, or one of its checkpoints."""
    data: Path
    """CSV file of texts; if it has labels, they are compared with the predictions."""
    form: CsvForm = field(default_factory=CsvForm)
    out: Path | None = None
    """File to write; default beside the CSV: <root>_predictions.csv."""
    threads: int | None = None
    """CPU threads; default one per core. Fewer are faster if other programs use the cores."""

    def __post_init__(self) -> None:
        """Refuse invalid numbers."""
        if self.threads is not None and self.threads < 1:
            raise UsageError("option-value", f"--threads {self.threads} must be at least 1")


class Predict(TaskCommand):
    """Predict the label of each text in a CSV of any size. Writes line, prediction and probability and, if the CSV has
    labels, true_label (empty for a row without one). Runs as one process on one device.

    Examples:
        bertbench predict classify --checkpoint reviews_trained_model --data new.csv
    """

    options = PredictOptions
    computes = True

    def run(self, options: PredictOptions, host: Host) -> Outcome:
        """Write the labels."""
        import torch

        from bert.tasks.classify.reading import check_file, find_form, read_rows

        check_file(options.data)
        form = find_form(options.data, options.form, needs_label=False)
        classifier = open_classifier(host.checkpoint(options.checkpoint), host)
        out = options.out or options.data.with_name(f"{options.data.stem}{_ENDING}")
        if out.resolve() == options.data.resolve():
            raise UsageError("option-conflict", f"--out {out} is the input: give another file")
        if out.is_dir():
            raise UsageError("path-kind", f"--out {out} is a folder: give a file")
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        ready, tally, began = host.ready(classifier.opened), _Tally(), time.monotonic()
        with atomic_path(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["line", "prediction", "probability", *(["true_label"] if form.label is not None else [])])
            for batch in _batches(read_rows(options.data, form, needs_label=False), tally):
                found = classifier.predict([row.text for row in batch], ready)
                _write(writer, batch, found, tally)
                _count_unknown(batch, found, classifier.labels, tally)
                host.progress("texts", tally.texts, None)
            if not tally.texts:
                raise InputError(
                    "rows-invalid",
                    f"{options.data} has no usable text ({len(tally.left_out)} rows were skipped): give texts",
                )
        return _outcome(options, form.encoding, out, tally, time.monotonic() - began)


@dataclass(slots=True)
class _Tally:
    """Counts of texts and labels."""

    texts: int = 0
    right: int = 0
    labelled: int = 0
    left_out: list[tuple[int, str]] = field(default_factory=list)
    given: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    """Texts whose label in the file is none of the model's: they count as wrong."""
    unknown_labels: list[str] = field(default_factory=list)
    """The first such labels."""


def _batches(rows: "Iterator[TextRow | LeftOut]", tally: _Tally) -> "Iterator[list[TextRow]]":
    from bert.tasks.classify.reading import LeftOut

    batch: list[TextRow] = []
    for row in rows:
        if isinstance(row, LeftOut):
            tally.left_out.append((row.line, row.reason))
            continue
        batch.append(row)
        if len(batch) == _BATCH_TEXTS:
            yield batch
            batch = []
    if batch:
        yield batch


def _write(writer: Any, batch: "list[TextRow]", found: "list[tuple[str, float] | None]", tally: _Tally) -> None:
    from bert.tasks.classify.reading import NO_PIECES

    for row, one in zip(batch, found, strict=True):
        if one is None:
            tally.left_out.append((row.line, NO_PIECES))
            continue
        label, share = one
        tally.texts += 1
        tally.given[label] += 1
        if row.label:
            tally.labelled += 1
            tally.right += row.label == label
        writer.writerow([row.line, label, f"{share:.6f}", *([] if row.label is None else [row.label])])


def _count_unknown(
    batch: "list[TextRow]", found: "list[tuple[str, float] | None]", known: Sequence[str], tally: _Tally
) -> None:
    for row, one in zip(batch, found, strict=True):
        if one is None or not row.label or row.label in known:
            continue
        tally.unknown += 1
        if row.label not in tally.unknown_labels and len(tally.unknown_labels) <= _MOST_SHOWN:
            tally.unknown_labels.append(row.label)


def _unknown_text(tally: _Tally) -> str:
    shown = ", ".join(repr(label[:40]) for label in tally.unknown_labels[:_MOST_SHOWN])
    more = ", ..." if len(tally.unknown_labels) > _MOST_SHOWN else ""
    return (
        f"{tally.unknown:,} of the {tally.labelled:,} labels in the file are unknown to the model "
        f"({shown}{more}) and count as wrong"
    )


def _outcome(options: PredictOptions, encoding: str, out: Path, tally: _Tally, seconds: float) -> Outcome:
    accuracy = tally.right / tally.labelled if tally.labelled else None
    found = {
        "checkpoint": str(options.checkpoint),
        "data": str(options.data),
        "texts": tally.texts,
        "predictions": dict(tally.given.most_common()),
        "accuracy": accuracy,
        "unknown_labels": tally.unknown,
        "left_out": [{"line": line, "reason": reason} for line, reason in tally.left_out],
        "form": {**asdict(options.form), "encoding": encoding},
        "seconds": seconds,
        "written": str(out),
    }
    most = ", ".join(f"{label[:40]} {count:,}" for label, count in tally.given.most_common(_MOST_SHOWN))
    rows: list[tuple[str, object]] = [
        ("texts", f"{tally.texts:,} in {seconds:.1f} s, {tally.texts / seconds:,.1f} per second"),
        ("predictions", f"{most}{', ...' if len(tally.given) > _MOST_SHOWN else ''}"),
    ]
    if accuracy is not None:
        rows.append(("accuracy", f"{100 * accuracy:.1f} % of {tally.labelled:,} labels in the file"))
    if tally.unknown:
        rows.append(("unknown", _unknown_text(tally)))
    if tally.left_out:
        lines = [f"line {line}: {reason}" for line, reason in tally.left_out[:_MOST_SHOWN]]
        lines += ["..."] if len(tally.left_out) > _MOST_SHOWN else []
        count = len(tally.left_out)
        rows.append(("left out", f"{count:,} row{'s' * (count != 1)} ({', '.join(lines)})"))
    rows.append(("wrote", str(out)))
    return Outcome(document=found, shown=[rows])


@dataclass(frozen=True, slots=True)
class TextClassifier:
    """A trained model that gives texts one of its labels, with its vocabulary."""

    opened: "Opened"
    labels: tuple[str, ...]
    vocabulary: Vocabulary
    """How its texts are cut into word pieces."""
    max_seq_length: int
    """Maximum tokens of a row; longer texts have several."""

    def predict(self, texts: Sequence[str], ready: Ready) -> list[tuple[str, float] | None]:
        """Return label and probability of each text; None for a text without word pieces.

        Raises:
            InputError: the model gives no finite numbers.
        """
        from bert.tasks.classify.task import text_probabilities
        from bert.tasks.evaluation import check_logits, row_logits

        numbers, rows = self._rows(texts)
        found: list[tuple[str, float] | None] = [None] * len(texts)
        if not len(rows):
            return found
        logits = row_logits(ready, rows, len(self.labels))
        check_logits(logits)
        _, shares = text_probabilities(logits, numbers)
        for number, share in zip(np.unique(numbers), shares, strict=True):
            best = int(share.argmax())
            found[int(number)] = self.labels[best], float(share[best])
        return found

    def _rows(self, texts: Sequence[str]) -> tuple[Any, TokenRows]:
        from bert.tasks.classify.prepare import fold

        vocabulary = self.vocabulary
        rows, numbers = [], []
        for number, pieces in enumerate(vocabulary.encode(texts)):
            for row in fold(pieces, self.max_seq_length, vocabulary.cls_id, vocabulary.sep_id):
                rows.append(row)
                numbers.append(number)
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        values = np.array([piece for row in rows for piece in row], dtype=np.int32)
        return np.array(numbers, dtype=np.int64), TokenRows(
            ids=Ragged(values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)),
            second=lengths,
            labels=np.zeros(0, dtype=np.int64),
            fingerprint="texts to predict",
            vocab_size=len(vocabulary.pieces),
            vocabulary=vocabulary.fingerprint,
            pad_id=vocabulary.pad_id,
            max_seq_length=self.max_seq_length,
        )


def open_classifier(checkpoint: Path, host: Host) -> TextClassifier:
    """Open the folder of a trained model, or a checkpoint of a run whose database is where it was."""
    from bert.predict import open_model
    from bert.tasks.base import DataIdentity
    from bert.tasks.classify.task import ClassifyTask

    if not checkpoint.exists():
        raise InputError(
            "path-missing", f"{checkpoint} does not exist: give *_trained_model or a run directory of `train classify`"
        )
    labels, vocabulary, longest = _words_of(checkpoint, host)
    data = DataIdentity(source=str(checkpoint), vocab_size=len(vocabulary.pieces), vocabulary=vocabulary.fingerprint)
    opened = open_model(checkpoint, ClassifyTask(labels=len(labels)), data, host.note)
    return TextClassifier(opened, labels, vocabulary, longest)


def _words_of(checkpoint: Path, host: Host) -> tuple[tuple[str, ...], Vocabulary, int]:
    from bert.tasks.classify.store import open_source
    from bert.tasks.classify.task import rows_fingerprint

    results = checkpoint / RESULTS_FILE
    try:
        if results.is_file():
            document = read_json(results, "train again, or give another --checkpoint")
            if document.get("format") != RESULTS_FORMAT:
                raise InputError(
                    "record-foreign",
                    f"{results} was not written by `bertbench train classify`: give another --checkpoint",
                )
            text = document["text"]
            vocabulary = load_vocabulary(checkpoint / VOCABULARY_FILE, bool(text["lower_case"]))
            if vocabulary.fingerprint != text["vocabulary"]:
                raise InputError(
                    "vocabulary-mismatch", f"{checkpoint / VOCABULARY_FILE} is not of that model: restore it"
                )
            return tuple(map(str, document["labels"])), vocabulary, int(text["max_seq_length"])
        trained = host.trained_on(checkpoint)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "file-damaged", f"{checkpoint} is damaged ({error!r}): train again, or give another --checkpoint"
        ) from error
    if trained is None:
        raise InputError(
            "checkpoint-missing",
            f"{checkpoint} does not list labels: give *_trained_model or a run directory of `train classify`",
        )
    task, data, before = trained
    if task != "classify":
        raise InputError(
            "weights-mismatch",
            f"{checkpoint} was trained on {task}: run `bertbench train classify FILE.csv --init {checkpoint}`",
        )
    source = open_source(Path(data))
    if before is not None and before != rows_fingerprint(source, TRAINING):
        raise InputError(
            "data-mismatch", f"{source.path} changed after {checkpoint} was trained on it: give the *_trained_model"
        )
    return source.labels, source.vocabulary, source.max_seq_length
