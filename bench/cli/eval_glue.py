"""`bertbench eval glue`: the benchmark's scores of a file of answers."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.report.terminal import printable
from analysis.train_scores import score
from bench.cli.options import parse

if TYPE_CHECKING:
    from bert.tasks.glue.tasks import GlueSpec

_MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalGlueOptions:
    """Score answers to a task of GLUE against a table with labels, as the benchmark does."""

    task: str
    """cola sst2 mrpc qqp stsb mnli qnli rte wnli."""
    labels: Path
    """The table with the labels: dev.tsv, for mnli dev_matched.tsv or dev_mismatched.tsv."""
    predictions: Path
    """The answers, as `bertbench predict glue` writes them and GLUE's server takes them: index, prediction."""
    json: bool = False
    """Print everything as JSON, all digits."""


OPTIONS = {"eval glue": EvalGlueOptions}


def run(argv: list[str]) -> int:
    """Run the command; 0 when the scores are printed."""
    options = parse(EvalGlueOptions, argv, "bertbench eval glue")
    from bert.tasks.glue.answers import pair, read_answers
    from bert.tasks.glue.metrics import scores
    from bert.tasks.glue.tables import read_table
    from bert.tasks.glue.tasks import task_of

    spec = task_of(options.task)
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
    if options.json:
        plain = {name: value if math.isfinite(value) else None for name, value in found["scores"].items()}
        print(json.dumps({**found, "scores": plain}, indent=2, allow_nan=False))
        return 0
    print("\n".join(_lines(spec, found)))
    return 0


def _split_of(labels: Path, spec: "GlueSpec") -> str | None:
    """Which of the task's tables with labels a file is by its name; None where that does not say."""
    name = labels.name.lower().removesuffix(".gz").removesuffix(".tsv").replace("-", "_")
    return name if name in spec.evaluations else None


def _answers_to(predictions: Path, spec: "GlueSpec") -> str | None:
    """Which of the task's tables a file answers by its name, as `bertbench predict glue` gives it."""
    from bert.tasks.glue.answers import answer_file

    return next((split for split in spec.splits if answer_file(spec, split) == predictions.name), None)


def _confusion(spec: "GlueSpec", labels: list[float], predictions: list[float]) -> list[list[int]] | None:
    """Rows by label and prediction: [label][prediction]; None where the task is a regression."""
    if spec.is_regression:
        return None
    found = [[0] * spec.labels for _ in spec.classes]
    for label, prediction in zip(labels, predictions, strict=True):
        found[int(label)][int(prediction)] += 1
    return found


def _lines(spec: "GlueSpec", found: dict[str, Any]) -> list[str]:
    table = f"{spec.folder} {found['split']}" if found["split"] else spec.folder
    lines = [f"{table}, {found['rows']:,} rows", ""]
    for name, value in found["scores"].items():
        label = score(name).label
        mark = "  <- headline" if name == spec.headline and len(found["scores"]) > 1 else ""
        shown = f"{100 * value:7.3f}" if math.isfinite(value) else "not defined: all predictions or labels are equal"
        lines.append(f"{label:<45} {shown}{mark}")
    if found["confusion"] is not None:
        width = max(12, *(len(name) + 2 for name in spec.classes))
        lines += ["", f"{'label':<{width}}" + "".join(f"{name:>{width}}" for name in spec.classes) + "  predicted"]
        for name, counts in zip(spec.classes, found["confusion"], strict=True):
            lines.append(f"{name:<{width}}" + "".join(f"{count:>{width},}" for count in counts))
    notes = [f"note: {count:,} row(s) of the table {name}" for name, count in found["left_out"].items()]
    if None not in (found["split"], found["answers_to"]) and found["split"] != found["answers_to"]:
        named = Path(found["predictions"]).name
        notes.append(f"note: by their names {named} answers {found['answers_to']}, and the labels are {found['split']}")
    if found["extra"]:
        shown = ", ".join(map(str, found["extra"][:_MOST_NAMED])) + ", ..." * (len(found["extra"]) > _MOST_NAMED)
        notes.append(f"note: {len(found['extra']):,} answer(s) to rows that the table does not have (index {shown})")
    return [printable(line) for line in [*lines, *([""] if notes else []), *notes]]
