"""`bertbench train TASK --vary NAME=V,V --seeds N --until mlm_loss=X`: several trainings and their comparison."""

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.metrics.comparison.trainings import NOT_BEGUN, NOT_REACHED, SCORE, STOPPED, WHOLE, Course
from bench.cli.options import Printed, run_folder
from bench.cli.parser import parse_known
from bench.cli.progress import TrialDisplay, note
from bench.cli.result import Result, when_writable
from bench.cli.train_progress import TrainProgress
from bench.launch.world import joined_world
from bench.machine.devices import find_devices
from bench.run.attempt import train_once
from bench.run.processes import StopRequest
from bench.run.supervise import LaunchOptions
from bench.search.space import read_choices
from bench.sweep.options import ABOVE_0, AT_LEAST_1, check_ranges
from bench.sweep.sweep import Session
from bench.sweep.training import TrainOptions, Value, option_kinds
from bench.sweep.trainings import TrainingsPlan, plan_trainings, profile_variants
from common import locks
from common.errors import UsageError
from common.flags import LARGEST_SEED, Positional, request_of
from records.training import Trainings

# Options that are no part of what is compared, or that have to be the same.
_NOT_VARIED = (
    "task", "file", "data", "out", "json", "device", "seed", "global_batch_size", "eval_data", "eval_samples",
    "eval_every", "best_by", "max_seconds", "log_to", "log_every", "save_every", "keep",
)  # fmt: skip


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
        if self.until is not None and self.target is None:
            raise UsageError("option-value", f"--until {self.until}: give {SCORE}=X, such as {SCORE}=6.5")
        if self.until is not None and self.task != "pretrain":
            raise UsageError("option-not-applicable", f"--until {self.until} applies to pretrain, not to {self.task}")

    @property
    def target(self) -> float | None:
        """The held-out loss of --until; None without one."""
        name, _, value = (self.until or "").partition("=")
        try:
            return float(value) if name == SCORE and ABOVE_0[0](float(value)) else None
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class SeveralCall:
    """A call of the command with some of train.SEVERAL_OPTIONS."""

    options: SeveralOptions
    base: TrainOptions
    """Options common to all trainings."""
    axes: Mapping[str, Sequence[Value]]

    @property
    def json(self) -> bool:
        """Whether the result is for programs."""
        return self.options.json


def read_words(words: list[str], program: str) -> SeveralCall:
    """Parse the options of the comparison and of its trainings; the first word names the task."""
    from bench.cli.train import parse_trainings

    if "--help" in words:  # it needs no values
        words = [words[0], "--help"]
    options, rest = parse_known(SeveralOptions, words, program)
    for word in options.vary:
        if "=" not in word:
            raise UsageError(
                "option-value", f"--vary {word} is not NAME=VALUE,VALUE: if {word} is the data, give it by --data"
            )
    axes = read_choices(options.vary, option_kinds(_NOT_VARIED))
    if joined_world() is not None:
        raise UsageError("option-not-applicable", "several trainings start their processes: run this without torchrun")
    base = parse_trainings(options.task, rest)
    if (base.seed or 0) + options.seeds > LARGEST_SEED:
        raise UsageError("option-value", f"--seed {base.seed} leaves no {options.seeds} seeds up to {LARGEST_SEED}")
    return SeveralCall(options, base, axes)


def run(call: SeveralCall) -> Result:
    """Train and compare; return exit code 0 if all ended or on a stop, 3 if a training failed or has no profile."""
    options, base = call.options, call.base
    with StopRequest() as stop:
        stop.limit(base.max_seconds)
        place = Trainings(run_folder(options.out))
        plan = plan_trainings(
            base, place, find_devices(base.device), axes=call.axes, seeds=options.seeds, target=options.target,
            price_per_hour=options.price_per_hour,
        )  # fmt: skip
        if plan.skipped:
            note(f"skipped {by_reason(plan.skipped)}")
        with locks.locked(place.path, "another call", "wait for it, or choose another --out"):
            _write(plan, {})  # `report` of a killed command knows its variants
            _train_all(plan, stop)
            document, courses = _write(plan, {})
    if call.axes and options.profile_steps and all(map(plan.complete, plan.trainings)):
        session = Session(
            run=place.profile, request={"command": "train", **request_of(options)}, devices=plan.devices,
            options=LaunchOptions(), progress=TrialDisplay().show,
        )  # fmt: skip
        with locks.locked(place.path, "another call", "wait for it, or choose another --out"):
            document, courses = _write(plan, profile_variants(plan, session, options.profile_steps))
    return _result(plan, document, courses, stop)


def _train_all(plan: TrainingsPlan, stop: StopRequest) -> None:
    """Train until all are complete or a stop request came, of this process or of the ranks."""
    until = None if plan.target is None else (SCORE, plan.target)
    for number, one in enumerate(plan.trainings, start=1):
        if stop.wanted():
            return
        head = f"[{number}/{len(plan.trainings)}] {one.name}"
        if plan.complete(one):
            refused = one.state.status == "refused"
            again = f"refused earlier; delete {one.run.path} to try again" if refused else "already trained"
            print(f"{head}: {again}", file=sys.stderr, flush=True)
            continue
        print(f"{head}: {one.run.path}", file=sys.stderr, flush=True)
        progress = TrainProgress(stop, until=until)
        try:
            with locks.locked(one.run.path, "another call", "wait for it, or choose another --out"):
                train_once(one.run, one.plan, plan.devices, progress)
        finally:
            progress.end()
        _write(plan, {})
        if not plan.complete(one) and one.state.status == "ok":
            return  # its ranks were told to stop


def _write(plan: TrainingsPlan, profiles: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], list[Course]]:
    from analysis.metrics.comparison.trainings import score_columns
    from analysis.render.tables import write_csv
    from records.files import write_record
    from records.schema import TRAINING_COLUMNS

    courses = plan.courses(profiles)
    document = plan.document(courses)
    write_record(plan.place.document, document)
    rows = document["rows"]
    write_csv(plan.place.csv, rows, [*TRAINING_COLUMNS, *score_columns(rows)])
    return document, courses


def _result(plan: TrainingsPlan, document: Mapping[str, Any], courses: Sequence[Course], stop: StopRequest) -> Result:
    from analysis.render.comparison_tables import trainings_blocks
    from analysis.render.figure import write_png
    from analysis.render.tables import Facts
    from analysis.render.training_figures import trainings_figure

    place, rows = plan.place, document["rows"]
    figure = trainings_figure(courses, plan.target)
    failed = [row for row in rows if row["status"] not in (*WHOLE, NOT_REACHED)]
    stopped = failed and (stop.wanted() or all(row["status"] in (STOPPED, NOT_BEGUN) for row in failed))
    problems = [f"{row['folder']} {row['status']}: {row['reason']}; see {place.path / row['folder']}/trials/*/log.txt"
                for row in failed if row["status"] != "refused"]  # fmt: skip
    if refused := by_reason({row["folder"]: row["reason"] for row in failed if row["status"] == "refused"}):
        problems.append(f"refused: {refused}")
    if stopped:
        problems = [f"stopped by {stop.why() or 'a signal to the ranks'}; run the same command to resume"]
    if unprofiled := by_reason({row["variant"]: row["profile_problem"] for row in rows if row["profile_problem"]}):
        problems.append(f"no profile of {unprofiled}")
    more = [f"bertbench report {place.path}"]
    more += [f"bertbench analyze {place.profile.path}"] if any(row["all_reduce_share"] for row in rows) else []
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
