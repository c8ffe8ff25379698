"""`bertbench predict classify`: the labels that a trained model gives to the texts of a CSV."""

import csv
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from analysis.render.terminal import printable
from bench.cli.data_csv import DEFAULT_WORDS
from bench.cli.options import parse, plain_words
from bench.cli.progress import note, show_stages
from bench.cli.task_commands import Computing
from bench.machine.devices import find_devices
from bert.tasks.classify.config import CsvForm
from common.atomic import atomic_path
from common.errors import InputError, UsageError
from records.training import TrainRun, is_train_run

if TYPE_CHECKING:
    from bert.tasks.classify.reading import LeftOut, TextRow

_ENDING = "_predictions.csv"
_BATCH_TEXTS = 2000
_MOST_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictClassifyOptions:
    """Give each text of a CSV of any size the label that a trained model finds: line, prediction, probability and,
    where the CSV has a column of labels, true_label, empty where the row has none. One process on one device.
    """

    checkpoint: Path
    """*_trained_model that `bertbench train classify` left, its run directory, or a checkpoint in it."""
    data: Path
    """CSV of texts; labels in it are compared."""
    form: Annotated[CsvForm, tyro.conf.arg(name="")] = field(default_factory=CsvForm)
    out: Path | None = None
    """File to write; default beside the CSV: <root>_predictions.csv."""
    computing: Annotated[Computing, tyro.conf.arg(name="")] = field(default_factory=Computing)
    threads: int | None = None
    """Threads on the CPU; default one per core. Fewer are faster where other programs use the cores, too."""
    json: bool = False
    """Print the result as JSON."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if self.threads is not None and self.threads < 1:
            raise UsageError("option-value", f"--threads {self.threads} must be at least 1")


OPTIONS = {"predict classify": PredictClassifyOptions}


@dataclass(slots=True)
class _Tally:
    """What was met."""

    texts: int = 0
    right: int = 0
    labelled: int = 0
    left_out: list[tuple[int, str]] = field(default_factory=list)
    given: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    """Texts whose label in the file is none of the model's: they count as wrong."""
    unknown_labels: list[str] = field(default_factory=list)
    """The first such labels."""


def main(argv: list[str]) -> int:
    """Run the command; 0 when the file is written."""
    options = parse(PredictClassifyOptions, plain_words(argv, DEFAULT_WORDS), "bertbench predict classify")
    from bench.text_classifier import open_classifier
    from bert.tasks.classify.form import find_form
    from bert.tasks.classify.reading import read_rows
    from bert.tasks.classify.records import check_file

    check_file(options.data)
    form = find_form(options.data, options.form, needs_label=False)
    computing = options.computing
    devices = find_devices(computing.device)
    classifier = open_classifier(_of_run(options.checkpoint), note)
    began = time.monotonic()
    out = options.out or options.data.with_name(f"{options.data.stem}{_ENDING}")
    if out.resolve() == options.data.resolve():
        raise UsageError("option-conflict", f"--out {out} is the input: give another file")
    if out.is_dir():
        raise UsageError("path-kind", f"--out {out} is a folder: give a file")
    tally, progress = _Tally(), show_stages()
    with atomic_path(out) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["line", "prediction", "probability", *(["true_label"] if form.label is not None else [])])
        for batch in _batches(read_rows(options.data, form, needs_label=False), tally):
            texts = [row.text for row in batch]
            found = classifier.predict(texts, devices, computing.precision, computing.batch_size, options.threads)
            _write(writer, batch, found, tally)
            _count_unknown(batch, found, classifier.labels, tally)
            progress("texts", tally.texts, None)
        if not tally.texts:
            raise InputError(
                "rows-invalid",
                f"{options.data} has no text that can be used ({len(tally.left_out)} rows were left out)",
            )
    _show(options, form.encoding, out, tally, time.monotonic() - began)
    return 0


