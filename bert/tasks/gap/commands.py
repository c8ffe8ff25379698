"""`bertbench data gap` and `predict gap`."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.tasks.commands import Host, Outcome, rows_of, with_casing_note
from bert.tasks.gap.config import GapConfig
from bert.tasks.gap.examples import LABELS
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    from bert.predict import Opened
    from bert.tasks.gap.features import GapFeatures
    from bert.tasks.gap.prepare import GapSummary

_HEAD = "mention_head."


def head_of(weights: Path) -> str:
    """Return the name of the head in a folder of our weights.

    Raises:
        InputError: there is none: the model was not trained on GAP, or the weights cannot be read.
    """
    from bert.checkpoints.ours import WEIGHTS_FILE
    from bert.checkpoints.tensor_files import read_tensors

    names = read_tensors(weights / WEIGHTS_FILE) if (weights / WEIGHTS_FILE).is_file() else ()
    found = sorted({name.removeprefix(_HEAD).split(".")[0] for name in names if name.startswith(_HEAD)})
    if len(found) != 1:
        raise InputError(
            "checkpoint-missing",
            f"{weights} holds no model that was trained on gap: train it with `bertbench train gap --init {weights}`",
        )
    return found[0]


def probabilities_of(
    ids: Sequence[str], logits: npt.NDArray[np.float32], left_out: Sequence[str] = ()
) -> dict[str, tuple[float, float, float]]:
    """Return the probabilities of neither, A and B, by id.

    Args:
        ids: of the rows [N].
        logits: of the rows [N, 3].
        left_out: ids of further rows, of which nothing is known: all three are alike.
    """
    powers = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    shares = powers / powers.sum(1, keepdims=True)
    known = {name: (row[0], row[1], row[2]) for name, row in zip(ids, shares.tolist(), strict=True)}
    even = (1 / len(LABELS),) * 3
    return {**known, **dict.fromkeys(left_out, even)}


PREDICTIONS_FILE = "predictions.tsv"
KAGGLE_FILE = "submission.csv"


class Prepare:
    """Turn TSVs of GAP into features to train on, to validate with and to predict; a call with the same options keeps
    them. Rows that cannot be used are named by their lines.
    """

    options = GapConfig
    computes = False

    def __init__(self, task: str) -> None:
        pass

    def run(self, options: GapConfig, host: Host) -> Outcome:
        """Make the features of each input."""
        from bert.tasks.gap.prepare import prepare

        summaries = with_casing_note(prepare(options, host.progress), options)
        return Outcome(
            document=[summary.to_json() for summary in summaries],
            lines=[line for summary in summaries for line in _prepared(summary)],
            notes=[note for summary in summaries for note in summary.notes],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictOptions:
    """Of `bertbench predict gap`."""

    checkpoint: Path
    """A run of `bertbench train gap` (its best checkpoint, else the latest), or a checkpoint of one."""
    features: Path
    """Features of `bertbench data gap`; of a folder those for the split test."""
    out: Path = Path("runs/gap-predictions")
    """Folder for predictions.tsv, in the official scorer's form."""
    kaggle_csv: bool = False
    """Write the probabilities too, as submission.csv: ID,A,B,NEITHER."""


