"""A task's part of the commands `data`, `predict` and `eval`: options that become flags, and results.
Imports no torch.

Tasks on whole rows with no form of their own have RowPredict.
"""

import csv
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from bert.tasks.base import DataIdentity, Ready, Task
from bert.tasks.classification import EVALUATION, ClassificationTask
from common.atomic import atomic_path, check_writable
from common.errors import InputError
from common.scores import in_words

if TYPE_CHECKING:
    from bert.data.features import Summary
    from bert.data.rows import TokenRows
    from bert.predict import Opened

T = TypeVar("T")
PREDICTIONS_FILE = "predictions.tsv"
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of texts; numbers in all but the first column."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


Shown = str | Grid | Sequence[tuple[str, object]]
"""One piece of output: a sentence, a table, or facts, each a name and its value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Result of a call, for programs and for people."""

    document: Any
    """Plain JSON values: what --json prints."""
    shown: Sequence[Shown]
    notes: Sequence[str] = ()
    """Each is shown once."""
    following: Sequence[str] | None = None
    """The words of the command that comes next, without `bertbench`."""
    drawn: Mapping[str, tuple[Sequence[float], Sequence[float], float]] = field(default_factory=dict)
    """Precisions, recalls and average precision of each curve of an evaluation."""


class Host(Protocol):
    """What the command line does for a task: it alone prints, chooses devices and knows run directories."""

    def note(self, text: str) -> None:
        """Tell the user something at once."""

    def progress(self, stage: str, done: int, total: int | None) -> None:
        """Show how far a stage is; see bert.data.pool.Progress."""

    def checkpoint(self, path: Path) -> Path:
        """Return the best checkpoint of a run that knows one, else its latest; a path that is no run as it is."""

    def ready(self, opened: "Opened") -> Ready:
        """Put a model on the device that was asked for. Raises UsageError: no such device or precision."""


class TaskCommand(ABC):
    """One command of a task; its docstring is the command's help."""

    options: type[Any]
    """A dataclass: its fields are the flags, the docstrings below them the help."""
    computes = False
    """Whether it runs a model: the command then has --device, --precision and --batch-size."""

    def __init__(self, task: str) -> None:
        self.task = task

    @abstractmethod
    def run(self, options: Any, host: Host) -> Outcome:
        """Do it. Raises BertbenchError."""


class PrepareCommand(TaskCommand):
    """The `data` command of a task whose data become feature files (bert.data.features)."""

    prepare: "Callable[[Any, Any], list[Summary]]"
    """Takes the options, and what shows the progress."""

    def run(self, options: Any, host: Host) -> Outcome:
        """Prepare, and sum up."""
        return self.outcome(self.prepare(options, host.progress))

    def outcome(self, summaries: "Sequence[Summary]") -> Outcome:
        """Return the facts about each file: what was counted, the time, the name."""
        return Outcome(
            document=[summary.to_json() for summary in summaries],
            shown=[
                [
                    ("input", f"{one.input}, for {one.settings.split}"),
                    *((name, f"{count:,}") for name, count in one.counts.numbers.items()),
                    ("time", "finished before" if one.kept else f"{one.seconds:.1f} s"),
                    ("features", one.features),
                ]
                for one in summaries
            ],
            notes=[note for summary in summaries for note in summary.notes],
        )


def some_of(names: Sequence[object]) -> str:
    """Return the first few of some names, for a message."""
    shown = ", ".join(str(name)[:60] for name in names[:_MOST_NAMED])
    return f"{shown}, ..." if len(names) > _MOST_NAMED else shown


def plain_scores(scores: Mapping[str, float]) -> dict[str, float | None]:
    """Return scores as JSON takes them: None for one that is not defined."""
    return {name: float(value) if math.isfinite(value) else None for name, value in scores.items()}


def rate(count: int, seconds: float) -> str:
    """Return how many there were, and how fast."""
    return f"{count:,} in {seconds:.1f} s, {count / seconds:,.1f} per second"


def timing(what: str, count: int, seconds: float) -> dict[str, float]:
    """Return the same for a document."""
    return {what: count, "seconds": seconds, f"{what}_per_second": count / seconds}


def unmatched(missing: Sequence[str], extra: Sequence[str], effect: str) -> list[tuple[str, object]]:
    """Return facts about ids without a prediction, which have this effect, and predictions for other ids."""
    both = (("missing", missing, effect), ("extra", extra, "for unknown ids"))
    return [(name, f"{len(ids):,} {what}: {some_of(ids)}") for name, ids, what in both if ids]


