"""Several trainings of one task: every combination of some options, each with several seeds, and what they show."""

import dataclasses
import hashlib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.metrics.comparison.runs import environment_of
from analysis.metrics.comparison.trainings import (
    SCORE,
    Course,
    Training,
    courses_of,
    has_reached,
    summaries,
)
from bench.implementations import OURS, TRAINER_STRATEGIES
from bench.machine.devices import Devices
from bench.run.profiling import profile_trials
from bench.sweep.options import AUTO
from bench.sweep.sweep import Session, locked
from bench.sweep.training import TrainOptions
from bench.sweep.variants import PlannedVariant, Values, check_comparable, plan_variant
from bert.data.lengths import is_synthetic
from bert.speed.registry import Setup, effective, levers_text, resolve_levers
from bert.tasks import task_data
from bert.train.settings import DEFAULT_SEED, task_defaults
from common.errors import UsageError
from records.training import Trainings
from records.trial import Trial

EVALUATIONS = 50
"""Evaluations over all steps of a training to a target, where no interval is given."""
_PROFILER = "torch"
# Steps before those that are profiled: the first ones allocate.
_WARM_UP_STEPS = 2
# Settings that differ between the trainings, or that are no part of the question.
_LEFT_OUT = ("seed", "data", "eval_data", "log_every", "save_every", "keep")


@dataclass(frozen=True, slots=True)
class PlannedTraining:
    """One of several trainings."""

    variant: str
    """Its values of the varied options in one word; the task where none is varied."""
    seed: int
    item: PlannedVariant


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingsPlan:
    """Several trainings, planned."""

    place: Trainings
    target: float | None
    """Held-out MLM loss in nats at which a training ends; None for all steps."""
    price_per_hour: float | None
    axes: Mapping[str, Sequence[Any]]
    """The values of each varied option."""
    trainings: Sequence[PlannedTraining]
    skipped: Mapping[str, str]
    """Variants that cannot run, with the reason."""
    devices: Devices
    data: Mapping[str, Any]
    """What is trained and evaluated on, by its content."""

    def complete(self, one: PlannedTraining) -> bool:
        """Return whether a training needs no more steps: it made all, reached the target, or cannot run here."""
        reached = self.target is not None and has_reached(one.item.run, self.target)
        return reached or one.item.finished or one.item.refused

    def courses(self, profiles: Mapping[str, Mapping[str, Any]]) -> list[Course]:
        """Return what each training needed so far. Raises SchemaError: a record is damaged."""
        found = [
            Training(run=one.item.run, variant=one.variant, seed=one.seed, profile=profiles.get(one.variant, {}))
            for one in self.trainings
        ]
        return courses_of(found, self.target, self.price_per_hour, self.data["samples"])

    def document(self, courses: Sequence[Course]) -> dict[str, Any]:
        """Return trainings.json."""
        rows = [course.row for course in courses]
        first = self.trainings[0].item.plan
        settings = {"implementation": first.implementation, **first.settings.to_json()}
        left_out = (*_LEFT_OUT, *self.axes)
        return {
            "task": first.settings.task,
            "target": None if self.target is None else {"score": SCORE, "value": self.target},
            "varied": {name: list(values) for name, values in self.axes.items()},
            "seeds": list(dict.fromkeys(one.seed for one in self.trainings)),
            "settings": {name: value for name, value in settings.items() if name not in left_out},
            "data": dict(self.data),
            "machine": environment_of(
                attempt.read_environment() for one in self.trainings for attempt in one.item.run.attempts()
            ),
            "price_per_hour": self.price_per_hour,
            "notes": remarks(self),
            "skipped": dict(self.skipped),
            "rows": rows,
            "variants": summaries(rows, self.target),
        }


