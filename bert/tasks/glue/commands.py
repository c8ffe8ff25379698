"""`bertbench data glue`, `predict glue` and `eval glue`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    timed_logits,
)
from bert.tasks.glue.config import GlueConfig
from bert.tasks.glue.tasks import TASKS, TRAIN, task_of
from common.errors import InputError, UsageError
from common.scores import in_words, score

if TYPE_CHECKING:
    from bert.predict import Opened
    from bert.tasks.glue.features import GlueFeatures
    from bert.tasks.glue.prepare import GlueSummary
    from bert.tasks.glue.tasks import GlueSpec

_MOST_NAMED = 5


class Prepare(PrepareCommand):
    """Convert the tables of GLUE to features for training, evaluation and prediction, and their text to pretraining
    text. The same command keeps finished files.

    Examples:
        bertbench data glue --input glue_data --vocab vocab.txt
        bertbench data glue --dataset nyu-mll/glue --tasks mrpc rte --vocab vocab.txt
    """

    options = GlueConfig

    def shown(self, summaries: "Sequence[GlueSummary]") -> list[Shown]:
        """One line for each table."""
        return [_prepared(summaries)]

    def following(self, options: GlueConfig, summaries: "Sequence[GlueSummary]") -> list[str] | None:
        """A training on what is there, or the preparation of its text."""
        return _next(options, summaries)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """Of `bertbench predict glue`."""

    checkpoint: Path
    """Training run (its best checkpoint, otherwise the latest), a checkpoint, or anything that `bertbench convert`
    reads."""
    features: tuple[Path, ...]
    """Features from `bertbench data glue`; in a folder, all of the task except the training split."""
    task: str | None = None
    """Task of the features if the folder has several; default the task of the checkpoint."""
    out: Path = Path("runs/glue-predictions")
    """Folder for the predictions."""

    def __post_init__(self) -> None:
        """Refuse what names nothing."""
        if not self.features:
            raise UsageError("option-missing", "give --features: files of `bertbench data glue`, or a folder of them")


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
        from bert.tasks.glue.scores import check_packages
        from common.atomic import check_writable

        checkpoint = host.checkpoint(options.checkpoint)
        files = _files(options, options.task or _trained_on(checkpoint)[1])
        features = _features(files, options.task)
        for one in features:
            if one.rows.has_labels:
                check_packages(one.settings.spec)
        opened = _open_model(checkpoint, files, features, host)
        check_writable(options.out)
        ready = host.ready(opened)
        tables = [
            {**_answer(ready, one, options.out, host), "table": _made_of(file)}
            for file, one in zip(files, features, strict=True)
        ]
        found = {"checkpoint": str(opened.source), "task": features[0].settings.task, "tables": tables}
        return Outcome(document=found, shown=_predicted(found), following=_evaluation(found))


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
        from bert.tasks.glue.scores import check_packages, pair, read_answers, scores
        from bert.tasks.glue.tables import read_table

        spec = task_of(options.task)
        check_packages(spec)
        split = _split_of(options.labels, spec)
        table = read_table(options.labels, spec, split or spec.evaluations[0])
        paired = pair(table, read_answers(options.predictions, spec), options.predictions)
        found: dict[str, Any] = {
            "task": spec.name,
            "split": split,
            "labels": str(options.labels),
            "predictions": str(options.predictions),
            "rows": len(table.rows),
            "headline": spec.headline,
            "scores": scores(spec, paired.predictions, paired.labels),
            "confusion": _confusion(spec, paired.labels.tolist(), paired.predictions.tolist()),
            "extra": list(paired.extra),
            "answers_to": _answers_to(options.predictions, spec),
            "left_out": {name: count for name, count in table.counts.numbers.items() if name.startswith("left out")},
        }
        return Outcome(document={**found, "scores": plain_scores(found["scores"])}, shown=_scored(spec, found))


def _prepared(summaries: Sequence["GlueSummary"]) -> Grid:
    rows_shown = []
    for summary in summaries:
        numbers = summary.counts
        rows = numbers.get("rows")
        left_out = sum(count for name, count in numbers.numbers.items() if name.startswith("left out"))
        is_made = summary.features is not None
        tokens = f"{numbers.get('tokens') / max(1, rows):.1f}" if is_made else "-"
        cut = f"{numbers.get('rows cut to the sequence length'):,}" if is_made else "-"
        time = "finished before" if summary.kept else f"{summary.seconds:.1f} s"
        file = summary.features or summary.text
        named = "nothing" if file is None else f"{file} ({time})"
        named += "" if summary.text is None or not is_made else f"; text: {summary.text}"
        rows_shown.append((f"{summary.task} {summary.split}", f"{rows:,}", f"{left_out:,}", tokens, cut, named))
    return Grid(("table", "rows", "left out", "tokens", "cut", "file"), rows_shown)


def _next(config: GlueConfig, summaries: Sequence["GlueSummary"]) -> list[str] | None:
    """Return the words of a command that runs on what is there; None if there is none."""
    if config.vocab is None:
        is_text = any(summary.text is not None for summary in summaries)
        return ["data", "pretrain", "--input", str(config.text)] if is_text else None
    made: dict[str, dict[str, GlueSummary]] = {}
    for summary in summaries:
        made.setdefault(summary.task, {})[summary.split] = summary
    trained = {task: tables for task, tables in made.items() if TRAIN in tables}
    judged = {task: tables for task, tables in trained.items() if set(TASKS[task].evaluations) & tables.keys()}
    for task, tables in (judged or trained).items():
        split = next((split for split in TASKS[task].evaluations if split in tables), None)
        evaluated = ["--eval-every", "0"] if split is None else ["--eval-data", _named(config, tables[split])]
        return ["train", "glue", "--task", task, "--data", _named(config, tables[TRAIN]), *evaluated]
    return None


def _named(config: GlueConfig, summary: "GlueSummary") -> str:
    from bert.tasks.glue.features import FORM

    several = len(FORM.files_in(config.output, summary.split, summary.task)) > 1
    return str(summary.features if several else config.output)


def _files(options: PredictOptions, task: str | None) -> list[Path]:
    """The files that are meant; of a folder those of a task, where that is known."""
    from bert.tasks.glue.features import FORM
    from bert.tasks.glue.tasks import task_of

    if options.task is not None:
        task_of(options.task)
    return [file for path in options.features for file in (FORM.find_all(path, task) if path.is_dir() else [path])]


def _made_of(file: Path) -> str | None:
    from bert.data.features import made_of

    table = made_of(file, "glue")
    return None if table is None else str(table)


def _features(files: list[Path], task: str | None) -> "list[GlueFeatures]":
    from bert.tasks.glue.features import FORM
    from bert.tasks.glue.tasks import TASKS

    splits = tuple(dict.fromkeys(split for spec in TASKS.values() for split in spec.splits))
    found = [FORM.open(file, *splits, group=task) for file in files]
    first = found[0].settings
    for file, one in zip(files, found, strict=True):
        if (one.settings.task, one.settings.vocabulary) != (first.task, first.vocabulary):
            raise InputError(
                "data-mismatch",
                f"{file} holds features of {one.settings.task} and {files[0]} of {first.task}, or their "
                "vocabularies differ: predict them one by one",
            )
        if not len(one):
            raise InputError("file-empty", f"{file} holds no rows: create it from another table")
    return found


def _open_model(checkpoint: Path, files: Sequence[Path], features: "Sequence[GlueFeatures]", host: Host) -> "Opened":
    from bert.predict import open_model
    from bert.tasks.glue.task import GlueTask

    task = features[0].settings.task
    _check_task(checkpoint, task)
    data = DataIdentity.of(files[0], features[0].rows)
    opened = open_model(checkpoint, GlueTask(task=task), data, host.note)
    check_positions(opened, max(one.settings.max_seq_length for one in features), ", ".join(map(str, files)))
    return opened


def _trained_on(checkpoint: Path) -> tuple[str | None, str | None]:
    """What a bertbench checkpoint was trained on, and which task of GLUE that is; None if it does not say."""
    from bert.predict import settings_of
    from bert.tasks.options import read_options

    settings = settings_of(checkpoint)
    if settings is None:
        return None, None
    known = read_options(settings.task_options).get("task") if settings.task == "glue" else None
    return (f"GLUE's {known}" if known else settings.task), None if known is None else str(known)


def _check_task(checkpoint: Path, task: str) -> None:
    """Refuse a bertbench checkpoint that was trained on something else: its classes may be as many and mean others."""
    trained, known = _trained_on(checkpoint)
    if trained is not None and known != task:
        raise InputError(
            "weights-mismatch",
            f"{checkpoint} was trained on {trained}, but the features are of {task}: give features of {trained}",
        )


def _answer(ready: Ready, features: "GlueFeatures", out: Path, host: Host) -> dict[str, Any]:
    """Write the answers to one table; return the facts about them."""
    from bert.tasks.glue.scores import answer_file, decided, scores, write_answers

    settings, rows = features.settings, features.rows
    spec = settings.spec

    logits, seconds = timed_logits(ready, rows, spec.labels, host, f"rows of {settings.split}")
    answers = decided(spec, logits)
    path = out / answer_file(spec, settings.split)
    write_answers(path, spec, settings.split, features.index, answers)
    return {
        "split": settings.split,
        "rows": len(rows),
        "seconds": seconds,
        "rows_per_second": len(rows) / seconds,
        "scores": plain_scores(scores(spec, answers, rows.labels)) if rows.has_labels else None,
        "written": str(path),
    }


def _predicted(found: dict[str, Any]) -> list[Shown]:
    facts: list[tuple[str, object]] = [("checkpoint", found["checkpoint"])]
    for table in found["tables"]:
        rate = f"{table['rows']:,} rows in {table['seconds']:.1f} s, {table['rows_per_second']:,.1f} per second"
        facts.append((table["split"], f"{rate}: {table['written']}"))
        if table["scores"] is not None:
            facts.append(("", ", ".join(in_words(name, value) for name, value in table["scores"].items())))
    return [facts]


def _evaluation(found: dict[str, Any]) -> list[str] | None:
    known = [table for table in found["tables"] if table["scores"] is not None and table["table"] is not None]
    if not known:
        return None
    words = ["eval", "glue", "--task", found["task"], "--labels", known[0]["table"], "--predictions"]
    return [*words, known[0]["written"]]


def _split_of(labels: Path, spec: "GlueSpec") -> str | None:
    """Which of the task's tables with labels a file is by its name; None if that does not say."""
    name = labels.name.lower().removesuffix(".gz").removesuffix(".tsv").replace("-", "_")
    return name if name in spec.evaluations else None


