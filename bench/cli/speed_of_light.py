"""`bertbench speed-of-light [TASK]`: the floor of a step, and where the measured step is above it."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from bench.cli.configuration import OneConfiguration
from bench.cli.options import given_names, parse_task, run_folder
from bench.cli.progress import note
from bench.cli.result import Result, of_view
from bench.cli.session import session
from bench.cli.sweep_progress import announce, describe, tell_of_cpu
from bench.implementations import OURS
from bench.machine.devices import Devices, find_devices
from bench.run.resources import DEFAULT
from bench.run.supervise import LaunchOptions
from bench.sweep.options import AUTO
from bench.sweep.sweep import run_trials
from bench.sweep.trials import Sweep, expand
from bert.tasks import known_tasks, task_data
from common.errors import UsageError
from common.flags import Positional, flag, request_of
from records.run import RunDirectory
from records.trial import Trial

_FEWEST_ROUNDS = 3


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
        _check_heads(self.task)
        if self.rounds < _FEWEST_ROUNDS:
            raise UsageError(
                "option-value", f"--rounds {self.rounds} must be at least {_FEWEST_ROUNDS}: medians need them"
            )
        for name in ("batch_size", "devices"):
            if getattr(self, name) < 1:
                raise UsageError("option-value", f"{flag(name)} {getattr(self, name)} must be at least 1")


def _check_levers(trial: Trial) -> None:
    """Refuse FP8 where its GEMMs have no floor. Raises UsageError."""
    if "fp8" in trial.levers.split("+") and trial.device == "cpu":
        raise UsageError(
            "device-unsupported",
            f"--levers {trial.levers} on a CPU: it emulates FP8 and has no peak of it, so a step has no floor; leave "
            "out fp8, or measure the whole step with `bertbench throughput`",
        )


def _check_heads(task: str) -> None:
    """Refuse a task with heads of its own: nobody knows what is in them besides GEMMs. Raises UsageError."""
    if not task_data(task).heads:
        known = [name for name in known_tasks() if task_data(name).heads]
        raise UsageError("option-choice", f"speed-of-light does not support {task!r}: give one of {', '.join(known)}")


_BESIDE_WINNER = {
    "winner_of", "rounds", "max_seconds", "device", "timeout_seconds", "retry_failed", "out", "json"
}  # fmt: skip
OPTIONS = {"speed-of-light [TASK]": SpeedOfLightOptions}


def read_words(words: list[str], program: str) -> SpeedOfLightOptions:
    """Return the options; without a task it is pretraining. Raises UsageError where --winner-of answers others too."""
    named = bool(words) and (not words[0].startswith("-") or words[0] in ("-h", "--help"))
    options = parse_task(SpeedOfLightOptions, words if named else ["pretrain", *words], program)
    if options.winner_of is not None and (other := sorted(given_names(words) - _BESIDE_WINNER)):
        raise UsageError(
            "option-conflict",
            f"--winner-of takes the configuration from the run: omit {' '.join(map(flag, other))}",
        )
    return options


def run(options: SpeedOfLightOptions) -> Result:
    """Measure the step; exit code 3 when it could not be."""
    from analysis.run_views import speed_of_light

    devices = find_devices(options.device)
    trial = planned(options, devices)
    directory = RunDirectory(run_folder(options.out))
    tell_of_cpu(devices, options.device, options.json)
    launch = LaunchOptions(timeout_seconds=options.timeout_seconds)
    request = {"command": "speed-of-light", **request_of(options)}
    with session(directory, request, devices, launch, retry_failed=options.retry_failed) as call:
        announce(call, [trial])
        (result,) = run_trials(call, [trial])
    if result["status"] != "ok":
        return Result(code=3)
    view = speed_of_light(directory, trial.trial_id)
    facts = [("results", str(directory.results_csv)), ("report", f"bertbench report {directory.path}")]
    return of_view(view, options, facts=facts)


def planned(options: SpeedOfLightOptions, devices: Devices) -> Trial:
    """Return the trial. Raises UsageError for a value none can have, InputError where data or run cannot be read."""
    trial = _described(options, devices) if options.winner_of is None else _of_winner(options, devices)
    _check_levers(trial)
    return trial


def _described(options: SpeedOfLightOptions, devices: Devices) -> Trial:
    sweep = options.sweep(
        implementations=(OURS,),
        devices=(options.devices,),
        batch_sizes=(options.batch_size,),
        levers=(options.levers,),
        allocators=(options.allocator,),
        min_steps=_FEWEST_ROUNDS,
        max_steps=options.rounds,
        max_seconds=options.max_seconds,
    )
    (trial,) = expand(sweep, devices, "components")
    return trial


def _of_winner(options: SpeedOfLightOptions, devices: Devices) -> Trial:
    from bench.sweep.winner import fastest_trial

    assert options.winner_of is not None
    winner = fastest_trial(options.winner_of, options.task, devices, OURS)
    trial = dataclasses.replace(
        winner,
        kind="components",
        round=0,
        start_iteration=None,
        stop_iteration=None,
        min_steps=_FEWEST_ROUNDS,
        max_steps=options.rounds,
        max_seconds=options.max_seconds,
        relative_half_width=Sweep().precision_target,
    )
    note(f"measuring the fastest configuration of {OURS} in {options.winner_of}: {describe(trial)}")
    return trial
