"""The same training run with several strategies or numbers of devices: its variants and their cost."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.implementations import OURS, TRAINER_STRATEGIES
from bench.machine.devices import Devices
from bench.plan.options import AUTO, resolve_strategy
from bench.plan.sweep import Session, locked
from bench.plan.variants import PlannedVariant, Values, grid
from bench.run.profiling import profile_trials
from bert.data.lengths import is_synthetic
from bert.model.config import PRESETS
from bert.speed.registry import NONE, Setup, effective, levers_text, resolve_levers
from bert.tasks import task_data
from common.errors import UsageError
from records.trial import Trial

PROFILE_FOLDER = "profile"
_PROFILER = "torch"
# Steps before those that are profiled: the first ones allocate.
_WARM_UP_STEPS = 2
# More variants are not listed individually.
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
    def values(self) -> Values:
        """The options of `bertbench train` for it, without those left at their default."""
        own = {"precision": self.precision, "levers": self.levers}
        chosen = {name: value for name, value in own.items() if value != AUTO}
        return {
            "strategy": self.strategy, "devices": self.devices, "implementation": self.implementation, **chosen
        }  # fmt: skip

    @property
    def name(self) -> str:
        """The name of its folder, such as ddp-2 or hf-trainer-ddp-2-bf16, without options left at their default."""
        words = [self.strategy, str(self.devices)]
        words[:0] = [self.implementation] if self.implementation != OURS else []
        words += [self.precision] if self.precision != AUTO else []
        words += [self.levers if self.levers != NONE else "no-levers"] if self.levers != AUTO else []
        return "-".join(words)

    @property
    def impossible(self) -> str:
        """Why it cannot run at all; "" if it can."""
        if self.strategy == "single" and self.devices > 1:
            return "strategy single runs on one device"
        if self.implementation != OURS and self.strategy not in TRAINER_STRATEGIES:
            return f"implementation {self.implementation} trains by strategies {' and '.join(TRAINER_STRATEGIES)}"
        if self.implementation != OURS and self.levers != AUTO:
            return f"implementation {self.implementation} has no --levers"
        return ""


def combinations(axes: Mapping[str, Sequence[Any]]) -> list[Variant]:
    """Return every combination of the axes (fields of Variant) once; auto is single on one device, else ddp."""
    found = list(
        dict.fromkeys(
            Variant(**{**values, "strategy": resolve_strategy(values["strategy"], values["devices"])})
            for values in grid(axes)
        )
    )
    possible = [variant for variant in found if not variant.impossible]
    if len(possible) < 2:
        names = ", ".join(variant.name for variant in possible) or "none"
        raise UsageError(
            "option-missing",
            f"a comparison needs at least two variants, but the options give {names}: use --devices 1 2, or more "
            "--strategies, --precisions, --implementations or --levers",
        )
    return found


def with_same_batches(item: PlannedVariant, devices: Devices) -> PlannedVariant:
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


def remarks(planned: Sequence[PlannedVariant], devices: Devices) -> list[str]:
    """Return notes on the comparison: shared cores, and why losses may differ."""
    settings = planned[0].plan.settings
    found = []
    counts = sorted({item.plan.settings.world_size for item in planned})
    if devices.kind == "cpu" and counts[-1] > 1:
        threads = {}
        for item in planned:
            processes = item.plan.settings.world_size
            # Variants with equally many processes have equally many threads.
            name = f"those x {processes}" if len(planned) > _MOST_NAMED else item.name
            threads[name] = item.plan.options.threads or devices.cpu_cores // processes
        shares = [f"{max(1, count)} in {name}" for name, count in threads.items()]
        found.append(
            f"the processes share {devices.cpu_cores} CPU core{'s'[: devices.cpu_cores > 1]}; threads per process: "
            f"{', '.join(shares)}"
        )
    if len(counts) > 1 and is_synthetic(settings.data):
        found.append("every process draws its own synthetic data: losses of different numbers of processes differ")
    if len(counts) > 1 and settings.dropout > 0:
        found.append(
            f"every process draws its own dropout ({settings.dropout:g}): losses differ by chance; with --dropout 0 "
            "they agree"
        )
    if len({item.plan.settings.precision for item in planned}) > 1:
        found.append("losses of different precisions differ by rounding")
    if any(item.plan.implementation != OURS for item in planned):
        found.append(
            "hf-trainer is Hugging Face's model and Trainer with the same weights, batches, optimizer and schedule; it "
            "writes no intermediate checkpoints, so an interrupted run starts again"
        )
        padded = PRESETS["base"].replace(vocab_size=settings.vocab_size).padded_vocab_size
        if padded != settings.vocab_size:
            found.append(
                f"bertbench pads the vocabulary for the hardware ({settings.vocab_size:,} to {padded:,} word pieces), "
                "Hugging Face's model does not: the number of parameters differs by the padding"
            )
        if settings.optimizer == "lamb":
            found.append(
                "LAMB scales the update of each tensor, and Hugging Face stores query, key and value separately: "
                "losses differ slightly; with --optimizer adamw they agree"
            )
        if settings.dropout > 0 and len(counts) == 1:
            found.append(
                f"the implementations draw dropout ({settings.dropout:g}) in different places: with --dropout 0 the "
                "losses agree"
            )
        if settings.task in _OTHER_LOSSES:
            found.append(f"{_OTHER_LOSSES[settings.task]}: losses differ more with more padding")
    return found


def profile_variants(session: Session, planned: Sequence[PlannedVariant], steps: int) -> dict[str, dict[str, Any]]:
    """Profile a few steps of every variant with several devices.

    Args:
        session: the call; its run directory is PROFILE_FOLDER in the folder of the comparison.
        planned: all its variants.
        steps: number of steps to profile, at least 1.

    Returns:
        By the name of the variant the result of analysis.metrics.communication.exposure.all_reduce, or
        `profile_problem`, the reason that there is none.
    """
    from analysis.diagnose.profiles import open_profile
    from analysis.metrics.communication.exposure import all_reduce

    several = [item for item in planned if item.plan.settings.world_size > 1]
    if not several:
        return {}
    trials = [_profile_trial(item, steps, session.devices) for item in several]
    found: dict[str, dict[str, Any]] = {}
    with locked(session.run):
        profiled = profile_trials(session, trials)
    for item, profile in zip(several, profiled, strict=True):
        if profile.problem:
            found[item.name] = {"profile_problem": profile.problem}
            continue
        source = open_profile(session.run.trial(profile.trial.trial_id)).source
        if not source.timelines:
            found[item.name] = {"profile_problem": "; ".join(source.problems) or "the profile holds no trace"}
        else:
            found[item.name] = all_reduce(source.timelines)
    return found


def _profile_trial(item: PlannedVariant, steps: int, devices: Devices) -> Trial:
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