def _of_run(path: Path) -> Path:
    """The best checkpoint of a run, else its latest; else the path as it is."""
    if not is_train_run(path):
        return path
    run = TrainRun(path)
    found = run.best_checkpoint() or run.checkpoints / str((run.read_state() or {}).get("checkpoint"))
    if not found.is_dir():
        raise InputError(
            "checkpoint-missing", f"the run in {path} has no checkpoint: finish it with the command that began it"
        )
    return found


def _batches(rows: "Iterator[TextRow | LeftOut]", tally: _Tally) -> "Iterator[list[TextRow]]":
    from bert.tasks.classify.reading import LeftOut

    batch: list[TextRow] = []
    for row in rows:
        if isinstance(row, LeftOut):
            tally.left_out.append((row.line, row.reason))
            continue
        batch.append(row)
        if len(batch) == _BATCH_TEXTS:
            yield batch
            batch = []
    if batch:
        yield batch


def _write(writer: Any, batch: "list[TextRow]", found: "list[tuple[str, float] | None]", tally: _Tally) -> None:
    from bert.tasks.classify.reading import NO_PIECES

    for row, one in zip(batch, found, strict=True):
        if one is None:
            tally.left_out.append((row.line, NO_PIECES))
            continue
        label, share = one
        tally.texts += 1
        tally.given[label] += 1
        if row.label:
            tally.labelled += 1
            tally.right += row.label == label
        writer.writerow([row.line, label, f"{share:.6f}", *([] if row.label is None else [row.label])])


def _count_unknown(
    batch: "list[TextRow]", found: "list[tuple[str, float] | None]", known: Sequence[str], tally: _Tally
) -> None:
    for row, one in zip(batch, found, strict=True):
        if one is None or not row.label or row.label in known:
            continue
        tally.unknown += 1
        if row.label not in tally.unknown_labels and len(tally.unknown_labels) <= _MOST_SHOWN:
            tally.unknown_labels.append(row.label)


def _unknown_text(tally: _Tally) -> str:
    shown = ", ".join(repr(label[:40]) for label in tally.unknown_labels[:_MOST_SHOWN])
    more = ", ..." if len(tally.unknown_labels) > _MOST_SHOWN else ""
    return (
        f"{tally.unknown:,} of the {tally.labelled:,} labels in the file are none that the model knows "
        f"({shown}{more}), and count as wrong"
    )


def _show(options: PredictClassifyOptions, encoding: str, out: Path, tally: _Tally, seconds: float) -> None:
    accuracy = tally.right / tally.labelled if tally.labelled else None
    found = {
        "checkpoint": str(options.checkpoint),
        "data": str(options.data),
        "texts": tally.texts,
        "predictions": dict(tally.given.most_common()),
        "accuracy": accuracy,
        "unknown_labels": tally.unknown,
        "left_out": [{"line": line, "reason": reason} for line, reason in tally.left_out],
        "form": {**asdict(options.form), "encoding": encoding},
        "seconds": seconds,
        "written": str(out),
    }
    if options.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return
    most = ", ".join(f"{label[:40]} {count:,}" for label, count in tally.given.most_common(_MOST_SHOWN))
    rows = [
        ("texts", f"{tally.texts:,} in {seconds:.1f} s, {tally.texts / seconds:,.1f} per second"),
        ("predictions", f"{most}{', ...' if len(tally.given) > _MOST_SHOWN else ''}"),
    ]
    if accuracy is not None:
        rows.append(("accuracy", f"{100 * accuracy:.1f} % of {tally.labelled:,} labels in the file"))
    if tally.unknown:
        rows.append(("unknown", _unknown_text(tally)))
    if tally.left_out:
        lines = [f"line {line}: {reason}" for line, reason in tally.left_out[:_MOST_SHOWN]]
        lines += ["..."] if len(tally.left_out) > _MOST_SHOWN else []
        count = len(tally.left_out)
        rows.append(("left out", f"{count:,} row{'s' * (count != 1)} ({', '.join(lines)})"))
    rows.append(("wrote", str(out)))
    print("\n".join(f"{name:<11} {printable(text)}" for name, text in rows))
