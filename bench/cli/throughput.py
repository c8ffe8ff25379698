"""`bertbench throughput TASK`: run a sweep, show the table."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from bench.cli.options import TrialOptions, run_folder
from bench.cli.progress import note
from bench.cli.result import Result, of_view
from bench.cli.session import announce, run_all, session
from bench.launch.world import World, joined_world
from bench.machine.devices import Devices, find_devices
from bench.sweep.max_batch import free_memory_gib, largest_batch
from bench.sweep.options import ABOVE_0, AT_LEAST_1, check_ranges
from bench.sweep.rounds import REFERENCE, run_until_decided
from bench.sweep.sweep import measured_trials, result_rows
from bench.sweep.trials import Sweep, expand
from common.errors import UsageError
from common.flags import flag
from records.run import RunDirectory
from records.schema import OPTION_COLUMNS, SHAPE_COLUMNS
from records.trial import Trial


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
    price_per_hour: float | None = None
    """Price of the machine per hour, for the cost columns; default no cost columns."""
    time_budget: float | None = None
    """Add rounds of the fastest configuration until its comparison with hf is conclusive or this time in s is spent;
    --rounds is 1 by default then. Configurations that do not fit into the time are left to the next call."""
    max_batch_search: bool = False
    """Find the largest batch that fits, from the first of --batch-sizes up."""
    max_batch_limit: int = 4096
    """Largest batch the search tries."""
    input_only: bool = False
    """Measure the input pipeline alone, without training."""

    def __post_init__(self) -> None:
        """Refuse values out of range and options that exclude each other."""
        check_ranges(self, max_batch_limit=AT_LEAST_1, time_budget=ABOVE_0)
        given = [name for name in ("input_only", "max_batch_search", "time_budget") if getattr(self, name)]
        if len(given) > 1:
            raise UsageError("option-conflict", f"{' and '.join(map(flag, given))} exclude each other: give one")
        compared = {*self.sweep.implementations}
        if self.time_budget is not None and not {REFERENCE} < compared:
            problem = f"--time-budget needs a comparison with {REFERENCE}, not {' '.join(compared)} alone"
            raise UsageError("option-not-applicable", f"{problem}: use --implementations bertbench {REFERENCE}")


OPTIONS = {"throughput [TASK]": ThroughputOptions}


def run(options: ThroughputOptions) -> Result:
    """Measure; exit code 3 when a trial is not ok."""
    devices, world = find_devices(options.device), joined_world()
    if world is not None:
        return dataclasses.replace(_inside(options, devices, world), at_once=True)
    if options.max_batch_search:
        return _largest_batches(options, devices)
    budget, sweep = options.time_budget, options.sweep
    if budget is not None:
        sweep = dataclasses.replace(sweep, rounds=sweep.rounds or 1)
    trials = expand(sweep, devices, kind="input" if options.input_only else "throughput")
    if budget is None:
        results = run_all(options, "throughput", devices, trials, price_per_hour=options.price_per_hour)
        return dataclasses.replace(_measured(options, trials), code=_code(results))
    with session(options, "throughput", devices, options.price_per_hour) as call:
        announce(call, trials, options, budget)
        ran = run_until_decided(call, trials, budget)
    measured, left = _measured(options, ran.trials), f"{ran.left_out} of {len(trials)} trials"
    again = [f"{left} do not fit into {budget:g} s: run the same command again to measure them"] * (ran.left_out > 0)
    return dataclasses.replace(
        measured,
        document=measured.document | ({"comparisons": ran.comparisons} if ran.comparisons else {}),
        code=_code(ran.results),
        notes=[*again, *(one["sentence"] for one in ran.comparisons)],
    )


def _code(results: Sequence[Mapping[str, Any]]) -> int:
    return 0 if all(result["status"] == "ok" for result in results) else 3


def _inside(options: ThroughputOptions, devices: Devices, world: World) -> Result:
    """Measure in the world of ranks that this process was started in: one trial, since its ranks are here once."""
    trials = expand(options.sweep, devices, world)
    if len(trials) != 1 or options.time_budget or options.max_batch_search or options.input_only:
        problem = f"{world.world_size} ranks of a launcher measure one trial of training, not {len(trials)} or a search"
        raise UsageError("option-not-applicable", f"{problem}: give one value per option and --rounds 1")
    results = run_all(options, "throughput", devices, trials, world, options.price_per_hour)
    if world.rank:
        return Result()
    reasons = [result["unknown"]["samples_per_second"] for result in results if result["samples_per_second"] is None]
    return dataclasses.replace(_measured(options, trials), notes=[f"no throughput: {reason}" for reason in reasons])


def _measured(options: ThroughputOptions, trials: Sequence[Trial]) -> Result:
    from analysis.run_views import throughput

    run = RunDirectory(run_folder(options.out))
    ids = {trial.trial_id for trial in trials}
    rows = [row for row in result_rows(run) if row["trial_id"] in ids]
    facts = [("results", str(run.results_csv)), ("report", f"bertbench report {run.path}")]
    return of_view(throughput(run, ids, rows, options.price_per_hour), options, facts=facts)


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
