"""`bertbench eval gap`: the official scores of a file of predictions, log loss, a confusion matrix, slices."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.render.terminal import printable, wrapped
from bench.cli.options import parse
from bench.cli.result import terminal_width
from bench.cli.scores_file import SCORES_FILE, check_scores_folder

if TYPE_CHECKING:
    from bert.tasks.gap.golds import Slice
    from bert.tasks.gap.scores import Scores

PICTURE_FILE = "scores.png"
_MOST_IDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalGapOptions:
    """Score predictions as the official scorer of GAP does, and by accuracy, log loss, and parts of the rows.

    Each name is a decision of its own. A row without a prediction counts as two false negatives and is named.
    """

    dataset: Path
    """TSV of GAP with the answers, such as gap-validation.tsv."""
    predictions: Path
    """predictions.tsv of `bertbench predict gap` (ID, TRUE or FALSE for A, for B), or probabilities as Kaggle takes
    them, between commas or tabs, below a header (ID,A,B,NEITHER)."""
    out: Path | None = None
    """Folder for scores.json and scores.png; it may not hold those of another task. Without it no file is written."""
    json: bool = False
    """Print everything as JSON, all digits."""


OPTIONS = {"eval gap": EvalGapOptions}


def main(argv: list[str]) -> int:
    """Run the command; 0 when the scores are printed."""
    options = parse(EvalGapOptions, argv, "bertbench eval gap")
    check_scores_folder(options.out, "gap")
    from bert.tasks.gap.golds import read_golds, slices
    from bert.tasks.gap.prediction_files import read_predictions
    from bert.tasks.gap.scores import score
    from common.errors import InputError

    file = read_golds(options.dataset)
    found = read_predictions(options.predictions)
    scores = score(file.golds, found.decisions, found.probabilities, (*file.notes, *found.notes))
    if len(scores.missing) == scores.rows:
        raise InputError(
            "answers-invalid",
            f"none of the {len(found.decisions):,} predictions in {options.predictions} belongs to the {scores.rows:,} "
            f"rows of {options.dataset}: give the dataset they were made for",
        )
    parts = slices(file.examples, found.decisions, found.probabilities)
    document: dict[str, Any] = {
        "task": "gap",
        "dataset": str(options.dataset),
        "predictions": str(options.predictions),
        **scores.to_json(),
        "slices": [part.to_json() for part in parts],
    }
    if not options.json:  # before anything is written: a full disk must not hide them
        print("\n".join(_lines(scores, parts, terminal_width())))
    written = [] if options.out is None else _write(options.out, document, scores, parts)
    if options.json:
        print(json.dumps({**document, "written": [str(path) for path in written]}, indent=2, allow_nan=False))
        return 0
    for path in written:
        print(f"wrote {printable(str(path))}")
    return 0


def _write(out: Path, document: dict[str, Any], scores: "Scores", parts: Sequence["Slice"]) -> list[Path]:
    from analysis.render.gap_figures import Bar, Confusion, draw_gap_scores
    from bert.tasks.gap.scores import ANSWERS, OVERALL
    from common.atomic import write_json

    write_json(out / SCORES_FILE, document)
    lines, columns = _used(scores)
    confusion = Confusion(
        scores.confusion[lines][:, columns], [ANSWERS[line] for line in lines], [ANSWERS[column] for column in columns]
    )
    bars = [Bar(part.by, _slice_name(part), part.rows, part.accuracy) for part in parts]
    names_of_files = [Path(document[name]).name for name in ("dataset", "predictions")]
    facts = f"{scores.rows:,} rows, F1 {scores.tallies[OVERALL].f1:.1f} %"
    picture = draw_gap_scores(out / PICTURE_FILE, confusion, bars, scores.accuracy, names_of_files, facts)
    return [out / SCORES_FILE, picture]


def _used(scores: "Scores") -> tuple[list[int], list[int]]:
    """Lines and columns of the confusion matrix: the three classes, and what else occurs."""
    from bert.tasks.gap.examples import LABELS

    counts = scores.confusion
    lines = [n for n in range(len(counts)) if n < len(LABELS) or counts[n].any()]
    return lines, [n for n in range(counts.shape[1]) if n < len(LABELS) or counts[:, n].any()]


def _slice_name(part: "Slice") -> str:
    return {"distance": f"name {part.name} away", "length": f"text of {part.name}"}.get(part.by, part.name)


def _lines(scores: "Scores", parts: Sequence["Slice"], width: int) -> list[str]:
    lines = [f"GAP, {scores.rows:,} rows", "", f"{'':<10}{'recall':>10}{'precision':>11}{'F1':>10}"]
    lines[-1] += f"{'tp':>8}{'fp':>7}{'fn':>7}{'tn':>7}"
    for name, tally in scores.tallies.items():
        lines.append(
            f"{name:<10}{tally.recall:>8.1f} %{tally.precision:>9.1f} %{tally.f1:>8.1f} %{tally.true_positives:>8,}"
            f"{tally.false_positives:>7,}{tally.false_negatives:>7,}{tally.true_negatives:>7,}"
        )
    bias = "none: one of the two F1 is 0" if scores.bias is None else f"{scores.bias:.2f}, feminine F1 / masculine F1"
    lines += ["", f"bias       {bias}", f"accuracy   {100 * scores.accuracy:.1f} %, both names of a row right"]
    if scores.log_loss is None:
        lines.append(
            "log loss   none: these predictions have no probabilities; those with a header ID,A,B,NEITHER have"
        )
    else:
        lines.append(f"log loss   {scores.log_loss:.4f} nats, {scores.probable:,} row{'s' * (scores.probable != 1)}")
    lines += ["", *_confusion_lines(scores), "", *_slice_lines(parts)]
    return [*lines, "", *(line for note in _notes(scores) for line in wrapped(note, width))]


def _confusion_lines(scores: "Scores") -> list[str]:
    from bert.tasks.gap.scores import ANSWERS

    lines, columns = _used(scores)
    found = [f"{'right / answered':<18}" + "".join(f"{ANSWERS[column]:>9}" for column in columns)]
    return found + [
        f"{ANSWERS[line]:<18}" + "".join(f"{scores.confusion[line, column]:>9,}" for column in columns)
        for line in lines
    ]


def _slice_lines(parts: Sequence["Slice"]) -> list[str]:
    found = [f"{'part':<27}{'rows':>7}{'accuracy':>11}{'F1':>10}{'log loss':>11}"]
    for part in parts:
        loss = "-" if part.log_loss is None else f"{part.log_loss:.4f}"
        found.append(f"{_slice_name(part):<27}{part.rows:>7,}{100 * part.accuracy:>9.1f} %{part.f1:>8.1f} %{loss:>11}")
    return found


def _notes(scores: "Scores") -> list[str]:
    notes = [f"note: {note}" for note in scores.notes]
    if scores.missing:
        notes.append(
            f"missing: {len(scores.missing):,} row(s) without a prediction, each is two false negatives: "
            f"{_ids(scores.missing)}"
        )
    if scores.extra:
        notes.append(f"extra: {len(scores.extra):,} prediction(s) for ids that no row has: {_ids(scores.extra)}")
    return notes


def _ids(names: Sequence[str]) -> str:
    shown = ", ".join(name[:60] for name in names[:_MOST_IDS])
    return f"{shown}, ... (--json lists all)" if len(names) > _MOST_IDS else shown
