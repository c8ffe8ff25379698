"""`bertbench predict gap`: which name each pronoun means, as the official scorer and Kaggle take it."""

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
from common.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from bert.predict import Opened
    from bert.tasks.gap.features import GapFeatures

PREDICTIONS_FILE = "predictions.tsv"
KAGGLE_FILE = "submission.csv"


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictGapOptions:
    """Say of each row of a features file whether its pronoun means A, B or neither; answers are not needed.

    One process on one device. The head is the one that the checkpoint has.
    """

    checkpoint: Path
    """A run of `bertbench train gap` (its best checkpoint, else the latest), or a checkpoint of one."""
    features: Path
    """Features of `bertbench data gap`; of a folder those for the split test."""
    out: Path = Path("runs/gap-predictions")
    """Folder for predictions.tsv, in the official scorer's form."""
    kaggle_csv: bool = False
    """Write the probabilities too, as submission.csv: ID,A,B,NEITHER."""
    computing: Annotated[Computing, tyro.conf.arg(name="")] = field(default_factory=Computing)
    json: bool = False
    """Print the result as JSON, progress on stderr."""


OPTIONS = {"predict gap": PredictGapOptions}


def run(argv: list[str]) -> int:
    """Run the command; 0 when the files are written."""
    options = parse(PredictGapOptions, argv, "bertbench predict gap")
    out = run_folder(options.out)
    from bert.data.feature_files import made_of
    from bert.tasks.gap.predict import probabilities_of
    from bert.tasks.gap.prediction_files import write_kaggle, write_official
    from bert.tasks.gap.scores import decisions_of
    from bert.tasks.gap.store import open_features

    features = open_features(options.features, "test")
    opened, head = _open_model(options, features)
    check_writable(out)
    began = time.monotonic()
    logits = _logits(options, opened, features)
    seconds = time.monotonic() - began
    ids, left_out = features.ids(), features.left_out_ids()
    if left_out:
        note(
            f"{len(left_out):,} row(s) could not be used ({', '.join(left_out[:3])}{', ...' * (len(left_out) > 3)}): "
            "they have no decision, and the same probability three times"
        )
    written = [write_official(out / PREDICTIONS_FILE, decisions_of(ids, logits.argmax(1)))]
    if options.kaggle_csv:
        written.append(write_kaggle(out / KAGGLE_FILE, probabilities_of(ids, logits, left_out)))
    # There is nothing to score without answers.
    dataset = made_of(options.features, "gap-test", "input") if features.rows.has_labels else None
    found = {
        "checkpoint": str(opened.source),
        "head": head,
        "features": str(options.features),
        "dataset": None if dataset is None else str(dataset),
        "rows": len(features),
        "left_out": len(left_out),
        "seconds": seconds,
        "rows_per_second": len(features) / seconds,
        "answers": _answers(logits),
        "written": [str(path) for path in written],
    }
    print(json.dumps(found, indent=2) if options.json else "\n".join(_lines(found)))
    return 0


def _open_model(options: PredictGapOptions, features: "GapFeatures") -> "tuple[Opened, str]":
    """Return the model, and the name of its head."""
    from bert.predict import open_model
    from bert.tasks.gap.predict import head_of
    from bert.tasks.gap.task import GapTask
    from bert.train.resume import find_weights

    data = identity_of(options.features, features.fingerprint, features.settings)
    place = best_of_run(options.checkpoint)
    head = head_of(find_weights(place, data, note, "predictions need a model trained on gap").weights)
    return open_model(place, GapTask(head=head), data, note), head


def _logits(options: PredictGapOptions, opened: "Opened", features: "GapFeatures") -> "npt.NDArray[np.float32]":
    from bert.tasks.classification_evaluation import check_logits, row_logits
    from bert.tasks.gap.examples import LABELS

    longest = int(features.rows.lengths.max())
    if longest > opened.config.max_positions:
        raise UsageError(
            "data-mismatch",
            f"the rows in {options.features} have up to {longest} tokens, the model {opened.config.max_positions} "
            f"positions: make the features with --max-seq-length {opened.config.max_positions}",
        )
    ready = make_ready(opened, options.computing)
    progress = show_stages()

    def told(done: int) -> None:
        progress("rows", done, len(features))

    logits = row_logits(
        ready.model, features.rows, len(LABELS), ready.device, ready.precision, ready.batch_size, told=told
    )
    check_logits(logits)
    return logits


def _answers(logits: "npt.NDArray[np.float32]") -> dict[str, int]:
    from bert.tasks.gap.examples import LABELS

    classes = logits.argmax(1)
    return {name: int((classes == number).sum()) for number, name in enumerate(LABELS)}


def _lines(found: dict[str, Any]) -> list[str]:
    answers = ", ".join(f"{count:,} {name}" for name, count in found["answers"].items())
    rows = [
        ("checkpoint", found["checkpoint"]),
        ("head", found["head"]),
        ("rows", f"{found['rows']:,} in {found['seconds']:.1f} s, {found['rows_per_second']:,.1f} per second"),
        ("answers", answers),
        *(("wrote", path) for path in found["written"]),
    ]
    lines = [f"{name:<11} {printable(str(text))}" for name, text in rows]
    if found["dataset"] is None:
        return lines
    words = ["bertbench", "eval", "gap", "--dataset", found["dataset"], "--predictions", found["written"][-1]]
    return [*lines, f"next: {shlex.join(words)}"]