class Predict:
    """Say of each row of a features file whether its pronoun means A, B or neither; answers are not needed.

    One process on one device. The head is the one that the checkpoint has.
    """

    options = PredictOptions
    computes = True

    def __init__(self, task: str) -> None:
        pass

    def run(self, options: PredictOptions, host: Host) -> Outcome:
        """Write decisions as the official scorer takes them."""
        from bert.tasks.evaluation import check_logits, row_logits
        from bert.tasks.gap.features import FORM
        from bert.tasks.gap.prediction_files import write_kaggle, write_official
        from bert.tasks.gap.scores import decisions_of
        from common.atomic import check_writable

        features = FORM.open(options.features, "test")
        opened, head = _open_model(options, features, host)
        check_writable(options.out)
        began = time.monotonic()
        ready = host.ready(opened)

        def told(done: int) -> None:
            host.progress("rows", done, len(features))

        logits = row_logits(
            ready.model, features.rows, len(LABELS), ready.device, ready.precision, ready.batch_size, told=told
        )
        check_logits(logits)
        seconds = time.monotonic() - began
        ids, left_out = features.ids(), features.left_out_ids()
        if left_out:
            host.note(
                f"{len(left_out):,} row(s) could not be used ({', '.join(left_out[:3])}{', ...' * (len(left_out) > 3)})"
                ": they have no decision, and the same probability three times"
            )
        classes = logits.argmax(1)
        written = [write_official(options.out / PREDICTIONS_FILE, decisions_of(ids, classes))]
        if options.kaggle_csv:
            written.append(write_kaggle(options.out / KAGGLE_FILE, probabilities_of(ids, logits, left_out)))
        # There is nothing to score without answers.
        dataset = FORM.made_of(options.features, "test") if features.rows.has_labels else None
        found = {
            "checkpoint": str(opened.source),
            "head": head,
            "features": str(options.features),
            "dataset": None if dataset is None else str(dataset),
            "rows": len(features),
            "left_out": len(left_out),
            "seconds": seconds,
            "rows_per_second": len(features) / seconds,
            "answers": {name: int((classes == number).sum()) for number, name in enumerate(LABELS)},
            "written": [str(path) for path in written],
        }
        return Outcome(document=found, lines=_predicted(found), following=_evaluation(found))


def _open_model(options: PredictOptions, features: "GapFeatures", host: Host) -> "tuple[Opened, str]":
    """Return the model, and the name of its head."""
    from bert.predict import identity_of, open_model
    from bert.tasks.gap.task import GapTask
    from bert.train.resume import find_weights

    data = identity_of(options.features, features.fingerprint, features.settings)
    place = host.checkpoint(options.checkpoint)
    head = head_of(find_weights(place, data, host.note, "predictions need a model trained on gap").weights)
    opened = open_model(place, GapTask(head=head), data, host.note)
    longest = int(features.rows.lengths.max())
    if longest > opened.config.max_positions:
        raise UsageError(
            "data-mismatch",
            f"the rows in {options.features} have up to {longest} tokens, the model {opened.config.max_positions} "
            f"positions: make the features with --max-seq-length {opened.config.max_positions}",
        )
    return opened, head


def _prepared(summary: "GapSummary") -> list[str]:
    counts, settings = summary.counts, summary.settings
    features = counts.get("features")
    rows = [
        ("input", f"{summary.input}, for {settings.split}"),
        ("rows", f"{counts.get('rows'):,}, {features:,} of them used, {counts.get('left out'):,} left out"),
        (
            "pronouns",
            f"{counts.get('pronouns: masculine'):,} masculine, {counts.get('pronouns: feminine'):,} feminine",
        ),
        (
            "tokens",
            f"{counts.get('tokens') / max(1, features):.1f} per text, {settings.max_seq_length - 2} at most; "
            f"{counts.get('windowed'):,} texts were cut around their mentions",
        ),
        ("time", "finished before" if summary.kept else f"{summary.seconds:.1f} s"),
        ("features", str(summary.features)),
        ("readable", str(summary.features.with_suffix(".tsv"))),
    ]
    return rows_of(*rows)


def _predicted(found: dict[str, Any]) -> list[str]:
    answers = ", ".join(f"{count:,} {name}" for name, count in found["answers"].items())
    return rows_of(
        ("checkpoint", found["checkpoint"]),
        ("head", found["head"]),
        ("rows", f"{found['rows']:,} in {found['seconds']:.1f} s, {found['rows_per_second']:,.1f} per second"),
        ("answers", answers),
        *(("wrote", path) for path in found["written"]),
    )


def _evaluation(found: dict[str, Any]) -> list[str] | None:
    if found["dataset"] is None:
        return None
    return ["eval", "gap", "--dataset", found["dataset"], "--predictions", found["written"][-1]]
