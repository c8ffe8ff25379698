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
from bert.tasks.classify.prepare import LEFT_OUT, CsvConfig, CsvSummary, batches, fold, prepare
from bert.tasks.classify.reading import NO_PIECES, CsvForm, find_form, read_rows
from bert.tasks.classify.store import left_out
from bert.tasks.commands import Host, Outcome, TaskCommand, rate, some_of
from common.atomic import atomic_path
from common.errors import InputError, UsageError
from common.reading import read_json

if TYPE_CHECKING:
    from bert.predict import Opened

RESULTS_FORMAT, RESULTS_FILE = "bertbench classification result", "results.json"
"""What `train classify` leaves in the folder of a model; records.classification, which writes it, has both as well."""


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
    counts, settings = source.counts, source.settings
    total, labels = sum(source.label_texts), sorted(zip(source.label_texts, source.labels, strict=True), reverse=True)
    remarks = [
        ("left out" if name.startswith(LEFT_OUT) else "odd",
         f"{counts.get(name):,} x {name.removeprefix(LEFT_OUT)}, such as {', '.join(places)}")
        for name, places in counts.names.items()
    ]  # fmt: skip
    return [
        ("input", source.origin["name"]),
        ("encoding", settings["encoding"].removesuffix("-sig")),
        ("delimiter", f"{settings['delimiter']!r}{'' if settings['quoting'] else ', no quoting'}"),
        ("columns", f"text {settings['text']!r}, label {settings['label']!r}, of {len(settings['header']):,}"),
        ("texts", f"{counts.get('texts'):,} of {counts.get('rows'):,} rows"),
        *remarks,
        ("labels", f"{len(labels):,}: {some_of([f'{label[:40]} {100 * n / total:.1f} %' for n, label in labels])}"),
        ("samples", f"{counts.get('samples'):,} of at most {source.max_seq_length} tokens"),
        ("splits", ", ".join(f"{name} {sizes['texts']:,}" for name, sizes in summary.sizes.items()) + " texts"),
        ("time", "finished before" if summary.kept else f"{summary.seconds:.1f} s"),
        ("database", str(source.path)),
    ]


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """Of `bertbench predict classify`."""

    checkpoint: Path
    """*_trained_model, which `bertbench train classify` writes beside the CSV."""
    data: Path
    """CSV file of texts; if it has labels, they are compared with the predictions."""
    form: CsvForm = field(default_factory=CsvForm)
    out: Path | None = None
    """File to write; default beside the CSV: <root>_predictions.csv."""

    def __post_init__(self) -> None:
        """Refuse to write over the input."""
        if self.file == self.data:
            raise UsageError("option-conflict", f"--out {self.file} is the input: give another file")

    @property
    def file(self) -> Path:
        """The file to write."""
        return self.out or self.data.with_name(f"{self.data.stem}_predictions.csv")


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
        classifier = open_classifier(options.checkpoint, host)
        ready, began = host.ready(classifier.opened), time.monotonic()
        predictions, unknown, skipped = Counter[str](), Counter[str](), list[tuple[int, str]]()
        right = labelled = 0
        with atomic_path(options.file) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["line", "prediction", "probability", *(["true_label"] if form.label is not None else [])])
            for rows in batches(read_rows(options.data, form, needs_label=False)):
                answers = classifier.predict(["" if row.left_out else row.text for row in rows], ready)
                for row, answer in zip(rows, answers, strict=True):
                    if answer is None:
                        skipped.append((row.line, row.left_out or NO_PIECES))
                        continue
                    label, probability = answer
                    true = [] if row.label is None else [row.label]
                    writer.writerow([row.line, label, f"{probability:.6f}", *true])
                    predictions[label] += 1
                    if row.label:
                        labelled += 1
                        right += row.label == label
                        unknown[row.label] += row.label not in classifier.labels
                host.progress("texts", predictions.total(), None)
            if not predictions:
                raise InputError(
                    "rows-invalid", f"{options.data} has no usable text, {len(skipped)} rows skipped: give texts"
                )
        seconds, texts, unknown = time.monotonic() - began, predictions.total(), +unknown
        document = {
            "checkpoint": str(options.checkpoint),
            "data": str(options.data),
            "texts": texts,
            "predictions": dict(predictions.most_common()),
            "accuracy": right / labelled if labelled else None,
            "unknown_labels": unknown.total(),
            "left_out": [{"line": line, "reason": reason} for line, reason in skipped],
            "form": {**asdict(options.form), "encoding": form.encoding},
            "seconds": seconds,
            "written": str(options.file),
        }
        shown = [
            ("texts", rate(texts, seconds)),
            ("predictions", some_of([f"{label[:40]} {count:,}" for label, count in predictions.most_common()])),
            ("accuracy", f"{100 * right / labelled:.1f} % of {labelled:,} labels in the file" if labelled else ""),
            ("unknown", f"{unknown.total():,} labels that the model lacks count as wrong: {some_of([*unknown])}"
             if unknown else ""),
            ("left out", f"{len(skipped):,} rows ({some_of([f'line {line}: {reason}' for line, reason in skipped])})"
             if skipped else ""),
            ("wrote", str(options.file)),
        ]  # fmt: skip
        return Outcome(document=document, shown=[[fact for fact in shown if fact[1]]])


@dataclass(frozen=True, slots=True)
class TextClassifier:
    """A trained model that gives texts one of its labels, with its vocabulary."""

    opened: "Opened"
    labels: tuple[str, ...]
    vocabulary: Vocabulary
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
        answers: list[tuple[str, float] | None] = [None] * len(texts)
        if not rows:
            return answers
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
        first, shares = text_probabilities(logits, np.array(numbers))
        for row, share in zip(first, shares, strict=True):
            best = int(share.argmax())
            answers[numbers[row]] = self.labels[best], float(share[best])
        return answers


def open_classifier(folder: Path, host: Host) -> TextClassifier:
    """Open the folder of a trained model, which holds its labels, vocabulary and length of a row."""
    from bert.predict import open_model
    from bert.tasks.classify.task import ClassifyTask

    document = read_json(folder / RESULTS_FILE, "give the *_trained_model that `train classify` writes")
    if document.get("format") != RESULTS_FORMAT:
        raise InputError("record-foreign", f"{folder} is not of `bertbench train classify`: give another --checkpoint")
    labels, text = tuple(document["labels"]), document["text"]
    vocabulary = load_vocabulary(folder / VOCABULARY_FILE, text["lower_case"])
    if vocabulary.fingerprint != text["vocabulary"]:
        raise InputError("vocabulary-mismatch", f"{folder / VOCABULARY_FILE} is not of that model: restore it")
    data = DataIdentity(source=str(folder), vocab_size=len(vocabulary.pieces), vocabulary=vocabulary.fingerprint)
    opened = open_model(folder, ClassifyTask(labels=len(labels)), data, host.note)
    return TextClassifier(opened, labels, vocabulary, text["max_seq_length"])
