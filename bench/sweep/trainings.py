"""Several trainings of one task: every combination of some options, each with several seeds, and what they show."""

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.metrics.comparison.runs import environment_of
from analysis.metrics.comparison.trainings import SCORE, Course, Training, courses_of, has_reached, summaries
from bench.implementations import OURS, TRAINER_STRATEGIES
from bench.machine.devices import Devices
from bench.run.profiling import profile_trials
from bench.sweep.options import AUTO
from bench.sweep.request import check_same_request
from bench.sweep.sweep import Session, locked
from bench.sweep.training import Plan, TrainOptions, Value, Values, plan_training
from bert.data.lengths import is_synthetic
from bert.speed.registry import Setup, effective, levers_text, resolve_levers
from bert.tasks import task_data
from bert.train.settings import DEFAULT_SEED, TrainSettings, task_defaults
from common.errors import UsageError
from records.documents import TrainState
from records.training import Trainings, TrainRun, is_train_run
from records.trial import Trial

EVALUATIONS = 50
"""Evaluations over all steps of a training to a target, where no interval is given."""
_PROFILER = "torch"
# Steps before those that are profiled: the first ones allocate.
_WARM_UP_STEPS = 2
# Settings that differ between the trainings, or that are no part of the question.
_LEFT_OUT = ("seed", "data", "eval_data", "log_every", "save_every", "keep")
# Settings that do not change the result of a training, nor its time significantly.
_FREE = ("log_every", "save_every", "keep")


@dataclass(frozen=True, slots=True)
class PlannedTraining:
    """One of several trainings."""

    variant: str
    """Its values of the varied options in one word; the task where none is varied."""
    seed: int
    plan: Plan
    run: TrainRun

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.run.path.name

    @property
    def state(self) -> TrainState:
        """Where it stands, as train.json says."""
        return self.run.read_state()


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingsPlan:
    """Several trainings, planned."""

    place: Trainings
    target: float | None
    """Held-out MLM loss in nats at which a training ends; None for all steps."""
    price_per_hour: float | None
    axes: Mapping[str, Sequence[Value]]
    """The values of each varied option."""
    trainings: Sequence[PlannedTraining]
    skipped: Mapping[str, str]
    """Variants that cannot run, with the reason."""
    devices: Devices

    def complete(self, one: PlannedTraining) -> bool:
        """Return whether a training needs no more steps: it made all, reached the target, or cannot run here."""
        reached = self.target is not None and has_reached(one.run, self.target)
        return bool(reached or one.state.finished or one.state.status == "refused")

    def courses(self, profiles: Mapping[str, Mapping[str, Any]]) -> list[Course]:
        """Return what each training needed so far. Raises SchemaError: a record is damaged."""
        trainings = [
            Training(run=one.run, variant=one.variant, seed=one.seed, profile=profiles.get(one.variant, {}))
            for one in self.trainings
        ]
        return courses_of(trainings, self.target, self.price_per_hour, self.trainings[0].plan.source.samples)

    def document(self, courses: Sequence[Course]) -> dict[str, Any]:
        """Return trainings.json."""
        rows = [course.row for course in courses]
        first = self.trainings[0].plan
        settings = {"implementation": first.implementation, **first.settings.to_json()}
        data = {name: getattr(first.source, name) for name in ("fingerprint", "samples", "seq_len", "vocab_size")}
        if self.target is not None:
            data["held_out_samples"] = _held_out_samples(first.settings)
        left_out = (*_LEFT_OUT, *self.axes)
        return {
            "task": first.settings.task,
            "target": None if self.target is None else {"score": SCORE, "value": self.target},
            "varied": {name: list(values) for name, values in self.axes.items()},
            "seeds": list(dict.fromkeys(one.seed for one in self.trainings)),
            "settings": {name: value for name, value in settings.items() if name not in left_out},
            "data": data,
            "machine": environment_of(
                attempt.read_environment() for one in self.trainings for attempt in one.run.attempts()
            ),
            "price_per_hour": self.price_per_hour,
            "notes": _remarks(self),
            "skipped": dict(self.skipped),
            "rows": rows,
            "variants": summaries(rows, self.target),
        }


