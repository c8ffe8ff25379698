"""`bertbench data glue`, `predict glue` and `eval glue`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert.data.features import RowFeatures, Summary, made_of
from bert.tasks.base import Ready, read_options
from bert.tasks.commands import (
    Grid,
    Host,
    Outcome,
    PrepareCommand,
    TaskCommand,
    open_trained,
    plain_scores,
    rate,
    timed_logits,
    timing,
)
from bert.tasks.glue.features import CUT, GlueConfig, open_features, prepare, to_predict, write_texts
from bert.tasks.glue.tables import LEFT_OUT, TASKS, TRAIN, GlueSpec, read_table, task_of
from bert.tasks.glue.task import GlueTask, check_packages, decided, pair, read_answers, scores, write_answers
from common.errors import InputError
from common.scores import in_words, score


class Prepare(PrepareCommand):
    """Convert the tables of GLUE to features for training, evaluation and prediction, or their sentences to text for
    pretraining. The same command keeps finished features.

    Examples:
        bertbench data glue --input glue_data --vocab vocab.txt
        bertbench data glue --dataset nyu-mll/glue --tasks mrpc rte --vocab vocab.txt
        bertbench data glue --input glue_data --text glue_text
    """

    options = GlueConfig
    prepare = staticmethod(prepare)

    def run(self, options: GlueConfig, host: Host) -> Outcome:
        """Make features, or write text."""
        if options.text is None:
            return super().run(options, host)
        files = write_texts(options, host.progress)
        following = ["data", "pretrain", "--input", str(options.text)]
        return Outcome(document=[*map(str, files)], shown=[[("text", path) for path in files]], following=following)

    def outcome(self, summaries: Sequence[Summary]) -> Outcome:
        """Return one line for each table, and a training on the first task with a table to train on."""
        lines, following = [], None
        for one in summaries:
            settings: Any = one.settings
            numbers, rows = one.counts.numbers, one.counts.get("rows")
            left_out = sum(count for name, count in numbers.items() if name.startswith(LEFT_OUT))
            time = "finished before" if one.kept else f"{one.seconds:.1f} s"
            columns = (f"{rows:,}", f"{left_out:,}", f"{numbers['tokens'] / rows:.1f}", f"{one.counts.get(CUT):,}")
            lines.append((f"{settings.task} {settings.split}", *columns, f"{one.features} ({time})"))
            if settings.split == TRAIN and following is None:
                following = ["train", "glue", "--task", settings.task, "--data", str(one.features)]
        shown = [Grid(("table", "rows", "left out", "tokens", "cut", "file"), lines)]
        return replace(super().outcome(summaries), shown=shown, following=following)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """Of `bertbench predict glue`."""

    checkpoint: Path
    """Training run (its best checkpoint, otherwise the latest), a checkpoint, or anything that `bertbench convert`
    reads."""
    features: Path
    """Features from `bertbench data glue`: a file, or a folder for all of the checkpoint's task except the training
    split. For weights that do not name their task, the folder has one task."""
    out: Path = Path("runs/glue-predictions")
    """Folder for the predictions."""


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
        from bert.predict import settings_of

        checkpoint = host.checkpoint(options.checkpoint)
        settings = settings_of(checkpoint)
        trained = None if settings is None else read_options(settings.task_options).get("task", settings.task)
        files = to_predict(options.features, trained if trained in TASKS else None)
        features = [open_features(file) for file in files]
        spec = TASKS[features[0].file.settings["task"]]
        if trained not in (None, spec.name):
            raise InputError("weights-mismatch", f"{checkpoint} was trained on {trained}, not on {spec.name}")
        if any(one.rows.has_labels for one in features):
            check_packages(spec)
        longest = max(features, key=lambda one: one.rows.max_seq_length)
        task = GlueTask(task=spec.name)
        opened, ready = open_trained(checkpoint, task, longest.rows, longest.file.path, options.out, host)
        tables, facts, following = list[dict[str, Any]](), list[tuple[str, object]](), None
        for one in features:
            table = _answer(ready, spec, one, options.out, host)
            tables.append(table)
            facts.append((table["split"], f"{rate(table['rows'], table['seconds'])}: {table['written']}"))
            if table["scores"] is not None:
                facts.append(("", ", ".join(in_words(name, value) for name, value in table["scores"].items())))
                labels = made_of(one.file.path, "glue")
                if labels is not None and following is None:
                    words = ["eval", "glue", "--task", spec.name, "--labels", str(labels), "--predictions"]
                    following = [*words, table["written"]]
        document = {"checkpoint": str(opened.source), "task": spec.name, "tables": tables}
        return Outcome(document=document, shown=[[("checkpoint", opened.source), *facts]], following=following)


def _answer(ready: Ready, spec: GlueSpec, features: RowFeatures, out: Path, host: Host) -> dict[str, Any]:
    """Write the answers to one table; return the facts about them."""
    rows, split = features.rows, features.file.settings["split"]
    logits, seconds = timed_logits(ready, rows, spec.labels, host, f"rows of {split}")
    answers = decided(spec, logits)
    path = out / spec.answer_file(split)
    write_answers(path, spec, split, features.file.columns["index"], answers)
    return {
        "split": split,
        **timing("rows", len(rows), seconds),
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
        values = plain_scores(scores(spec, predictions, labels))
        document = {
            "task": spec.name,
            "labels": str(options.labels),
            "predictions": str(options.predictions),
            "rows": len(table.rows),
            "headline": spec.headline,
            "scores": values,
            "extra": sorted(answers.keys() - {row.index for row in table.rows}),
            "left_out": {name: count for name, count in table.counts.numbers.items() if name.startswith(LEFT_OUT)},
        }
        shown = {name: "undefined" if value is None else f"{100 * value:.3f}" for name, value in values.items()}
        facts = [(score(name).label, text) for name, text in shown.items()]
        return Outcome(document=document, shown=[f"{spec.folder}, {len(table.rows):,} rows of {options.labels}", facts])
