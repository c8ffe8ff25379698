"""The session of a command that runs trials: it locks the run directory and shows on the terminal how far each is."""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from bench.cli.progress import note
from bench.cli.sweep_progress import trial_display
from bench.machine.devices import Devices
from bench.run.supervise import LaunchOptions
from bench.sweep.sweep import Session, locked
from records.run import RunDirectory


@contextmanager
def session(
    run: RunDirectory,
    request: Mapping[str, Any],
    devices: Devices,
    options: LaunchOptions,
    *,
    retry_failed: bool = False,
) -> Iterator[Session]:
    """Lock a run directory for a call that runs trials in it, and show on the terminal how far each is.

    Args:
        run: the run directory.
        request: the recorded options of the command.
        devices: where they run.
        options: how they run.
        retry_failed: whether failed ones run again.
    """
    with locked(run), trial_display() as display:
        yield Session(
            run=run, request=request, devices=devices, options=dataclasses.replace(options, look=display.look),
            progress=display.show, note=note, retry_failed=retry_failed,
        )  # fmt: skip
