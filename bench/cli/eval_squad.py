"""`bertbench eval squad`: the official scores of a file of predictions."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.render.terminal import printable, wrapped
from bench.cli.options import parse
from bench.cli.result import terminal_width
from bench.cli.scores_file import SCORES_FILE, check_scores_folder
from common.errors import UsageError

if TYPE_CHECKING:
    from bert.tasks.squad.scores import Scores
    from bert.tasks.squad.thresholds import NullAnalysis

_MOST_IDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSquadOptions:
    """Score predictions as the official scripts of SQuAD 1.1 and 2.0 do, digit by digit.

    The dataset says which rules hold. A question without a prediction counts as 0 and is named.
    """

    dataset: Path
    """SQuAD file with the gold answers (JSON, also .gz)."""
    predictions: Path
    """JSON: question id -> answer; "" means no answer (also .gz)."""
    na_prob: Path | None = None
    """SQuAD 2.0: JSON, question id -> no-answer score, such as null_odds.json; gives thresholds and curves."""
    threshold: float | None = None
    """A no-answer score above it counts as the answer ""; without it 1.0, as in the official script."""
    out: Path | None = None
    """Folder for scores.json and, with --na-prob, the pictures; it may not hold those of another task. Without it
    no file is written."""
    json: bool = False
    """Print everything as JSON, all digits."""

    def __post_init__(self) -> None:
        """Refuse a threshold without meaning."""
        if self.threshold is not None and math.isnan(self.threshold):
            raise UsageError("option-value", "--threshold nan is no number: give one such as 0")


OPTIONS = {"eval squad": EvalSquadOptions}


def main(argv: list[str]) -> int:
    """Run the command; 0 when the scores are printed."""
    options = parse(EvalSquadOptions, argv, "bertbench eval squad")
    check_scores_folder(options.out, "squad")
    from bert.tasks.squad.golds import read_golds
    from bert.tasks.squad.prediction_files import read_null_odds, read_predictions
    from bert.tasks.squad.scores import score

    golds = read_golds(options.dataset)
    notes: list[str] = []
    predictions = read_predictions(options.predictions, notes)
    null_odds = None if options.na_prob is None else read_null_odds(options.na_prob, notes)
    found = score(golds, predictions, null_odds, options.threshold)
    found = replace(found, notes=(*found.notes, *notes))
    about = {"task": "squad", "dataset": str(options.dataset), "predictions": str(options.predictions)}
    if not options.json:  # before anything is written: a full disk must not hide them
        print("\n".join(_lines(found, terminal_width())))
    written = [] if options.out is None else _write(found, about, options.out)
    if options.json:
        document = {**about, **found.to_json(), "written": [str(path) for path in written]}
        print(json.dumps(document, indent=2, allow_nan=False))
        return 0
    for path in written:
        print(f"wrote {printable(str(path))}")
    return 0


def _write(found: "Scores", about: dict[str, str], out: Path) -> list[Path]:
    from common.atomic import write_json

    write_json(out / SCORES_FILE, {**about, **found.to_json()})
    drawable = found.analysis is not None and found.analysis.null_odds
    pictures = (
        []
        if found.analysis is None or not drawable
        else _draw(found, found.analysis, Path(about["predictions"]).name, out)
    )
    return [out / SCORES_FILE, *pictures]


def _draw(found: "Scores", analysis: "NullAnalysis", title: str, out: Path) -> list[Path]:
    from analysis.render import squad_figures as figures

    best = [figures.Best("exact match", *analysis.best_exact), figures.Best("F1", *analysis.best_f1)]
    sweep = figures.Sweep(analysis.null_odds, analysis.exact, analysis.f1)
    paths = [
        figures.draw_scores_by_threshold(out / "thresholds.png", sweep, best, title),
        figures.draw_null_odds(
            out / "no_answer_scores.png", analysis.with_answer, analysis.without_answer, best, title
        ),
    ]
    if analysis.curves:
        curves = [
            figures.Curve(name, curve.precisions, curve.recalls, curve.average_precision)
            for name, curve in analysis.curves.items()
        ]
        paths.append(figures.draw_precision_recall(out / "precision_recall.png", curves, title))
    return paths


def _lines(found: "Scores", width: int) -> list[str]:
    values = found.values
    lines = [f"SQuAD {found.version}, {found.questions:,} questions", ""]
    if found.version == "1.1":
        lines += [f"exact match  {values['exact_match']:7.3f} %", f"F1           {values['f1']:7.3f} %"]
    else:
        lines.append(f"{'':<16}{'exact match':>12}{'F1':>12}{'questions':>12}")
        for name, prefix in (("all", ""), ("with answer", "HasAns_"), ("without answer", "NoAns_")):
            if f"{prefix}total" in values:
                exact, f1 = values[f"{prefix}exact"], values[f"{prefix}f1"]
                lines.append(f"{name:<16}{exact:>10.3f} %{f1:>10.3f} %{values[f'{prefix}total']:>12,}")
        if found.analysis is not None:
            lines += [f"{'best':<16}{values['best_exact']:>10.3f} %{values['best_f1']:>10.3f} %"]
            lines += [f"{'  at threshold':<16}{values['best_exact_thresh']:>12.4g}{values['best_f1_thresh']:>12.4g}"]
            if found.analysis.curves:
                lines += [f"{'avg. precision':<16}{values['pr_exact_ap']:>10.3f} %{values['pr_f1_ap']:>10.3f} %"]
                lines += [f"{'  if all right':<28}{values['pr_oracle_ap']:>10.3f} %"]
    return [*lines, "", *(line for note in _notes(found) for line in wrapped(note, width))]


def _notes(found: "Scores") -> list[str]:
    notes = [f"note: {note}" for note in found.notes]
    if found.missing:
        notes.append(
            f"missing: {len(found.missing):,} question(s) without a prediction, each is 0: {_ids(found.missing)}"
        )
    if found.extra:
        notes.append(f"extra: {len(found.extra):,} prediction(s) for ids that no question has: {_ids(found.extra)}")
    if found.analysis is not None and (measures := _answer_nothing(found)):
        notes.append(
            f"No threshold gives a better {measures} than to answer no question at all: the official script then says "
            "threshold 0, which is none to use; take one below every no-answer score."
        )
    if found.version == "2.0" and found.analysis is None:
        notes.append(
            "Best thresholds, precision-recall curves and histograms need no-answer scores: add "
            "--na-prob null_odds.json (and --out DIR for the pictures)."
        )
    return notes


def _answer_nothing(found: "Scores") -> str:
    """The measures, in words, whose best threshold is the one that the search for it begins with."""
    values = found.values
    unanswered = 100.0 * values.get("NoAns_total", 0) / values["total"]
    measures = {"exact": "exact match", "f1": "F1"}
    return " or ".join(
        said
        for name, said in measures.items()
        if values[f"best_{name}_thresh"] == 0 and values[f"best_{name}"] == unanswered
    )


def _ids(names: Sequence[str]) -> str:
    shown = ", ".join(name[:60] for name in names[:_MOST_IDS])
    return f"{shown}, ... (--json lists all)" if len(names) > _MOST_IDS else shown
