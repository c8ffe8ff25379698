"""`bertbench throughput TASK`: run a sweep, show the table."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from bench.cli.options import TrialOptions, run_folder
from bench.cli.progress import note
from bench.cli.result import Result, of_view
from bench.cli.session import run_all, session
from bench.launch.world import joined_world
from bench.machine.devices import Devices, find_devices
from bench.search.throughput import free_memory_gib, largest_batch
from bench.sweep.options import COUNT, POSITIVE
from bench.sweep.sweep import measured_trials, result_rows
from bench.sweep.trials import Sweep, expand
from common.errors import UsageError
from records.run import RunDirectory
from records.schema import OPTION_COLUMNS, SHAPE_COLUMNS


@dataclass(frozen=True, kw_only=True, slots=True)
class ThroughputOptions(TrialOptions):
    """Measure samples/s. Every combination of the listed values is one trial. The same command with the same --out
    resumes; to measure finished trials again, give another --out.

    Examples:
        bertbench throughput pretrain --batch-sizes 4 8 16
        bertbench throughput pretrain --implementations bertbench hf  # compare with Hugging Face
        bertbench throughput squad --preset large --max-batch-search  # find the largest batch that fits
    """

    REQUIRED: ClassVar = ("task",)

    sweep: Sweep
    out: Path = Path("runs/throughput")
    price_per_hour: Annotated[float | None, POSITIVE] = None
    """Price of the machine per hour, for the cost columns; default no cost columns."""
    max_batch_search: bool = False
    """Find the largest batch that fits, from the first of --batch-sizes up."""
    max_batch_limit: Annotated[int, COUNT] = 4096
    """Largest batch the search tries."""
    input_only: bool = False
    """Measure the input pipeline alone, without training."""

    def __post_init__(self) -> None:
        """Refuse options that exclude each other."""
        if self.input_only and self.max_batch_search:
            raise UsageError("option-conflict", "--input-only and --max-batch-search exclude each other: give one")


OPTIONS = {"throughput [TASK]": ThroughputOptions}


def run(options: ThroughputOptions) -> Result:
    """Measure, in the ranks of a launcher if it was started in them; exit code 3 when a trial is not ok."""
    from analysis.run_views import throughput

    devices, world = find_devices(options.device), joined_world()
    if options.max_batch_search:
        if world is not None:
            raise UsageError("option-not-applicable", "--max-batch-search starts its own ranks: give it to one process")
        return _largest_batches(options, devices)
    trials = expand(options.sweep, devices, world, kind="input" if options.input_only else "throughput")
    results = run_all(options, "throughput", devices, trials, world, options.price_per_hour)
    if world is not None and world.rank:
        return Result(at_once=True)
    run, ids = RunDirectory(run_folder(options.out)), {trial.trial_id for trial in trials}
    rows = [row for row in result_rows(run) if row["trial_id"] in ids]
    facts = [("results", str(run.results_csv)), ("report", f"bertbench report {run.path}")]
    code = 0 if all(result["status"] == "ok" for result in results) else 3
    shown = of_view(throughput(run, ids, rows, options.price_per_hour), options, code=code, facts=facts)
    return dataclasses.replace(shown, at_once=world is not None)


def _largest_batches(options: ThroughputOptions, devices: Devices) -> Result:
    from analysis import wording
    from analysis.run_views import largest_batches

    run, notes = RunDirectory(run_folder(options.out)), {}
    # One search per combination of everything but the batch size.
    sweep = dataclasses.replace(options.sweep, batch_sizes=options.sweep.batch_sizes[:1], rounds=1)
    if devices.kind == "cpu" and sweep.memory_limit_gib is None:
        notes["free_memory_gib"] = free_memory_gib(run)
        ranks = max(sweep.devices or devices.default_world_sizes())
        sweep = dataclasses.replace(sweep, memory_limit_gib=round(notes["free_memory_gib"] / ranks, 1))
    rows: list[dict[str, Any]] = []
    starts = expand(sweep, devices)
    if notes:
        note(f"memory limit per rank: {sweep.memory_limit_gib} GiB (--memory-limit-gib)")
    with session(options, "throughput", devices, options.price_per_hour, **notes) as call:
        for start in starts:
            outcome = largest_batch(start, options.max_batch_limit, measured_trials(call))
            rows.append(
                {
                    **{name: getattr(start, name) for name in (*SHAPE_COLUMNS, *OPTION_COLUMNS)},
                    "data": wording.data(start.row()),
                    "memory_limit_gib": options.sweep.memory_limit_gib,
                    **dataclasses.asdict(outcome),
                }
            )
            run.add_max_batches(rows)
    return of_view(largest_batches(run, rows), options, code=0 if all(row["proved"] for row in rows) else 3)
