"""`bertbench tune TASK --for score|throughput`: search for training options, or for the fastest configuration."""

import dataclasses
import functools
import itertools
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from analysis.wording import fine
from bench.cli.options import RARE, TrialOptions, run_folder
from bench.cli.parser import parse, words_of
from bench.cli.result import Result
from bench.cli.session import session
from bench.implementations import OURS
from bench.machine.devices import find_devices
from bench.run.processes import StopRequest
from bench.search.score import Worker, read_space
from bench.search.throughput import Search, free_memory_gib, lanes
from bench.sweep.options import AUTO, COUNT, POSITIVE, STRATEGY
from bench.sweep.sweep import measured_trials, record_request
from bench.sweep.training import TrainOptions
from bench.sweep.trials import Workload
from common.errors import UsageError
from records.files import write_record
from records.run import RunDirectory

Goal = Literal["score", "throughput"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreOptions(TrainOptions):
    """Search with Optuna for the training options with the best score. Each trial is a training; one that falls behind
    is stopped early. The same command resumes the study, and several processes or a job array can share it.

    The options of `bertbench train TASK` apply to all trials; --best-by is the score to optimize.

    Examples:
        bertbench tune glue --task mrpc --data runs/glue-data --search learning_rate=log:1e-5:1e-4 --trials 10
        bertbench tune squad --data runs/squad --search learning_rate=2e-5,3e-5,5e-5 epochs=2:4
        bertbench tune pretrain --for throughput  # the fastest micro batch, strategy, checkpointing and buckets
    """

    RARE: ClassVar = RARE | {item.name for item in dataclasses.fields(TrainOptions)} - {"task", "data", "out", "json"}

    for_: Goal = "score"
    """What to search for."""
    search: tuple[str, ...]
    """Training options to search: NAME=VALUE,VALUE or NAME=LOW:HIGH or NAME=log:LOW:HIGH."""
    trials: Annotated[int, COUNT] = 20
    """Trials in the whole study."""
    sampler: Literal["tpe", "random"] = "tpe"
    """tpe learns from earlier trials; random does not."""
    pruner: Literal["median", "none"] = "median"
    """median stops a trial that is worse than half of the others at the same evaluation; none stops no trial."""
    out: Path | None = None
    """Folder of the study. The same command resumes it; several processes can share it; default runs/tune."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ThroughputOptions(TrialOptions):
    """Search for the micro-batch size, strategy and ZeRO stage, activation checkpointing and bucket size with the
    highest throughput by short trials, without running all combinations. The same command resumes.

    Examples:
        bertbench tune pretrain --for throughput
        bertbench tune squad --for throughput --preset large --global-batch-size 32
    """

    workload: Workload = field(default_factory=Workload)
    for_: Goal = "throughput"
    """What to search for."""
    model: str = ""
    """Hugging Face model in place of a preset: folder, config.json or hub id; default a preset."""
    trust_remote_code: bool = False
    """Run the Python code that comes with --model."""
    implementation: str | None = None
    """Implementation to measure; default bertbench, with --model hf."""
    devices: Annotated[int | None, COUNT] = None
    """Devices; default every GPU, or one process on all CPU cores."""
    strategies: Annotated[tuple[str, ...], STRATEGY] = (AUTO,)
    """Parallel strategies to try; default auto: single on one device, otherwise all installed sharding strategies."""
    global_batch_size: Annotated[int | None, COUNT] = None
    """Sequences per update; micro-batches that do not divide it are skipped; default no accumulation."""
    last_batch: Annotated[int, COUNT] = 4096
    """Largest micro-batch."""
    max_seconds: Annotated[float, POSITIVE] = 10.0
    """Maximum measuring time per trial in s."""
    rounds: Annotated[int, COUNT] = 6
    """Maximum rounds of a configuration; the fastest ones are measured again until it is clear which is the fastest."""
    memory_limit_gib: Annotated[float | None, POSITIVE] = None
    """Memory limit per rank in GiB; default the GPU's memory, or a share of the free memory."""
    out: Path = Path("runs/tune-throughput")


OPTIONS = {"tune TASK": ScoreOptions, "tune TASK --for=throughput": ThroughputOptions}


def form(words: list[str]) -> type:
    """Return the options that the words after `bertbench tune` give."""
    throughput = "--for=throughput" in words or ("--for", "throughput") in itertools.pairwise(words)
    return ThroughputOptions if throughput else ScoreOptions


def run(options: ScoreOptions | ThroughputOptions) -> Result:
    """Search; return exit code 0 for a finished or stopped search, 3 if no trial succeeded."""
    is_score = isinstance(options, ScoreOptions)
    out, other = run_folder(options.out or Path("runs/tune")), "sweep.json" if is_score else "study.db"
    if (out / other).exists():
        raise UsageError("folder-occupied", f"{out} has other results ({other}): give another --out")
    return _for_score(options, out) if isinstance(options, ScoreOptions) else _for_throughput(options, out)


def _for_score(options: ScoreOptions, out: Path) -> Result:
    from analysis.render.study import tune_blocks
    from analysis.render.tables import Facts

    if options.several:
        raise UsageError("option-not-applicable", "--vary, --seeds and --until are not for tune: give --search")
    words = words_of(dataclasses.replace(options, out=None, json=False, max_seconds=None), TrainOptions)

    def read(more: Sequence[str]) -> TrainOptions:
        return parse(TrainOptions, [*words, *more], "bertbench train")

    with StopRequest() as stop:
        stop.max_seconds = options.max_seconds
        document, ended = Worker(
            folder=out, space=read_space(options.search, read), base=read([]), read=read,
            words=words, devices=find_devices(options.device), trials=options.trials,
            sampler=options.sampler, pruner=options.pruner, stop=stop,
            note=functools.partial(print, file=sys.stderr, flush=True),
        ).run()  # fmt: skip
    unfinished = sum(trial["state"] in ("waiting", "running") for trial in document["trials"])
    return Result(
        document={"study": str(out), "ended": ended, **document},
        blocks=[*tune_blocks(document), Facts([("ended", ended)])],
        written=[out / name for name in ("tune.json", "trials.csv", *(["best.json"] if document["best"] else []))],
        notes=[f"{unfinished} unfinished trial(s): run the same command to resume"] * (unfinished > 0),
        code=130 if stop.signal == signal.SIGINT else 3 if document["best"] is None and not stop.wanted() else 0,
    )


def _for_throughput(options: ThroughputOptions, out: Path) -> Result:
    from analysis.render.study import configurations_table
    from analysis.render.tables import Facts

    run, devices = RunDirectory(out), find_devices(options.device)
    count, limit, notes = options.devices or devices.default_world_sizes()[-1], options.memory_limit_gib, {}
    if limit is None and devices.kind == "cpu":
        notes["free_memory_gib"] = free_memory_gib(run)
        limit = round(notes["free_memory_gib"] / count, 1)
    sweep = options.workload.sweep(
        model=options.model, trust_remote_code=options.trust_remote_code, strategies=options.strategies,
        implementations=(options.implementation or ("hf" if options.model else OURS),), devices=(count,),
        batch_sizes=(1,), min_steps=5, max_steps=200, max_seconds=options.max_seconds, memory_limit_gib=limit,
    )  # fmt: skip
    places = lanes(sweep, devices)
    with session(options, "tune", devices, **notes) as call:
        search = Search(
            lanes=places, last_batch=options.last_batch, global_batch_size=options.global_batch_size,
            rounds=options.rounds, measure=measured_trials(call),
        )  # fmt: skip
        search.run()
        if not search.results:
            problem = f"--global-batch-size {options.global_batch_size} is no multiple of {count} devices"
            raise UsageError("batch-size-mismatch", problem)
        record_request(run, list(search.results), call.request)
        rows, best = search.rows(), search.best(run)
        written = {"tune.json": {"trials": rows, "best": best}, **({"best.json": best} if best else {})}
        for name, document in written.items():
            write_record(run.path / name, document)
    facts = [("no result", f"see {run.path}/trials/*/log.txt")]
    if best is not None:
        rate, low, high = map(fine, (best["samples_per_second"], *best["interval"]))
        facts = [
            ("fastest", f"{best['configuration']}: {rate} samples/s, 95 % interval {low} to {high}"),
            ("conclusive", f"no: {best['undecided']} (--rounds)" if best["undecided"] else "yes"),
            ("command", shlex.join(best["command"])),
        ]
    names = [row["configuration"] for row in rows]
    table = configurations_table(rows, names, best["configuration"] if best else "", best["close"] if best else [])
    return Result(
        document={"run": str(run.path), "trials": rows, "best": best},
        blocks=[table, Facts(facts)],
        written=[*(run.path / name for name in written), run.results_csv],
        code=0 if best is not None else 3,
    )
