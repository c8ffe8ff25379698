"""`bertbench data gap`, `predict gap` and `eval gap`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

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
    trained_task,
)
from bert.tasks.gap.config import GapConfig
from bert.tasks.gap.reading import LABELS
from common.errors import InputError

if TYPE_CHECKING:
    from bert.tasks.gap.scores import Scores


def probabilities_of(
    ids: Sequence[str], logits: npt.NDArray[np.float32], left_out: Sequence[str] = ()
) -> dict[str, tuple[float, float, float]]:
    """Return the probabilities of neither, A and B, by id.

    Args:
        ids: of the rows [N].
        logits: of the rows [N, 3].
        left_out: ids of further rows, of which nothing is known: all three are alike.
    """
    powers = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    known = {name: (row[0], row[1], row[2]) for name, row in zip(ids, shares.tolist(), strict=True)}
    even = (1 / len(LABELS),) * 3
    return {**known, **dict.fromkeys(left_out, even)}


KAGGLE_FILE = "submission.csv"


class Prepare(PrepareCommand):
    """Convert TSV files of GAP to features for training, validation and prediction. The same command keeps finished
    files. Invalid rows are skipped and listed by line.

    Examples:
        bertbench data gap --input gap-development.tsv gap-validation.tsv gap-test.tsv --vocab vocab.txt
    """

    options = GapConfig


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
        from bert.data.features import made_of
        from bert.tasks.gap.features import open_features
        from bert.tasks.gap.prediction_files import write_kaggle, write_official
        from bert.tasks.gap.scores import decisions_of
        from common.atomic import check_writable

        features = open_features(options.features, "test")
        checkpoint = host.checkpoint(options.checkpoint)
        task = trained_task(self.task, checkpoint)
        opened = open_trained(checkpoint, task, features.rows, options.features, host)
        check_writable(options.out)
        logits, seconds = timed_logits(host.ready(opened), features.rows, len(LABELS), host)
        ids, left_out = features.example_ids.texts(), features.left_out.texts()
        if left_out:
            host.note(
                f"{len(left_out):,} row(s) were not usable ({some_of(left_out)}): no decision and three equal "
                "probabilities"
            )
        classes = logits.argmax(1)
        written = [write_official(options.out / PREDICTIONS_FILE, decisions_of(ids, classes))]
        if options.kaggle_csv:
            written.append(write_kaggle(options.out / KAGGLE_FILE, probabilities_of(ids, logits, left_out)))
        # There is nothing to score without answers.
        dataset = made_of(features.path, "gap") if features.rows.has_labels else None
        answers = {name: int((classes == number).sum()) for number, name in enumerate(LABELS)}
        document = {
            "checkpoint": str(opened.source),
            "head": str(task.values["head"]),
            "features": str(options.features),
            "dataset": None if dataset is None else str(dataset),
            "rows": len(features),
            "left_out": len(left_out),
            "seconds": seconds,
            "rows_per_second": len(features) / seconds,
            "answers": answers,
            "written": [str(path) for path in written],
        }
        facts = [
            ("checkpoint", opened.source),
            ("head", document["head"]),
            ("rows", rate(len(features), seconds)),
            ("answers", ", ".join(f"{count:,} {name}" for name, count in answers.items())),
            *(("wrote", path) for path in written),
        ]
        words = ["eval", "gap", "--dataset", str(dataset), "--predictions", str(written[-1])]
        return Outcome(document=document, shown=[facts], following=words if dataset else None)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalOptions:
    """Of `bertbench eval gap`."""

    dataset: Path
    """TSV file of GAP with the answers, such as gap-validation.tsv."""
    predictions: Path
    """predictions.tsv of `bertbench predict gap` (ID, then TRUE or FALSE for A and B), or probabilities in Kaggle's
    format, separated by commas or tabs, with the header ID,A,B,NEITHER."""
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
        from bert.tasks.gap.prediction_files import read_predictions
        from bert.tasks.gap.scores import read_golds, score, slices

        examples = read_golds(options.dataset)
        decisions, probabilities = read_predictions(options.predictions)
        scores = score({name: example.gold for name, example in examples.items()}, decisions, probabilities)
        if len(scores.missing) == scores.rows:
            raise InputError(
                "answers-invalid",
                f"none of the {len(decisions):,} predictions in {options.predictions} matches the {scores.rows:,} rows "
                f"of {options.dataset}: give the dataset they were made for",
            )
        parts = slices(examples, decisions, probabilities)
        document: dict[str, Any] = {
            "task": "gap",
            "dataset": str(options.dataset),
            "predictions": str(options.predictions),
            **scores.to_json(),
            "slices": parts,
        }
        return Outcome(document=document, shown=[*_scored(scores, parts), *_remarks(scores)])


def _scored(scores: "Scores", parts: Sequence[dict[str, Any]]) -> list[Shown]:
    from bert.tasks.gap.scores import ANSWERS

    tallies = []
    for name, tally in scores.tallies.items():
        percentages = (f"{value:.1f} %" for value in (tally.recall, tally.precision, tally.f1))
        tallies.append((name, *percentages, *(f"{count:,}" for count in asdict(tally).values())))
    bias = "undefined: an F1 is 0" if scores.bias is None else f"{scores.bias:.2f}, feminine F1 / masculine F1"
    loss = "not available: needs predictions with probabilities (header ID,A,B,NEITHER)"
    if scores.log_loss is not None:
        loss = f"{scores.log_loss:.4f} nats, {scores.probable:,} rows"
    accuracy = f"{100 * scores.accuracy:.1f} %, both names of a row right"
    counts = scores.confusion.tolist()
    confusion = [(name, *(f"{count:,}" for count in row)) for name, row in zip(ANSWERS, counts, strict=False)]
    slices = []
    for part in parts:
        loss_here = "-" if part["log_loss"] is None else f"{part['log_loss']:.4f}"
        values = (f"{part['rows']:,}", f"{100 * part['accuracy']:.1f} %", f"{part['f1']:.1f} %", loss_here)
        slices.append((part["by"], part["name"], *values))
    return [
        f"GAP, {scores.rows:,} rows",
        Grid(("", "recall", "precision", "F1", "tp", "fp", "fn", "tn"), tallies),
        [("bias", bias), ("accuracy", accuracy), ("log loss", loss)],
        Grid(("right / answered", *ANSWERS), confusion),
        Grid(("by", "part", "rows", "accuracy", "F1", "log loss"), slices),
    ]


def _remarks(scores: "Scores") -> list[str]:
    remarks = []
    if scores.missing:
        named = some_of(scores.missing)
        remarks.append(
            f"missing: {len(scores.missing):,} row(s) without a prediction, two false negatives each: {named}"
        )
    if scores.extra:
        remarks.append(f"extra: {len(scores.extra):,} prediction(s) for unknown ids: {some_of(scores.extra)}")
    return remarks
