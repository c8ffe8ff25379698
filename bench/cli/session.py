"""The session of a command that runs trials: it locks the run directory and shows how far each trial is."""

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bench.cli.progress import TrialDisplay, duration, note
from bench.machine.devices import Devices
from bench.run.supervise import LaunchOptions
from bench.sweep.sweep import Session, expected_seconds, finished_result, locked
from records.run import RunDirectory
from records.trial import Trial


@contextmanager
def session(
    run: RunDirectory,
    request: Mapping[str, Any],
    devices: Devices,
    options: LaunchOptions,
    *,
    retry_failed: bool = False,
) -> Iterator[Session]:
    """Lock a run directory for a call that runs trials in it, and show on stderr how far each is.

    Args:
        run: the run directory.
        request: the recorded options of the command.
        devices: where they run.
        options: how they run.
        retry_failed: whether failed ones run again.
    """
    display = TrialDisplay()
    with locked(run):
        try:
            yield Session(
                run=run, request=request, devices=devices, options=dataclasses.replace(options, look=display.look),
                progress=display.show, note=note, retry_failed=retry_failed,
            )  # fmt: skip
        finally:
            display.clear()


def announce(session: Session, trials: Sequence[Trial], device: str = "", budget: float | None = None) -> None:
    """Say on stderr how many trials are to run, about how long that takes, and why on the CPU if `device` is auto."""
    run, limit = session.run, session.options.timeout_seconds or math.inf
    due = [trial for trial in trials if finished_result(run.trial(trial.trial_id), session.retry_failed, limit) is None]
    if not due:
        return
    seconds = expected_seconds(run, due)
    words = [
        f"{len(due)} trial{'s'[: len(due) != 1]} to run",
        f"{len(trials) - len(due)} already done" if len(due) < len(trials) else "",
        "" if seconds is None else f"about {duration(seconds)}",
        "" if budget is None else f"then more rounds until the comparison with hf is conclusive (at most {budget:g} s)",
        f"on the CPU: {session.devices.note}" if device == "auto" and session.devices.note else "",
    ]
    print(", ".join(filter(None, words)), file=sys.stderr, flush=True)