def timed(host: Host, what: str, count: int, compute: Callable[[Callable[[int], None]], T]) -> tuple[T, float]:
    """Return what `compute` returns, and its seconds; it takes a function that shows how many of `count` are done."""
    began = time.monotonic()
    result = compute(lambda done: host.progress(what, done, count))
    return result, time.monotonic() - began


def timed_logits(
    ready: Ready, rows: "TokenRows", classes: int, host: Host, what: str = "rows"
) -> tuple[npt.NDArray[np.float32], float]:
    """Return the logits [N, K] of rows, and the seconds they took. Raises InputError: one is not a finite number."""
    from bert.tasks.evaluation import check_logits, row_logits

    logits, seconds = timed(host, what, len(rows), lambda show: row_logits(ready, rows, classes, show))
    check_logits(logits)
    return logits, seconds


def trained_task(name: str, checkpoint: Path) -> ClassificationTask:
    """Return the task that a checkpoint was trained on, with its options. Raises InputError: it is another one."""
    from bert.predict import settings_of
    from bert.tasks import make_task

    settings = settings_of(checkpoint)
    if settings is None or settings.task != name:
        is_of = "does not name its task" if settings is None else f"was trained on {settings.task}"
        raise InputError("weights-mismatch", f"{checkpoint} {is_of}: give a run of `bertbench train {name}`")
    task = make_task(name, settings.task_options)
    assert isinstance(task, ClassificationTask)
    return task


def open_trained(
    checkpoint: Path, task: Task, rows: "TokenRows", data: Path, out: Path, host: Host
) -> "tuple[Opened, Ready]":
    """Open a model that is to predict rows in `data`, and put it on its device; `out` is where the answers go.

    Raises InputError (the rows do not fit it), StorageError.
    """
    from bert.predict import open_model

    opened = open_model(checkpoint, task, DataIdentity.of(data, rows), host.note)
    longest, most = int(rows.lengths.max(initial=0)), opened.config.max_positions
    if longest > most:
        wrong = f"rows in {data} have up to {longest} tokens, the model in {opened.source} has {most} positions"
        raise InputError("data-mismatch", f"{wrong}: prepare them with --max-seq-length {most}")
    check_writable(out)
    return opened, host.ready(opened)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPredictOptions:
    """Of `bertbench predict TASK`."""

    checkpoint: Path
    """Training run (its best checkpoint, otherwise the latest), or one of its checkpoints."""
    data: Path
    """Rows prepared by `bertbench data` for the task."""
    split: str = EVALUATION
    """Split to predict."""
    out: Path = Path("runs/predictions")
    """Folder for predictions.tsv: index, prediction, and the logits."""


class RowPredict(TaskCommand):
    """Predict the class, or the value, of each row with a trained model, and score them where they have labels. Runs as
    one process on one device.

    Examples:
        bertbench predict TASK --checkpoint runs/train --data data
    """

    options = RowPredictOptions
    computes = True

    def run(self, options: RowPredictOptions, host: Host) -> Outcome:
        """Write the predictions."""
        checkpoint = host.checkpoint(options.checkpoint)
        task = trained_task(self.task, checkpoint)
        rows = task.rows(options.data, options.split)
        opened, ready = open_trained(checkpoint, task, rows, options.data, options.out, host)
        logits, seconds = timed_logits(ready, rows, task.labels, host)
        path = options.out / PREDICTIONS_FILE
        answers = logits[:, 0] if task.regression else logits.argmax(1)
        with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="\t", lineterminator="\n")
            writer.writerow(["index", "prediction", *(f"logit_{number}" for number in range(logits.shape[1]))])
            pairs = zip(answers.tolist(), logits.tolist(), strict=True)
            writer.writerows([index, answer, *row] for index, (answer, row) in enumerate(pairs))
        scores = plain_scores(task.score(logits, rows.labels)) if rows.has_labels else {}
        shown = ", ".join(in_words(name, value) for name, value in scores.items()) or "no labels"
        rows_shown = ("rows", rate(len(rows), seconds))
        facts = [("checkpoint", opened.source), rows_shown, ("scores", shown), ("wrote", path)]
        document = {
            "task": self.task,
            "checkpoint": str(opened.source),
            "data": str(options.data),
            "split": options.split,
            **timing("rows", len(rows), seconds),
            "scores": scores or None,
            "written": str(path),
        }
        return Outcome(document=document, shown=[facts])
