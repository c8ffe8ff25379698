"""The session of a command that runs trials: it locks the run directory and shows on the terminal how far each is."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.cli.progress import note
from bench.cli.sweep_progress import trial_display
from bench.machine.devices import Devices
from bench.plan.sweep import Again, Session, locked, write_results
from bench.run.launch import LaunchOptions
from records.run import RunDirectory
from records.trial import Trial


@contextmanager
def session(
    run: RunDirectory,
    trials: Sequence[Trial],
    request: Mapping[str, Any],
    devices: Devices,
    options: LaunchOptions,
    *,
    again: bool,
    retry_failed: bool = False,
    metrics: Path | None = None,
) -> Iterator[Session]:
    """Lock a run directory for a call that runs trials in it, and show on the terminal how far each is.

    Args:
        run: the run directory.
        trials: those of the call.
        request: the recorded options of the command.
        devices: where they run.
        options: how they run.
        again: whether finished ones are repeated.
        retry_failed: whether failed ones are.
        metrics: file to keep up to date with the trial that runs.
    """
    with locked(run), _repeating(again, run, trials) as repeated, trial_display(metrics=metrics) as display:
        yield Session(
            run=run, request=request, devices=devices, options=dataclasses.replace(options, look=display.look),
            progress=display.show, note=note, retry_failed=retry_failed, again=repeated,
        )  # fmt: skip


@contextmanager
def _repeating(wanted: bool, run: RunDirectory, trials: Sequence[Trial]) -> Iterator[Again | None]:
    """Hand out what --again asks for, and say where the earlier records are; used while the run is locked."""
    if not wanted:
        yield None
        return
    again = Again(run, [trial.trial_id for trial in trials])
    if again.continued:
        note("resuming an interrupted call with --again: trials that it has already repeated are not repeated")
    try:
        yield again
        again.finish()  # an interrupted call continues
    finally:
        if again.earlier.trials():
            write_results(again.earlier)
            note(f"earlier records: {again.earlier.path}; `bertbench compare` compares them with {run.path}")
