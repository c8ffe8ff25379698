"""The same training by several strategies or on several devices: planned, run one after the other, and profiled."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.diagnose.profiles import open_profile
from analysis.metrics.communication.exposure import all_reduce
from bench.implementations import OURS, TRAINER_STRATEGIES
from bench.machine.devices import Devices
from bench.plan.automatic import AUTO, resolve_strategy
from bench.plan.sweep import Progress, locked
from bench.run.attempt import train_once
from bench.run.launch import LaunchOptions, Watcher
from bench.run.profiling import profile_trials
from bench.run.trainer import Plan, check_continues, plan_training
from bert.data.lengths import is_synthetic
from bert.model.config import PRESETS
from bert.speed.registry import NONE, levers_text, resolve_levers
from bert.tasks import task_data
from common import locks
from common.errors import UsageError
from records.run import RunDirectory
from records.training import TrainRun, is_train_run
from records.trial import Trial

PROFILE_FOLDER = "profile"
_PROFILER = "torch"
# Steps before those that are profiled: the first ones allocate.
_WARM_UP_STEPS = 2
# Settings that change neither what a training does nor, in earnest, how long it takes.
_FREE_SETTINGS = ("log_every", "save_every", "keep", "data")
# More variants are not told of one by one.
_MOST_NAMED = 4
# How Hugging Face's loss of a task differs from ours.
_OTHER_LOSSES = {"squad": "Hugging Face lets padding compete for the answer, ours does not"}


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the training."""

    strategy: str
    """A name in bert.parallel."""
    devices: int
    """Devices, one process each."""
    precision: str = AUTO
    """As `bertbench train` takes it."""
    implementation: str = OURS
    """A name in bench.implementations.TRAININGS."""
    levers: str = AUTO
    """As `bertbench train` takes them; only our own implementation has any."""

    @property
    def name(self) -> str:
        """The name of its folder, such as ddp-2, hf-trainer-ddp-2-bf16; what was left to choose itself is left out."""
        words = [self.strategy, str(self.devices)]
        words[:0] = [self.implementation] if self.implementation != OURS else []
        words += [self.precision] if self.precision != AUTO else []
        words += [self.levers if self.levers != NONE else "no-levers"] if self.levers != AUTO else []
        return "-".join(words)

    @property
    def impossible(self) -> str:
        """Why it cannot run anywhere; "" where it can."""
        if self.strategy == "single" and self.devices > 1:
            return "strategy single runs on one device"
        if self.implementation != OURS and self.strategy not in TRAINER_STRATEGIES:
            return f"implementation {self.implementation} trains by strategies {' and '.join(TRAINER_STRATEGIES)}"
        if self.implementation != OURS and self.levers != AUTO:
            return f"implementation {self.implementation} has no levers"
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedVariant:
    """A variant, looked at before anything runs."""

    variant: Variant
    plan: Plan
    run: TrainRun
    given: Mapping[str, Any]
    """Fields of TrainSettings with what the user gave, None where nothing."""
    request: Mapping[str, Any]
    """The options of `bertbench train` that come to the same."""
    threads: int | None
    """CPU threads per process; None is an equal share."""

    @property
    def samples_per_epoch(self) -> int | None:
        """Samples of the training data; None where they are without end, or are not counted."""
        return self.plan.source.samples


def combinations(
    strategies: Sequence[str],
    devices: Sequence[int],
    precisions: Sequence[str] = (AUTO,),
    implementations: Sequence[str] = (OURS,),
    levers: Sequence[str] = (AUTO,),
) -> list[Variant]:
    """Return every implementation with every set of levers in every precision by every strategy on every number of
    devices, each once.

    The strategy auto is single on one device, ddp on several.
    """
    return list(
        dict.fromkeys(
            Variant(resolve_strategy(name, count), count, precision, implementation, own)
            for implementation, own, precision, name, count in itertools.product(
                implementations, levers, precisions, strategies, devices
            )
        )
    )


def variants(
    strategies: Sequence[str],
    devices: Sequence[int],
    precisions: Sequence[str] = (AUTO,),
    implementations: Sequence[str] = (OURS,),
    levers: Sequence[str] = (AUTO,),
) -> list[Variant]:
    """Return those of the `combinations` that can run.

    Raises:
        UsageError: fewer than two variants are left.
    """
    found = combinations(strategies, devices, precisions, implementations, levers)
    unique = [variant for variant in found if not variant.impossible]
    if len(unique) < 2:
        names = ", ".join(variant.name for variant in unique) or "none"
        raise UsageError(
            "option-missing",
            f"a comparison needs two variants, there is {names}: use --devices 1 2, or more --strategies, "
            "--precisions, --implementations or --levers",
        )
    return unique


