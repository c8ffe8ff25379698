"""`bertbench train TASK --vary NAME=V,V --seeds N --until mlm_loss=X`: several trainings and their comparison."""

import itertools
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from analysis.metrics.comparison.trainings import NOT_BEGUN, NOT_REACHED, SCORE, STOPPED, WHOLE, Course
from bench.cli.options import Printed, TrialOptions, run_folder
from bench.cli.parser import parse, parse_known
from bench.cli.progress import note
from bench.cli.result import Result, when_writable
from bench.cli.session import session
from bench.cli.train_progress import TrainProgress
from bench.launch.world import joined_world
from bench.machine.devices import find_devices
from bench.run.attempt import train_once
from bench.run.processes import StopRequest
from bench.sweep.options import ABOVE_0, AT_LEAST_1, check_ranges
from bench.sweep.training import TrainOptions
from bench.sweep.trainings import TrainingsPlan, plan_trainings, profile_variants, variant_name
from common import locks
from common.errors import UsageError
from common.flags import Positional, flag
from records.training import Trainings

# Options that are no part of what is compared, or that have to be the same.
_NOT_VARIED = ("task", "file", "data", "out", "json", "device", "seed", "global_batch_size", "eval_data", "max_seconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class SeveralOptions(Printed):
    """Train every combination of some options with the same global batch size, seeds and data, one after another, and
    compare time, samples/s, losses, scores and communication in one table. With --until, each training ends at a
    held-out loss, and the table has the time, energy and cost to it.

    It also takes the options of `bertbench train TASK`, which apply to all trainings. Variants are compared with the
    first one. Set --dropout 0 to get equal losses: with dropout each process draws its own masks.

    Examples:
        bertbench train pretrain --vary devices=1,2 precision=fp32,bf16 --steps 20 --global-batch-size 64 --dropout 0
        bertbench train gap --vary head=mul,concat --seeds 3 --data runs/gap
        bertbench train pretrain --until mlm_loss=6.5 --seeds 3 --preset mini --data data/mine --steps 1000
    """

    task: Positional[str]
    """Task to train, as in `bertbench train`."""
    vary: tuple[str, ...] = ()
    """Options to combine, NAME=VALUE,VALUE: strategy, devices, precision, implementation, levers, head or another
    training option; default none."""
    seeds: int = 1
    """Trainings of each variant, with the seeds from --seed on."""
    until: str | None = None
    """Held-out loss in nats that ends a training, mlm_loss=X: at its first evaluation at or below it; default all
    steps."""
    price_per_hour: float | None = None
    """Price of the machine per hour, for the cost; default no cost."""
    profile_steps: int = 3
    """Steps of --vary to profile with the PyTorch profiler after training, for variants on several devices; 0 disables
    it."""
    out: Path = Path("runs/trainings")
    """Folder of the trainings. The same command resumes it, also with more seeds."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        steps = (lambda value: value >= 0, "at least 0")
        check_ranges(self, seeds=AT_LEAST_1, profile_steps=steps, price_per_hour=ABOVE_0)
        if self.until is not None and not re.fullmatch(rf"{SCORE}=\d+(\.\d+)?", self.until):
            raise UsageError("option-value", f"--until {self.until}: give {SCORE}=X, such as {SCORE}=6.5")
        if self.until is not None and self.task != "pretrain":
            raise UsageError("option-not-applicable", f"--until {self.until} applies to pretrain, not to {self.task}")

    @property
    def target(self) -> float | None:
        """The held-out loss of --until; None without one."""
        return float(self.until.partition("=")[2]) if self.until else None


class SeveralCall(NamedTuple):
    """A call of the command with some of train.SEVERAL_OPTIONS."""

    options: SeveralOptions
    variants: Mapping[str, TrainOptions]
    """Options of the trainings of each variant, by what tables call it."""
    varied: Mapping[str, list[Any]]
    """The values of each varied option."""
    json: bool


def read_words(words: list[str], program: str) -> SeveralCall:
    """Parse the options of the comparison, and a command line for each of its variants; the first word names the task.

    Raises:
        UsageError: as `parse` does, or an option of --vary cannot differ between trainings that are compared.
    """
    if "--help" in words:  # it needs no values
        words = [words[0], "--help"]
    options, rest = parse_known(SeveralOptions, words, program)
    if joined_world() is not None:
        raise UsageError("option-not-applicable", "several trainings start their processes: run this without torchrun")
    axes: dict[str, list[str]] = {}
    for word in options.vary:
        name, _, values = word.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if not values or name in (*_NOT_VARIED, *axes):
            problem = f"--vary {word} is not NAME=VALUE,VALUE of an option that can be varied"
            raise UsageError("option-value", f"{problem}: give each once, and the data by --data")
        axes[name] = [f"{flag(name)}={value.strip()}" for value in values.split(",")]
    variants: dict[str, TrainOptions] = {}
    varied: dict[str, list[Any]] = {name: [] for name in axes}
    for given in itertools.product(*axes.values()):
        training = parse(TrainOptions, [options.task, *rest, *given], "bertbench train")
        own = {name: training.value(name) for name in axes}
        variants[variant_name(own) or options.task] = training
        for name, value in own.items():
            varied[name] += [value] * (value not in varied[name])
    return SeveralCall(options, variants, varied, options.json)


def run(call: SeveralCall) -> Result:
    """Train and compare; return exit code 0 if all ended or on a stop, 3 if a training failed or has no profile."""
    options, base = call.options, next(iter(call.variants.values()))
    with StopRequest() as stop:
        stop.max_seconds = base.max_seconds
        place = Trainings(run_folder(options.out))
        plan = plan_trainings(
            call.variants, call.varied, place, find_devices(base.device), seeds=options.seeds, target=options.target,
            price_per_hour=options.price_per_hour,
        )  # fmt: skip
        if plan.skipped:
            note(f"skipped {by_reason(plan.skipped)}")
        with locks.locked(place.path, "another call", "wait for it, or choose another --out"):
            plan.write()  # `report` of a killed command knows its variants
            _train_all(plan, stop)
            document, courses = plan.write()
    trials = plan.profile_trials(options.profile_steps) if call.varied and options.profile_steps else {}
    if trials and all(map(plan.complete, plan.trainings)):
        with session(TrialOptions(out=place.profile.path), "train", plan.devices) as profiling:
            document, courses = plan.write(profile_variants(profiling, trials))
    return _result(plan, document, courses, stop)


def _train_all(plan: TrainingsPlan, stop: StopRequest) -> None:
    """Train until all are complete or a stop request came, of this process or of the ranks."""
    for number, one in enumerate(plan.trainings, start=1):
        if stop.wanted():
            return
        ended = plan.complete(one)
        refused = ended and one.run.read_state().status == "refused"
        about = f"refused earlier; delete {one.run.path} to try again" if refused else "already trained"
        head = f"[{number}/{len(plan.trainings)}] {one.run.path.name}"
        print(f"{head}: {about if ended else one.run.path}", file=sys.stderr, flush=True)
        if ended:
            continue
        progress = TrainProgress(stop, one.plan.options.logfile, None if plan.target is None else (SCORE, plan.target))
        try:
            train_once(one.run, one.plan, plan.devices, progress)
        finally:
            progress.end()
        plan.write()
        if not plan.complete(one) and one.run.read_state().status == "ok":
            return  # its ranks were told to stop


def _result(plan: TrainingsPlan, document: Mapping[str, Any], courses: Sequence[Course], stop: StopRequest) -> Result:
    from analysis.render.comparison_tables import trainings_blocks
    from analysis.render.figure import write_png
    from analysis.render.tables import Facts
    from analysis.render.training_figures import trainings_figure

    place, rows = plan.place, document["rows"]
    failed = [row for row in rows if row["status"] not in (*WHOLE, NOT_REACHED)]
    stopped = failed and (stop.wanted() or all(row["status"] in (STOPPED, NOT_BEGUN) for row in failed))
    reasons = by_reason({row["folder"]: f"{row['status']}: {row['reason']}" for row in failed})
    problems = [f"{reasons}; see {place.path}/*/trials/*/log.txt"] * bool(failed)
    if stopped:
        problems = [f"stopped by {stop.why() or 'a signal to the ranks'}; run the same command to resume"]
    if unprofiled := by_reason({row["variant"]: row["profile_problem"] for row in rows if row["profile_problem"]}):
        problems.append(f"no profile of {unprofiled}")
    more = [f"bertbench report {place.path}"]
    more += [f"bertbench analyze {place.profile.path}"] if any(row["all_reduce_share"] for row in rows) else []
    figure = trainings_figure(courses, plan.target)
    drawn, failure = when_writable(lambda: [] if figure is None else [write_png(figure, place.path)])
    return Result(
        document={"trainings": str(place.path), **document},
        blocks=[*trainings_blocks(document), Facts([("more", text) for text in more])],
        written=[place.document, place.csv, *drawn],
        problems=problems,
        failure=failure,
        code=130 if failed and stop.signal == signal.SIGINT else 3 if unprofiled or (failed and not stopped) else 0,
    )


def by_reason(reasons: Mapping[str, str]) -> str:
    """Return names with their reasons in one line, those of the same reason together; "" for none."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(same)}: {reason}" for reason, same in names.items())