def plan_trainings(
    base: TrainOptions,
    place: Trainings,
    devices: Devices,
    *,
    axes: Mapping[str, Sequence[Value]],
    seeds: int = 1,
    target: float | None = None,
    price_per_hour: float | None = None,
) -> TrainingsPlan:
    """Return the trainings of every combination of the axes with each seed; they may have begun. Raises UsageError."""
    if target is not None:
        base = _until(base)
    first = DEFAULT_SEED if base.seed is None else base.seed
    trainings: list[PlannedTraining] = []
    skipped: dict[str, str] = {}
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        variant = variant_name(values) or base.task
        if reason := _impossible(base.having(values)):
            skipped[variant] = reason
            continue
        for seed in range(first, first + seeds):
            name = "-".join([variant] * bool(axes) + [f"seed-{seed}"] * (seeds > 1 or not axes))
            plan = plan_training(base.having({**values, "seed": seed}, out=place.path / name), devices)
            plan = _with_same_batches(plan, devices) if axes else plan
            trainings.append(PlannedTraining(variant, seed, plan, TrainRun(place.path / name)))
    if axes and len({one.variant for one in trainings}) < 2:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        problem = f"a comparison needs at least two variants{f' ({reasons})' if reasons else ''}"
        raise UsageError("option-missing", f"{problem}: give --vary with two values, such as --vary devices=1,2")
    if is_train_run(place.path):
        raise UsageError("folder-occupied", f"--out {place.path} is a training run: give another folder")
    check_comparable(trainings, devices.kind)
    if target is not None:
        _held_out_samples(trainings[0].plan.settings)  # refuses data that cannot be evaluated on
    return TrainingsPlan(
        place=place, target=target, price_per_hour=price_per_hour, axes=axes, trainings=trainings, skipped=skipped,
        devices=devices,
    )  # fmt: skip


def variant_name(values: Values) -> str:
    """Return the values of a variant in one word: names alone, numbers and switches after their option."""
    words = [str(value) if isinstance(value, str) else f"{name}-{value}" for name, value in values.items()]
    return re.sub(r"[^\w.+-]+", "_", "-".join(words))


def _until(base: TrainOptions) -> TrainOptions:
    """Return options of a training to a held-out loss: without an interval it is evaluated EVALUATIONS times."""
    data = base.data or base.file
    if base.eval_every == 0 or (data is not None and is_synthetic(data)):
        given = "--eval-every 0" if base.eval_every == 0 else f"--data {data}"
        problem = f"--until ends at an evaluation, and {given} has none"
        raise UsageError("option-not-applicable", f"{problem}: give real data, and the updates between evaluations")
    steps = base.steps or task_defaults(base.task, base.phase or 1)["steps"]
    return base if base.eval_every else dataclasses.replace(base, eval_every=math.ceil(steps / EVALUATIONS))


def _impossible(options: TrainOptions) -> str:
    """Return why a combination cannot run at all; "" if it can."""
    implementation = options.implementation or OURS
    if options.strategy == "single" and (options.devices or 1) > 1:
        return "strategy single runs on one device"
    if implementation != OURS and options.strategy not in (AUTO, *TRAINER_STRATEGIES):
        return f"implementation {implementation} trains by strategies {' and '.join(TRAINER_STRATEGIES)}"
    if implementation != OURS and (options.levers or AUTO) != AUTO:
        return f"implementation {implementation} has no --levers"
    return ""


def _with_same_batches(plan: Plan, devices: Devices) -> Plan:
    """Return a plan with batches that do not depend on the number of ranks, if it has the default optimizations.

    `balance` divides a global batch between ranks by work. A micro batch then has other sequences than with one
    process, and a loss that is a mean over the predicted positions of a micro batch differs.
    """
    settings = plan.settings
    if plan.implementation != OURS or settings.levers != AUTO or settings.world_size == 1:
        return plan
    names = effective(resolve_levers(AUTO, devices.kind) - {"balance"}, Setup.of(settings, devices.kind))[0]
    return dataclasses.replace(plan, settings=dataclasses.replace(settings, levers=levers_text(names)))


