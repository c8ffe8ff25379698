"""`bertbench speed-of-light [TASK]`: the floor of a step, and where the measured step is above it."""

from dataclasses import dataclass
from pathlib import Path

from bench.cli.configuration import OneConfiguration, check_winner, trial_of_winner
from bench.cli.options import run_folder
from bench.cli.result import Result, of_view
from bench.cli.session import announce, session
from bench.implementations import OURS
from bench.machine.devices import Devices, find_devices
from bench.run.resources import DEFAULT
from bench.run.supervise import LaunchOptions
from bench.sweep.options import AUTO
from bench.sweep.sweep import run_trials
from bench.sweep.trials import expand
from bert.tasks import known_tasks, task_data
from common.errors import UsageError
from common.flags import Positional, flag, request_of
from records.run import RunDirectory
from records.trial import Trial

_FEWEST_ROUNDS = 3
_BESIDE_WINNER = ("task", "winner_of", "rounds", "max_seconds", "device", "timeout_seconds", "retry_failed", "out",
                  "json")  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedOfLightOptions(OneConfiguration):
    """Measure peak compute, memory bandwidth, and each part of a step alone. The result is the lowest possible step
    time, and where the rest of the time goes. Measures bertbench's own model. A finished measurement is shown again.

    Examples:
        bertbench speed-of-light
        bertbench speed-of-light squad --preset large --batch-size 16 --precision bf16
    """

    task: Positional[str] = "pretrain"
    """Task to train."""
    seq_len: int | None = None
    """Maximum tokens per sequence; default squad: 384; others: 128."""
    batch_size: int = 8
    """Sequences per device."""
    levers: str = AUTO
    """Optimizations: auto, none, or names joined by + (docs/explanation/speed.md)."""
    allocator: str = DEFAULT
    """Memory allocator setting of the processes; expandable-segments is for GPU memory."""
    devices: int = 1
    """Ranks. Each measures all parts; communication is the exposed time of their steps."""
    rounds: int = 12
    """Interleaved repetitions of each part; the median is reported."""
    max_seconds: float = 90.0
    """Maximum measuring time in s; three rounds run in any case."""
    retry_failed: bool = False
    """Run failed measurements again."""
    winner_of: Path | None = None
    """Measure the fastest configuration of bertbench in this run directory; excludes options of the model and data."""
    out: Path = Path("runs/speed-of-light")
    """Run directory. The same command resumes it."""

    def __post_init__(self) -> None:
        """Refuse what cannot be measured; what a sweep checks is checked there."""
        if not task_data(self.task).heads:
            known = ", ".join(name for name in known_tasks() if task_data(name).heads)
            raise UsageError("option-choice", f"speed-of-light does not support {self.task!r}: give one of {known}")
        for name, least in (("rounds", _FEWEST_ROUNDS), ("batch_size", 1), ("devices", 1)):
            if getattr(self, name) < least:
                raise UsageError("option-value", f"{flag(name)} {getattr(self, name)} must be at least {least}")
        if self.winner_of is not None:
            check_winner(self, _BESIDE_WINNER)


OPTIONS = {"speed-of-light [TASK]": SpeedOfLightOptions}


def run(options: SpeedOfLightOptions) -> Result:
    """Measure the step; exit code 3 when it could not be."""
    from analysis.run_views import speed_of_light

    devices = find_devices(options.device)
    trial = planned(options, devices)
    directory = RunDirectory(run_folder(options.out))
    launch = LaunchOptions(timeout_seconds=options.timeout_seconds)
    request = {"command": "speed-of-light", **request_of(options)}
    with session(directory, request, devices, launch, retry_failed=options.retry_failed) as call:
        announce(call, [trial], "" if options.json else options.device)
        (result,) = run_trials(call, [trial])
    if result["status"] != "ok":
        return Result(code=3)
    view = speed_of_light(directory, trial.trial_id)
    facts = [("results", str(directory.results_csv)), ("report", f"bertbench report {directory.path}")]
    return of_view(view, options, facts=facts)


def planned(options: SpeedOfLightOptions, devices: Devices) -> Trial:
    """Return the trial. Raises UsageError for a value none can have, InputError where data or run cannot be read."""
    limits = {"min_steps": _FEWEST_ROUNDS, "max_steps": options.rounds, "max_seconds": options.max_seconds}
    if options.winner_of is not None:
        trial = trial_of_winner(
            options.winner_of, options.task, devices, OURS, kind="components",
            start_iteration=None, stop_iteration=None, **limits,
        )  # fmt: skip
    else:
        sweep = options.sweep(
            implementations=(OURS,), devices=(options.devices,), batch_sizes=(options.batch_size,),
            levers=(options.levers,), allocators=(options.allocator,), **limits,
        )  # fmt: skip
        (trial,) = expand(sweep, devices, "components")
    if "fp8" in trial.levers.split("+") and trial.device == "cpu":
        raise UsageError(
            "device-unsupported",
            f"--levers {trial.levers} on a CPU, which emulates FP8, has no floor: leave out fp8, or measure the whole "
            "step with `bertbench throughput`",
        )
    return trial
