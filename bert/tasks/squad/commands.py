"""`bertbench data squad`, `predict squad` and `eval squad`."""

from dataclasses import dataclass
from pathlib import Path

from bert.data.features import made_of, vocabulary_of
from bert.tasks.commands import (
    Grid,
    Host,
    Outcome,
    PrepareCommand,
    Shown,
    TaskCommand,
    open_trained,
    rate,
    timed,
    timing,
    unmatched,
)
from bert.tasks.squad.features import open_features
from bert.tasks.squad.predictions import NBestOptions, decode
from bert.tasks.squad.prepare import SquadConfig, prepare
from bert.tasks.squad.reading import read_answers, read_golds
from bert.tasks.squad.scores import Scores, score


class Prepare(PrepareCommand):
    """Convert SQuAD 1.1 or 2.0 to features for training and evaluation. The same command keeps finished files.

    Examples:
        bertbench data squad --input train-v1.1.json dev-v1.1.json --vocab vocab.txt
    """

    options = SquadConfig
    prepare = staticmethod(prepare)


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions(NBestOptions):
    """Of `bertbench predict squad`."""

    checkpoint: Path
    """Training run (its best checkpoint, otherwise the latest), a checkpoint, or anything that `bertbench convert`
    reads."""
    features: Path
    """Features for evaluation from `bertbench data squad`."""
    out: Path = Path("runs/predictions")
    """Folder for the predictions."""
    vocab: Path | None = None
    """vocab.txt that the features were made with; default the one beside the features."""


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
        from bert.tasks.evaluation import check_logits
        from bert.tasks.squad.task import SquadTask, window_logits

        features = open_features(options.features, "evaluation")
        vocabulary = vocabulary_of(options.features, features.settings, options.vocab)
        checkpoint = host.checkpoint(options.checkpoint)
        opened, ready = open_trained(checkpoint, SquadTask(), features.rows, options.features, options.out, host)
        logits, seconds = timed(host, "windows", len(features), lambda told: window_logits(ready, features, told))
        check_logits(logits)
        answers = decode(features, logits, vocabulary, options)
        written = [str(path) for path in answers.write(options.out)]
        dataset = made_of(options.features, "squad-evaluation")
        document = {
            "checkpoint": str(opened.source),
            "features": str(options.features),
            "dataset": None if dataset is None else str(dataset),
            "questions": len(answers.predictions),
            **timing("windows", len(features), seconds),
            "written": written,
        }
        following = None
        if dataset is not None:
            following = ["eval", "squad", "--dataset", str(dataset), "--predictions", written[-1]]
            odds = [path for path in written if path.endswith("null_odds.json")]
            following += ["--na-prob", odds[0]] if odds else []
        empty = sum(not answer for answer in answers.predictions.values())
        facts = [
            ("checkpoint", opened.source),
            ("questions", f"{len(answers.predictions):,}, {empty:,} answered with nothing"),
            ("windows", rate(len(features), seconds)),
            *(("wrote", path) for path in written),
        ]
        return Outcome(document=document, shown=[facts], following=following)


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


class Eval(TaskCommand):
    """Score predictions exactly as the official scripts of SQuAD 1.1 and 2.0 do.

    The dataset determines the version. A question without a prediction counts as 0 and is listed.

    Examples:
        bertbench eval squad --dataset dev-v1.1.json --predictions runs/predictions/predictions.json
    """

    options = EvalOptions

    def run(self, options: EvalOptions, host: Host) -> Outcome:
        """Score the predictions."""
        golds = read_golds(options.dataset)
        predictions = read_answers(options.predictions, str)
        null_odds = None if options.na_prob is None else read_answers(options.na_prob, float)
        scores = score(golds, predictions, null_odds, options.threshold)
        about = {"task": "squad", "dataset": str(options.dataset), "predictions": str(options.predictions)}
        curves = {
            name: (curve.precisions, curve.recalls, curve.average_precision)
            for name, curve in scores.curves.items()
            if len(curve.precisions) > 1
        }
        note = "Best thresholds and curves need no-answer scores: add --na-prob null_odds.json"
        notes = [note] if scores.version == "2.0" and null_odds is None else []
        return Outcome(document={**about, **scores.to_json()}, shown=_scored(scores), notes=notes, drawn=curves)


def _scored(scores: Scores) -> list[Shown]:
    values = scores.values
    rows = [
        (name, *(f"{values[key]:.3f} %" if key else "" for key in keys))
        for name, *keys in (
            ("all", "exact_match", "f1"),  # of 1.1
            ("all", "exact", "f1"),
            ("with answer", "HasAns_exact", "HasAns_f1"),
            ("without answer", "NoAns_exact", "NoAns_f1"),
            ("best", "best_exact", "best_f1"),
            ("avg. precision", "pr_exact_ap", "pr_f1_ap"),
            ("  if all right", "", "pr_oracle_ap"),
        )
        if {*filter(None, keys)} <= values.keys()
    ]
    if "best_f1" in values:
        rows.append(("best threshold", f"{values['best_exact_thresh']:.4g}", f"{values['best_f1_thresh']:.4g}"))
    facts = unmatched(scores.missing, scores.extra, "without a prediction, each is 0")
    shown: list[Shown] = [
        f"SQuAD {scores.version}, {scores.questions:,} questions",
        Grid(("", "exact match", "F1"), rows),
    ]
    return [*shown, facts] if facts else shown
