"""What the user sees while trials run: one line per trial, on stderr."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from analysis.wording import strategy
from bench.cli.progress import duration, terminal_text
from bench.cli.trial_display import TrialDisplay
from bench.machine.devices import Devices
from bench.sweep.options import AUTO, resolve_strategy
from bench.sweep.sweep import Progress, Session, expected_seconds, finished_result
from records.trial import Trial


def show_progress(number: int, count: int, trial: Trial, result: Mapping[str, Any] | None, known: bool) -> None:
    """Show how a trial ended; arguments as bench.sweep.sweep.Progress has them."""
    if result is not None:
        said = f"{terminal_text(_outcome(result))}{' (already done)' if known else ''}"
        print(f"[{number}/{count}] {describe(trial)}: {said}", file=sys.stderr, flush=True)


@contextmanager
def trial_display(show: Progress = show_progress) -> Iterator[TrialDisplay]:
    """Hand out what shows trials, by `show`, and how far each is, and take its line away at the end.

    Args:
        show: how to show that a trial begins or ends.
    """
    display = TrialDisplay(show, describe)
    try:
        yield display
    finally:
        display.clear()


def announce(session: Session, trials: Sequence[Trial], budget: float | None = None) -> None:
    """Say on stderr how many trials are to run and about how long that takes; nothing where none is."""
    run, limit = session.run, session.options.timeout_seconds or math.inf
    due = [trial for trial in trials if finished_result(run.trial(trial.trial_id), session.retry_failed, limit) is None]
    if not due:
        return
    seconds = expected_seconds(run, due)
    words = [f"{len(due)} trial{'s'[: len(due) != 1]} to run"]
    words += [f"{len(trials) - len(due)} already done"] if len(due) < len(trials) else []
    words += [f"about {duration(seconds)}"] if seconds is not None else []
    words += (
        [f"then more rounds until the comparison with hf is conclusive (time budget {budget:g} s)"]
        if budget is not None
        else []
    )
    print(", ".join(words), file=sys.stderr, flush=True)


def tell_of_cpu(devices: Devices, asked: str, as_json: bool) -> None:
    """Say why there is no GPU, where --device did not ask for the CPU; call it when nothing is left to refuse."""
    if devices.note and asked == "auto" and not as_json:
        print(f"measuring on the CPU: {devices.note}", file=sys.stderr)


def describe(trial: Trial) -> str:
    """Return a trial in a few words."""
    place = f"on {trial.world_size} {'GPU' if trial.device == 'cuda' else 'CPU rank'}{'s'[: trial.world_size > 1]}"
    if trial.kind == "comm":
        again = [f"round {trial.round + 1}"] if trial.round else []
        return " ".join([str(dict(trial.collective)["name"]), trial.precision, place, *again])
    words = [
        trial.implementation,
        *(["input only"] if trial.kind == "input" else []),
        trial.preset,
        trial.precision,
        f"seq {trial.seq_len}",
        f"batch {trial.micro_batch_size}",
    ]
    if trial.grad_accum_steps > 1:
        words.append(f"x {trial.grad_accum_steps}")
    words.append(place)
    if trial.profiler:
        words.append(f"under {trial.profiler}")
    name = strategy(trial.row())
    if name != resolve_strategy(AUTO, trial.world_size):
        words.append(f"by {name}")
    if trial.data.startswith("synthetic:") and trial.data_fingerprint:
        words.append("with synthetic data")
    if trial.round:
        words.append(f"round {trial.round + 1}")
    return " ".join(words)


def _outcome(result: Mapping[str, Any]) -> str:
    if result["status"] != "ok":
        return f"{result['status']}: {result.get('reason', '')}"
    if "peak_busbw_gb_s" in result:
        wrong = f", {result['wrong']} elements WRONG" if result["wrong"] else ""
        return f"{result['sizes']} sizes, busbw up to {result['peak_busbw_gb_s'] or 0:.3g} GB/s{wrong}"
    rate = result.get("samples_per_second")
    return "no step measured" if rate is None else f"{rate:.1f} samples/s"
