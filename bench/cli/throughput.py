"""`bertbench throughput TASK`: run a sweep, show the table."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from bench.cli.options import RetryOptions, run_folder
from bench.cli.progress import note
from bench.cli.result import Result, of_view
from bench.cli.session import announce, session
from bench.launch.world import World, joined_world
from bench.machine.devices import Devices, find_devices, free_memory_share
from bench.run.inside import run_inside
from bench.run.supervise import LaunchOptions
from bench.sweep.rounds import add_rounds, check_reference, spends
from bench.sweep.sweep import measured_trials, record_request, result_rows, run_trials
from bench.sweep.trials import Sweep, expand
from common.errors import UsageError
from common.flags import flag, request_of
from common.reading import read_notes
from records.run import RunDirectory
from records.schema import OPTION_COLUMNS, SHAPE_COLUMNS
from records.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class ThroughputOptions(RetryOptions):
    """Measure samples/s. Every combination of the listed values is one trial. The same command with the same --out
    resumes; to measure finished trials again, give another --out.

    Examples:
        bertbench throughput pretrain --batch-sizes 4 8 16
        bertbench throughput pretrain --implementations bertbench hf  # compare with Hugging Face
        bertbench throughput squad --preset large --max-batch-search  # find the largest batch that fits
    """

    REQUIRED: ClassVar = ("task",)
    sweep: Sweep = field(default_factory=Sweep)
    out: Path = Path("runs/throughput")
    """Run directory. The same command resumes it."""
    price_per_hour: float | None = None
    """Price of the machine per hour, for the cost columns; default no cost columns."""
    time_budget: float | None = None
    """Add rounds of the fastest configuration until its comparison with hf is conclusive or this time in s is spent;
    --rounds is 1 by default then. Configurations that do not fit into the time are left to the next call."""
    max_batch_search: bool = False
    """Find the largest batch that fits, from the first of --batch-sizes up."""
    max_batch_limit: int = 4096
    """Largest batch the search tries."""
    max_batch_step: int = 1
    """Resolution of the search, in sequences."""
    input_only: bool = False
    """Measure the input pipeline alone, without training."""

    def __post_init__(self) -> None:
        """Refuse values out of range and options that exclude each other."""
        for name in ("max_batch_limit", "max_batch_step"):
            if getattr(self, name) < 1:
                raise UsageError("option-value", f"{flag(name)} {getattr(self, name)} must be at least 1")
        given = [name for name in ("input_only", "max_batch_search", "time_budget") if getattr(self, name)]
        if len(given) > 1:
            raise UsageError("option-conflict", f"{' and '.join(map(flag, given))} exclude each other: give one")
        if self.time_budget is not None:
            if not 0 < self.time_budget < math.inf:
                raise UsageError("option-value", f"--time-budget {self.time_budget:g} must be above 0 and finite")
            check_reference(self.sweep)


OPTIONS = {"throughput [TASK]": ThroughputOptions}


def run(options: ThroughputOptions) -> Result:
    """Measure; exit code 3 when a trial is not ok."""
    devices = find_devices(options.device)
    world = joined_world()
    run = RunDirectory(run_folder(options.out))
    request = {"command": "throughput", **request_of(options)}
    launch = LaunchOptions(timeout_seconds=options.timeout_seconds, price_per_hour=options.price_per_hour)
    if world is not None:
        return dataclasses.replace(_inside(options, run, request, devices, world), at_once=True)
    if options.max_batch_search:
        return _largest_batches(options, run, request, devices, launch)
    budget, sweep = options.time_budget, options.sweep
    if budget is not None:
        sweep = dataclasses.replace(sweep, rounds=sweep.rounds or 1)
    trials = expand(sweep, devices, "input" if options.input_only else "throughput")
    comparisons: list[dict[str, Any]] = []
    notes: list[str] = []
    with session(run, request, devices, launch, retry_failed=options.retry_failed) as call:
        announce(call, trials, "" if options.json else options.device, budget)
        if budget is None:
            results = run_trials(call, trials)
        else:
            ends = time.monotonic() + budget
            results = run_trials(call, trials, spends(trials, budget))
            if len(results) < len(trials):
                left_out = f"{len(trials) - len(results)} of {len(trials)} trials do not fit into {budget:g} s"
                notes.append(f"{left_out}: run the same command again to measure them")

            def measure(more: Sequence[Trial]) -> Sequence[Mapping[str, Any]]:
                results.extend(found := run_trials(call, more))
                return found

            added, comparisons = add_rounds(run, trials, measure, ends - time.monotonic())
            trials = [*trials, *added]
            record_request(run, trials, request)
    measured = _measured(options, run, trials)
    return dataclasses.replace(
        measured,
        document=measured.document | ({"comparisons": comparisons} if comparisons else {}),
        code=0 if all(result["status"] == "ok" for result in results) else 3,
        notes=[*notes, *(one["sentence"] for one in comparisons)],
    )


def _inside(
    options: ThroughputOptions, run: RunDirectory, request: Mapping[str, Any], devices: Devices, world: World
) -> Result:
    """Measure in the world of ranks that this process was started in: one trial, since its ranks are here once."""
    trials = expand(options.sweep, devices, world=world)
    if len(trials) != 1 or options.time_budget or options.max_batch_search or options.input_only:
        raise UsageError(
            "option-not-applicable",
            f"{world.world_size} ranks of a launcher measure one trial of training, not {len(trials)}: give one value "
            "per option and --rounds 1, without --time-budget, --max-batch-search and --input-only",
        )
    results = run_inside(run, trials, request, devices, world, LaunchOptions(price_per_hour=options.price_per_hour))
    if world.rank:
        return Result()
    reasons = [result["unknown"]["samples_per_second"] for result in results if result["samples_per_second"] is None]
    return dataclasses.replace(
        _measured(options, run, trials), notes=[f"no throughput: {reason}" for reason in reasons]
    )


def _measured(options: ThroughputOptions, run: RunDirectory, trials: Sequence[Trial]) -> Result:
    from analysis.run_views import throughput

    ids = {trial.trial_id for trial in trials}
    rows = [row for row in result_rows(run) if row["trial_id"] in ids]
    facts = [("results", str(run.results_csv)), ("report", f"bertbench report {run.path}")]
    return of_view(throughput(run, ids, rows, options.price_per_hour), options, facts=facts)


def _largest_batches(
    options: ThroughputOptions, run: RunDirectory, request: dict[str, Any], devices: Devices, launch: LaunchOptions
) -> Result:
    from analysis import wording
    from bench.sweep.max_batch import largest_batch

    # One search per combination of everything but the batch size.
    sweep = dataclasses.replace(options.sweep, batch_sizes=options.sweep.batch_sizes[:1], rounds=1)
    if devices.kind == "cpu" and sweep.memory_limit_gib is None:
        # The limit is part of a trial: with another one than before nothing would be resumed.
        limit = _limit_before(run, request)
        if limit is None:
            limit = round(free_memory_share(max(sweep.devices or devices.default_world_sizes())) / 2**30, 1)
        sweep = dataclasses.replace(sweep, memory_limit_gib=limit)
        request["memory_limit_gib"] = limit
    rows: list[dict[str, Any]] = []
    starts = expand(sweep, devices)
    if sweep.memory_limit_gib != options.sweep.memory_limit_gib:
        note(f"memory limit per rank: {sweep.memory_limit_gib:.1f} GiB (--memory-limit-gib)")
    with session(run, request, devices, launch) as call:
        measure = measured_trials(call)
        for start in starts:
            outcome = largest_batch(start, options.max_batch_limit, measure, options.max_batch_step)
            rows.append(
                {
                    **{name: getattr(start, name) for name in (*SHAPE_COLUMNS, *OPTION_COLUMNS)},
                    "data": wording.data(start.row()),
                    "memory_limit_gib": options.sweep.memory_limit_gib,
                    **dataclasses.asdict(outcome),
                }
            )
            run.add_max_batches(rows)
    return Result(
        document={"run": str(run.path), "max_batch": rows},
        blocks=[_largest(row) for row in rows],
        code=0 if all(row["proved"] for row in rows) else 3,
    )


def _limit_before(run: RunDirectory, request: Mapping[str, Any]) -> float | None:
    """Return the memory limit in GiB that an earlier call of the same search chose; None if there was none."""
    notes = read_notes(run.sweep_json)
    for before in (notes.get("request", {}), *reversed(notes.get("earlier", []))):
        if before.get("sweep") == request["sweep"] and before.get("memory_limit_gib"):
            return float(before["memory_limit_gib"])
    return None


def _largest(row: Mapping[str, Any]) -> str:
    from analysis.wording import by, implementation, model

    what = f"{implementation(row)} {model(row)} on {row['world_size']} device(s){by(row)}"
    what += f" with {row['grad_accum_steps']} micro-steps" * (row["grad_accum_steps"] > 1)
    above = f"{row['fails_at']} fails" if row["fails_at"] else "limit"
    doubt = "" if row["proved"] else ", not proved"
    return f"{what}: largest micro batch {row['micro_batch_size']}{doubt} ({above}: {row['failure']})"
