"""DeepSpeed's configuration: read, and made to agree with the run. Imports no torch.

What the run says too (batch sizes, accumulation, clipping, precision, ZeRO stage, optimizer) is filled in where the
file says "auto" or nothing; a file that says something else is refused. DeepSpeed checks the rest itself.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert.parallel import ZERO_STAGES
from common.errors import UsageError
from common.reading import read_json

if TYPE_CHECKING:
    from bert.parallel.base import StepPlan

AUTO = "auto"

# Sections that would do again, or otherwise, what bertbench does itself, and those of ZeRO that checkpoints and
# measurements do not cover.
_REFUSED = (
    "amp", "autotuning", "checkpoint", "compression_training", "curriculum_learning", "data_efficiency", "elasticity",
    "progressive_layer_drop", "scheduler", "sparse_attention", "torch_autocast",
)  # fmt: skip
_REFUSED_OF_ZERO = ("cpu_offload", "mics_shard_size", "offload_optimizer", "offload_param")
# Loss scaling as torch.amp.GradScaler does it, for what an fp16 section leaves open.
_LOSS_SCALING = {
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 2000,
    "hysteresis": 1,
    "min_loss_scale": 0,
}
# Names DeepSpeed has for the run's optimizers, in lower case.
_OPTIMIZERS = {"adamw": ("adamw", "adam"), "lamb": ("lamb",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A configuration that holds for the run."""

    config: Mapping[str, Any]
    """The configuration for DeepSpeed, without an optimizer, which bertbench creates."""
    zero_stage: int
    """0 to 3."""
    optimizer: Mapping[str, Any]
    """Options of the optimizer that the file gives, by their names in PyTorch: betas, eps, lr, weight_decay."""


def read_deepspeed_config(path: Path) -> dict[str, Any]:
    """Read a configuration. Raises InputError if it is not a file, or not one JSON object."""
    return read_json(path, "give one such as those in bench/deepspeed")


