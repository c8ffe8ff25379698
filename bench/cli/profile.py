"""`bertbench profile TASK --profiler P --start N --stop M`: trials under a profiler, with their analysis."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from bench.cli.options import TrialOptions
from bench.cli.progress import note
from bench.cli.result import Result, of_view
from bench.cli.session import announce, describe, session
from bench.implementations import OURS
from bench.machine.devices import Devices, find_devices
from bench.profilers import PROFILERS, load_profiler
from bench.sweep.sweep import profile_trials, with_unprofiled
from bench.sweep.trials import Sweep, expand, fastest_trial
from common.errors import UsageError
from records.files import write_record
from records.run import RunDirectory
from records.trial import Trial

if TYPE_CHECKING:
    from analysis.views import View


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileOptions(TrialOptions):
    """Run each trial without and with a profiler that records the steps from --start to --stop, then show what it
    recorded.

    Examples:
        bertbench profile pretrain --batch-sizes 16 --start 20 --stop 25
        bertbench profile squad --profiler nsys --start 20 --stop 25
        bertbench profile pretrain --winner-of runs/throughput --start 20 --stop 25  # the fastest configuration
    """

    sweep: Sweep = field(default_factory=Sweep)
    profiler: Annotated[str, Parameter(choices=tuple(PROFILERS))] = "torch"
    """Profiler; `bertbench doctor` shows which can run here."""
    with_: tuple[str, ...] = ()
    """Options of the profiler, NAME or NAME=VALUE; an unknown name lists all; default the profiler's own."""
    winner_of: Path | None = None
    """Profile the fastest configuration of this run directory in place of that of the options; default that one."""
    out: Path = Path("runs/profile")


_MOST_FILES = 4
OPTIONS = {"profile [TASK]": ProfileOptions}


def run(options: ProfileOptions) -> Result:
    """Profile; exit code 3 when a trial gave no profile."""
    from analysis.views import profiles

    if options.sweep.start is None:
        raise UsageError("option-missing", "profile needs the steps to record: give --start N --stop M for N to M-1")
    devices = find_devices(options.device)
    words = tuple(sorted(options.with_))
    trials = _trials(options, devices, words)
    profiler = load_profiler(options.profiler, words)
    for trial in trials:
        profiler.check(trial)
    if any(trial.implementation != OURS for trial in trials):
        note("only bertbench's own model has ranges for layers; other implementations have them for steps and phases")
    with session(options, "profile", devices) as call:
        announce(call, with_unprofiled(trials), options)
        results, directory = profile_trials(call, trials), call.run
        views, tables = profiles(directory, [trial.trial_id for trial in trials])
        for trial, result, view in zip(trials, results, views, strict=True):
            if view.verdict == "unread" and result["profile"]["files"]:
                result["profile"]["problem"] = view.problems[0]  # so that another call makes it again
                write_record(directory.trial(trial.trial_id).result_json, result)
    return _result(options, directory, trials, results, views, tables)


def _trials(options: ProfileOptions, devices: Devices, words: tuple[str, ...]) -> list[Trial]:
    sweep = options.sweep
    fields: dict[str, Any] = {"kind": "profile", "profiler": options.profiler, "profiler_options": words}
    if options.winner_of is None:
        sweep = dataclasses.replace(sweep, devices=sweep.devices or (1,), rounds=sweep.rounds or 1)
        return expand(sweep, devices, **fields)
    # What decides on an automatic window is no part of a trial with a given one: the same trial has the same id.
    fields |= {name: getattr(sweep, name) for name in ("min_steps", "max_steps", "max_seconds")}
    fields |= {"start_iteration": sweep.start, "stop_iteration": sweep.stop}
    trial = fastest_trial(options.winner_of, sweep.task, devices, **fields)
    note(f"the fastest configuration of {options.winner_of}: {describe(trial)}")
    return [trial]


def _result(
    options: ProfileOptions,
    run: RunDirectory,
    trials: Sequence[Trial],
    results: Sequence[Mapping[str, Any]],
    views: Sequence["View"],
    tables: Sequence[Path],
) -> Result:
    from analysis.views import utilization

    rows, problems = [], []
    for trial, result, view in zip(trials, results, views, strict=True):
        profile, folder = result["profile"], run.trial(result["trial_id"]).path
        problems += [
            f"{describe(trial)}: {text}" for text in dict.fromkeys([profile["problem"], *view.problems]) if text
        ]
        rows.append(
            {
                **{name: result[name] for name in ("trial_id", "status", "reason")},
                "problem": profile["problem"],
                "files": [str(folder / file) for file in profile["files"]],
                "step_time_ms": result.get("step_time_ms"),
                **{name: profile[name] for name in ("unprofiled_step_time_ms", "step_time_ratio")},
                **view.document,
            }
        )
    facts = [("file", file) for file in [file for row in rows for file in row["files"]][:_MOST_FILES]]
    facts += [("table", str(table)) for table in tables]
    facts += [("more", f"bertbench analyze {run.path}"), ("report", f"bertbench report {run.path}")]
    document = {"run": str(run.path), "profiles": rows, "tables": [str(table) for table in tables]}
    shown = dataclasses.replace(utilization(views, results, facts), document=document, problems=problems)
    return of_view(shown, options, code=3 if any(row["problem"] for row in rows) else 0)