def plan_variant(
    variant: Variant,
    out: Path,
    phase: int | None,
    given: Mapping[str, Any],
    request: Mapping[str, Any],
    threads: int | None,
    devices: Devices,
) -> PlannedVariant:
    """Return a variant's training as `bertbench train` would run it, in a folder of its own in `out`.

    Raises:
        UsageError: settings that no run can have, or more devices than there are.
        InputError: the data or the initial weights cannot be read.
    """
    own = {"strategy": variant.strategy, "world_size": variant.devices, "implementation": variant.implementation}
    given = {**given, **own}
    given |= {"precision": variant.precision} if variant.precision != AUTO else {}
    given |= {"levers": variant.levers} if variant.levers != AUTO else {}
    plan = plan_training(phase, given, devices)
    run = TrainRun(out / variant.name)
    return PlannedVariant(variant=variant, plan=plan, run=run, given=given, request=request, threads=threads)


def check_comparable(planned: Sequence[PlannedVariant], devices: Devices) -> None:
    """Refuse a comparison of different trainings, with each other or with what lies in their folders.

    Raises:
        UsageError: global batches differ, or a folder holds a run with other settings, data, device or threads.
        SchemaError: what lies there is damaged.
    """
    sizes = {item.variant.name: item.plan.settings.global_batch_size for item in planned}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UsageError(
            "batch-size-mismatch",
            f"the variants would have different global batch sizes ({told}): give --global-batch-size, and "
            "--micro-batch-size or --grad-accum-steps, not both",
        )
    for item in planned:
        folder = item.run.path
        if is_train_run(folder.parent):
            raise UsageError(
                "folder-occupied",
                f"--out {folder.parent} is the run directory of one training: give a folder of its own",
            )
        attempts = item.run.attempts()
        if not attempts:
            continue
        differences = _differences(attempts[-1].read_trial(), item, devices.kind)
        if differences:
            raise UsageError(
                "settings-changed",
                f"{folder} holds a training with {'; '.join(differences)}: one comparison has one set of settings and "
                "data; give another --out, or the options of before",
            )


def _differences(before: Trial, item: PlannedVariant, device: str) -> list[str]:
    """What a run that lies there has other than what is planned, in words."""
    settings, old = item.plan.settings.to_json(), dict(before.training)
    names = [name for name in settings if name in old and name not in _FREE_SETTINGS]
    pairs = [(name, old[name], settings[name]) for name in names]
    pairs.append(("implementation", before.implementation, item.variant.implementation))
    pairs.append(("device", before.device, device))
    pairs.append(("threads", before.threads_per_rank, item.threads))
    fingerprints = before.data_fingerprint, item.plan.source.fingerprint
    if all(fingerprints):  # data count by what they are, not by where they lie
        pairs.append(("a hash of the data", *fingerprints))
    else:
        pairs.append(("data", before.data, settings["data"]))
    return [f"{name} {was}, not {now}" for name, was, now in pairs if was != now]


