"""`bertbench data csv` and `bertbench predict classify`: prepare a CSV; predict the labels of its texts."""

import csv
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bert.data.rows import Ragged, TokenRows
from bert.data.vocabulary import VOCABULARY_FILE, Vocabulary, load_vocabulary
from bert.tasks.base import DataIdentity, Ready
from bert.tasks.classify.config import CsvConfig, CsvForm
from bert.tasks.classify.prepare import LEFT_OUT, CsvSummary, batches, fold, prepare
from bert.tasks.classify.reading import NO_PIECES, FoundForm, Row, find_form, read_rows
from bert.tasks.classify.store import SPLITS, left_out, open_source, rows_fingerprint
from bert.tasks.commands import Host, Outcome, TaskCommand, rate, some_of
from common.atomic import atomic_path
from common.errors import InputError, UsageError
from common.reading import read_json

if TYPE_CHECKING:
    from bert.predict import Opened

RESULTS_FORMAT, RESULTS_FILE = "bertbench classification result", "results.json"
"""What `train classify` leaves in the folder of a model; records.classification, which writes it, has both as well."""
_ENDING = "_predictions.csv"


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
        summary = prepare(options, host.progress)
        lines = [{"line": line, "reason": reason} for line, reason in left_out(summary.source.path)]
        document = {**summary.to_json(), "left_out": lines}
        return Outcome(document=document, shown=[facts(summary)], notes=summary.notes())


def facts(summary: CsvSummary) -> list[tuple[str, str]]:
    """Return what a preparation made, for people."""
    source = summary.source
    counts, settings, folded = source.counts, source.settings, source.counts.get("folded texts")
    total, labels = sum(source.label_texts), sorted(zip(source.label_texts, source.labels, strict=True), reverse=True)
    return [
        ("input", source.origin["name"]),
        ("encoding", settings["encoding"].removesuffix("-sig")),
        ("delimiter", f"{settings['delimiter']!r}{'' if settings['quoting'] else ', no quoting'}"),
        ("columns", f"text {settings['text']!r}, label {settings['label']!r}, of {len(settings['header']):,}"),
        ("texts", f"{counts.get('texts'):,} of {counts.get('rows'):,} rows"),
        *(_row_count(name, counts.get(name), places) for name, places in counts.names.items()),
        ("labels", f"{len(labels):,}: {some_of([f'{label[:40]} {100 * n / total:.1f} %' for n, label in labels])}"),
        ("samples", f"{counts.get('samples'):,} of at most {source.max_seq_length} tokens, {folded:,} texts folded"),
        ("tokens", f"{counts.get('word pieces') / total:.1f} word pieces per text"),
        ("splits", ", ".join(f"{name} {sizes['texts']:,}" for name, sizes in summary.sizes.items()) + " texts"),
        ("time", "finished before" if summary.kept else f"{summary.seconds:.1f} s"),
        ("database", str(source.path)),
    ]


def _row_count(name: str, count: int, places: Sequence[str]) -> tuple[str, str]:
    more = ", ..." if count > len(places) else ""
    title = "left out" if name.startswith(LEFT_OUT) else "odd"
    return title, f"{count:,} x {name.removeprefix(LEFT_OUT)} ({', '.join(places)}{more})"


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

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        if self.file == self.data or self.file.is_dir():
            raise UsageError("option-conflict", f"--out {self.file} is the input or a folder: give another file")

    @property
    def file(self) -> Path:
        """The file to write."""
        return self.out or self.data.with_name(f"{self.data.stem}{_ENDING}")


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
        form = find_form(options.data, options.form, needs_label=False)
        classifier = open_classifier(host.checkpoint(options.checkpoint), host)
        ready, tally, began = host.ready(classifier.opened), _Tally(classifier.labels), time.monotonic()
        with atomic_path(options.file) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["line", "prediction", "probability", *(["true_label"] if form.label is not None else [])])
            for rows in batches(read_rows(options.data, form, needs_label=False)):
                predictions = classifier.predict(["" if row.left_out else row.text for row in rows], ready)
                for row, prediction in zip(rows, predictions, strict=True):
                    tally.add(row, prediction)
                    if prediction is not None:
                        label, share = prediction
                        true = [] if row.label is None else [row.label]
                        writer.writerow([row.line, label, f"{share:.6f}", *true])
                host.progress("texts", tally.predictions.total(), None)
            if not tally.predictions:
                count = len(tally.left_out)
                raise InputError("rows-invalid", f"{options.data} has no usable text, {count} rows skipped: give texts")
        return tally.outcome(options, form, time.monotonic() - began)