def check_comparable(trainings: Sequence[PlannedTraining], device: str) -> None:
    """Refuse trainings with different settings, among each other or from those in their folders."""
    sizes = {one.name: one.plan.settings.global_batch_size for one in trainings}
    if len(set(sizes.values())) > 1:
        problem = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UsageError(
            "batch-size-mismatch", f"the global batch sizes would differ ({problem}): give --global-batch-size"
        )
    for one in trainings:
        for attempt in one.run.attempts()[-1:]:
            trial, plan = attempt.read_trial(), one.plan
            content = bool(trial.data_fingerprint and plan.source.fingerprint)
            before = {
                **dict(trial.training), "implementation": trial.implementation, "device": trial.device,
                "threads": trial.threads_per_rank, "data": trial.data_fingerprint if content else trial.data,
            }  # fmt: skip
            now = {
                **plan.settings.to_json(), "implementation": plan.implementation, "device": device,
                "threads": plan.options.threads, "data": plan.source.fingerprint if content else plan.settings.data,
            }  # fmt: skip
            check_same_request(one.run.path, {**before, **dict.fromkeys(_FREE)}, {**now, **dict.fromkeys(_FREE)})


def _held_out_samples(settings: TrainSettings) -> int:
    """Return the samples of an evaluation. Raises InputError: there are no test shards, or they are damaged."""
    from bert.tasks.pretrain.source import open_test_shards

    samples = open_test_shards(Path(settings.data), settings.seq_len).samples
    return min(settings.eval_samples or samples, samples)


def _remarks(plan: TrainingsPlan) -> list[str]:
    """Return notes on a comparison: shared cores, and why losses may differ."""
    plans = [one.plan for one in plan.trainings]
    settings, cores = plans[0].settings, plan.devices.cpu_cores
    threads = {
        one.settings.world_size: one.options.threads or max(1, cores // one.settings.world_size) for one in plans
    }
    notes = []
    if plan.devices.kind == "cpu" and max(threads) > 1:
        each = ", ".join(f"{number} with {count}" for count, number in sorted(threads.items()))
        notes.append(f"the processes share {cores} CPU cores; threads per process: {each}")
    if len(threads) > 1 and is_synthetic(settings.data):
        notes.append("every process draws its own synthetic data: losses of different numbers of processes differ")
    if settings.dropout > 0 and (len(threads) > 1 or len({one.implementation for one in plans}) > 1):
        notes.append(f"every process draws its own dropout ({settings.dropout:g}): with --dropout 0 the losses agree")
    return notes


def profile_variants(plan: TrainingsPlan, session: Session, steps: int) -> dict[str, dict[str, Any]]:
    """Profile so many steps of every variant on several devices whose trainings have ended, in Trainings.profile.

    Returns by variant the columns of exposure.all_reduce, or `profile_problem`, the reason that there are none.
    """
    from analysis.diagnose.profiles import open_profile
    from analysis.metrics.communication.exposure import all_reduce

    trials = {
        one.variant: profile_trial(one.plan, steps, plan.devices)
        for one in plan.trainings
        if one.plan.settings.world_size > 1 and plan.complete(one) and one.state.status != "refused"
    }
    if not trials:
        return {}
    with locked(session.run):
        profiled = profile_trials(session, [*trials.values()])
    profiles: dict[str, dict[str, Any]] = {}
    for variant, result in zip(trials, profiled, strict=True):
        problem = result["profile"]["problem"]
        if not problem:
            source = open_profile(session.run.trial(trials[variant].trial_id)).source
            if source.timelines:
                profiles[variant] = all_reduce(source.timelines)
                continue
            problem = "; ".join(source.problems) or "the profile holds no trace"
        profiles[variant] = {"profile_problem": problem}
    return profiles


def profile_trial(plan: Plan, steps: int, devices: Devices) -> Trial:
    """Return a trial that profiles so many steps of a training, after its warm-up."""
    settings = plan.settings
    return plan.trial(
        kind="profile",
        levers="" if settings.levers == AUTO else levers_text(resolve_levers(settings.levers, devices.kind)),
        shape=settings.shape,
        device=devices.kind,
        padding=settings.padding if task_data(settings.task).paddings else "",
        start_iteration=_WARM_UP_STEPS,
        stop_iteration=_WARM_UP_STEPS + steps,
        threads_per_rank=plan.options.threads,
        profiler=_PROFILER,
    )
