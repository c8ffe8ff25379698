"""`bertbench predict glue`: the answers of a trained model, in the files that GLUE's server takes."""

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from analysis.report.terminal import printable
from analysis.train_scores import in_words
from bench.cli.options import parse, run_folder
from bench.cli.predicting import Computing, Ready, best_of_run, identity_of, make_ready
from bench.cli.progress import note, show_stages
from common.atomic import check_writable
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    from bert.predict import Opened
    from bert.tasks.glue.features import GlueFeatures


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictGlueOptions:
    """Answer the rows of a task of GLUE: index and prediction, a file for each table, under the name that the
    benchmark's server takes it by (CoLA.tsv, MNLI-m.tsv, ...; CoLA-dev.tsv for rows with labels). One process on one
    device.
    """

    checkpoint: Path
    """A run (its best checkpoint, else the latest), a checkpoint, or anything that `bertbench convert` reads."""
    features: tuple[Path, ...]
    """Features of `bertbench data glue`; of a folder all of the task but those that are trained on."""
    task: str | None = None
    """Whose features, where a folder holds those of several tasks: cola sst2 mrpc qqp stsb mnli qnli rte wnli; default
    the task that the checkpoint was trained on."""
    out: Path = Path("runs/glue-predictions")
    """Folder for the files."""
    computing: Annotated[Computing, tyro.conf.arg(name="")] = field(default_factory=Computing)
    json: bool = False
    """Print the result as JSON, progress on stderr."""

    def __post_init__(self) -> None:
        """Refuse what names nothing."""
        if not self.features:
            raise UsageError("option-missing", "give --features: files of `bertbench data glue`, or a folder of them")


OPTIONS = {"predict glue": PredictGlueOptions}


def run(argv: list[str]) -> int:
    """Run the command; 0 when the files are written."""
    options = parse(PredictGlueOptions, argv, "bertbench predict glue")
    out = run_folder(options.out)
    task = options.task or _trained_on(best_of_run(options.checkpoint))[1]
    files = _files(options, task)
    features = _features(files, options.task)
    opened = _open_model(options, features)
    check_writable(out)
    ready = make_ready(opened, options.computing)
    tables = [
        {**_answer(options, ready, one, out), "table": _made_of(file)}
        for file, one in zip(files, features, strict=True)
    ]
    found = {"checkpoint": str(opened.source), "task": features[0].settings.task, "tables": tables}
    print(json.dumps(found, indent=2) if options.json else "\n".join(_lines(found)))
    return 0


def _files(options: PredictGlueOptions, task: str | None) -> list[Path]:
    """The files that are meant; of a folder those of a task, where that is known."""
    from bert.tasks.glue.store import find_all
    from bert.tasks.glue.tasks import task_of

    if options.task is not None:
        task_of(options.task)
    return [file for path in options.features for file in (find_all(path, task) if path.is_dir() else [path])]


def _made_of(file: Path) -> str | None:
    from bert.data.feature_files import made_of

    table = made_of(file, "", "table")
    return None if table is None else str(table)


def _features(files: list[Path], task: str | None) -> "list[GlueFeatures]":
    """The features in all files, of one task and one vocabulary."""
    from bert.tasks.glue.store import open_features
    from bert.tasks.glue.tasks import TASKS

    splits = tuple(dict.fromkeys(split for spec in TASKS.values() for split in spec.splits))
    found = [open_features(file, splits, task) for file in files]
    first = found[0].settings
    for file, one in zip(files, found, strict=True):
        if (one.settings.task, one.settings.vocabulary) != (first.task, first.vocabulary):
            raise InputError(
                "data-mismatch",
                f"{file} holds features of {one.settings.task} and {files[0]} those of {first.task}, or their "
                "vocabularies differ: predict them one after the other",
            )
        if not len(one):
            raise InputError("file-empty", f"{file} holds no row: make it of another table")
    return found


