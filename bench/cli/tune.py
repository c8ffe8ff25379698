"""`bertbench tune TASK --for score|throughput`: search for training options, or for the fastest configuration."""

import itertools
import math
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from bench.cli.configuration import OneConfiguration
from bench.cli.options import Printed, check_task, run_folder
from bench.cli.parser import parse, parse_known
from bench.cli.result import Result
from bench.cli.session import session
from bench.cli.train import parse_trainings
from bench.implementations import OURS
from bench.launch.world import joined_world
from bench.machine.devices import find_devices, free_memory_share
from bench.run.processes import StopRequest
from bench.run.supervise import LaunchOptions
from bench.search.objective import make_objective
from bench.search.score import Worker, plan_trial
from bench.search.space import Parameter, read_space
from bench.search.study import open_study, write_results
from bench.search.throughput import Search, best_of, lanes, row_of
from bench.sweep.options import AUTO
from bench.sweep.request import check_same_request
from bench.sweep.sweep import measured_trials, record_request
from bench.sweep.training import TrainOptions, Value, option_kinds
from common.errors import UsageError
from common.flags import Groups, OneOf, Positional, request_of
from common.reading import read_notes
from records.files import write_record
from records.run import RunDirectory

if TYPE_CHECKING:
    from analysis.render.tables import Block

Goal = Annotated[str, OneOf(("score", "throughput"))]
# Options of a training that may change between calls of one search.
FREE = ("out", "json", "threads", "max_seconds", "log_to", "log_every", "save_every", "keep", "device", "file")
# Further options that cannot be searched: they define the comparison.
FIXED = ("task", "benchmark_task", "phase", "devices", "eval_every", "eval_data", "eval_samples", "best_by",
          "deepspeed_config")  # fmt: skip
_FREE_OF_THROUGHPUT = ("out", "json", "timeout_seconds", "retry_failed", "rounds")
# Measured steps of a trial of a search for throughput.
_MIN_STEPS, _MAX_STEPS = 5, 200


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreOptions(Printed):
    """Search with Optuna for the training options with the best score. Each trial is a training; one that falls behind
    is stopped early. The same command resumes the study, and several processes or a job array can share it.

    It also takes the options of `bertbench train TASK`, which apply to all trials.

    Examples:
        bertbench tune glue --task mrpc --data runs/glue-data --search learning_rate=log:1e-5:1e-4 --trials 10
        bertbench tune squad --data runs/squad --search learning_rate=2e-5,3e-5,5e-5 epochs=2:4
        bertbench tune pretrain --for throughput  # the fastest micro batch, strategy, checkpointing and buckets
    """

    GROUPS: ClassVar[Groups] = {"search": ("for_", "search", "objective", "trials", "sampler", "pruner")}

    task: Positional[str]
    """Task to train, as in `bertbench train`."""
    for_: Goal = "score"
    """What to search for."""
    search: tuple[str, ...] = ()
    """Training options to search: NAME=VALUE,VALUE or NAME=LOW:HIGH or NAME=log:LOW:HIGH."""
    objective: str | None = None
    """Score to optimize, which also selects the best checkpoint of a trial; default the task's own score."""
    trials: int = 20
    """Trials in the whole study."""
    max_seconds: float | None = None
    """Stop after this time in s; the running trial is saved and the next call resumes it; default no limit."""
    sampler: Annotated[str, OneOf(("tpe", "random"))] = "tpe"
    """tpe learns from earlier trials; random does not."""
    pruner: Annotated[str, OneOf(("median", "none"))] = "median"
    """median stops a trial that is worse than half of the others at the same evaluation; none stops no trial."""
    out: Path = Path("runs/tune")
    """Folder of the study. The same command resumes it; several processes can share it."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        if self.trials < 1 or not 0 < (self.max_seconds or 1) < math.inf:
            raise UsageError("option-value", "--trials must be at least 1, and --max-seconds above 0 and finite")


@dataclass(frozen=True, kw_only=True, slots=True)
class ThroughputOptions(OneConfiguration):
    """Search for the micro-batch size, strategy and ZeRO stage, activation checkpointing and bucket size with the
    highest throughput by short trials, without running all combinations. The same command resumes.

    Examples:
        bertbench tune pretrain --for throughput
        bertbench tune squad --for throughput --preset large --global-batch-size 32
    """

    GROUPS: ClassVar[Groups] = {"search": ("for_", "last_batch")}

    for_: Goal = "throughput"
    """What to search for."""
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
    last_batch: int = 4096
    """Largest micro-batch."""
    max_seconds: float = 10.0
    """Maximum measuring time per trial in s."""
    rounds: int = 6
    """Maximum rounds of a configuration; the fastest ones are measured again until it is clear which is the fastest."""
    memory_limit_gib: float | None = None
    """Memory limit per rank in GiB; default the GPU's memory, or a share of the free memory."""
    out: Path = Path("runs/tune-throughput")
    """Run directory. The same command resumes it."""

    def __post_init__(self) -> None:
        """Refuse values out of range; the sweep checks its own options."""
        numbers = {"--last-batch": self.last_batch, "--rounds": self.rounds, "--devices": self.devices,
                   "--global-batch-size": self.global_batch_size}  # fmt: skip
        for option, value in numbers.items():
            if value is not None and value < 1:
                raise UsageError("option-value", f"{option} {value} must be at least 1")


