"""Several trainings of one task: every variant of its options, each with several seeds, and what they show."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from analysis.metrics.comparison.runs import environment_of
from analysis.metrics.comparison.trainings import (
    SCORE,
    Course,
    Training,
    courses_of,
    has_reached,
    score_columns,
    summaries,
)
from analysis.render.tables import write_csv
from bench.machine.devices import Devices
from bench.sweep.options import check_same_request
from bench.sweep.sweep import Session, profile_trials
from bench.sweep.training import Plan, TrainOptions, plan_training
from bert.data.synthetic import is_synthetic
from bert.tasks import task_data
from bert.tasks.pretrain.shards import open_shards
from bert.train.settings import DEFAULT_SEED
from common.errors import UsageError
from records.files import write_record
from records.schema import TRAINING_COLUMNS
from records.training import Trainings, TrainRun, is_train_run, read_trainings
from records.trial import Trial

EVALUATIONS = 50
"""Evaluations over all steps of a training to a target, where no interval is given."""
# Steps before those that are profiled: the first ones allocate.
_WARM_UP_STEPS = 2
# Settings that differ between the trainings, or that are no part of the question.
_LEFT_OUT = ("seed", "eval_data", "log_every", "save_every", "keep")
NO_PROFILES: Mapping[str, Mapping[str, Any]] = {}
"""None of the variants is profiled."""


class PlannedTraining(NamedTuple):
    """One of several trainings."""

    variant: str
    """Its values of the varied options in one word; the task where none is varied."""
    plan: Plan
    run: TrainRun


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingsPlan:
    """Several trainings, planned."""

    place: Trainings
    target: float | None
    """Held-out MLM loss in nats at which a training ends; None for all steps."""
    price_per_hour: float | None
    varied: Mapping[str, Sequence[Any]]
    """The values of each varied option."""
    trainings: Sequence[PlannedTraining]
    skipped: Mapping[str, str]
    """Variants that cannot run, with the reason."""
    devices: Devices

    def complete(self, one: PlannedTraining) -> bool:
        """Return whether a training needs no more steps: it made all, reached the target, or cannot run here."""
        state = one.run.read_state()
        reached = self.target is not None and has_reached(one.run, self.target)
        return bool(reached or state.finished or state.status == "refused")

    def profile_trials(self, steps: int) -> dict[str, Trial]:
        """Return by variant on several devices a trial that profiles so many steps of it, after its warm-up."""
        trials = {}
        for one in self.trainings:
            settings, device = one.plan.settings, self.devices.kind
            if settings.world_size > 1 and one.run.read_state().status != "refused":
                trials[one.variant] = one.plan.trial(
                    kind="profile",
                    shape=settings.shape,
                    device=device,
                    padding=settings.padding if task_data(settings.task).paddings else "",
                    start_iteration=_WARM_UP_STEPS,
                    stop_iteration=_WARM_UP_STEPS + steps,
                    threads_per_rank=one.plan.options.threads,
                    profiler="torch",
                )
        return trials

    def request(self) -> dict[str, dict[str, Any]]:
        """Return `settings` and `data` of trainings.json: those that the first training has in common with all."""
        first = self.trainings[0].plan
        source, settings = first.source, first.settings
        data = {name: getattr(source, name) for name in ("fingerprint", "samples", "seq_len", "vocab_size")}
        if self.target is not None:  # raises InputError: there are no test shards, or they are damaged
            held_out = open_shards(Path(settings.data), "test", settings.seq_len).samples
            data["held_out_samples"] = min(settings.eval_samples or held_out, held_out)
        known = {"implementation": first.implementation, "device": self.devices.kind, "threads": first.options.threads}
        left_out = (*_LEFT_OUT, *self.varied, *["data"] * bool(source.fingerprint))
        known |= {name: value for name, value in settings.to_json().items() if name not in left_out}
        return {"settings": known, "data": data}

    def write(self, profiles: Mapping[str, Mapping[str, Any]] = NO_PROFILES) -> tuple[dict[str, Any], list[Course]]:
        """Write trainings.json and trainings.csv; return the former and what each training needed so far.

        Args:
            profiles: what `profile_variants` returned.

        Raises:
            SchemaError: a record is damaged.
        """
        trainings = [
            Training(
                run=one.run, variant=one.variant, seed=one.plan.settings.seed, profile=profiles.get(one.variant, {})
            )
            for one in self.trainings
        ]
        samples = self.trainings[0].plan.source.samples
        courses = courses_of(trainings, self.target, self.price_per_hour, samples)
        rows = [course.row for course in courses]
        attempts = [attempt for one in self.trainings for attempt in one.run.attempts()]
        document = {
            "task": self.trainings[0].plan.settings.task,
            "target": None if self.target is None else {"score": SCORE, "value": self.target},
            "varied": {name: list(values) for name, values in self.varied.items()},
            "seeds": list(dict.fromkeys(one.plan.settings.seed for one in self.trainings)),
            **self.request(),
            "machine": environment_of(attempt.read_environment() for attempt in attempts),
            "price_per_hour": self.price_per_hour,
            "skipped": dict(self.skipped),
            "rows": rows,
            "variants": summaries(rows, self.target),
        }
        write_record(self.place.document, document)
        write_csv(self.place.csv, rows, [*TRAINING_COLUMNS, *score_columns(rows)])
        return document, courses


def plan_trainings(
    options: TrainOptions,
    variants: Mapping[str, TrainOptions],
    varied: Mapping[str, Sequence[Any]],
    place: Trainings,
    devices: Devices,
) -> TrainingsPlan:
    """Return the trainings of all variants with each seed; they may have begun. Raises UsageError."""
    if is_train_run(place.path):
        raise UsageError("folder-occupied", f"{place.path} is the folder of one training: give another --out")
    if options.until and not re.fullmatch(rf"{SCORE}=\d+(\.\d+)?", options.until):
        raise UsageError("option-value", f"--until {options.until}: give {SCORE}=X, such as {SCORE}=6.5")
    if options.until and options.task != "pretrain":
        raise UsageError("option-not-applicable", f"--until {options.until} applies to pretrain, not to {options.task}")
    target, seeds = float(options.until.partition("=")[2]) if options.until else None, options.seeds or 1
    trainings: list[PlannedTraining] = []
    skipped: dict[str, str] = {}
    first = DEFAULT_SEED if options.seed is None else options.seed
    for variant, given in variants.items():
        for seed in range(first, first + seeds):
            name = "-".join([variant] * bool(varied) + [f"seed-{seed}"] * (seeds > 1 or not varied))
            try:
                plan = plan_training(dataclasses.replace(given, seed=seed, out=place.path / name), devices)
            except UsageError as error:
                if error.code != "unsupported-combination":
                    raise
                skipped[variant] = str(error)
                break
            plan = plan if target is None else _evaluated(plan)
            trainings.append(PlannedTraining(variant, plan, TrainRun(place.path / name)))
    if len({one.variant for one in trainings}) < 1 + bool(varied):
        reasons = "".join(f" ({name}: {reason})" for name, reason in skipped.items())
        problem = f"a comparison needs at least two variants that can run{reasons}"
        raise UsageError("option-missing", f"{problem}: give --vary with two values, such as --vary devices=1,2")
    sizes = {one.run.path.name: one.plan.settings.global_batch_size for one in trainings}
    if len(set(sizes.values())) > 1:
        problem = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UsageError("batch-size-mismatch", f"global batch sizes differ ({problem}): give --global-batch-size")
    plans = TrainingsPlan(
        place=place, target=target, price_per_hour=options.price_per_hour, varied=varied, trainings=trainings,
        skipped=skipped, devices=devices,
    )  # fmt: skip
    before = read_trainings(place.path)
    for name, now in plans.request().items():
        old = before.get(name) or {}
        check_same_request(place.path, old, {key: now.get(key) for key in old})
    return plans


def variant_name(values: Mapping[str, Any]) -> str:
    """Return the values of a variant in one word: names alone, numbers and switches after their option."""
    words = [str(value) if isinstance(value, str) else f"{name}-{value}" for name, value in values.items()]
    return re.sub(r"[^\w.+-]+", "_", "-".join(words))


def _evaluated(plan: Plan) -> Plan:
    """Return a plan with evaluations on held-out data."""
    settings = plan.settings
    if is_synthetic(settings.data):
        raise UsageError("option-not-applicable", f"--until needs held-out data: give shards, not {settings.data}")
    eval_every = settings.eval_every or math.ceil(settings.steps / EVALUATIONS)
    return dataclasses.replace(plan, settings=dataclasses.replace(settings, eval_every=eval_every))


def profile_variants(session: Session, trials: Mapping[str, Trial]) -> dict[str, dict[str, Any]]:
    """Run a trial of each variant under its profiler.

    Returns by variant the columns of exposure.all_reduce, or `profile_problem`, the reason that there are none.
    """
    from analysis.diagnose.profiles import open_profile
    from analysis.metrics.communication.exposure import all_reduce

    profiles: dict[str, dict[str, Any]] = {}
    for variant, result in zip(trials, profile_trials(session, [*trials.values()]), strict=True):
        problem = result["profile"]["problem"]
        source = None if problem else open_profile(session.run.trial(trials[variant].trial_id)).source
        problem = problem if source is None else "; ".join(source.problems)
        found = source is not None and source.timelines
        profiles[variant] = all_reduce(found) if found else {"profile_problem": problem or "it holds no trace"}
    return profiles