class _Tally:
    """Counts of predicted texts and of their labels in the file."""

    def __init__(self, known: Sequence[str]) -> None:
        self.known = known
        self.predictions: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        """Labels in the file that the model does not have: they count as wrong."""
        self.right = self.labelled = 0
        self.left_out: list[tuple[int, str]] = []

    def add(self, row: Row, prediction: tuple[str, float] | None) -> None:
        """Count a row."""
        if prediction is None:
            self.left_out.append((row.line, row.left_out or NO_PIECES))
            return
        self.predictions[prediction[0]] += 1
        if row.label:
            self.labelled += 1
            self.right += row.label == prediction[0]
            self.unknown[row.label] += row.label not in self.known

    def outcome(self, options: PredictOptions, form: FoundForm, seconds: float) -> Outcome:
        """Return the counts for programs and for people."""
        texts, labelled = self.predictions.total(), self.labelled
        unknown = +self.unknown
        accuracy = self.right / labelled if labelled else None
        document = {
            "checkpoint": str(options.checkpoint),
            "data": str(options.data),
            "texts": texts,
            "predictions": dict(self.predictions.most_common()),
            "accuracy": accuracy,
            "unknown_labels": unknown.total(),
            "left_out": [{"line": line, "reason": reason} for line, reason in self.left_out],
            "form": {**asdict(options.form), "encoding": form.encoding},
            "seconds": seconds,
            "written": str(options.file),
        }
        shares = [f"{label[:40]} {count:,}" for label, count in self.predictions.most_common()]
        rows: list[tuple[str, object]] = [("texts", rate(texts, seconds)), ("predictions", some_of(shares))]
        if accuracy is not None:
            rows.append(("accuracy", f"{100 * accuracy:.1f} % of {labelled:,} labels in the file"))
        if unknown:
            names = some_of([repr(label[:40]) for label in unknown])
            rows.append(("unknown", f"{unknown.total():,} labels that the model lacks count as wrong: {names}"))
        if self.left_out:
            lines = some_of([f"line {line}: {reason}" for line, reason in self.left_out])
            rows.append(("left out", f"{len(self.left_out):,} rows ({lines})"))
        return Outcome(document=document, shown=[[*rows, ("wrote", str(options.file))]])


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
        """Return label and probability of each text; None for a text without word pieces."""
        from bert.tasks.classify.task import text_probabilities
        from bert.tasks.evaluation import check_logits, row_logits

        vocabulary, rows, numbers = self.vocabulary, [], []
        for number, pieces in enumerate(vocabulary.encode(texts)):
            folds = list(fold(pieces, self.max_seq_length, vocabulary.cls_id, vocabulary.sep_id))
            rows += folds
            numbers += [number] * len(folds)
        found: list[tuple[str, float] | None] = [None] * len(texts)
        if not rows:
            return found
        ids = Ragged.of(rows)
        token_rows = TokenRows(
            ids=ids,
            second=ids.lengths,
            labels=np.zeros(0, dtype=np.int64),
            fingerprint="texts to predict",
            vocab_size=len(vocabulary.pieces),
            vocabulary=vocabulary.fingerprint,
            pad_id=vocabulary.pad_id,
            max_seq_length=self.max_seq_length,
        )
        logits = row_logits(ready, token_rows, len(self.labels))
        check_logits(logits)
        _, shares = text_probabilities(logits, np.array(numbers))
        for number, share in zip(np.unique(numbers), shares, strict=True):
            best = int(share.argmax())
            found[int(number)] = self.labels[best], float(share[best])
        return found


def open_classifier(checkpoint: Path, host: Host) -> TextClassifier:
    """Open the folder of a trained model, or a checkpoint of a run whose database is where it was."""
    from bert.predict import open_model
    from bert.tasks.classify.task import ClassifyTask

    if not checkpoint.exists():
        raise InputError(
            "path-missing", f"{checkpoint} does not exist: give *_trained_model or a run directory of `train classify`"
        )
    labels, vocabulary, longest = _of_results(checkpoint) or _of_training(checkpoint, host)
    data = DataIdentity(source=str(checkpoint), vocab_size=len(vocabulary.pieces), vocabulary=vocabulary.fingerprint)
    opened = open_model(checkpoint, ClassifyTask(labels=len(labels)), data, host.note)
    return TextClassifier(opened, labels, vocabulary, longest)


def _of_results(folder: Path) -> tuple[tuple[str, ...], Vocabulary, int] | None:
    """Return labels, vocabulary and length of a row of a trained model's folder; None if it is another folder."""
    results = folder / RESULTS_FILE
    if not results.is_file():
        return None
    document = read_json(results, "train again, or give another --checkpoint")
    if document.get("format") != RESULTS_FORMAT:
        raise InputError("record-foreign", f"{results} is not of `bertbench train classify`: give another --checkpoint")
    text = document["text"]
    vocabulary = load_vocabulary(folder / VOCABULARY_FILE, text["lower_case"])
    if vocabulary.fingerprint != text["vocabulary"]:
        raise InputError("vocabulary-mismatch", f"{folder / VOCABULARY_FILE} is not of that model: restore it")
    return tuple(document["labels"]), vocabulary, text["max_seq_length"]


def _of_training(checkpoint: Path, host: Host) -> tuple[tuple[str, ...], Vocabulary, int]:
    """Return labels, vocabulary and length of a row of the database that a checkpoint was trained on."""
    trained = host.trained_on(checkpoint)
    if trained is None:
        raise InputError(
            "checkpoint-missing",
            f"{checkpoint} does not list labels: give *_trained_model or a run directory of `train classify`",
        )
    task, data, before = trained
    if task != "classify":
        raise InputError("weights-mismatch", f"{checkpoint} was trained on {task}: give one of `train classify`")
    source = open_source(Path(data))
    if before not in (None, rows_fingerprint(source, SPLITS[0])):
        raise InputError(
            "data-mismatch", f"{source.path} changed after {checkpoint} was trained on it: give the *_trained_model"
        )
    return source.labels, source.vocabulary, source.max_seq_length
