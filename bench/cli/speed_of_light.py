"""`bertbench speed-of-light [TASK]`: the floor of a step, and where the measured step is above it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from bench.cli.options import TrialOptions, run_folder
from bench.cli.progress import note
from bench.cli.result import Result, of_view
from bench.cli.session import describe, run_all
from bench.implementations import OURS
from bench.machine.devices import Devices, find_devices
from bench.sweep.options import COUNT, POSITIVE, STEP
from bench.sweep.trials import Workload, expand, fastest_trial
from bert.speed import FAST
from bert.tasks import known_tasks, task_data
from common.errors import UsageError
from records.run import RunDirectory
from records.trial import Trial

_FEWEST_ROUNDS, _KIND = 3, "components"


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedOfLightOptions(TrialOptions):
    """Measure peak compute, memory bandwidth, and each part of a step alone. The result is the lowest possible step
    time, and where the rest of the time goes. Measures bertbench's own model. A finished measurement is shown again.

    Examples:
        bertbench speed-of-light
        bertbench speed-of-light squad --preset large --batch-size 16 --precision bf16
    """

    workload: Workload = field(default_factory=Workload)
    batch_size: Annotated[int, COUNT] = 8
    """Sequences per device."""
    step: Annotated[str, STEP] = FAST
    """Computation of a step: fast, or plain PyTorch with padding."""
    devices: Annotated[int, COUNT] = 1
    """Ranks. Each measures all parts; communication is the exposed time of their steps."""
    rounds: Annotated[int, Parameter(validator=validators.Number(gte=_FEWEST_ROUNDS))] = 12
    """Interleaved repetitions of each part; the median is reported."""
    max_seconds: Annotated[float, POSITIVE] = 90.0
    """Maximum measuring time in s; three rounds run in any case."""
    winner_of: Path | None = None
    """Measure the fastest configuration of bertbench in this run directory in place of that of the options."""
    out: Path = Path("runs/speed-of-light")

    def __post_init__(self) -> None:
        """Refuse what cannot be measured; what a sweep checks is checked there."""
        task = self.workload.task
        if not task_data(task).heads:
            known = ", ".join(name for name in known_tasks() if task_data(name).heads)
            raise UsageError("option-choice", f"speed-of-light does not support {task!r}: give one of {known}")


OPTIONS = {"speed-of-light [TASK]": SpeedOfLightOptions}


def run(options: SpeedOfLightOptions) -> Result:
    """Measure the step; exit code 3 when it could not be."""
    from analysis.run_views import speed_of_light

    devices = find_devices(options.device)
    trial = planned(options, devices)
    (result,) = run_all(options, "speed-of-light", devices, [trial])
    if result["status"] != "ok":
        return Result(code=3)
    run = RunDirectory(run_folder(options.out))
    facts = [("results", str(run.results_csv)), ("report", f"bertbench report {run.path}")]
    return of_view(speed_of_light(run, trial.trial_id), options, facts=facts)


def planned(options: SpeedOfLightOptions, devices: Devices) -> Trial:
    """Return the trial. Raises UsageError for a value none can have, InputError where data or run cannot be read."""
    limits = {"min_steps": _FEWEST_ROUNDS, "max_steps": options.rounds, "max_seconds": options.max_seconds}
    if options.winner_of is not None:
        window = {"start_iteration": None, "stop_iteration": None}
        trial = fastest_trial(options.winner_of, options.workload.task, devices, OURS, kind=_KIND, **window, **limits)
        note(f"the fastest configuration of {options.winner_of}: {describe(trial)}")
    else:
        sweep = options.workload.sweep(
            devices=(options.devices,), batch_sizes=(options.batch_size,), step=(options.step,), **limits,
        )  # fmt: skip
        (trial,) = expand(sweep, devices, kind=_KIND)
    if trial.precision == "fp8":
        raise UsageError("device-unsupported", "--precision fp8 has no floor: use bf16, or `bertbench throughput`")
    return trial
