"""`bertbench data glue`, `predict glue` and `eval glue`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert.tasks.base import DataIdentity, Ready
from bert.tasks.commands import (
    Grid,
    Host,
    Outcome,
    PrepareCommand,
    Shown,
    TaskCommand,
    check_positions,
    plain_scores,
    rate,
    some_of,
    timed_logits,
)
from bert.tasks.glue.config import GlueConfig
from bert.tasks.glue.features import GlueFeatures, open_features, to_predict
from bert.tasks.glue.prepare import GlueSummary
from bert.tasks.glue.scores import check_packages, decided, pair, read_answers, scores, write_answers
from bert.tasks.glue.tables import LEFT_OUT, read_table
from bert.tasks.glue.tasks import TASKS, TRAIN, GlueSpec, task_of
from common.errors import InputError
from common.scores import in_words, score

if TYPE_CHECKING:
    from bert.predict import Opened


class Prepare(PrepareCommand):
    """Convert the tables of GLUE to features for training, evaluation and prediction, and their text to pretraining
    text. The same command keeps finished files.

    Examples:
        bertbench data glue --input glue_data --vocab vocab.txt
        bertbench data glue --dataset nyu-mll/glue --tasks mrpc rte --vocab vocab.txt
    """

    options = GlueConfig

    def shown(self, summaries: Sequence[GlueSummary]) -> list[Shown]:
        """One line for each table."""
        rows = []
        for one in summaries:
            counts = one.counts
            rows_used = counts.get("rows")
            left_out = sum(count for name, count in counts.numbers.items() if name.startswith(LEFT_OUT))
            tokens = f"{counts.get('tokens') / rows_used:.1f}" if one.features else "-"
            cut = f"{counts.get('rows cut to the sequence length'):,}" if one.features else "-"
            time = "finished before" if one.kept else f"{one.seconds:.1f} s"
            files = ", ".join(str(path) for path in (one.features, one.text) if path) or "nothing"
            rows.append(
                (f"{one.task} {one.split}", f"{rows_used:,}", f"{left_out:,}", tokens, cut, f"{files} ({time})")
            )
        return [Grid(("table", "rows", "left out", "tokens", "cut", "file"), rows)]

    def following(self, options: GlueConfig, summaries: Sequence[GlueSummary]) -> list[str] | None:
        """A training on the first task with tables to train and evaluate on, or the preparation of the text."""
        if options.vocab is None:
            return ["data", "pretrain", "--input", str(options.text)]
        made = {(one.task, one.split): str(one.features) for one in summaries}
        for task, split in made:
            judged = next((made[task, one] for one in TASKS[task].evaluations if (task, one) in made), None)
            if split == TRAIN and judged is not None:
                return ["train", "glue", "--task", task, "--data", made[task, split], "--eval-data", judged]
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """Of `bertbench predict glue`."""

    checkpoint: Path
    """Training run (its best checkpoint, otherwise the latest), a checkpoint, or anything that `bertbench convert`
    reads."""
    features: Path
    """Features from `bertbench data glue`: a file, or a folder for all of the task except the training split."""
    task: str | None = None
    """Task of the features if the folder has several; default the task of the checkpoint."""
    out: Path = Path("runs/glue-predictions")
    """Folder for the predictions."""

    def __post_init__(self) -> None:
        """Refuse an unknown task."""
        if self.task is not None:
            task_of(self.task)


class Predict(TaskCommand):
    """Predict the rows of a GLUE task. Writes index and prediction, one file per table, named as the GLUE server
    expects (CoLA.tsv, MNLI-m.tsv, ...; CoLA-dev.tsv for rows with labels). Runs as one process on one device.

    Examples:
        bertbench predict glue --checkpoint runs/mrpc --features runs/glue-data
    """

    options = PredictOptions
    computes = True

    def run(self, options: PredictOptions, host: Host) -> Outcome:
        """Write the answers to every table."""
        from bert.data.features import made_of
        from common.atomic import check_writable

        checkpoint = host.checkpoint(options.checkpoint)
        trained, task = _trained_on(checkpoint)
        folder = options.features.is_dir()
        files = to_predict(options.features, options.task or task) if folder else [options.features]
        features = [open_features(file, task=options.task) for file in files]
        spec = features[0].settings.spec
        if trained is not None and task != spec.name:
            raise InputError("weights-mismatch", f"{checkpoint} was trained on {task or trained}, not on {spec.name}")
        if any(one.rows.has_labels for one in features):
            check_packages(spec)
        opened = _open_model(checkpoint, features, host)
        check_writable(options.out)
        ready = host.ready(opened)
        tables = [_answer(ready, one, options.out, host) for one in features]
        document = {"checkpoint": str(opened.source), "task": spec.name, "tables": tables}
        facts: list[tuple[str, object]] = [("checkpoint", opened.source)]
        for table in tables:
            facts.append((table["split"], f"{rate(table['rows'], table['seconds'])}: {table['written']}"))
            if table["scores"] is not None:
                facts.append(("", ", ".join(in_words(name, value) for name, value in table["scores"].items())))
        for one, table in zip(features, tables, strict=True):
            labels = made_of(one.path, "glue") if one.rows.has_labels else None
            if labels is not None:
                words = ["eval", "glue", "--task", spec.name, "--labels", str(labels), "--predictions"]
                return Outcome(document=document, shown=[facts], following=[*words, table["written"]])
        return Outcome(document=document, shown=[facts])


def _open_model(checkpoint: Path, features: Sequence[GlueFeatures], host: Host) -> "Opened":
    from bert.predict import open_model
    from bert.tasks.glue.task import GlueTask

    first = features[0]
    data = DataIdentity.of(first.path, first.rows)
    opened = open_model(checkpoint, GlueTask(task=first.settings.task), data, host.note)
    for one in features:
        check_positions(opened, one.settings.max_seq_length, one.path)
    return opened


def _trained_on(checkpoint: Path) -> tuple[str | None, str | None]:
    """What a bertbench checkpoint was trained on, and which task of GLUE that is; None if it does not say."""
    from bert.predict import settings_of
    from bert.tasks.options import read_options

    settings = settings_of(checkpoint)
    if settings is None:
        return None, None
    return settings.task, read_options(settings.task_options).get("task") if settings.task == "glue" else None


def _answer(ready: Ready, features: GlueFeatures, out: Path, host: Host) -> dict[str, Any]:
    """Write the answers to one table; return the facts about them."""
    rows, split, spec = features.rows, features.settings.split, features.settings.spec
    logits, seconds = timed_logits(ready, rows, spec.labels, host, f"rows of {split}")
    answers = decided(spec, logits)
    path = out / spec.answer_file(split)
    write_answers(path, spec, split, features.index, answers)
    return {
        "split": split,
        "rows": len(rows),
        "seconds": seconds,
        "rows_per_second": len(rows) / seconds,
        "scores": plain_scores(scores(spec, answers, rows.labels)) if rows.has_labels else None,
        "written": str(path),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalOptions:
    """Of `bertbench eval glue`."""

    task: str
    """Task of GLUE: cola sst2 mrpc qqp stsb mnli qnli rte wnli."""
    labels: Path
    """Table with the labels: dev.tsv, for mnli dev_matched.tsv or dev_mismatched.tsv."""
    predictions: Path
    """Predictions from `bertbench predict glue`, in the format of the GLUE server: index, prediction."""


class Eval(TaskCommand):
    """Score predictions for a GLUE task as the benchmark does.

    Examples:
        bertbench eval glue --task mrpc --labels MRPC/dev.tsv --predictions runs/glue-predictions/MRPC-dev.tsv
    """

    options = EvalOptions

    def run(self, options: EvalOptions, host: Host) -> Outcome:
        """Score the answers."""
        spec = task_of(options.task)
        table = read_table(options.labels, spec, spec.evaluations[0])
        answers = read_answers(options.predictions, spec)
        predictions, labels = pair(table, answers, options.predictions)
        found = scores(spec, predictions, labels)
        confusion = None
        if not spec.is_regression:
            counts = np.zeros((spec.labels, spec.labels), dtype=np.int64)
            np.add.at(counts, (labels.astype(np.int64), predictions.astype(np.int64)), 1)
            confusion = counts.tolist()
        document = {
            "task": spec.name,
            "labels": str(options.labels),
            "predictions": str(options.predictions),
            "rows": len(table.rows),
            "headline": spec.headline,
            "scores": plain_scores(found),
            "confusion": confusion,
            "extra": sorted(answers.keys() - {row.index for row in table.rows}),
            "left_out": {name: count for name, count in table.counts.numbers.items() if name.startswith(LEFT_OUT)},
        }
        return Outcome(document=document, shown=_scored(spec, document))


def _scored(spec: GlueSpec, document: dict[str, Any]) -> list[Shown]:
    facts: list[tuple[str, object]] = []
    for name, value in document["scores"].items():
        mark = "  <- headline" if name == spec.headline and len(document["scores"]) > 1 else ""
        shown = "undefined: all predictions or labels are equal" if value is None else f"{100 * value:7.3f}"
        facts.append((score(name).label, f"{shown}{mark}"))
    parts: list[Shown] = [f"{spec.folder}, {document['rows']:,} rows of {document['labels']}", facts]
    if document["confusion"] is not None:
        counts = zip(spec.classes, document["confusion"], strict=True)
        rows = [(name, *(f"{count:,}" for count in line)) for name, line in counts]
        parts.append(Grid(("label / predicted", *spec.classes), rows))
    parts += [f"note: {count:,} row(s) of the table {name}" for name, count in document["left_out"].items()]
    if extra := document["extra"]:
        parts.append(f"note: {len(extra):,} answer(s) to rows missing in the table (index {some_of(extra)})")
    return parts
