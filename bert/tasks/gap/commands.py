"""`bertbench data gap`, `predict gap` and `eval gap`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.features import made_of
from bert.tasks.classification import probabilities
from bert.tasks.commands import (
    PREDICTIONS_FILE,
    Grid,
    Host,
    Outcome,
    PrepareCommand,
    Shown,
    TaskCommand,
    open_trained,
    rate,
    some_of,
    timed_logits,
    timing,
    trained_task,
    unmatched,
)
from bert.tasks.gap.features import GapConfig, open_features, prepare
from bert.tasks.gap.reading import (
    DECISIONS,
    FEMININE,
    LABELS,
    MASCULINE,
    read_predictions,
    write_kaggle,
    write_official,
)
from bert.tasks.gap.scores import ANSWERS, OVERALL, Scores, read_golds, score, slices
from common.errors import InputError

KAGGLE_FILE = "submission.csv"


class Prepare(PrepareCommand):
    """Convert TSV files of GAP to features for training, validation and prediction. The same command keeps finished
    files. Invalid rows are skipped and listed by line.

    Examples:
        bertbench data gap --input gap-development.tsv gap-validation.tsv gap-test.tsv --vocab vocab.txt
    """

    options = GapConfig
    prepare = staticmethod(prepare)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """Of `bertbench predict gap`."""

    checkpoint: Path
    """Run of `bertbench train gap` (its best checkpoint, otherwise the latest), or one of its checkpoints."""
    features: Path
    """Features from `bertbench data gap`; in a folder, those of the test split."""
    out: Path = Path("runs/gap-predictions")
    """Folder for predictions.tsv, in the format of the official scorer."""
    kaggle_csv: bool = False
    """Also write the probabilities as submission.csv: ID,A,B,NEITHER."""


class Predict(TaskCommand):
    """Predict, for each row of a features file, whether the pronoun refers to A, B or neither. The rows need no
    answers.

    Runs as one process on one device, with the head of the checkpoint.

    Examples:
        bertbench predict gap --checkpoint runs/gap-train --features runs/gap
    """

    options = PredictOptions
    computes = True

    def run(self, options: PredictOptions, host: Host) -> Outcome:
        """Write decisions as the official scorer takes them."""
        features = open_features(options.features, "test")
        rows = features.rows
        ids, left_out = (features.file.ragged(name).texts() for name in ("example_ids", "left_out"))
        checkpoint = host.checkpoint(options.checkpoint)
        task = trained_task(self.task, checkpoint)
        opened, ready = open_trained(checkpoint, task, rows, options.features, options.out, host)
        logits, seconds = timed_logits(ready, rows, len(LABELS), host)
        if left_out:
            host.note(f"{len(left_out):,} row(s) were not usable, so without a decision: {some_of(left_out)}")
        classes = logits.argmax(1).tolist()
        decisions = {name: DECISIONS[number] for name, number in zip(ids, classes, strict=True)}
        written = [write_official(options.out / PREDICTIONS_FILE, decisions)]
        if options.kaggle_csv:
            written.append(write_kaggle(options.out / KAGGLE_FILE, probabilities_of(ids, logits, left_out)))
        # There is nothing to score without answers.
        dataset = made_of(features.file.path, "gap") if rows.has_labels else None
        answers = {name: classes.count(number) for number, name in enumerate(LABELS)}
        document = {
            "checkpoint": str(opened.source),
            "head": str(task.values["head"]),
            "features": str(options.features),
            "dataset": None if dataset is None else str(dataset),
            **timing("rows", len(rows), seconds),
            "left_out": len(left_out),
            "answers": answers,
            "written": [str(path) for path in written],
        }
        facts = [
            ("checkpoint", opened.source),
            ("head", document["head"]),
            ("rows", rate(len(rows), seconds)),
            ("answers", ", ".join(f"{count:,} {name}" for name, count in answers.items())),
            *(("wrote", path) for path in written),
        ]
        words = ["eval", "gap", "--dataset", str(dataset), "--predictions", str(written[-1])]
        return Outcome(document=document, shown=[facts], following=words if dataset else None)


def probabilities_of(
    ids: Sequence[str], logits: npt.NDArray[np.float32], left_out: Sequence[str] = ()
) -> dict[str, Sequence[float]]:
    """Return the probabilities of neither, A and B, by id: of rows with logits [N, 3], and of those left out, of which
    nothing is known, so that all three are alike."""
    shares = probabilities(logits).tolist()
    return {**dict(zip(ids, shares, strict=True)), **dict.fromkeys(left_out, (1 / 3, 1 / 3, 1 / 3))}


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalOptions:
    """Of `bertbench eval gap`."""

    dataset: Path
    """TSV file of GAP with the answers, such as gap-validation.tsv."""
    predictions: Path
    """predictions.tsv of `bertbench predict gap` (ID, then TRUE or FALSE for A and B), or probabilities in Kaggle's CSV
    with the header ID,A,B,NEITHER."""
    out: Path | None = None
    """Folder for scores.json; default no files."""


class Eval(TaskCommand):
    """Score predictions as the official scorer of GAP does, with accuracy, log loss and scores of subsets of the rows.

    A and B are separate decisions. A row without a prediction counts as two false negatives and is listed.

    Examples:
        bertbench eval gap --dataset gap-test.tsv --predictions runs/gap-predictions/predictions.tsv
    """

    options = EvalOptions

    def run(self, options: EvalOptions, host: Host) -> Outcome:
        """Score the predictions."""
        examples = read_golds(options.dataset)
        decisions, probabilities = read_predictions(options.predictions)
        golds = {name: (example.decision, example.gender) for name, example in examples.items()}
        scores = score(golds, decisions, probabilities)
        if len(scores.missing) == scores.rows:
            raise InputError(
                "answers-invalid",
                f"none of the {len(decisions):,} predictions in {options.predictions} matches the {scores.rows:,} rows "
                f"of {options.dataset}: give the dataset they were made for",
            )
        parts = slices(examples, decisions, probabilities)
        about = {"task": "gap", "dataset": str(options.dataset), "predictions": str(options.predictions)}
        return Outcome(document={**about, **asdict(scores), "slices": parts}, shown=_scored(scores, parts))


def _nats(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"


def _scored(scores: Scores, parts: Sequence[dict[str, Any]]) -> list[Shown]:
    tallies = []
    for name, tally in ((OVERALL, scores.overall), (MASCULINE, scores.masculine), (FEMININE, scores.feminine)):
        *shares, tp, fp, fn, tn = asdict(tally).values()
        tallies.append((name, *(f"{share:.1f} %" for share in shares), *map(str, (tp, fp, fn, tn))))
    facts: list[tuple[str, object]] = [
        ("bias", "undefined: an F1 is 0" if scores.bias is None else f"{scores.bias:.2f}, feminine F1 / masculine F1"),
        ("accuracy", f"{100 * scores.accuracy:.1f} %, both names of a row right"),
        ("log loss", f"{_nats(scores.log_loss)}, {scores.rows_with_probabilities:,} rows with probabilities"),
    ]
    facts += unmatched(scores.missing, scores.extra, "without a prediction, two false negatives each")
    confusion = [(name, *map(str, row.values())) for name, row in scores.confusion.items()]
    slices = []
    for one in parts:
        values = (f"{one['rows']:,}", f"{100 * one['accuracy']:.1f} %", f"{one['f1']:.1f} %", _nats(one["log_loss"]))
        slices.append((one["by"], one["name"], *values))
    return [
        f"GAP, {scores.rows:,} rows",
        Grid(("", "recall", "precision", "F1", "tp", "fp", "fn", "tn"), tallies),
        facts,
        Grid(("right / answered", *ANSWERS), confusion),
        Grid(("by", "part", "rows", "accuracy", "F1", "log loss"), slices),
    ]
