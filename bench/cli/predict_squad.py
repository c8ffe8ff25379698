"""`bertbench predict squad`: the answers of a trained model, in the files of the official scripts."""

import json
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from analysis.report.terminal import printable
from bench.cli.options import parse, run_folder
from bench.cli.predicting import Computing, best_of_run, identity_of, make_ready
from bench.cli.progress import note, show_stages
from common.atomic import check_writable

if TYPE_CHECKING:
    from bert.predict import Opened
    from bert.tasks.squad.features import SquadFeatures
    from bert.tasks.squad.logits import WindowLogits
    from bert.tasks.squad.predictions import Answers


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictSquadOptions:
    """Answer the questions of a features file: predictions.json, nbest_predictions.json and, for SQuAD 2.0,
    null_odds.json. One process on one device.
    """

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
    computing: Annotated[Computing, tyro.conf.arg(name="")] = field(default_factory=Computing)
    json: bool = False
    """Print the result as JSON, progress on stderr."""


OPTIONS = {"predict squad": PredictSquadOptions}


def run(argv: list[str]) -> int:
    """Run the command; 0 when the files are written."""
    options = parse(PredictSquadOptions, argv, "bertbench predict squad")
    out = run_folder(options.out)
    from bert.data.feature_files import made_of
    from bert.tasks.squad.predictions import NBestOptions, decode
    from bert.tasks.squad.store import open_features, vocabulary_of

    wanted = NBestOptions(
        n_best_size=options.n_best_size,
        max_answer_length=options.max_answer_length,
        null_threshold=options.null_threshold,
    )
    features = open_features(options.features, "evaluation")
    vocabulary = vocabulary_of(options.features, features.settings, options.vocab)
    opened = _open_model(options, features)
    check_writable(out)
    began = time.monotonic()
    logits = _logits(options, opened, features)
    seconds = time.monotonic() - began
    answers = decode(features, logits, vocabulary, wanted)
    written = answers.write(out)
    dataset = made_of(options.features, "squad-evaluation", "input")
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
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_lines(found, answers, features)))
    return 0


def _open_model(options: PredictSquadOptions, features: "SquadFeatures") -> "Opened":
    from bert.predict import open_model
    from bert.tasks.squad.task import SquadTask

    data = identity_of(options.features, features.fingerprint, features.settings)
    return open_model(best_of_run(options.checkpoint), SquadTask(), data, note)


def _logits(options: PredictSquadOptions, opened: "Opened", features: "SquadFeatures") -> "WindowLogits":
    from bert.tasks.squad.evaluation import window_logits
    from bert.tasks.squad.logits import WindowLogits

    ready = make_ready(opened, options.computing)
    progress = show_stages()

    def told(done: int) -> None:
        progress("windows", done, len(features))

    start, end = window_logits(ready.model, features, ready.device, ready.precision, ready.batch_size, told=told)
    offsets = features.input_ids.offsets
    return WindowLogits(start, end, offsets - offsets[0])


def _lines(found: dict[str, Any], answers: "Answers", features: "SquadFeatures") -> list[str]:
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
    lines = [f"{name:<11} {printable(str(text))}" for name, text in rows]
    if found["dataset"] is None:
        return lines
    words = ["bertbench", "eval", "squad", "--dataset", found["dataset"], "--predictions", found["written"][-1]]
    odds = [path for path in found["written"] if path.endswith("null_odds.json")]
    return [*lines, f"next: {shlex.join([*words, *(['--na-prob', odds[0]] if odds else [])])}"]