def training_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training settings of a configuration, by field of bert.train.settings.TrainSettings."""
    params = _section(_section(config, "optimizer"), "params")
    values = {
        "micro_batch_size": config.get("train_micro_batch_size_per_gpu"),
        "grad_accum_steps": config.get("gradient_accumulation_steps"),
        "global_batch_size": config.get("train_batch_size"),
        "max_grad_norm": config.get("gradient_clipping"),
        "learning_rate": params.get("lr"),
        "weight_decay": params.get("weight_decay"),
    }
    return {name: value for name, value in values.items() if value not in (None, AUTO)}


def resolve(config: Mapping[str, Any], plan: "StepPlan", zero_stage: int | None = None) -> Resolved:
    """Check a configuration against the run, and fill in what it leaves to it.

    Args:
        config: of DeepSpeed.
        plan: the steps of the run.
        zero_stage: 0 to 3; None if the run does not say: the file's, else 0.

    Raises:
        UsageError: the two say different things (each is named, with both values), or it asks for what is not done.
    """
    filled: dict[str, Any] = copy.deepcopy(dict(config))
    for name in ("zero_optimization", "fp16", "bf16"):
        filled[name] = _section(filled, name)
    for section, names in ((filled, _REFUSED), (filled["zero_optimization"], _REFUSED_OF_ZERO)):
        for name in names:
            if _is_on(section.pop(name, None)):
                raise UsageError(
                    "option-not-applicable",
                    f'"{name}" of the DeepSpeed configuration is not supported here: remove it',
                )
    given = filled["zero_optimization"].get("stage", AUTO)
    stage = zero_stage if zero_stage is not None else 0 if given == AUTO else given
    if isinstance(stage, bool) or stage not in ZERO_STAGES:
        raise UsageError("option-choice", f"zero_optimization.stage={stage!r}: use 0, 1, 2 or 3")
    if stage > 0 and plan.optimizer == "lamb":
        raise UsageError(
            "unsupported-combination",
            f"ZeRO stage {stage} has no norms of whole tensors, which LAMB needs: use --zero-stage 0, --strategy fsdp "
            "or --optimizer adamw",
        )
    if filled.get("gradient_clipping", AUTO) == plan.optimizer_norm:
        filled["gradient_clipping"] = 0.0  # the optimizer clips to it; clipped twice would be something else
    optimizer, differences = _optimizer(_section(filled, "optimizer"), plan)
    filled.pop("optimizer", None)
    for path, value in _values_of_the_run(plan, stage):
        *outer, name = path
        place = filled[outer[0]] if outer else filled
        if place.get(name, AUTO) == AUTO:
            place[name] = value
        elif place[name] != value:
            differences.append(f"{'.'.join(path)} is {place[name]!r}, but the run has {value!r}")
    if differences:
        raise UsageError(
            "option-conflict",
            f'the DeepSpeed configuration differs from the run: {"; ".join(differences)}; change one, or write "auto"',
        )
    if plan.train.precision == "fp16":
        filled["fp16"] = {**_LOSS_SCALING, **_without_auto(filled["fp16"])}
    filled.setdefault("steps_per_print", 2**31 - 1)
    return Resolved(config=_without_auto(filled), zero_stage=stage, optimizer=optimizer)


def _values_of_the_run(plan: "StepPlan", stage: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield ("train_micro_batch_size_per_gpu",), plan.train.micro_batch_size
    yield ("gradient_accumulation_steps",), plan.train.grad_accum_steps
    yield ("train_batch_size",), plan.train.global_batch_size
    yield ("gradient_clipping",), plan.max_grad_norm or 0.0
    yield ("fp16", "enabled"), plan.train.precision == "fp16"
    yield ("bf16", "enabled"), plan.train.precision == "bf16"
    yield ("zero_optimization", "stage"), stage


def _optimizer(section: Mapping[str, Any], plan: "StepPlan") -> tuple[dict[str, Any], list[str]]:
    """Return the options that a file gives the optimizer, and where it differs from the run's."""
    kind, params = str(section.get("type", AUTO)), _section(section, "params")
    own: dict[str, Any] = {}
    differences = []
    if kind != AUTO and kind.lower() not in _OPTIMIZERS[plan.optimizer]:
        differences.append(f"optimizer.type is {kind!r}, but the run has {plan.optimizer!r}")
    for name, value in params.items():
        known = {"lr": plan.learning_rate, "weight_decay": plan.weight_decay, "adam_w_mode": True}.get(name)
        if value == AUTO or name == "torch_adam":
            continue
        if known not in (None, value):
            differences.append(f"optimizer.params.{name} is {value!r}, but the run has {known!r}")
        elif name in ("lr", "weight_decay", "eps", "betas"):
            own[name] = _number(name, value)
        elif name != "adam_w_mode":
            raise UsageError("option-not-applicable", f"optimizer.params.{name} is not a parameter of {plan.optimizer}")
    return own, differences


def _number(name: str, value: Any) -> float | tuple[float, float]:
    try:
        if name != "betas":
            return float(value)
        first, second = value
        return float(first), float(second)
    except (TypeError, ValueError):
        raise UsageError("option-value", f"optimizer.params.{name}={value!r} must be a number, betas two") from None


def _section(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section, empty if it is absent. Raises UsageError if it is no object."""
    section = config.get(name, {})
    if not isinstance(section, Mapping):
        raise UsageError("option-value", f'"{name}" of the DeepSpeed configuration must be an object, not {section!r}')
    return dict(section)


def _is_on(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("enabled", True) is not False and value.get("device") != "none" and bool(_without_auto(value))
    return value not in (None, AUTO, False, -1)


def _without_auto(section: Mapping[str, Any]) -> dict[str, Any]:
    inner = {name: _without_auto(value) if isinstance(value, Mapping) else value for name, value in section.items()}
    return {name: value for name, value in inner.items() if value != AUTO}
