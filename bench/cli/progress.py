"""What the user sees while trials run: one line per trial, on stderr."""

import sys
from collections.abc import Mapping
from typing import Any

from analysis.records import Trial
from bench.sweep import Progress


def show_progress(quiet: bool = False) -> Progress:
    """Return a progress callback; with `quiet` it says nothing on stdout either way, and lines stay short."""

    def progress(number: int, count: int, trial: Trial, result: Mapping[str, Any] | None, known: bool) -> None:
        head = f"[{number}/{count}] {describe(trial)}"
        if result is None:
            if sys.stderr.isatty():
                print(f"{head} ...", end="\r", file=sys.stderr, flush=True)
            return
        print(f"{head}: {_outcome(result)}{' (already done)' if known else ''}", file=sys.stderr, flush=True)

    return progress


def note(text: str) -> None:
    """Tell the user something that needs no answer."""
    print(f"note: {text}", file=sys.stderr, flush=True)


def describe(trial: Trial) -> str:
    """Return a trial in a few words."""
    words = [
        trial.implementation,
        trial.preset,
        trial.precision,
        f"seq {trial.seq_len}",
        f"batch {trial.micro_batch_size}",
    ]
    if trial.grad_accum_steps > 1:
        words.append(f"x {trial.grad_accum_steps}")
    words.append(
        f"on {trial.world_size} {'GPU' if trial.device == 'cuda' else 'CPU rank'}{'s'[: trial.world_size > 1]}"
    )
    if trial.round:
        words.append(f"round {trial.round + 1}")
    return " ".join(words)


def _outcome(result: Mapping[str, Any]) -> str:
    if result["status"] != "ok":
        return f"{result['status']}: {result.get('reason', '')}"
    rate = result.get("samples_per_second")
    return "no step measured" if rate is None else f"{rate:.1f} samples/s"
