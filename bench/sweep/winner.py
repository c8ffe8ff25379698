"""The fastest configuration of a run directory, as in its report, for --winner-of of profile and speed-of-light."""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

from bench.machine.devices import Devices
from bench.sweep.trials import Sweep
from common.errors import InputError, UsageError
from common.flags import flag
from records.run import RunDirectory
from records.trial import Trial


def check_winner(options: Any, besides: Collection[str]) -> None:
    """Refuse options other than `besides` with --winner-of. Raises UsageError."""
    default = type(options)()
    names = (item.name for item in dataclasses.fields(options) if item.name not in besides)
    if other := [flag(name) for name in names if getattr(options, name) != getattr(default, name)]:
        problem = f"--winner-of takes the configuration from the run: omit {' '.join(other)}"
        raise UsageError("option-conflict", problem)


def fastest_trial(
    folder: Path, task: str, devices: Devices, implementation: str | None = None, **changes: Any
) -> Trial:
    """Return a trial of the fastest configuration of a task with its own `changes`; `implementation` restricts it.

    Raises InputError (nothing was measured) and UsageError (on devices that this machine does not have).
    """
    from analysis.load import load_run
    from analysis.run_views import fastest

    trials = [trial for trial in load_run(RunDirectory(folder)) if trial.trial.task == task]
    rounds = fastest([one for one in trials if implementation in (None, one.trial.implementation)])
    if not rounds:
        problem = f"{folder} has no throughput of {implementation or task}"
        raise InputError("run-incomplete", f"{problem}: measure it with `bertbench throughput {task}`")
    winner = rounds[0].trial
    if winner.device != devices.kind or winner.nodes > 1:
        where = f"{winner.nodes} nodes" if winner.nodes > 1 else winner.device
        raise UsageError("device-missing", f"the fastest configuration of {folder} ran on {where}: use that machine")
    devices.environment(winner.world_size)
    return dataclasses.replace(winner, round=0, relative_half_width=Sweep().precision_target, **changes)
