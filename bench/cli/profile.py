"""`bertbench profile TASK --profiler P --start N --stop M`: trials under a profiler, with their analysis."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bench.cli.options import TrialOptions, given_names, parse_task, run_folder
from bench.cli.progress import note
from bench.cli.result import Result, of_view
from bench.cli.session import session
from bench.cli.sweep_progress import announce, describe
from bench.implementations import OURS
from bench.machine.devices import Devices, find_devices
from bench.profilers import PROFILERS, load_profiler
from bench.profilers.ranges import KINDS
from bench.run.profiling import Profiled, mark_unread, profile_trials, with_unprofiled
from bench.run.supervise import LaunchOptions
from bench.sweep.trials import Sweep, expand
from common.errors import UsageError
from common.flags import OneOf, flag, request_of
from common.registry import lookup
from records.run import RunDirectory
from records.trial import Trial

if TYPE_CHECKING:
    from analysis.views import View


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileOptions(TrialOptions):
    """Run each trial without and with a profiler that records the steps from --start to --stop, then show what it
    recorded.

    Examples:
        bertbench profile pretrain --batch-sizes 16
        bertbench profile squad --profiler nsys --start 20 --stop 25
        bertbench profile pretrain --winner-of runs/throughput  # profile the fastest configuration
    """

    sweep: Sweep = field(default_factory=Sweep)
    profiler: str = "torch"
    """Profiler; `bertbench doctor` shows which can run here."""
    nvtx: Annotated[str, OneOf(tuple(KINDS))] = "bertbench"
    """NVTX ranges for nsys, ncu, nvprof and nvtx."""
    with_: tuple[str, ...] = ()
    """Options of the profiler, NAME or NAME=VALUE; an unknown name lists all; default the profiler's own."""
    winner_of: Path | None = None
    """Profile the fastest configuration of this run directory; excludes sweep options; default the given options."""
    out: Path = Path("runs/profile")
    """Run directory. The same command resumes it."""


_MOST_FILES = 4

OPTIONS = {"profile TASK": ProfileOptions}


def read_words(words: list[str], program: str) -> ProfileOptions:
    """Return the options. Raises UsageError where --winner-of answers what others ask too."""
    options = parse_task(ProfileOptions, words, program)
    own = {item.name for item in dataclasses.fields(ProfileOptions)} | {"start", "stop", "with"}
    if options.winner_of is not None and (other := sorted(given_names(words) - own)):
        raise UsageError(
            "option-conflict",
            f"--winner-of takes the configuration from the run: omit {' '.join(map(flag, other))}",
        )
    return options


def run(options: ProfileOptions) -> Result:
    """Profile; exit code 3 when a trial gave no profile."""
    from analysis.views import profiles

    if options.sweep.start is None or options.sweep.stop is None:
        raise UsageError(
            "option-missing", "profile needs the iterations to record: give --start N --stop M for N to M-1"
        )
    devices = find_devices(options.device)
    trials = _trials(options, devices)
    profiler = load_profiler(options.profiler, profiler_words(options))
    for trial in trials:
        profiler.check(trial)
    if any(trial.implementation != OURS for trial in trials):
        note("only bertbench's own model has ranges for layers; other implementations have them for steps and phases")
    directory = RunDirectory(run_folder(options.out))
    request = {"command": "profile", **request_of(options)}
    launch = LaunchOptions(timeout_seconds=options.timeout_seconds)
    pairs = with_unprofiled(trials)
    with session(directory, request, devices, launch) as call:
        announce(call, pairs)
        profiled = profile_trials(call, trials)
        views, tables = profiles(directory, [item.trial.trial_id for item in profiled])
        profiled = [
            mark_unread(directory.trial(item.trial.trial_id), item, view.problems[0])
            if view.verdict == "unread" and item.files
            else item
            for item, view in zip(profiled, views, strict=True)
        ]
    return _result(options, directory, profiled, views, tables)


def _trials(options: ProfileOptions, devices: Devices) -> list[Trial]:
    if options.winner_of is not None:
        return [_winner(options, devices)]
    sweep = dataclasses.replace(
        options.sweep, devices=options.sweep.devices or (1,), rounds=options.sweep.rounds or 1
    )  # fmt: skip
    return expand(sweep, devices, "profile", options.profiler, profiler_words(options))


def _result(
    options: ProfileOptions,
    run: RunDirectory,
    profiled: Sequence[Profiled],
    views: Sequence["View"],
    tables: Sequence[Path],
) -> Result:
    from analysis.views import utilization

    pairs = list(zip(profiled, views, strict=True))
    problems = [
        f"{describe(item.trial)}: {problem}"
        for item, view in pairs
        for problem in dict.fromkeys(filter(None, [item.problem, *view.problems]))
    ]
    facts = [("file", str(file)) for file in [file for item in profiled for file in item.files][:_MOST_FILES]]
    facts += [("table", str(table)) for table in tables]
    facts += [("more", f"bertbench analyze {run.path}"), ("report", f"bertbench report {run.path}")]
    shown = utilization(views, [item.result for item in profiled], facts)
    document = {
        "run": str(run.path),
        "profiles": [_plain(item, view) for item, view in pairs],
        "tables": [str(table) for table in tables],
    }
    shown = dataclasses.replace(shown, document=document, problems=problems)
    return of_view(shown, options, code=3 if any(item.problem for item in profiled) else 0)


def _winner(options: ProfileOptions, devices: Devices) -> Trial:
    """Return the trial that profiles the fastest configuration of a run."""
    from bench.sweep.winner import fastest_trial

    assert options.winner_of is not None
    winner = fastest_trial(options.winner_of, options.sweep.task, devices)
    # What decides on an automatic window is no part of a trial with a given one: the same trial has the same id.
    rules = Sweep()
    trial = dataclasses.replace(
        winner,
        kind="profile",
        round=0,
        start_iteration=options.sweep.start,
        stop_iteration=options.sweep.stop,
        profiler=options.profiler,
        profiler_options=profiler_words(options),
        min_steps=rules.min_steps,
        max_steps=rules.max_steps,
        max_seconds=rules.max_seconds,
        relative_half_width=rules.precision_target,
    )
    note(f"the fastest of {options.winner_of} is profiled: {describe(trial)}")
    return trial


def profiler_words(options: ProfileOptions) -> tuple[str, ...]:
    """Return --with and, for tools that take it, --nvtx, as the words that go into the trial. Raises UsageError."""
    words = list(options.with_)
    lookup(PROFILERS, options.profiler, "profiler")
    if options.nvtx != "bertbench":
        if "nvtx" not in load_profiler(options.profiler).OPTIONS:
            raise UsageError(
                "option-not-applicable",
                f"--nvtx {options.nvtx}: --profiler {options.profiler} makes no NVTX ranges; use nsys, ncu, nvprof or "
                "nvtx",
            )
        words.append(f"nvtx={options.nvtx}")
    return tuple(sorted(words))


def _plain(item: Profiled, view: "View") -> dict[str, Any]:
    trial: Trial = item.trial
    return {
        "trial_id": trial.trial_id,
        "status": item.result["status"],
        "reason": item.result["reason"],
        "problem": item.problem,
        "files": [str(file) for file in item.files],
        "step_time_ms": item.result.get("step_time_ms"),
        **{name: item.result["profile"][name] for name in ("unprofiled_step_time_ms", "step_time_ratio")},
        **view.document,
    }
