"""A speedrun: the same pretraining from random weights once per seed, each until a held-out loss is reached."""

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from analysis.metrics.comparison.trainings import SCORE, has_reached, seed_row, summary
from bench.machine.devices import Devices
from bench.plan.training import TrainOptions
from bench.plan.variants import PlannedVariant, check_comparable, plan_variant
from bert.data.lengths import is_synthetic
from common.errors import InputError, UsageError
from common.flags import flag
from records.speedrun import KIND, Speedrun, read_speedrun

RECIPE: Mapping[str, Any] = MappingProxyType(
    {
        "preset": "mini", "optimizer": "adamw", "learning_rate": 5e-4, "schedule": "linear", "warmup": 0.05,
        "dropout": 0.0, "steps": 1000, "keep": 1,
    }
)  # fmt: skip
"""Options of `bertbench train pretrain` where none are given: a recipe for small models, to be beaten."""
BATCH = 32
"""Sequences per update where no batch size is given."""
EVALUATIONS = 50
"""Evaluations over all steps where no interval is given."""
_BATCHES = ("global_batch_size", "micro_batch_size", "grad_accum_steps")
# A training from nothing to a loss has no such options.
_EXCLUDED = ("init", "best_by", "epochs", "file")
# Settings of a seed that are no part of the question or of the answer, or paths.
_LEFT_OUT = ("seed", "data", "eval_data", "init", "task", "task_options", "shape", "best_by", "log_every", "save_every",
             "keep")  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedrunPlan:
    """A speedrun, planned."""

    place: Speedrun
    target: float
    """Held-out MLM loss in nats."""
    price_per_hour: float | None
    seeds: Mapping[int, PlannedVariant]
    """The training of each seed."""
    held_out: Mapping[str, Any]
    """held_out_fingerprint and held_out_samples."""
    command: str
    """The command line without paths."""

    def reached(self, seed: int) -> bool:
        """Return whether a seed has reached the target. Raises SchemaError: its records are damaged."""
        return has_reached(self.seeds[seed].run, self.target)

    def complete(self, seed: int) -> bool:
        """Return whether a seed needs no more training: it reached the target, or made all its steps."""
        return self.reached(seed) or self.seeds[seed].finished


def plan_speedrun(
    base: TrainOptions,
    place: Speedrun,
    devices: Devices,
    *,
    seeds: Sequence[int],
    target: float,
    price_per_hour: float | None,
    command: str,
) -> SpeedrunPlan:
    """Return the trainings of a speedrun, which may have begun.

    Args:
        base: options common to all seeds.
        place: its folder.
        devices: available devices.
        seeds: one training for each.
        target: held-out MLM loss in nats.
        price_per_hour: price of the machine.
        command: the command line without paths.
    """
    _check_from_nothing(base)
    recorded = _check_recorded(place, target, seeds)
    options = with_recipe(base)
    planned = {}
    for seed in seeds:
        own = options.having({"seed": seed}, out=place.seed(seed).path)
        planned[seed] = plan_variant(own, {"seed": seed}, devices)
    check_comparable(list(planned.values()), devices)
    plan = SpeedrunPlan(
        place=place,
        target=target,
        price_per_hour=price_per_hour,
        seeds=planned,
        held_out=_held_out(planned[seeds[0]]),
        command=command,
    )
    _check_same_data(place, recorded, plan)
    return plan


def with_recipe(base: TrainOptions) -> TrainOptions:
    """Return options with RECIPE, BATCH and EVALUATIONS where they set nothing."""
    own = {name: value for name, value in RECIPE.items() if getattr(base, name) is None}
    if all(getattr(base, name) is None for name in _BATCHES):
        own |= {"global_batch_size": BATCH, "micro_batch_size": BATCH}
    if base.eval_every is None:
        own["eval_every"] = math.ceil((base.steps or own["steps"]) / EVALUATIONS)
    return dataclasses.replace(base, **own)