def plan_trainings(
    base: TrainOptions,
    place: Trainings,
    devices: Devices,
    *,
    axes: Mapping[str, Sequence[Any]],
    seeds: int = 1,
    target: float | None = None,
    price_per_hour: float | None = None,
) -> TrainingsPlan:
    """Return the trainings of every combination of the axes with each seed; they may have begun.

    Raises:
        UsageError: nothing can be compared, or the trainings would not be comparable with each other or what is there.
    """
    if target is not None:
        base = _until(base)
    first = DEFAULT_SEED if base.seed is None else base.seed
    trainings: list[PlannedTraining] = []
    skipped: dict[str, str] = {}
    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        variant = variant_name(values) or base.task
        if reason := _impossible(base, values):
            skipped[variant] = reason
            continue
        for seed in range(first, first + seeds):
            folder = "-".join(filter(None, (variant * bool(axes), f"seed-{seed}" * (seeds > 1 or not axes))))
            own = base.having({**values, "seed": seed}, out=place.path / folder)
            item = plan_variant(own, values, devices)
            trainings.append(PlannedTraining(variant, seed, _with_same_batches(item, devices) if axes else item))
    if axes and len({one.variant for one in trainings}) < 2:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise UsageError(
            "option-missing",
            f"a comparison needs at least two variants{f' ({reasons})' if reasons else ''}: give --vary with two "
            "values, such as --vary devices=1,2",
        )
    check_comparable([one.item for one in trainings], devices)
    source = trainings[0].item.plan.source
    data = {name: getattr(source, name) for name in ("fingerprint", "samples", "seq_len", "vocab_size")}
    return TrainingsPlan(
        place=place,
        target=target,
        price_per_hour=price_per_hour,
        axes=axes,
        trainings=trainings,
        skipped=skipped,
        devices=devices,
        data=data if target is None else data | _held_out(trainings[0].item),
    )


def variant_name(values: Values) -> str:
    """Return the values of a variant in one word: names alone, numbers and switches after their option."""
    words = [str(value) if isinstance(value, str) else f"{name}-{value}" for name, value in values.items()]
    return re.sub(r"[^\w.+-]+", "_", "-".join(words))


def _until(base: TrainOptions) -> TrainOptions:
    """Return options of a training to a held-out loss: without an interval it is evaluated EVALUATIONS times."""
    if base.eval_every == 0:
        raise UsageError(
            "option-not-applicable", "--eval-every 0: --until ends at an evaluation; give the updates between two"
        )
    data = base.data or base.file
    if data is not None and is_synthetic(data):
        raise UsageError(
            "option-not-applicable",
            f"--data {data} has no held-out shards to evaluate on: give a folder that `bertbench data pretrain` wrote",
        )
    steps = base.steps or task_defaults(base.task, base.phase or 1)["steps"]
    return base if base.eval_every else dataclasses.replace(base, eval_every=math.ceil(steps / EVALUATIONS))


def _impossible(base: TrainOptions, values: Values) -> str:
    """Return why a combination cannot run at all; "" if it can."""
    chosen = base.having(values)
    implementation = chosen.implementation or OURS
    if chosen.strategy == "single" and (chosen.devices or 1) > 1:
        return "strategy single runs on one device"
    if implementation != OURS and chosen.strategy not in (AUTO, *TRAINER_STRATEGIES):
        return f"implementation {implementation} trains by strategies {' and '.join(TRAINER_STRATEGIES)}"
    if implementation != OURS and (chosen.levers or AUTO) != AUTO:
        return f"implementation {implementation} has no --levers"
    return ""


def _with_same_batches(item: PlannedVariant, devices: Devices) -> PlannedVariant:
    """Return the variant with batches that do not depend on the number of ranks, if it has the default optimizations.

    `balance` divides a global batch between ranks by work. A micro batch then has other sequences than with one
    process, and a loss that is a mean over the predicted positions of a micro batch differs.
    """
    settings, implementation = item.plan.settings, item.plan.implementation
    if implementation != OURS or settings.levers != AUTO or settings.world_size == 1:
        return item
    names = effective(resolve_levers(AUTO, devices.kind) - {"balance"}, Setup.of(settings, devices.kind))[0]
    settings = dataclasses.replace(settings, levers=levers_text(names))
    return dataclasses.replace(item, plan=dataclasses.replace(item.plan, settings=settings))


