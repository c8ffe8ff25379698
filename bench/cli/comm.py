"""`bertbench comm`: collectives alone, by size, as nccl-tests prints them, and the line fitted to them."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from bench.cli.options import OUT_HELP, parse, request_of, run_folder
from bench.cli.progress import note, show_progress, tell_of_cpu
from bench.cluster.inside import end_process
from bench.cluster.world import World, joined_world
from bench.machine.devices import Devices, find_devices
from bench.plan.sweep import locked, run_trials
from bench.run.comm import CommSweep, expand_collectives, run_inside
from bench.run.launch import LaunchOptions
from records.run import RunDirectory
from records.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class CommOptions:
    """Measure collectives between ranks (gloo on CPUs, NCCL on GPUs): time, algbw and busbw by size, results checked.
    Started by torchrun or `launch` it measures that world.
    """

    sweep: Annotated[CommSweep, tyro.conf.arg(name="")] = field(default_factory=CommSweep)
    out: Annotated[Path, tyro.conf.arg(help=OUT_HELP)] = Path("runs/comm")
    device: str = "auto"
    """cpu cuda auto."""
    timeout_seconds: float = 900.0
    """A trial that takes longer is ended as timeout."""
    retry_failed: bool = False
    """Run failed trials again."""
    json: bool = False
    """Print the result as JSON, progress on stderr."""


OPTIONS = {"comm": CommOptions}


def main(argv: list[str]) -> int:
    """Run the command; 0 when every trial is ok, 1 when results were wrong, 3 when a trial failed."""
    options = parse(CommOptions, argv, "bertbench comm")
    world = joined_world()
    devices = find_devices(options.device)
    run = RunDirectory(run_folder(options.out))
    launch = LaunchOptions(timeout_seconds=options.timeout_seconds)
    trials = expand_collectives(options.sweep, devices, world)
    request = {"command": "comm", **request_of(options)}
    if world is not None:
        end_process(_inside(options, run, trials, request, devices, world))
    tell_of_cpu(devices, options.device, options.json)
    with locked(run):
        results = run_trials(run, trials, request, devices, launch, show_progress, note, options.retry_failed)
    return _show(run, trials, results, options.json)


def _inside(
    options: CommOptions, run: RunDirectory, trials: list[Trial], request: dict[str, Any], devices: Devices,
    world: World,
) -> int:  # fmt: skip
    if world.rank:
        run_inside(run, trials, request, devices, world)
        return 0
    with locked(run):
        results = run_inside(run, trials, request, devices, world)
    return _show(run, trials, results, options.json)


def _show(run: RunDirectory, trials: list[Trial], results: list[dict[str, Any]], as_json: bool) -> int:
    from analysis.load import load_run
    from analysis.metrics.communication.links import fitted_links, link_rows
    from analysis.render.comm_text import link_text, nccl_tests_text

    by_id = {trial.trial.trial_id: trial for trial in load_run(run)}
    loaded = [by_id[trial.trial_id] for trial in trials if trial.trial_id in by_id]
    measured = [trial for trial in loaded if trial.row["status"] == "ok"]
    links = fitted_links(measured)
    if as_json:
        rows = [row for trial in measured for row in trial.row["by_size"]]
        failed = [{"trial_id": t.trial.trial_id, **{n: t.row[n] for n in ("status", "reason")}} for t in loaded
                  if t.row["status"] != "ok"]  # fmt: skip
        found = {"run": str(run.path), "rows": rows, "fits": link_rows(links), "failed": failed}
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        print("\n\n".join([*(nccl_tests_text(trial) for trial in measured), *filter(None, [link_text(links)])]))
        print(f"\nresults: {run.path}\nreport:  bertbench report {run.path}")
    if any(result["status"] != "ok" for result in results):
        return 3
    return 1 if any(trial.row["wrong"] for trial in measured) else 0