def _check_from_nothing(base: TrainOptions) -> None:
    """Refuse options that a training from nothing to a held-out loss does not have. Raises UsageError."""
    for name in _EXCLUDED:
        if getattr(base, name) is not None:
            raise UsageError(
                "option-not-applicable",
                f"{flag(name)} {getattr(base, name)}: a speedrun starts from random weights and ends at a held-out MLM "
                "loss or after --steps; leave out that option",
            )
    if base.eval_every == 0:
        raise UsageError(
            "option-not-applicable", "--eval-every 0: a speedrun ends at an evaluation; give the updates between two"
        )
    if base.data is not None and is_synthetic(base.data):
        raise UsageError(
            "option-not-applicable",
            f"--data {base.data} has no held-out shards to evaluate on: give a folder that `bertbench data pretrain` "
            "wrote",
        )


def _check_recorded(place: Speedrun, target: float, seeds: Sequence[int]) -> dict[str, Any] | None:
    """Return speedrun.json of an earlier call, if there is one."""
    if not place.document.exists():
        return None
    found = read_speedrun(place.path)
    if found["target"] != {"score": SCORE, "value": target}:
        raise UsageError(
            "settings-changed",
            f"{place.path} is a speedrun to an MLM loss of {found['target']['value']:g}, not {target:g}: give another "
            "--out, or the earlier target",
        )
    absent = [str(seed) for seed in found["seeds"] if seed not in seeds]
    if absent:
        raise UsageError(
            "settings-changed",
            f"{place.path} has seeds {' '.join(map(str, found['seeds']))}, and all of them count: give "
            f"{' '.join(absent)} too, or another --out",
        )
    return found


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


def _check_same_data(place: Speedrun, recorded: Mapping[str, Any] | None, plan: SpeedrunPlan) -> None:
    if recorded is None:
        return
    now = _data(plan)
    for name in ("fingerprint", "held_out_fingerprint", "held_out_samples"):
        if recorded["data"].get(name) != now[name]:
            raise InputError(
                "data-mismatch",
                f"{place.path} is a speedrun on other data ({name} {recorded['data'].get(name)}, not {now[name]}): "
                "give the earlier --data, or another --out",
            )


def _data(plan: SpeedrunPlan) -> dict[str, Any]:
    source = next(iter(plan.seeds.values())).plan.source
    return {
        "fingerprint": source.fingerprint,
        "samples": source.samples,
        "seq_len": source.seq_len,
        "vocab_size": source.vocab_size,
        **plan.held_out,
    }


def document(plan: SpeedrunPlan) -> dict[str, Any]:
    """Return speedrun.json: what was asked, on which machine, and what each seed needed so far.

    Raises:
        SchemaError: the records of a seed are damaged.
    """
    first = next(iter(plan.seeds.values())).plan
    settings = {
        "implementation": first.implementation,
        **{name: value for name, value in first.settings.to_json().items() if name not in _LEFT_OUT},
    }
    rows = [seed_row(seed, item.run, plan.target, plan.price_per_hour) for seed, item in plan.seeds.items()]
    return {
        "kind": KIND,
        "target": {"score": SCORE, "value": plan.target},
        "command": plan.command,
        "seeds": list(plan.seeds),
        "settings": settings,
        "data": _data(plan),
        "machine": _machine(list(plan.seeds.values())),
        "price_per_hour": plan.price_per_hour,
        "cautions": _cautions(plan.seeds),
        "rows": rows,
        "summary": summary(rows),
    }


_VERSIONS = ("torch", "numpy", "transformers")


def _machine(planned: Sequence[PlannedVariant]) -> dict[str, Any]:
    found: dict[str, list[str]] = {}
    for item in planned:
        for directory in item.run.attempts():
            environment = directory.read_environment()
            libraries = environment.get("libraries") or {}
            ranks = directory.read_ranks().values()
            values = {
                "device_name": environment.get("device_name"),
                "devices": item.plan.settings.world_size,
                "threads_per_rank": next((record.get("threads") for record in ranks), None),
                "python": environment.get("python"),
                **{name: libraries.get(name) for name in _VERSIONS},
                "commit": environment.get("git_commit"),
            }
            for name, value in values.items():
                if value is not None and str(value) not in found.setdefault(name, []):
                    found[name].append(str(value))
    return {name: " and ".join(values) for name, values in found.items()}


def _cautions(planned: Mapping[int, PlannedVariant]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for seed, item in planned.items():
        for directory in item.run.attempts():
            for one in (directory.read_result() or {}).get("cautions") or []:
                entry = found.setdefault(str(one.get("code")), {**one, "seeds": []})
                entry["seeds"] += [seed] * (seed not in entry["seeds"])
    return list(found.values())
