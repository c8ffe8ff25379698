"""`bertbench train TASK --vary NAME=V,V --seeds N --until mlm_loss=X`: several trainings and their comparison."""

import dataclasses
import itertools
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.metrics.comparison.trainings import NOT_BEGUN, NOT_REACHED, SCORE, STOPPED, WHOLE, Course
from bench.cli.options import TrialOptions, run_folder
from bench.cli.parser import parse, words_of
from bench.cli.progress import TrainProgress, note
from bench.cli.result import Result, when_writable
from bench.cli.session import session
from bench.launch.world import joined_world
from bench.machine.devices import find_devices
from bench.run.processes import StopRequest
from bench.sweep.sweep import locked
from bench.sweep.training import TrainOptions, train_once
from bench.sweep.trainings import TrainingsPlan, plan_trainings, profile_variants, variant_name
from common.errors import UsageError
from common.flags import flag
from records.run import RunDirectory
from records.training import Trainings

# Options that are no part of what is compared, or that have to be the same.
_NOT_VARIED = ("task", "file", "data", "out", "json", "device", "seed", "global_batch_size", "eval_data", "max_seconds",
               "vary", "seeds", "until", "profile_steps", "price_per_hour")  # fmt: skip


def variants_of(options: TrainOptions) -> tuple[dict[str, TrainOptions], dict[str, list[Any]]]:
    """Return the options of each variant by what tables call it, and the values of each varied option.

    Raises:
        UsageError: as `parse` does, or an option of --vary cannot differ between trainings that are compared.
    """
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
    common = words_of(dataclasses.replace(options, vary=(), seeds=None, until=None))
    variants: dict[str, TrainOptions] = {}
    varied: dict[str, list[Any]] = {name: [] for name in axes}
    for given in itertools.product(*axes.values()):
        training = parse(type(options), [*common, *given], "bertbench train")
        own = {name: training.value(name) for name in axes}
        variants[variant_name(own) or options.task] = training
        for name, value in own.items():
            varied[name] += [value] * (value not in varied[name])
    return variants, varied


def run(options: TrainOptions) -> Result:
    """Train and compare; return exit code 0 if all ended or on a stop, 3 if a training failed or has no profile."""
    with StopRequest() as stop:
        stop.max_seconds = options.max_seconds
        place = Trainings(run_folder(options.out or Path("runs/trainings")))
        plan = plan_trainings(options, *variants_of(options), place, find_devices(options.device))
        if plan.skipped:
            note(f"skipped {by_reason(plan.skipped)}")
        with locked(RunDirectory(place.path)):
            plan.write()  # `report` of a killed command knows its variants
            _train_all(plan, stop)
            document, courses = plan.write()
    trials = plan.profile_trials(options.profile_steps) if options.vary and options.profile_steps else {}
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
        about = "refused earlier; delete it to try again" if refused else "already trained" if ended else "training"
        print(f"[{number}/{len(plan.trainings)}] {one.run.path}: {about}", file=sys.stderr, flush=True)
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
    more += [f"bertbench analyze {place.profile.path}"] * any(row["all_reduce_share"] for row in rows)
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
