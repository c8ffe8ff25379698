"""`bertbench throughput TASK`: run a sweep, show the table."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cli.options import RetryOptions, parse_task, run_folder
from bench.cli.progress import note
from bench.cli.result import Result, of_view
from bench.cli.session import session
from bench.cli.sweep_progress import announce, tell_of_cpu
from bench.launch.world import World, joined_world
from bench.machine.devices import Devices, find_devices, free_memory_share
from bench.run.inside import run_inside
from bench.run.supervise import LaunchOptions
from bench.sweep.rounds import Verdict, add_rounds, check_reference, spends
from bench.sweep.sweep import record_request, result_rows, run_trials
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
        """Refuse options that exclude each other."""
        for name in ("max_batch_limit", "max_batch_step"):
            if getattr(self, name) < 1:
                raise UsageError("option-value", f"{flag(name)} {getattr(self, name)} must be at least 1")
        if self.input_only and self.max_batch_search:
            raise UsageError(
                "option-conflict",
                "--input-only does not train, but --max-batch-search does: use separate calls, which may share --out",
            )
        if self.time_budget is not None:
            self._check_budget(self.time_budget)

    def _check_budget(self, seconds: float) -> None:
        if not 0 < seconds < math.inf:
            raise UsageError("option-value", f"--time-budget {seconds:g} must be above 0 and finite")
        if self.input_only or self.max_batch_search:
            other = "--input-only" if self.input_only else "--max-batch-search"
            raise UsageError("option-conflict", f"--time-budget and {other} exclude each other: give one")
        check_reference(self.sweep)


OPTIONS = {"throughput TASK": ThroughputOptions}


def read_words(words: list[str], program: str) -> ThroughputOptions:
    """Return the options."""
    return parse_task(ThroughputOptions, words, program)


def run(options: ThroughputOptions) -> Result:
    """Measure; exit code 3 when a trial is not ok."""
    devices = find_devices(options.device)
    world = joined_world()
    directory = RunDirectory(run_folder(options.out))
    if world is not None:
        return dataclasses.replace(_inside(options, directory, devices, world), at_once=True)
    launch = LaunchOptions(timeout_seconds=options.timeout_seconds, price_per_hour=options.price_per_hour)
    if options.max_batch_search:
        return _largest_batches(options, devices, directory, launch)
    kind = "input" if options.input_only else "throughput"
    sweep = options.sweep
    if options.time_budget is not None:
        sweep = dataclasses.replace(sweep, rounds=sweep.rounds or 1)
    trials = expand(sweep, devices, kind)
    request = {"command": "throughput", **request_of(options)}
    tell_of_cpu(devices, options.device, options.json)
    results: list[Mapping[str, Any]] = []
    added: list[Trial] = []
    verdicts: list[Verdict] = []
    notes: list[str] = []
    with session(directory, request, devices, launch, retry_failed=options.retry_failed) as call:

        def measure(
            some: Sequence[Trial], enough: Callable[[int], bool] = lambda place: False
        ) -> Sequence[Mapping[str, Any]]:
            found = run_trials(call, some, enough)
            results.extend(found)
            return found

        announce(call, trials, options.time_budget)
        if options.time_budget is None:
            measure(trials)
        else:
            ends = time.monotonic() + options.time_budget
            left_out = len(trials) - len(measure(trials, spends(trials, options.time_budget)))
            if left_out:
                notes.append(
                    f"{left_out} of {len(trials)} trials were left out: the time budget of {options.time_budget:g} s "
                    "is spent; run the same command again to measure them"
                )
            added, verdicts = add_rounds(directory, trials, measure, ends - time.monotonic())
            record_request(directory, [*trials, *added], request)
    code = 0 if all(result["status"] == "ok" for result in results) else 3
    comparisons = {"comparisons": [verdict.to_json() for verdict in verdicts]} if verdicts else {}
    measured = _measured(options, directory, [*trials, *added])
    return dataclasses.replace(
        measured,
        document=measured.document | comparisons,
        code=code,
        notes=[*notes, *(verdict.sentence for verdict in verdicts)],
    )


def _inside(options: ThroughputOptions, run: RunDirectory, devices: Devices, world: World) -> Result:
    """Measure in the world of ranks that this process was started in: one trial, since its ranks are here once."""
    if options.time_budget is not None:
        raise UsageError(
            "option-not-applicable",
            "--time-budget: in a world started by a launcher, every call measures one trial: omit the option",
        )
    if options.max_batch_search or options.input_only:
        raise UsageError(
            "option-not-applicable",
            "--max-batch-search and --input-only start their ranks themselves: run this without the launcher",
        )
    trials = expand(options.sweep, devices, world=world)
    if len(trials) != 1:
        raise UsageError(
            "option-not-applicable",
            f"{len(trials)} trials, but a world of {world.world_size} ranks measures one: give one value per "
            "option and --rounds 1, and call the launcher once for each trial; the same --out collects them",
        )
    launch = LaunchOptions(price_per_hour=options.price_per_hour)
    request = {"command": "throughput", **request_of(options)}
    results = run_inside(run, trials, request, devices, world, launch)
    if world.rank:
        return Result()
    reasons = [result["unknown"]["samples_per_second"] for result in results if result["samples_per_second"] is None]
    notes = [f"no throughput: {reason}" for reason in reasons]
    return dataclasses.replace(_measured(options, run, trials), notes=notes)


def _measured(options: ThroughputOptions, run: RunDirectory, trials: Sequence[Trial]) -> Result:
    from analysis.run_views import throughput

    ids = {trial.trial_id for trial in trials}
    rows = [row for row in result_rows(run) if row["trial_id"] in ids]
    facts = [("results", str(run.results_csv)), ("report", f"bertbench report {run.path}")]
    return of_view(throughput(run, ids, rows, options.price_per_hour), options, facts=facts)


def _largest_batches(options: ThroughputOptions, devices: Devices, run: RunDirectory, launch: LaunchOptions) -> Result:
    from analysis import wording
    from bench.sweep.variants import largest_batch, measured_trials

    # One search per combination of everything but the batch size.
    sweep = dataclasses.replace(options.sweep, batch_sizes=options.sweep.batch_sizes[:1], rounds=1)
    request = {"command": "throughput", **request_of(options)}
    if devices.kind == "cpu" and sweep.memory_limit_gib is None:
        # The limit is part of a trial: with another one than before nothing would be resumed.
        limit = _limit_before(run, request)
        if limit is None:
            limit = round(free_memory_share(max(sweep.devices or devices.default_world_sizes())) / 2**30, 1)
        sweep = dataclasses.replace(sweep, memory_limit_gib=limit)
        request["memory_limit_gib"] = limit
    starts = expand(sweep, devices)
    tell_of_cpu(devices, options.device, options.json)
    if sweep.memory_limit_gib != options.sweep.memory_limit_gib:
        note(f"memory limit per rank: {sweep.memory_limit_gib:.1f} GiB (--memory-limit-gib)")
    found: list[dict[str, Any]] = []
    with session(run, request, devices, launch) as call:
        measure = measured_trials(call)
        for start in starts:
            outcome = largest_batch(start, options.max_batch_limit, measure, options.max_batch_step)
            found.append(
                {
                    **{name: getattr(start, name) for name in (*SHAPE_COLUMNS, *OPTION_COLUMNS)},
                    "data": wording.data(start.row()),
                    "memory_limit_gib": options.sweep.memory_limit_gib,
                    **outcome.to_json(),
                }
            )
            run.add_max_batches(found)
    return Result(
        document={"run": str(run.path), "max_batch": found},
        blocks=[_largest(row) for row in found],
        code=0 if all(row["proved"] for row in found) else 3,
    )


def _limit_before(run: RunDirectory, request: Mapping[str, Any]) -> float | None:
    """Return the memory limit in GiB that an earlier call of the same search chose; None if there was none."""
    notes = read_notes(run.sweep_json)
    earlier = notes.get("earlier")
    for before in (notes.get("request"), *reversed(earlier if isinstance(earlier, list) else [])):
        same = isinstance(before, dict) and before.get("max_batch_search") and before.get("sweep") == request["sweep"]
        if same and isinstance(limit := before.get("memory_limit_gib"), float) and limit > 0:
            return limit
    return None


def _largest(row: Mapping[str, Any]) -> str:
    from analysis.wording import by, implementation, model

    what = f"{implementation(row)} {model(row)} on {row['world_size']} device(s){by(row)}"
    what += f" with {row['grad_accum_steps']} micro-steps" * (row["grad_accum_steps"] > 1)
    above = f"{row['fails_at']} fails" if row["fails_at"] else "limit"
    doubt = "" if row["proved"] else ", not proved"
    return f"{what}: largest micro batch {row['micro_batch_size']}{doubt} ({above}: {row['failure']})"
