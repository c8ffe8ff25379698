"""`bertbench autotune TASK`: find the fastest micro-batch, strategy, activation checkpointing and bucket size."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.cli.configuration import OneConfiguration
from bench.cli.options import parse_task, run_folder
from bench.cli.progress import duration, note
from bench.cli.result import Result
from bench.cli.sweep_progress import trial_display
from bench.cli.trial_display import TrialDisplay
from bench.implementations import OURS
from bench.machine.devices import Devices, find_devices
from bench.plan.autotune import Asked, Measured, Outcome, Space, divisions, grid_size, label, predicted_memory, search
from bench.plan.autotune_trials import (
    Runner,
    best_row,
    check_same_search,
    commands,
    deepspeed_json,
    memory_limit,
    row_of,
    strategies_to_try,
    write_state,
)
from bench.plan.options import AUTO
from bench.plan.sweep import Session, expected_seconds, locked
from bench.plan.trials import expand
from bench.plan.variants import explore, measured_trials
from bench.run.launch import LaunchOptions
from bert.parallel import STRATEGIES
from common.atomic import write_json
from common.errors import Code, UsageError
from common.flags import flag, request_of
from common.registry import lookup
from records.files import write_record
from records.run import RunDirectory
from records.trial import Trial

if TYPE_CHECKING:
    from analysis.render.tables import Block

BEST_FILE = "best.json"
DEEPSPEED_FILE = "deepspeed.json"
# Most near-best configurations with a line of their own; the table marks all of them.
_MOST_CLOSE = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class AutotuneOptions(OneConfiguration):
    """Find the configuration with the highest throughput by short trials, without running all combinations of
    micro-batch size, strategy and ZeRO stage, activation checkpointing, and bucket size. The same command resumes.

    Examples:
        bertbench autotune pretrain
        bertbench autotune squad --preset large --deepspeed-json ds_config.json  # write a DeepSpeed configuration
    """

    model: str = ""
    """Hugging Face model in place of a preset: folder, config.json or hub id; default a preset."""
    trust_remote_code: bool = False
    """Run the Python code that comes with --model."""
    implementation: str | None = None
    """Implementation to measure; default bertbench, with --model hf."""
    devices: int | None = None
    """Devices; default every GPU, or one process on all CPU cores."""
    strategies: tuple[str, ...] = (AUTO,)
    """Parallel strategies to try; default auto: single on one device, otherwise all installed sharding strategies."""
    global_batch_size: int | None = None
    """Sequences per update; micro-batches that do not divide it are skipped; default no accumulation."""
    first_batch: int = 1
    """Smallest micro-batch."""
    last_batch: int = 4096
    """Largest micro-batch."""
    no_recompute: bool = False
    """Never use activation checkpointing."""
    buckets_mib: tuple[int, ...] = (5, 10, 50, 100)
    """Gradient bucket sizes in MiB to try besides the strategy's own."""
    max_seconds: float = 10.0
    """Maximum measuring time per trial in s."""
    min_steps: int = 5
    """Minimum measured steps per trial, time permitting."""
    max_steps: int = 200
    """Maximum steps per trial."""
    rounds: int = 2
    """Repetitions of the two fastest configurations at the end; 0 disables them."""
    decide_trials: int = 12
    """Maximum trials after that to decide between the fastest configuration and close competitors."""
    memory_limit_gib: float | None = None
    """Memory limit per rank in GiB; default that of the GPU, or a share of the free memory."""
    timeout_seconds: float = 600.0
    """Time limit of a trial in s; a trial that exceeds it has the status timeout."""
    deepspeed_json: Path | None = None
    """File for a DeepSpeed configuration of the winner, whatever its strategy; default no file."""
    out: Path = Path("runs/autotune")
    """Run directory. The same command resumes it."""

    def __post_init__(self) -> None:
        """Refuse values out of range; the sweep checks its own options."""
        for name in self.strategies:
            lookup({AUTO: "", **STRATEGIES}, name, "strategy")
        if not self.strategies:
            raise UsageError("option-value", "--strategies needs at least one value")
        if not 1 <= self.first_batch <= self.last_batch:
            raise UsageError(
                "option-value", f"--first-batch {self.first_batch} must be at least 1 and at most {self.last_batch}"
            )
        for name in ("devices", "global_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError("option-value", f"{flag(name)} {value} must be at least 1")
        if any(size < 1 for size in self.buckets_mib) or min(self.rounds, self.decide_trials) < 0:
            raise UsageError(
                "option-value",
                "--buckets-mib must be at least 1, --rounds and --decide-trials at least 0",
            )


OPTIONS = {"autotune TASK": AutotuneOptions}


def read_words(words: list[str], program: str) -> AutotuneOptions:
    """Parse the command line; the first word names the task."""
    return parse_task(AutotuneOptions, words, program)


def run(options: AutotuneOptions) -> Result:
    """Search; return exit code 3 if no trial succeeded."""
    devices = find_devices(options.device)
    directory = RunDirectory(run_folder(options.out))
    count = options.devices or devices.default_world_sizes()[-1]
    strategies, absent = strategies_to_try(options.strategies, count)
    if not strategies:
        code: Code = "option-conflict" if all(name == "single" for name, _ in absent) else "package-missing"
        raise UsageError(code, "no strategy can run here: " + "; ".join(f"{name}: {why}" for name, why in absent))
    limit = memory_limit(directory, options.memory_limit_gib, devices, count)
    base = _base(options, devices, count, limit)
    check_same_search(directory, base)
    space = Space(
        strategies=tuple(strategies),
        first_batch=options.first_batch,
        last_batch=options.last_batch,
        recompute=(False,) if options.no_recompute else (False, True),
        buckets_mib=options.buckets_mib,
        limit_bytes=limit,
        accumulation=divisions(options.global_batch_size, count),
        rounds=options.rounds,
        decide_trials=options.decide_trials,
    )
    if not grid_size(space):
        raise UsageError(
            "batch-size-mismatch",
            f"--global-batch-size {options.global_batch_size} is not a multiple of any micro-batch from "
            f"{options.first_batch} to {options.last_batch} on {count} device{'s' if count > 1 else ''}: give another",
        )
    with locked(directory), trial_display(lambda *_: None) as display:
        return _search(options, directory, base, space, devices, absent, display)


def _base(options: AutotuneOptions, devices: Devices, count: int, limit: int | None) -> Trial:
    sweep = options.sweep(
        model=options.model,
        trust_remote_code=options.trust_remote_code,
        implementations=(options.implementation or ("hf" if options.model else OURS),),
        devices=(count,),
        batch_sizes=(options.first_batch,),
        min_steps=options.min_steps,
        max_steps=options.max_steps,
        max_seconds=options.max_seconds,
        memory_limit_gib=None if limit is None else limit / 2**30,
    )
    (trial,) = expand(sweep, devices)
    return trial


def _search(
    options: AutotuneOptions,
    run: RunDirectory,
    base: Trial,
    space: Space,
    devices: Devices,
    absent: list[tuple[str, str]],
    display: TrialDisplay,
) -> Result:
    request = {"command": "autotune", **request_of(options)}
    launch = LaunchOptions(timeout_seconds=options.timeout_seconds, look=display.look)
    session = Session(
        run=run, request=request, devices=devices, options=launch, progress=display.show, note=note,
        retry_failed=options.retry_failed,
    )  # fmt: skip
    trials = measured_trials(session)
    each = expected_seconds(run, [base])
    said = "" if each is None else f", about {duration(each)} per trial"
    print(f"searching among {grid_size(space):,} configurations{said}", file=sys.stderr, flush=True)
    runner = Runner(run, base, request, trials)
    measured: list[Measured] = []
    for name, why in absent:
        note(f"skipped {name}: {why}")

    def document(best: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        own = {"request": request, "base": base.to_json(), "limit_bytes": space.limit_bytes, "grid": grid_size(space)}
        return {**own, "trials": [row_of(item) for item in measured], "best": best, **more}

    def measure(asked: Asked) -> Measured:
        found = runner.measure(asked)
        measured.append(found)
        write_state(run, document())
        print(f"[{len(measured)}] {_told(found)}", file=sys.stderr, flush=True)
        return found

    outcome = explore(search(space, base, runner.earlier), measure)
    assert outcome is not None, "the search has no stop condition"
    measured[:] = outcome.measured
    runner.finish()
    left_out = [*absent, *outcome.left_out]
    best = best_row(run, outcome)
    found = document(best, samples_per_second=outcome.rate, left_out=left_out, predicted={})
    if outcome.best is not None:
        found |= {"commands": commands(outcome.best.trial)}
        found["predicted"] = _parts(outcome.best.trial)
    write_state(run, found)
    written = [] if best is None else _write_best(options, run, outcome, best)
    return Result(
        document={"run": str(run.path), **found},
        blocks=_blocks(run, found, outcome),
        written=[*written, run.results_csv] if written else (),
        code=0 if outcome.best is not None else 3,
    )


def _parts(trial: Trial) -> dict[str, int]:
    memory = predicted_memory(trial)
    if memory is None:
        return {}
    names = ("parameters", "gradients", "optimizer", "activations", "workspace", "total")
    return {name: getattr(memory, name) for name in names}


def _told(found: Measured) -> str:
    name = label(found.trial) + (f", round {found.trial.round + 1}" if found.trial.round else "")
    if found.status != "ok":
        return f"{name}: {found.status}: {found.reason}"
    memory = "" if found.peak_memory_bytes is None else f", {found.peak_memory_bytes / 2**30:.2f} GiB"
    predicted = "" if found.predicted_bytes is None else f" (predicted {found.predicted_bytes / 2**30:.2f} GiB)"
    return f"{name}: {found.rate:,.1f} samples/s{memory}{predicted}"


def _write_best(options: AutotuneOptions, run: RunDirectory, outcome: Outcome, best: dict[str, Any]) -> list[Path]:
    assert outcome.best is not None
    trial = outcome.best.trial
    own = {"device": trial.device, "world_size": trial.world_size, "precision": trial.precision}
    written = [run.path / BEST_FILE]
    write_record(written[0], {**best, **own, "commands": commands(trial)})
    paths = [run.path / DEEPSPEED_FILE] if trial.strategy == "deepspeed" else []
    paths += [options.deepspeed_json.resolve()] if options.deepspeed_json is not None else []
    for path in paths:
        write_json(path, deepspeed_json(trial))
    return [*written, *paths]


def _blocks(run: RunDirectory, document: dict[str, Any], outcome: Outcome) -> list["Block"]:
    from analysis.render.study import configurations_table
    from analysis.render.tables import Facts
    from analysis.wording import fine, size

    names = [label(found.trial) for found in outcome.measured]
    best = "" if outcome.best is None else label(outcome.best.trial)
    close = [label(trial) for trial, _ in outcome.close]
    table = [configurations_table(document["trials"], names, best, close)] if names else []
    facts = [("skipped", f"{what}: {why}") for what, why in document["left_out"]]
    facts.append(
        (
            "trials",
            f"{len(outcome.measured)} of {len(set(names))} configuration{'s'[: len(set(names)) != 1]}, including "
            f"repeated rounds and intermediate sizes; the full grid has {document['grid']} configurations",
        )
    )
    if outcome.best is None:
        said = f"see the logs of the trials in {run.path}/trials/*/log.txt"
        return [*table, Facts([*facts, ("no result", said if names else "every configuration was skipped, see above")])]
    for trial, found in outcome.close[:_MOST_CLOSE]:
        rounds = f"{len(found.rates)} round{'s'[: len(found.rates) != 1]}"
        facts.append(("close", f"{label(trial)}, {fine(found.rate)} samples/s in {rounds}"))
    more = len(outcome.close) - _MOST_CLOSE
    facts += [("", f"and {more} more, marked ~ in the table")] * (more > 0)
    if outcome.undecided:
        facts.append(("conclusive", f"no: {outcome.undecided} (--rounds, --decide-trials)"))
    parts = ", ".join(f"{name} {size(count)}" for name, count in document["predicted"].items() if name != "total")
    facts += [("memory", f"predicted for the fastest: {parts}")] * bool(parts)
    facts += [(name, shlex.join(words)) for name, words in document["commands"].items()]
    return [*table, Facts(facts)]