def _open_model(options: PredictGlueOptions, features: "Sequence[GlueFeatures]") -> "Opened":
    from bert.predict import open_model
    from bert.tasks.glue.task import GlueTask

    task = features[0].settings.task
    data = identity_of(options.features[0], features[0].rows.fingerprint, features[0].settings)
    checkpoint = best_of_run(options.checkpoint)
    _check_task(checkpoint, task)
    opened = open_model(checkpoint, GlueTask(task=task), data, note)
    longest = max(one.settings.max_seq_length for one in features)
    if longest > opened.config.max_positions:
        raise InputError(
            "data-mismatch",
            f"the rows have up to {longest} tokens, the model in {checkpoint} has {opened.config.max_positions} "
            "positions: make shorter ones with --max-seq-length",
        )
    return opened


def _trained_on(checkpoint: Path) -> tuple[str | None, str | None]:
    """What a checkpoint of ours was trained on, and which task of GLUE that is; None where it does not say."""
    from bert.tasks import check_task_options
    from bert.train.checkpoint import STATE_FILE, checkpoint_path, read, saved_steps

    steps = [] if (checkpoint / STATE_FILE).is_file() or not checkpoint.is_dir() else saved_steps(checkpoint)
    checkpoint = checkpoint_path(checkpoint, steps[-1]) if steps else checkpoint
    if not (checkpoint / STATE_FILE).is_file():
        return None, None
    settings = read(checkpoint, whole=False).state.settings
    known = check_task_options(settings.task, settings.task_options).get("task") if settings.task == "glue" else None
    return (f"GLUE's {known}" if known else settings.task), None if known is None else str(known)


def _check_task(checkpoint: Path, task: str) -> None:
    """Refuse a checkpoint of ours that was trained on something else: its classes may be as many and mean others."""
    trained, known = _trained_on(checkpoint)
    if trained is not None and known != task:
        raise InputError(
            "weights-mismatch",
            f"{checkpoint} was trained on {trained}, and the features are of {task}: give one or the other",
        )


def _answer(options: PredictGlueOptions, ready: Ready, features: "GlueFeatures", out: Path) -> dict[str, Any]:
    """Write the answers to one table; return what is told of them."""
    from bert.tasks.classification_evaluation import check_logits, row_logits
    from bert.tasks.glue.answers import answer_file, write_answers
    from bert.tasks.glue.metrics import decided, scores

    settings, rows = features.settings, features.rows
    spec, progress = settings.spec, show_stages()

    def told(done: int) -> None:
        progress(f"rows of {settings.split}", done, len(rows))

    began = time.monotonic()
    classes = spec.labels
    logits = row_logits(ready.model, rows, classes, ready.device, ready.precision, ready.batch_size, told=told)
    seconds = time.monotonic() - began
    check_logits(logits)
    answers = decided(spec, logits)
    path = out / answer_file(spec, settings.split)
    write_answers(path, spec, settings.split, features.index, answers)
    return {
        "split": settings.split,
        "rows": len(rows),
        "seconds": seconds,
        "rows_per_second": len(rows) / seconds,
        "scores": _plain(scores(spec, answers, rows.labels)) if rows.has_labels else None,
        "written": str(path),
    }


def _plain(found: dict[str, float]) -> dict[str, float | None]:
    return {name: value if value == value else None for name, value in found.items()}


def _lines(found: dict[str, Any]) -> list[str]:
    lines = [f"checkpoint  {printable(found['checkpoint'])}"]
    for table in found["tables"]:
        rate = f"{table['rows']:,} rows in {table['seconds']:.1f} s, {table['rows_per_second']:,.1f} per second"
        lines.append(f"{table['split']:<11} {rate}: {printable(table['written'])}")
        if table["scores"] is not None:
            lines.append(f"{'':<11} {', '.join(in_words(name, value) for name, value in table['scores'].items())}")
    known = [table for table in found["tables"] if table["scores"] is not None and table["table"] is not None]
    if known:
        words = ["eval", "glue", "--task", found["task"], "--labels", known[0]["table"], "--predictions"]
        lines.append(f"next: {shlex.join(['bertbench', *words, known[0]['written']])}")
    return lines
