"""DeepSpeed's configuration: read, and made to agree with the run. Imports no torch.

What the run says too (batch sizes, accumulation, clipping, precision, ZeRO stage, optimizer) is filled in where the
file says "auto" or nothing; a file that says something else is refused. DeepSpeed checks the rest itself.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import UsageError
from common.reading import read_json

if TYPE_CHECKING:
    from bert.parallel.base import StepPlan

AUTO = "auto"

# Sections, of ZeRO's too, by which DeepSpeed would train otherwise than the run says, or whose parts checkpoints miss.
_REFUSED = (
    "amp", "compression_training", "cpu_offload", "curriculum_learning", "data_efficiency", "elasticity",
    "mics_shard_size", "offload_optimizer", "offload_param", "progressive_layer_drop", "scheduler", "torch_autocast",
)  # fmt: skip
# Loss scaling as torch.amp.GradScaler does it, for what an fp16 section leaves open.
_LOSS_SCALING = {
    "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 2000, "hysteresis": 1, "min_loss_scale": 0,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A configuration that holds for the run."""

    config: Mapping[str, Any]
    """The configuration for DeepSpeed, without an optimizer, which bertbench creates."""
    zero_stage: int
    """0 to 3."""
    optimizer: Mapping[str, Any]
    """Options of the optimizer that file or run give, by their names in PyTorch: betas, eps, lr, weight_decay."""


def read_deepspeed_config(path: Path) -> dict[str, Any]:
    """Read a configuration. Raises InputError if it is not a file, or not one JSON object."""
    return read_json(path, "give one such as those in bench/deepspeed")


def training_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training settings of a configuration, by field of bert.train.settings.TrainSettings."""
    params = _section(copy.deepcopy(dict(config)), "optimizer", "params")
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
    zero = _section(filled, "zero_optimization")
    for section in (filled, zero):
        for name in _REFUSED:
            if _is_on(section.pop(name, None)):
                raise UsageError(
                    "option-not-applicable", f'"{name}" of the DeepSpeed configuration is not supported: remove it'
                )
    given = zero.get("stage", AUTO)
    stage = zero_stage if zero_stage is not None else 0 if given == AUTO else given
    if stage != 0 and plan.optimizer == "lamb":
        raise UsageError(
            "unsupported-combination",
            f"ZeRO stage {stage} has no norms of whole tensors, which LAMB needs: use --zero-stage 0, --strategy fsdp "
            "or --optimizer adamw",
        )
    if filled.get("gradient_clipping", AUTO) == plan.optimizer_norm:
        filled["gradient_clipping"] = 0.0  # the optimizer clips to it; clipped twice would be something else
    params, kind = _section(filled, "optimizer", "params"), str(filled.pop("optimizer").get("type", AUTO))
    differences = []
    if kind.lower().removesuffix("w") not in (AUTO, plan.optimizer.removesuffix("w")):
        differences.append(f"optimizer.type is {kind!r}, but the run has {plan.optimizer!r}")
    for section, path, value in (
        (filled, "train_micro_batch_size_per_gpu", plan.train.micro_batch_size),
        (filled, "gradient_accumulation_steps", plan.train.grad_accum_steps),
        (filled, "train_batch_size", plan.train.global_batch_size),
        (filled, "gradient_clipping", plan.max_grad_norm or 0.0),
        (_section(filled, "fp16"), "fp16.enabled", plan.train.precision == "fp16"),
        (_section(filled, "bf16"), "bf16.enabled", plan.train.precision == "bf16"),
        (zero, "zero_optimization.stage", stage),
        (params, "optimizer.params.lr", plan.learning_rate),
        (params, "optimizer.params.weight_decay", plan.weight_decay),
        (params, "optimizer.params.adam_w_mode", True),
    ):
        name = path.rpartition(".")[2]
        if section.get(name, AUTO) == AUTO:
            section[name] = AUTO if value is None else value
        elif value not in (None, section[name]):
            differences.append(f"{path} is {section[name]!r}, but the run has {value!r}")
    if differences:
        raise UsageError(
            "option-conflict",
            f'the DeepSpeed configuration differs from the run: {"; ".join(differences)}; change one, or write "auto"',
        )
    own = {name: value for name, value in _without_auto(params).items() if name not in ("adam_w_mode", "torch_adam")}
    optimizer = {name: tuple(value) if name == "betas" else value for name, value in own.items()}
    if foreign := optimizer.keys() - {"lr", "weight_decay", "eps", "betas"}:
        raise UsageError(
            "option-not-applicable", f"optimizer.params.{min(foreign)} is none of {plan.optimizer}: remove it"
        )
    if plan.train.precision == "fp16":
        filled["fp16"] = {**_LOSS_SCALING, **_without_auto(filled["fp16"])}
    filled.setdefault("steps_per_print", 2**31 - 1)
    return Resolved(config=_without_auto(filled), zero_stage=stage, optimizer=optimizer)


def _section(config: dict[str, Any], *path: str) -> dict[str, Any]:
    """Return a section, made where it is absent. Raises UsageError if it is no object."""
    for name in path:
        config = config.setdefault(name, {})
        if not isinstance(config, dict):
            raise UsageError(
                "option-value", f'"{name}" of the DeepSpeed configuration must be an object, not {config!r}'
            )
    return config


def _is_on(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("enabled", True) is not False and value.get("device") != "none"
    return value not in (None, AUTO, False, -1)


def _without_auto(section: Mapping[str, Any]) -> dict[str, Any]:
    inner = {name: _without_auto(value) if isinstance(value, Mapping) else value for name, value in section.items()}
    return {name: value for name, value in inner.items() if value != AUTO}