OPTIONS = {"tune TASK": ScoreOptions, "tune TASK --for=throughput": ThroughputOptions}


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """A call of the command for a score."""

    options: ScoreOptions
    base: TrainOptions
    """Options common to all trainings."""
    words: Sequence[str]
    """The command-line words of `base`."""

    @property
    def json(self) -> bool:
        """Whether the result is for programs."""
        return self.options.json


def read_words(argv: list[str], program: str) -> ScoreCall | ThroughputOptions:
    """Parse the options; the first word names the task."""
    check_task(argv, program)
    if "--for=throughput" in argv or ("--for", "throughput") in itertools.pairwise(argv):
        return parse(ThroughputOptions, argv, program)
    options, words = parse_known(ScoreOptions, argv, program)
    base = parse_trainings(options.task, words)
    if base.best_by is not None:
        raise UsageError(
            "option-not-applicable", f"--best-by {base.best_by}: the objective decides: give --objective {base.best_by}"
        )
    if joined_world() is not None:
        raise UsageError("option-not-applicable", "tune starts its processes itself: run it without torchrun")
    return ScoreCall(options, base, words)


def run(call: ScoreCall | ThroughputOptions) -> Result:
    """Search; return exit code 0 for a finished or stopped search, 3 if no trial succeeded."""
    return _search_throughput(call) if isinstance(call, ThroughputOptions) else _search_score(call)


def _search_score(call: ScoreCall) -> Result:
    options, base = call.options, call.base
    with StopRequest() as stop:
        stop.limit(options.max_seconds)
        out, devices = run_folder(options.out), find_devices(base.device)
        space = read_space(options.search, option_kinds((*FREE, *FIXED)))
        if not space:
            raise UsageError("option-missing", "nothing to search: give --search, such as learning_rate=log:1e-5:1e-4")
        try:
            plan, _ = plan_trial(base, _values(space, 0), out, devices)
        except UsageError:
            plan, _ = plan_trial(base, _values(space, -1), out, devices)
        objective = make_objective(plan.settings, options.objective)
        given = {**request_of(base), "data": base.data or base.file}
        given |= given.pop("task_flags")
        training = {name: value for name, value in given.items() if name not in (*FREE, *space)}
        about = {"task": options.task, "space": {name: one.text for name, one in space.items()}, "training": training}
        request = {"objective": objective.name, "search": sorted(options.search), **training}
        with open_study(out, request, objective.maximize, options.pruner) as study:

            def write() -> dict[str, Any]:
                return write_results(study, out, objective, about)

            ended = Worker(
                study=study, folder=out, space=space, objective=objective, base=base, words=[options.task, *call.words],
                devices=devices, trials=options.trials, sampler=options.sampler, stop=stop, tell=_tell, write=write,
            ).run()  # fmt: skip
            document = write()
    return _score_result(out, document, ended, stop)


def _values(space: Mapping[str, Parameter], place: int) -> dict[str, Value]:
    """Return the first (0) or the last (-1) values of all parameters."""
    return {name: (one.choices or (one.low, one.high))[place] for name, one in space.items()}