def _answers_to(predictions: Path, spec: "GlueSpec") -> str | None:
    """Which of the task's tables a file answers by its name, as `bertbench predict glue` gives it."""
    from bert.tasks.glue.scores import answer_file

    return next((split for split in spec.splits if answer_file(spec, split) == predictions.name), None)


def _confusion(spec: "GlueSpec", labels: list[float], predictions: list[float]) -> list[list[int]] | None:
    """Rows by label and prediction: [label][prediction]; None if the task is a regression."""
    if spec.is_regression:
        return None
    found = [[0] * spec.labels for _ in spec.classes]
    for label, prediction in zip(labels, predictions, strict=True):
        found[int(label)][int(prediction)] += 1
    return found


def _scored(spec: "GlueSpec", found: dict[str, Any]) -> list[Shown]:
    facts: list[tuple[str, object]] = []
    for name, value in found["scores"].items():
        mark = "  <- headline" if name == spec.headline and len(found["scores"]) > 1 else ""
        shown = f"{100 * value:7.3f}" if math.isfinite(value) else "undefined: all predictions or labels are equal"
        facts.append((score(name).label, f"{shown}{mark}"))
    table = f"{spec.folder} {found['split']}" if found["split"] else spec.folder
    parts: list[Shown] = [f"{table}, {found['rows']:,} rows", facts]
    if found["confusion"] is not None:
        counts = zip(spec.classes, found["confusion"], strict=True)
        rows = [(name, *(f"{count:,}" for count in line)) for name, line in counts]
        parts.append(Grid(("label / predicted", *spec.classes), rows))
    notes = [f"note: {count:,} row(s) of the table {name}" for name, count in found["left_out"].items()]
    if None not in (found["split"], found["answers_to"]) and found["split"] != found["answers_to"]:
        named = Path(found["predictions"]).name
        notes.append(f"note: the name {named} says {found['answers_to']}, but the labels are {found['split']}")
    if found["extra"]:
        shown = ", ".join(map(str, found["extra"][:_MOST_NAMED])) + ", ..." * (len(found["extra"]) > _MOST_NAMED)
        notes.append(f"note: {len(found['extra']):,} answer(s) to rows missing in the table (index {shown})")
    return [*parts, *notes]
