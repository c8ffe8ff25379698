"""`bertbench data squad`, `predict squad` and `eval squad`."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert.tasks.base import DataIdentity
from bert.tasks.commands import (
    Grid,
    Host,
    Outcome,
    PrepareCommand,
    Shown,
    TaskCommand,
    check_positions,
    rate,
    some_of,
    timed,
)
from bert.tasks.squad.config import SquadConfig
from common.errors import UsageError

if TYPE_CHECKING:
    from bert.tasks.squad.predictions import Answers
    from bert.tasks.squad.prepare import SquadSummary
    from bert.tasks.squad.scores import Scores

_SHOWN = (
    ("contexts", "contexts"),
    ("questions", "questions"),
    ("impossible questions", "impossible"),
    ("windows", "windows"),
)


class Prepare(PrepareCommand):
    """Convert SQuAD 1.1 or 2.0 to features for training and evaluation. The same command keeps finished files.

    Examples:
        bertbench data squad --input train-v1.1.json dev-v1.1.json --vocab vocab.txt
    """

    options = SquadConfig

    def facts(self, summary: "SquadSummary") -> list[tuple[str, object]]:
        """Return the facts about one input."""
        counts, settings = summary.counts, summary.settings
        left_out = sum(count for name, count in counts.numbers.items() if name.startswith("left out"))
        rows: list[tuple[str, object]] = [("input", f"{summary.input}: SQuAD {settings.version}, for {settings.split}")]
        rows += [(title, f"{counts.get(name):,}") for name, title in _SHOWN if counts.get(name) or name == "windows"]
        rows.append(("left out", f"{left_out:,} questions"))
        if settings.split == "training":
            kind = "left out" if settings.drop_unanswerable_windows else "kept, with [CLS] as target"
            rows.append(("no answer", f"{counts.get('windows without the answer'):,} windows, {kind}"))
        windows = max(1, counts.get("windows"))
        mean = counts.get("window tokens") / windows
        rows.append(("tokens", f"{mean:.1f} per window, {settings.max_seq_length} at most"))
        if summary.kept:
            rows.append(("time", "finished before"))
        else:
            workers = f"{summary.workers} process{'es' * (summary.workers > 1)}"
            rows.append(("time", f"{summary.seconds:.1f} s with {workers}, {summary.mode}"))
        rows.append(("features", str(summary.features)))
        return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """Of `bertbench predict squad`."""

    checkpoint: Path
    """Training run (its best checkpoint, otherwise the latest), a checkpoint, or anything that `bertbench convert`
    reads."""
    features: Path
    """Features for evaluation from `bertbench data squad`."""
    out: Path = Path("runs/predictions")
    """Folder for the predictions."""
    vocab: Path | None = None
    """vocab.txt that the features were made with; default the path recorded in the features."""
    n_best_size: int = 20
    """Best starts and ends per window, and answers per question, to keep."""
    max_answer_length: int = 30
    """Maximum word pieces of an answer."""
    null_threshold: float = 0.0
    """SQuAD 2.0: answer "" unless the best answer scores higher than no answer by more than this."""


class Predict(TaskCommand):
    """Answer the questions of a features file. Writes predictions.json, nbest_predictions.json and, for SQuAD 2.0,
    null_odds.json. Runs as one process on one device.

    Examples:
        bertbench predict squad --checkpoint runs/squad-train --features runs/squad
    """

    options = PredictOptions
    computes = True

    def run(self, options: PredictOptions, host: Host) -> Outcome:
        """Write the files of the official scripts."""
        from bert.predict import open_model
        from bert.tasks.squad.evaluation import window_logits
        from bert.tasks.squad.features import FORM
        from bert.tasks.squad.predictions import NBestOptions, WindowLogits, decode
        from bert.tasks.squad.task import SquadTask
        from common.atomic import check_writable

        wanted = NBestOptions(
            n_best_size=options.n_best_size,
            max_answer_length=options.max_answer_length,
            null_threshold=options.null_threshold,
        )
        features = FORM.open(options.features, "evaluation")
        vocabulary = FORM.vocabulary_of(options.features, features.settings, options.vocab)
        data = DataIdentity.of(options.features, features.rows)
        opened = open_model(host.checkpoint(options.checkpoint), SquadTask(), data, host.note)
        if len(features):
            check_positions(opened, int(features.lengths.max()), options.features)
        check_writable(options.out)
        ready = host.ready(opened)
        (start, end), seconds = timed(host, "windows", len(features), lambda told: window_logits(ready, features, told))
        offsets = features.input_ids.offsets
        answers = decode(features, WindowLogits(start, end, offsets - offsets[0]), vocabulary, wanted)
        written = answers.write(options.out)
        dataset = FORM.made_of(options.features, "evaluation")
        found = {
            "checkpoint": str(opened.source),
            "features": str(options.features),
            "dataset": None if dataset is None else str(dataset),
            "questions": len(answers.predictions),
            "windows": len(features),
            "seconds": seconds,
            "windows_per_second": len(features) / seconds,
            "written": [str(path) for path in written],
        }
        return Outcome(document=found, shown=[_predicted(found, answers)], following=_evaluation(found))


def _predicted(found: dict[str, Any], answers: "Answers") -> list[tuple[str, object]]:
    empty = sum(not answer for answer in answers.predictions.values())
    rows = [
        ("checkpoint", found["checkpoint"]),
        ("questions", f"{found['questions']:,}, {empty:,} answered with nothing"),
        ("windows", rate(found["windows"], found["seconds"])),
    ]
    if answers.without_windows:
        rows.append(("no window", f"{len(answers.without_windows):,} questions, answered with nothing"))
    if answers.without_spans:
        rows.append(("no span", f"{len(answers.without_spans):,} questions without any span that can be an answer"))
    rows += [("wrote", path) for path in found["written"]]
    return rows


def _evaluation(found: dict[str, Any]) -> list[str] | None:
    if found["dataset"] is None:
        return None
    words = ["eval", "squad", "--dataset", found["dataset"], "--predictions", found["written"][-1]]
    odds = [path for path in found["written"] if path.endswith("null_odds.json")]
    return [*words, *(["--na-prob", odds[0]] if odds else [])]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalOptions:
    """Of `bertbench eval squad`."""

    dataset: Path
    """SQuAD file with the reference answers, JSON or .gz."""
    predictions: Path
    """JSON file, also .gz: question id -> answer; "" means no answer."""
    na_prob: Path | None = None
    """SQuAD 2.0: JSON file, question id -> no-answer score, such as null_odds.json; adds thresholds and curves; default
    none."""
    threshold: float | None = None
    """No-answer score above which the answer counts as ""; default 1.0, as in the official script."""
    out: Path | None = None
    """Folder for scores.json and, with --na-prob, pictures; default no files."""

    def __post_init__(self) -> None:
        """Refuse a threshold without meaning."""
        if self.threshold is not None and math.isnan(self.threshold):
            raise UsageError("option-value", "--threshold nan is no number: give one such as 0")


class Eval(TaskCommand):
    """Score predictions exactly as the official scripts of SQuAD 1.1 and 2.0 do.

    The dataset determines the version. A question without a prediction counts as 0 and is listed.

    Examples:
        bertbench eval squad --dataset dev-v1.1.json --predictions runs/predictions/predictions.json
    """

    options = EvalOptions

    def run(self, options: EvalOptions, host: Host) -> Outcome:
        """Score the predictions."""
        from bert.tasks.squad.score_files import read_golds, read_null_odds, read_predictions
        from bert.tasks.squad.scores import score

        golds = read_golds(options.dataset)
        notes: list[str] = []
        predictions = read_predictions(options.predictions, notes)
        null_odds = None if options.na_prob is None else read_null_odds(options.na_prob, notes)
        found = score(golds, predictions, null_odds, options.threshold)
        found = replace(found, notes=(*found.notes, *notes))
        about = {"task": "squad", "dataset": str(options.dataset), "predictions": str(options.predictions)}
        document = {**about, **found.to_json()}
        curves = found.analysis.curves.items() if found.analysis is not None and found.analysis.null_odds else ()
        drawn = {name: (one.precisions, one.recalls, one.average_precision) for name, one in curves}
        return Outcome(document=document, shown=[*_scored(found), *_remarks(found)], drawn=drawn)


def _scored(found: "Scores") -> list[Shown]:
    values, head = found.values, f"SQuAD {found.version}, {found.questions:,} questions"
    if found.version == "1.1":
        return [head, [("exact match", f"{values['exact_match']:.3f} %"), ("F1", f"{values['f1']:.3f} %")]]

    def row(name: str, exact: str, f1: str, questions: str = "") -> tuple[str, ...]:
        return name, *(f"{values[score]:.3f} %" if score else "" for score in (exact, f1)), questions

    rows: list[tuple[str, ...]] = []
    for name, prefix in (("all", ""), ("with answer", "HasAns_"), ("without answer", "NoAns_")):
        if f"{prefix}total" in values:
            rows.append(row(name, f"{prefix}exact", f"{prefix}f1", f"{values[f'{prefix}total']:,}"))
    if found.analysis is not None:
        limits = [f"{values[f'best_{score}_thresh']:.4g}" for score in ("exact", "f1")]
        rows += [row("best", "best_exact", "best_f1"), ("  at threshold", *limits, "")]
        if found.analysis.curves:
            rows += [row("avg. precision", "pr_exact_ap", "pr_f1_ap"), row("  if all right", "", "pr_oracle_ap")]
    return [head, Grid(("", "exact match", "F1", "questions"), rows)]


def _remarks(found: "Scores") -> list[str]:
    notes = [f"note: {note}" for note in found.notes]
    if found.missing:
        notes.append(
            f"missing: {len(found.missing):,} question(s) without a prediction, each is 0: {some_of(found.missing)}"
        )
    if found.extra:
        notes.append(f"extra: {len(found.extra):,} prediction(s) for ids that no question has: {some_of(found.extra)}")
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
    values = found.values
    unanswered = 100.0 * values.get("NoAns_total", 0) / values["total"]
    measures = {"exact": "exact match", "f1": "F1"}
    return " or ".join(
        said
        for name, said in measures.items()
        if values[f"best_{name}_thresh"] == 0 and values[f"best_{name}"] == unanswered
    )
