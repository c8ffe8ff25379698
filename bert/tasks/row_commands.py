"""`bertbench predict TASK` and `eval TASK` of any task on whole rows that has no form of its own. Imports no torch."""

import csv
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.tasks.classification_data import EVALUATION
from bert.tasks.commands import Host, Outcome, rows_of
from common.errors import InputError
from common.scores import in_words

if TYPE_CHECKING:
    from bert.data.rows import TokenRows
    from bert.predict import Opened
    from bert.tasks.classification import ClassificationTask

PREDICTIONS_FILE = "predictions.tsv"
_FIRST_COLUMNS = ["index", "prediction"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """Of `bertbench predict TASK`."""

    checkpoint: Path
    """A run (its best checkpoint, else the latest), or a checkpoint of one."""
    data: Path
    """Rows, as the task's own `data` command makes them."""
    split: str = EVALUATION
    """Which of the rows."""
    out: Path = Path("runs/predictions")
    """Folder for predictions.tsv: index, prediction, and the logits."""


class Predict:
    """Say what a trained model makes of each row: its class, or its value. One process on one device."""

    options = PredictOptions
    computes = True

    def __init__(self, task: str) -> None:
        self._task = task

    def run(self, options: PredictOptions, host: Host) -> Outcome:
        """Write the predictions."""
        from bert.tasks.evaluation import check_logits, row_logits
        from common.atomic import check_writable

        checkpoint = host.checkpoint(options.checkpoint)
        task = _trained(self._task, checkpoint)
        rows = task.data.rows(options.data, options.split, task.options)
        opened = _open(checkpoint, task, rows, options.data, host)
        check_writable(options.out)
        ready = host.ready(opened)

        def told(done: int) -> None:
            host.progress("rows", done, len(rows))

        began = time.monotonic()
        logits = row_logits(ready.model, rows, task.labels, ready.device, ready.precision, ready.batch_size, told=told)
        seconds = time.monotonic() - began
        check_logits(logits)
        path = options.out / PREDICTIONS_FILE
        _write(path, logits, task.regression)
        scores = _plain(task.score(logits, rows.labels)) if rows.has_labels else None
        found: dict[str, Any] = {
            "task": self._task,
            "checkpoint": str(opened.source),
            "data": str(options.data),
            "split": options.split,
            "rows": len(rows),
            "seconds": seconds,
            "rows_per_second": len(rows) / seconds,
            "scores": scores,
            "written": str(path),
        }
        rate = f"{found['rows']:,} in {seconds:.1f} s, {found['rows_per_second']:,.1f} per second"
        words = ["eval", self._task, "--checkpoint", str(options.checkpoint), "--data", str(options.data)]
        words += ["--split", options.split, "--predictions", str(path)]
        lines = rows_of(("checkpoint", found["checkpoint"]), ("rows", rate), *_told(scores), ("wrote", path))
        return Outcome(document=found, lines=lines, following=words if rows.has_labels else None)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalOptions:
    """Of `bertbench eval TASK`."""

    checkpoint: Path
    """The run or checkpoint that predicted: it says with which options the task was trained."""
    data: Path
    """Rows with labels, as the task's own `data` command makes them."""
    predictions: Path
    """predictions.tsv of `bertbench predict TASK`."""
    split: str = EVALUATION
    """Which of the rows."""


class Eval:
    """Score predictions by what the task is scored by."""

    options = EvalOptions
    computes = False

    def __init__(self, task: str) -> None:
        self._task = task

    def run(self, options: EvalOptions, host: Host) -> Outcome:
        """Score the predictions."""
        task = _trained(self._task, host.checkpoint(options.checkpoint))
        rows = task.data.rows(options.data, options.split, task.options)
        task.check_labels(rows, str(options.data))
        if not rows.has_labels:
            raise InputError("labels-invalid", f"the rows in {options.data} have no labels: there is nothing to score")
        logits = _read(options.predictions, task.labels)
        if len(logits) != len(rows):
            raise InputError(
                "answers-invalid",
                f"{options.predictions} has {len(logits):,} predictions, {options.data} {len(rows):,} rows: give the "
                "data they were made of",
            )
        scores = _plain(task.score(logits, rows.labels))
        found = {
            "task": self._task,
            "data": str(options.data),
            "split": options.split,
            "predictions": str(options.predictions),
            "rows": len(rows),
            "scores": scores,
        }
        return Outcome(document=found, lines=rows_of(("rows", f"{len(rows):,}"), *_told(scores)))


def _trained(name: str, checkpoint: Path) -> "ClassificationTask":
    """Return the task with the options that a checkpoint was trained with."""
    from bert.predict import settings_of
    from bert.tasks import make_task
    from bert.tasks.classification import ClassificationTask

    settings = settings_of(checkpoint)
    if settings is None or settings.task != name:
        is_of = "does not say what it was trained on" if settings is None else f"was trained on {settings.task}"
        raise InputError(
            "weights-mismatch", f"{checkpoint} {is_of}: give a run of `bertbench train {name}`, or a checkpoint of one"
        )
    task = make_task(name, settings.task_options)
    assert isinstance(task, ClassificationTask)
    return task


def _open(checkpoint: Path, task: "ClassificationTask", rows: "TokenRows", data: Path, host: Host) -> "Opened":
    from bert.predict import identity_of, open_model

    if not len(rows):
        raise InputError("file-empty", f"{data} holds no row: make it of other data")
    opened = open_model(checkpoint, task, identity_of(data, rows.fingerprint, rows), host.note)
    longest = int(rows.lengths.max())
    if longest > opened.config.max_positions:
        raise InputError(
            "data-mismatch",
            f"the rows in {data} have up to {longest} tokens, the model in {checkpoint} has "
            f"{opened.config.max_positions} positions: make shorter ones",
        )
    return opened


def _write(path: Path, logits: npt.NDArray[np.float32], regression: bool) -> None:
    from common.atomic import atomic_path

    answers = logits[:, 0] if regression else logits.argmax(1)
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow([*_FIRST_COLUMNS, *(f"logit_{number}" for number in range(logits.shape[1]))])
        for index, (answer, row) in enumerate(zip(answers.tolist(), logits.tolist(), strict=True)):
            writer.writerow([index, answer, *row])


def _read(path: Path, classes: int) -> npt.NDArray[np.float32]:
    """Return the logits [N, K] in a file of predictions. Raises InputError."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            head, *rows = list(csv.reader(file, delimiter="\t"))
        if head[: len(_FIRST_COLUMNS)] != _FIRST_COLUMNS or len(head) != len(_FIRST_COLUMNS) + classes:
            raise ValueError(f"its columns are {', '.join(head)[:80]}")
        return np.array([row[len(_FIRST_COLUMNS) :] for row in rows], dtype=np.float32).reshape(-1, classes)
    except OSError as error:
        raise InputError("path-unreadable", f"cannot read {path}: {error.strerror}") from error
    except (ValueError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            "answers-invalid",
            f"{path} is no predictions.tsv of a model with {classes} logits ({error}): `bertbench predict` makes it",
        ) from error


def _plain(scores: Mapping[str, float]) -> dict[str, float | None]:
    return {name: float(value) if math.isfinite(value) else None for name, value in scores.items()}


def _told(scores: Mapping[str, float | None] | None) -> list[tuple[str, Any]]:
    return [("scores", ", ".join(in_words(name, value) for name, value in scores.items()))] if scores else []
