"""`bertbench data squad` and `predict squad`."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert.tasks.commands import Host, Outcome, rows_of, with_casing_note
from bert.tasks.squad.config import SquadConfig

if TYPE_CHECKING:
    from bert.tasks.squad.predictions import Answers
    from bert.tasks.squad.prepare import SquadSummary

_SHOWN = (
    ("contexts", "contexts"),
    ("questions", "questions"),
    ("impossible questions", "impossible"),
    ("windows", "windows"),
)


class Prepare:
    """Turn SQuAD 1.1 or 2.0 into features for training and evaluation; a call with the same options keeps them."""

    options = SquadConfig
    computes = False

    def __init__(self, task: str) -> None:
        pass

    def run(self, options: SquadConfig, host: Host) -> Outcome:
        """Make the features of each input."""
        from bert.tasks.squad.prepare import prepare

        summaries = with_casing_note(prepare(options, host.progress), options)
        return Outcome(
            document=[summary.to_json() for summary in summaries],
            lines=[line for summary in summaries for line in _prepared(summary)],
            notes=[note for summary in summaries for note in summary.notes],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """Of `bertbench predict squad`."""

    checkpoint: Path
    """A run (its best checkpoint, else the latest), a checkpoint, or anything that `bertbench convert` reads."""
    features: Path
    """Features for evaluation, of `bertbench data squad`."""
    out: Path = Path("runs/predictions")
    """Folder for the files."""
    vocab: Path | None = None
    """The vocab.txt that the features were made with, where it no longer lies where it lay."""
    n_best_size: int = 20
    """Best starts and best ends of a window, and answers of a question that are kept."""
    max_answer_length: int = 30
    """Word pieces of an answer at most."""
    null_threshold: float = 0.0
    """SQuAD 2.0: the answer is "" where no answer scores higher than the best one by more than this."""


class Predict:
    """Answer the questions of a features file: predictions.json, nbest_predictions.json and, for SQuAD 2.0,
    null_odds.json. One process on one device.
    """

    options = PredictOptions
    computes = True

    def __init__(self, task: str) -> None:
        pass

    def run(self, options: PredictOptions, host: Host) -> Outcome:
        """Write the files of the official scripts."""
        from bert.predict import identity_of, open_model
        from bert.tasks.squad.evaluation import window_logits
        from bert.tasks.squad.features import FORM
        from bert.tasks.squad.logits import WindowLogits
        from bert.tasks.squad.predictions import NBestOptions, decode
        from bert.tasks.squad.task import SquadTask
        from common.atomic import check_writable

        wanted = NBestOptions(
            n_best_size=options.n_best_size,
            max_answer_length=options.max_answer_length,
            null_threshold=options.null_threshold,
        )
        features = FORM.open(options.features, "evaluation")
        vocabulary = FORM.vocabulary_of(options.features, features.settings, options.vocab)
        data = identity_of(options.features, features.fingerprint, features.settings)
        opened = open_model(host.checkpoint(options.checkpoint), SquadTask(), data, host.note)
        check_writable(options.out)
        began = time.monotonic()
        ready = host.ready(opened)

        def told(done: int) -> None:
            host.progress("windows", done, len(features))

        start, end = window_logits(ready.model, features, ready.device, ready.precision, ready.batch_size, told=told)
        seconds = time.monotonic() - began
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
        return Outcome(document=found, lines=_predicted(found, answers), following=_evaluation(found))


def _prepared(summary: "SquadSummary") -> list[str]:
    counts, settings = summary.counts, summary.settings
    left_out = sum(count for name, count in counts.numbers.items() if name.startswith("left out"))
    rows = [("input", f"{summary.input}: SQuAD {settings.version}, for {settings.split}")]
    rows += [(title, f"{counts.get(name):,}") for name, title in _SHOWN if counts.get(name) or name == "windows"]
    rows.append(("left out", f"{left_out:,} questions"))
    if settings.split == "training":
        kind = "left out" if settings.drop_unanswerable_windows else "kept, their target is [CLS]"
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
    return rows_of(*rows)


def _predicted(found: dict[str, Any], answers: "Answers") -> list[str]:
    empty = sum(not answer for answer in answers.predictions.values())
    rows = [
        ("checkpoint", found["checkpoint"]),
        ("questions", f"{found['questions']:,}, {empty:,} answered with nothing"),
        ("windows", f"{found['windows']:,} in {found['seconds']:.1f} s, {found['windows_per_second']:,.1f} per second"),
    ]
    if answers.without_windows:
        rows.append(("no window", f"{len(answers.without_windows):,} questions, answered with nothing"))
    if answers.without_spans:
        rows.append(("no span", f"{len(answers.without_spans):,} questions without any span that can be an answer"))
    rows += [("wrote", path) for path in found["written"]]
    return rows_of(*rows)


def _evaluation(found: dict[str, Any]) -> list[str] | None:
    if found["dataset"] is None:
        return None
    words = ["eval", "squad", "--dataset", found["dataset"], "--predictions", found["written"][-1]]
    odds = [path for path in found["written"] if path.endswith("null_odds.json")]
    return [*words, *(["--na-prob", odds[0]] if odds else [])]
