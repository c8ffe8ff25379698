"""`bertbench comm`: collectives alone, by size, with the columns of nccl-tests, and the line fitted to them."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.cli.options import TrialOptions, run_folder
from bench.cli.result import Result, of_view
from bench.cli.session import run_all
from bench.launch.world import joined_world
from bench.machine.devices import find_devices
from bench.run.comm import CommSweep, expand_collectives
from records.run import RunDirectory


@dataclass(frozen=True, kw_only=True, slots=True)
class CommOptions(TrialOptions):
    """Benchmark collectives by message size (gloo on CPUs, NCCL on GPUs): time, algbw and busbw, with checked results.
    Started by torchrun or `launch`, it uses the ranks that were launched.

    Examples:
        bertbench comm --devices 2
        bertbench comm --collectives all_reduce reduce_scatter --dtypes bf16 --max-bytes 1G
    """

    sweep: CommSweep = field(default_factory=CommSweep)
    out: Path = Path("runs/comm")


OPTIONS = {"comm": CommOptions}


def run(options: CommOptions) -> Result:
    """Measure; exit code 1 when results were wrong, 3 when a trial failed."""
    from analysis.run_views import collectives

    world, devices = joined_world(), find_devices(options.device)
    trials = expand_collectives(options.sweep, devices, world)
    results = run_all(options, "comm", devices, trials, world)
    if world is not None and world.rank:
        return Result(at_once=True)
    run = RunDirectory(run_folder(options.out))
    view = collectives(run, [trial.trial_id for trial in trials])
    facts = [("results", str(run.path)), ("report", f"bertbench report {run.path}")]
    failed = any(result["status"] != "ok" for result in results)
    shown = of_view(view, options, code=3 if failed else int(view.verdict == "wrong"), facts=facts)
    return replace(shown, at_once=world is not None)