def remarks(planned: Sequence[PlannedVariant], devices: Devices) -> list[str]:
    """Return what has to be known to judge the comparison: shared cores, and why losses may differ."""
    settings = planned[0].plan.settings
    found = []
    counts = sorted({item.variant.devices for item in planned})
    if devices.kind == "cpu" and counts[-1] > 1:
        threads = {item.variant.name: item.threads or devices.cpu_cores // item.variant.devices for item in planned}
        if len(planned) > _MOST_NAMED:  # variants of as many processes have as many
            threads = {f"those x {item.variant.devices}": threads[item.variant.name] for item in planned}
        shares = [f"{max(1, count)} in {name}" for name, count in threads.items()]
        found.append(
            f"the processes share {devices.cpu_cores} CPU core{'s'[: devices.cpu_cores > 1]}; threads per process: "
            f"{', '.join(shares)}"
        )
    if len(counts) > 1 and is_synthetic(settings.data):
        found.append("every process draws made-up data of its own: losses of different numbers of processes differ")
    if len(counts) > 1 and settings.dropout > 0:
        found.append(
            f"every process draws its own dropout ({settings.dropout:g}): losses differ by chance; --dropout 0 shows "
            "that they are the same"
        )
    if len({item.plan.settings.precision for item in planned}) > 1:
        found.append("losses of different precisions differ by their rounding")
    if any(item.variant.implementation != OURS for item in planned):
        found.append(
            "hf-trainer: Hugging Face's model and Trainer with the same weights, batches, optimizer and schedule; it "
            "keeps no checkpoints on its way: interrupted, it begins again"
        )
        padded = PRESETS["base"].replace(vocab_size=settings.vocab_size).padded_vocab_size
        if padded != settings.vocab_size:
            found.append(
                f"ours rounds the vocabulary up for the hardware ({settings.vocab_size:,} to {padded:,} word pieces), "
                "Hugging Face's model does not: their parameters differ by those rows, which nothing reads"
            )
        if settings.optimizer == "lamb":
            found.append(
                "LAMB scales the step of each weight, Hugging Face has query, key and value apart: losses differ a "
                "little; --optimizer adamw shows that they are the same"
            )
        if settings.dropout > 0 and len(counts) == 1:
            found.append(
                f"the implementations draw dropout ({settings.dropout:g}) in other places: --dropout 0 shows that the "
                "losses are the same"
            )
        if settings.task in _OTHER_LOSSES:
            found.append(f"{_OTHER_LOSSES[settings.task]}: losses differ, the more the more padding there is")
    return found


def run_variant(item: PlannedVariant, devices: Devices, watcher: Watcher) -> bool:
    """Train a variant to its end, or on from where it stopped; return False where nothing was left to do.

    How it ended stands in its run directory.

    Raises:
        LockedError: another call uses it.
        StorageError: its run directory cannot be written.
        KeyboardInterrupt: it was ended at once.
    """
    with locks.locked(item.run.path, "another call", "wait for it, or choose another --out"):
        if (item.run.read_state() or {}).get("finished"):
            return False
        check_continues(item.run, item.plan, item.given)
        train_once(item.run, item.plan, devices, item.request, watcher, item.threads)
        return True


def profile_variants(
    out: Path,
    planned: Sequence[PlannedVariant],
    steps: int,
    request: Mapping[str, Any],
    devices: Devices,
    progress: Progress,
    note: Callable[[str], None],
) -> dict[Variant, dict[str, Any]]:
    """Profile a few steps of every variant with several devices, in the run directory `out`/profile.

    Args:
        out: folder of the comparison.
        planned: all its variants.
        steps: how many steps to profile, at least 1.
        request: what was asked for.
        devices: what there is.
        progress: told of every trial.
        note: told what needs no answer.

    Returns:
        By variant what analysis.metrics.communication.exposure.all_reduce found, or `profile_problem`, why nothing.

    Raises:
        StorageError: the run directory cannot be written.
    """
    several = [item for item in planned if item.variant.devices > 1]
    if not several:
        return {}
    trials = [_profile_trial(item, steps, devices) for item in several]
    run = RunDirectory(out / PROFILE_FOLDER)
    found: dict[Variant, dict[str, Any]] = {}
    with locked(run):
        profiled = profile_trials(run, trials, request, devices, LaunchOptions(), progress, note)
    for item, profile in zip(several, profiled, strict=True):
        if profile.problem:
            found[item.variant] = {"profile_problem": profile.problem}
            continue
        source = open_profile(run.trial(profile.trial.trial_id)).source
        if not source.timelines:
            found[item.variant] = {"profile_problem": "; ".join(source.problems) or "the profile holds no trace"}
        else:
            found[item.variant] = all_reduce(source.timelines)
    return found


def _profile_trial(item: PlannedVariant, steps: int, devices: Devices) -> Trial:
    """The same model, batches and strategy as a trial that measures."""
    settings, levers = item.plan.settings, item.variant.levers
    return item.plan.trial(
        kind="profile",
        levers="" if levers == AUTO else levers_text(resolve_levers(levers, devices.kind)),
        shape=settings.shape,
        device=devices.kind,
        padding=settings.padding if task_data(settings.task).paddings else "",
        start_iteration=_WARM_UP_STEPS,
        stop_iteration=_WARM_UP_STEPS + steps,
        threads_per_rank=item.threads,
        profiler=_PROFILER,
    )
