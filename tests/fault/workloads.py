"""The commands of the fault campaign: small, real, each with what it must leave behind."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

from support import training_runs
from support.cli import SHORT, SMALL_TRAINING, TINY
from support.datasets import paragraph, question, write_squad, write_vocabulary
from support.faults import Workload, digests

from bert.corpus.texts import generate_corpus

_ONE_THREAD = ("--threads", "1")
_PARAGRAPHS = 1500


def throughput(materials: Path) -> Workload:
    """A sweep of two trials."""
    return Workload(
        words=("throughput", "pretrain", *TINY, *_ONE_THREAD, *SHORT, "--batch-sizes", "2", "4", "--out", "{out}"),
        result=_sweep_result,
        finished=_finished_trials,
        readable=_read_run,
    )


def train(materials: Path) -> Workload:
    """Pretraining that saves every other step and keeps all it saved."""
    data = materials / "shards"
    if not data.exists():
        training_runs.shards(data)
    words = (
        "train", "pretrain", *SMALL_TRAINING, "--devices", "1", "--global-batch-size", "4", "--micro-batch-size", "2",
        "--steps", "12", "--save-every", "2", "--keep", "99", "--eval-every", "6", "--log-to", "none",
        "--data", str(data), "--out", "{out}",
    )  # fmt: skip
    return Workload(
        words=words,
        result=lambda out: digests(out, "curve.csv", "checkpoints/step-*[02468]/*"),
        finished=_saved_checkpoints,
        readable=_read_training,
        # Each call is an attempt of its own, and one that is asked to end saves at once.
        more_each_time=("out/trials/*", "out/trials/*/*", "out/checkpoints/*[13579]", "out/checkpoints/*[13579]/*"),
    )


def data_pretrain(materials: Path) -> Workload:
    """Text to shards through every stage, by two workers."""
    text = materials / "text"
    if not text.exists():
        generate_corpus(text, 12345, 60_000)
    return Workload(
        words=(
            "data", "pretrain", "--input", str(text), "--seq-len", "32", "--workers", "2", "--output", "{out}",
        ),
        result=lambda out: digests(out, without=(".lock", ".inputs.json")),
        finished=lambda out: digests(out, without=(".lock", ".inputs.json", "manifest.json", "metadata.json")),
        readable=_read_json_files,
    )  # fmt: skip


def data_squad(materials: Path) -> Workload:
    """Features of SQuAD by two workers, handed over in files."""
    source = materials / "train.json"
    if not source.exists():
        text = "a duke of x came here in 1066 and went there in 1067 . " * 20
        places = [text.index("1066", n % 700) + len(f"{n} ") for n in range(_PARAGRAPHS)]
        questions = [question(f"q{n}", "when was it?", ("1066", place)) for n, place in enumerate(places)]
        rows = [paragraph(f"{n} {text}", one) for n, one in enumerate(questions)]
        write_squad(source, *rows)
        write_vocabulary(materials, "duke")
    words = ("--input", str(source), "--vocab", str(materials / "vocab.txt"), "--workers", "2", "--mode", "spill")
    return Workload(
        words=("data", "squad", *words, "--output", "{out}"),
        result=digests,
        finished=digests,
        readable=_read_json_files,
        waits=True,
    )


def convert(materials: Path) -> Workload:
    """A checkpoint of training to Hugging Face's form."""
    source = materials / "checkpoints"
    if not source.exists():
        data = materials / "shards-of-convert"
        training_runs.shards(data)
        training_runs.run(training_runs.settings(data, steps=1, save_every=1), source)
    return Workload(
        words=("convert", str(source), "{out}"),
        result=digests,
        finished=digests,
        readable=_read_json_files,
        once=True,
    )


WORKLOADS: dict[str, Callable[[Path], Workload]] = {
    "throughput": throughput, "train": train, "data-pretrain": data_pretrain, "data-squad": data_squad,
    "convert": convert,
}  # fmt: skip


def _sweep_result(out: Path) -> dict[str, str]:
    """What does not depend on how fast the machine was: the trials, their losses, their ends."""
    with (out / "results.csv").open(newline="") as file:
        found = {f"results.csv {row['trial_id']}": row["status"] for row in csv.DictReader(file)}
    for path in sorted(out.glob("trials/*/steps-0.csv")):
        with path.open(newline="") as file:
            found[path.parent.name] = " ".join(row["loss"] for row in csv.DictReader(file))
    return found | digests(out, "sweep.json", "trials/*/trial.json")


def _finished_trials(out: Path) -> dict[str, str]:
    found = {}
    for result in sorted(out.glob("trials/*/result.json")):
        if json.loads(result.read_text())["status"] == "ok":
            found |= {f"{result.parent.name}/{name}": digest for name, digest in digests(result.parent).items()}
    return found


def _read_run(out: Path) -> None:
    from analysis.load import load_run
    from common.errors import InputError
    from records.run import RunDirectory

    try:
        loaded = load_run(RunDirectory(out))
    except InputError:
        assert not list(out.glob("trials/*/result.json")), "trials that ended cannot be read"
        return
    assert not loaded.problems, loaded.problems


def _saved_checkpoints(out: Path) -> dict[str, str]:
    found = digests(out, "checkpoints/step-*/*")
    found |= {
        name: digest
        for path in sorted(out.glob("trials/*/result.json"))
        for name, digest in digests(out, f"trials/{path.parent.name}/*").items()
    }
    rows = (out / "curve.csv").read_text().splitlines() if (out / "curve.csv").exists() else []
    last = max((int(path.name[-7:]) for path in out.glob("checkpoints/step-*")), default=0)
    # Rows of steps that no checkpoint has are made again.
    found |= {f"curve.csv row {row.partition(',')[0]}": row for row in rows[1:] if int(row.partition(",")[0]) < last}
    return found


def _read_training(out: Path) -> None:
    from bert.checkpoints.read import saved_steps
    from bert.train.checkpoint import read
    from records.training import TrainRun, read_events

    run = TrainRun(out)
    run.read_state()
    steps = [row["applied_steps"] for row in run.read_curve()]
    assert steps == sorted(set(steps)), "the curve goes back"
    for attempt in run.attempts():
        read_events(attempt)
        attempt.read_result()
    for step in saved_steps(run.checkpoints):
        read(run.checkpoints / f"step-{step:07d}")
        assert step <= max(steps, default=0), "a checkpoint is ahead of the curve"


def _read_json_files(out: Path) -> None:
    for path in out.rglob("*.json"):
        json.loads(path.read_text())
