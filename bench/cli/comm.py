"""`bertbench comm`: collectives alone, by size, with the columns of nccl-tests, and the line fitted to them."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.cli.options import RetryOptions, run_folder
from bench.cli.result import Result, of_view
from bench.cli.session import announce, session
from bench.launch.world import joined_world
from bench.machine.devices import find_devices
from bench.run.comm import CommSweep, expand_collectives
from bench.run.inside import run_inside
from bench.run.supervise import LaunchOptions
from bench.sweep.sweep import run_trials
from common.flags import request_of
from records.run import RunDirectory
from records.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class CommOptions(RetryOptions):
    """Benchmark collectives by message size (gloo on CPUs, NCCL on GPUs): time, algbw and busbw, with checked results.
    Started by torchrun or `launch`, it uses the ranks that were launched.

    Examples:
        bertbench comm --devices 2
        bertbench comm --collectives all_reduce reduce_scatter --dtypes bf16 --max-bytes 1G
    """

    sweep: CommSweep = field(default_factory=CommSweep)
    out: Path = Path("runs/comm")
    """Run directory. The same command resumes it."""


OPTIONS = {"comm": CommOptions}


def run(options: CommOptions) -> Result:
    """Measure; exit code 1 when results were wrong, 3 when a trial failed."""
    world = joined_world()
    devices = find_devices(options.device)
    directory = RunDirectory(run_folder(options.out))
    launch = LaunchOptions(timeout_seconds=options.timeout_seconds)
    trials = expand_collectives(options.sweep, devices, world)
    request = {"command": "comm", **request_of(options)}
    if world is not None:
        results = run_inside(directory, trials, request, devices, world, LaunchOptions(timeout_seconds=None))
        return replace(Result() if world.rank else _measured(options, directory, trials, results), at_once=True)
    with session(directory, request, devices, launch, retry_failed=options.retry_failed) as opened:
        announce(opened, trials, "" if options.json else options.device)
        results = run_trials(opened, trials)
    return _measured(options, directory, trials, results)


def _measured(options: CommOptions, run: RunDirectory, trials: list[Trial], results: list[dict[str, Any]]) -> Result:
    from analysis.run_views import collectives

    view = collectives(run, [trial.trial_id for trial in trials])
    facts = [("results", str(run.path)), ("report", f"bertbench report {run.path}")]
    failed = any(result["status"] != "ok" for result in results)
    return of_view(view, options, code=3 if failed else int(view.verdict == "wrong"), facts=facts)