def _held_out(item: PlannedVariant) -> dict[str, Any]:
    """Identify what the trainings are evaluated on, by its content. Raises InputError: it cannot be read."""
    from bert.tasks.pretrain.shards import read_shard
    from bert.tasks.pretrain.source import open_test_shards

    settings = item.plan.settings
    info = open_test_shards(Path(settings.data), settings.seq_len)
    digest = hashlib.blake2b(digest_size=16)
    for path in info.paths:
        instances = read_shard(path)
        for field in dataclasses.fields(instances):
            array = getattr(instances, field.name)
            digest.update(f"{field.name} {array.shape}".encode())
            digest.update(array.astype("<i4").tobytes())
    samples = min(settings.eval_samples or info.samples, info.samples)
    return {"held_out_fingerprint": digest.hexdigest(), "held_out_samples": samples}


def remarks(plan: TrainingsPlan) -> list[str]:
    """Return notes on a comparison: shared cores, and why losses may differ."""
    plans = [one.item.plan for one in plan.trainings]
    settings = plans[0].settings
    counts = sorted({one.settings.world_size for one in plans})
    notes = []
    if plan.devices.kind == "cpu" and counts[-1] > 1:
        cores = plan.devices.cpu_cores
        shares = {one.settings.world_size: one.options.threads or max(1, cores // one.settings.world_size)
                  for one in plans}  # fmt: skip
        each = ", ".join(f"{threads} with {count}" for count, threads in shares.items())
        notes.append(f"the processes share {cores} CPU cores; threads per process: {each}")
    if len(counts) > 1 and is_synthetic(settings.data):
        notes.append("every process draws its own synthetic data: losses of different numbers of processes differ")
    several = len(counts) > 1 or len({one.implementation for one in plans}) > 1
    if several and settings.dropout > 0:
        notes.append(f"every process draws its own dropout ({settings.dropout:g}): with --dropout 0 the losses agree")
    return notes


def profile_variants(plan: TrainingsPlan, session: Session, steps: int) -> dict[str, dict[str, Any]]:
    """Profile a few steps of every variant on several devices whose trainings have ended.

    Args:
        plan: the trainings.
        session: the call; its run directory is Trainings.profile.
        steps: number of steps to profile, at least 1.

    Returns:
        By variant the result of analysis.metrics.communication.exposure.all_reduce, or `profile_problem`, the reason
        that there is none.
    """
    from analysis.diagnose.profiles import open_profile
    from analysis.metrics.communication.exposure import all_reduce

    several = {one.variant: one.item for one in plan.trainings
               if one.item.plan.settings.world_size > 1 and plan.complete(one) and not one.item.refused}  # fmt: skip
    if not several:
        return {}
    found: dict[str, dict[str, Any]] = {}
    with locked(session.run):
        profiled = profile_trials(session, [profile_trial(item, steps, plan.devices) for item in several.values()])
    for variant, profile in zip(several, profiled, strict=True):
        if profile.problem:
            found[variant] = {"profile_problem": profile.problem}
            continue
        source = open_profile(session.run.trial(profile.trial.trial_id)).source
        missing = "; ".join(source.problems) or "the profile holds no trace"
        found[variant] = all_reduce(source.timelines) if source.timelines else {"profile_problem": missing}
    return found


def profile_trial(item: PlannedVariant, steps: int, devices: Devices) -> Trial:
    """Return a trial that profiles so many steps of a training, after its warm-up."""
    settings = item.plan.settings
    return item.plan.trial(
        kind="profile",
        levers="" if settings.levers == AUTO else levers_text(resolve_levers(settings.levers, devices.kind)),
        shape=settings.shape,
        device=devices.kind,
        padding=settings.padding if task_data(settings.task).paddings else "",
        start_iteration=_WARM_UP_STEPS,
        stop_iteration=_WARM_UP_STEPS + steps,
        threads_per_rank=item.plan.options.threads,
        profiler=_PROFILER,
    )
