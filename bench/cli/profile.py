"""`bertbench profile TASK --profiler P --start N --stop M`: trials under a profiler, analysed at once."""

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from analysis.records import RunDirectory, Trial
from bench.cli.options import OUT_HELP, parse_task, request_of, run_folder
from bench.cli.progress import describe, note, show_progress
from bench.devices import find_devices
from bench.launch import LaunchOptions
from bench.plan import Sweep, expand
from bench.profilers import PROFILERS
from bench.sweep import locked, run_trials
from common.errors import InputError, UsageError
from common.registry import load

if TYPE_CHECKING:
    from analysis.metrics.breakdown import Breakdown


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileOptions:
    """Run each trial under a profiler that records iterations [start, stop), then show what it recorded."""

    sweep: Annotated[Sweep, tyro.conf.arg(name="")] = field(default_factory=Sweep)
    profiler: str = "torch"
    """torch."""
    out: Annotated[Path, tyro.conf.arg(help=OUT_HELP)] = Path("runs/profile")
    device: str = "auto"
    """cpu cuda auto."""
    timeout_seconds: float = 900.0
    """A trial that takes longer is ended as timeout."""
    json: bool = False
    """Print the result as JSON, progress on stderr."""


OPTIONS = {"profile TASK": ProfileOptions}


def main(argv: list[str]) -> int:
    """Run the command; 0 when every trial gave its traces, 3 when some did not."""
    options = parse_task(ProfileOptions, argv, "bertbench profile")
    from analysis.metrics.breakdown import breakdown
    from analysis.readers.kineto import read

    if options.sweep.start is None or options.sweep.stop is None:
        raise UsageError("profile needs the iterations to record: --start N --stop M records N .. M-1")
    profiler = load(PROFILERS, options.profiler, "profiler")()
    profiler.check()
    devices = find_devices(options.device)
    sweep = options.sweep if options.sweep.devices else dataclasses.replace(options.sweep, devices=(1,))
    trials = expand(sweep, devices, kind="profile", profiler=options.profiler)
    run = RunDirectory(run_folder(options.out))
    request = {"command": "profile", **request_of(options)}
    with locked(run):
        results = run_trials(
            run,
            trials,
            request,
            devices,
            LaunchOptions(timeout_seconds=options.timeout_seconds),
            show_progress(options.json),
            note,
        )
    failed = False
    profiles: list[dict[str, Any]] = []
    for trial, result in zip(trials, results, strict=True):
        directory = run.trial(trial.trial_id)
        try:
            traces = profiler.collect(directory.profile) if result["status"] == "ok" else []
            breakdowns = [breakdown(read(trace)) for trace in traces]
        except InputError as error:
            print(f"bertbench: {error}", file=sys.stderr)
            traces, breakdowns = [], []
        failed = failed or not traces
        if not options.json:
            _show(trial, traces, breakdowns)
        profiles.append(
            {
                "trial_id": trial.trial_id,
                "status": result["status"],
                "reason": result["reason"],
                "traces": [str(trace) for trace in traces],
                "breakdowns": [dataclasses.asdict(found) for found in breakdowns],
            }
        )
    if options.json:
        print(json.dumps({"run": str(run.path), "profiles": profiles}, indent=2))
    else:
        print(f"report:  bertbench report {run.path}")
    return 3 if failed else 0


def _show(trial: Trial, traces: list[Path], breakdowns: "list[Breakdown]") -> None:
    """Print the tables of the first rank, and where all traces are."""
    from analysis.report.text import profile_text

    if breakdowns:
        print(f"\n{describe(trial)}, rank {breakdowns[0].rank}\n\n{profile_text(breakdowns[0])}\n")
    for trace in traces:
        print(f"trace:   {trace}  (opens in https://ui.perfetto.dev)")
