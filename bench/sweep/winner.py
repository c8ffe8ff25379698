"""The fastest configuration of a run directory, as in its report, for profile and speed-of-light.

`python -m bench.sweep.winner RUN` prints how long a trial of it took in s, for the time budget of bench.sh.
"""

import math
import sys
from pathlib import Path

from analysis.load import load_run
from analysis.run_views import fastest
from bench.machine.devices import Devices
from common.errors import BertbenchError, InputError, UsageError
from records.run import RunDirectory
from records.trial import Trial

# What damaged records raise; OverflowError: an infinite time.
_DAMAGED = (
    BertbenchError,
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def fastest_trial(folder: Path, task: str, devices: Devices, implementation: str | None = None) -> Trial:
    """Return a trial of the fastest configuration of a task; `implementation` restricts it to one.

    Raises:
        InputError: nothing was measured.
        UsageError: it ran on devices that this machine does not have.
    """
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
    return winner


def seconds_of_fastest(folder: Path) -> int:
    """Return the wall time of the slowest round of the fastest configuration in s, rounded up; 0 if it is unknown."""
    try:
        rounds = fastest(load_run(RunDirectory(folder)))
        return max(0, math.ceil(max((float(trial.row.get("wall_seconds") or 0.0) for trial in rounds), default=0.0)))
    except _DAMAGED:  # the next commands report it
        return 0


if __name__ == "__main__":
    sys.stdout.write(f"{seconds_of_fastest(Path(sys.argv[1]))}\n")