def _score_result(out: Path, document: dict[str, Any], ended: str, stop: StopRequest) -> Result:
    from analysis.render.study import tune_blocks
    from analysis.render.tables import Facts

    unfinished = sum(trial["state"] in ("waiting", "running") for trial in document["trials"])
    charts = shlex.join(["optuna-dashboard", f"sqlite:///{out / 'study.db'}"])
    return Result(
        document={"study": str(out), "ended": ended, **document},
        blocks=[*tune_blocks(document), Facts([("ended", ended), ("charts", charts)])],
        written=[out / name for name in ("tune.json", "trials.csv", *(["best.json"] if document["best"] else []))],
        notes=[f"{unfinished} unfinished trial(s): run the same command to resume"] * (unfinished > 0),
        code=130 if stop.signal == signal.SIGINT else 3 if document["best"] is None and not stop.wanted() else 0,
    )


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _search_throughput(options: ThroughputOptions) -> Result:
    devices = find_devices(options.device)
    run = RunDirectory(run_folder(options.out))
    state = run.path / "tune.json"
    before = read_notes(state)
    request = {name: value for name, value in request_of(options).items() if name not in _FREE_OF_THROUGHPUT}
    check_same_request(run.path, before.get("request", {}), request)
    if before and "request" not in before:
        raise UsageError("folder-occupied", f"{run.path} holds a search for a score: give another --out")
    count = options.devices or devices.default_world_sizes()[-1]
    if options.global_batch_size is not None and options.global_batch_size % count:
        problem = f"--global-batch-size {options.global_batch_size} is no multiple of {count} devices"
        raise UsageError("batch-size-mismatch", problem)
    limit = before.get("memory_limit_gib") if options.memory_limit_gib is None else options.memory_limit_gib
    if limit is None and devices.kind == "cpu":
        limit = round(free_memory_share(count) / 2**30, 1)
    sweep = options.sweep(
        model=options.model, trust_remote_code=options.trust_remote_code,
        implementations=(options.implementation or ("hf" if options.model else OURS),), strategies=options.strategies,
        devices=(count,), batch_sizes=(1,), min_steps=_MIN_STEPS, max_steps=_MAX_STEPS,
        max_seconds=options.max_seconds, memory_limit_gib=limit,
    )  # fmt: skip
    found = lanes(sweep, devices)
    launch = LaunchOptions(timeout_seconds=options.timeout_seconds)
    with session(run, request, devices, launch, retry_failed=options.retry_failed) as call:
        document = {"request": request, "memory_limit_gib": limit}
        if not before:
            write_record(state, document)  # for the call that resumes
        search = Search(
            lanes=found, last_batch=options.last_batch, global_batch_size=options.global_batch_size,
            rounds=options.rounds, measure=measured_trials(call),
        )  # fmt: skip
        search.run()
        if not search.results:
            raise UsageError(
                "batch-size-mismatch",
                f"--global-batch-size {options.global_batch_size} is no multiple of a micro batch of {count} device(s)",
            )
        record_request(run, list(search.results), request)
        best = best_of(search, run)
        rows = [row_of(trial, result) for trial, result in search.results.items()]
        document |= {"trials": rows, "skipped": search.skipped, "best": best}
        write_record(state, document)
        if best is not None:
            write_record(run.path / "best.json", best)
    return Result(
        document={"run": str(run.path), **document},
        blocks=_throughput_blocks(run, document),
        written=[state, run.results_csv, *([run.path / "best.json"] * (best is not None))],
        code=0 if best is not None else 3,
    )


def _throughput_blocks(run: RunDirectory, document: dict[str, Any]) -> "list[Block]":
    from analysis.render.study import configurations_table
    from analysis.render.tables import Facts
    from analysis.wording import fine

    rows, best = document["trials"], document["best"]
    facts = [("skipped", f"{what}: {why}") for what, why in document["skipped"].items()]
    names = [row["configuration"] for row in rows]
    if best is None:
        facts.append(("no result", f"see the logs of the trials in {run.path}/trials/*/log.txt"))
        return [configurations_table(rows, names, "", []), Facts(facts)]
    rate, low, high = map(fine, (best["samples_per_second"], *best["interval"]))
    facts.append(("fastest", f"{best['configuration']}: {rate} samples/s, 95 % interval {low} to {high}"))
    facts.append(("conclusive", f"no: {best['undecided']} (--rounds)" if best["undecided"] else "yes"))
    facts.append(("command", shlex.join(best["command"])))
    return [configurations_table(rows, names, best["configuration"], best["close"]), Facts(facts)]
