"""DeepSpeed's configuration: read, checked against the run, and its "auto" values filled in. Imports no torch.

The fields are those of https://www.deepspeed.ai/docs/config-json/. What the run says too (batch sizes, accumulation,
clipping, precision, ZeRO stage, optimizer) is taken from the run where the file says "auto" or nothing; where the file
says something else the run is refused. Other "auto" values are left out: DeepSpeed's own defaults hold.

Names are checked against a list here. DeepSpeed 0.19 itself refuses unknown names in its sections zero_optimization,
fp16 and bf16, and passes over misspelt ones elsewhere (gradient_cliping).
"""

import copy
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert.optim.registry import DEFAULT_BETAS, DEFAULT_EPS
from bert.parallel.options import ZERO_STAGES
from common.errors import UsageError
from common.reading import read_json

if TYPE_CHECKING:
    from bert.parallel.base import StepPlan

AUTO = "auto"

_ABSENT = object()

# Sections that would do again, or otherwise, what bertbench does itself.
_REFUSED = {
    "scheduler": "the run sets the schedule: --schedule, --warmup, --learning-rate",
    "torch_autocast": "use the section bf16 or fp16, or neither for fp32",
    "autotuning": "use `bertbench tune TASK --for throughput`",
    "data_efficiency": "bertbench draws the batches",
    "compression_training": "bertbench does not measure compressed models",
    "checkpoint": "bertbench writes its own checkpoints",
    "amp": "use the section bf16 or fp16, or neither for fp32",
    "elasticity": "the run sets the batch sizes",
    "curriculum_learning": "bertbench draws the batches",
    "progressive_layer_drop": "bertbench trains every layer in every step",
    "sparse_attention": "the model has its own attention",
}
# Loss scaling as torch.amp.GradScaler does it, for what an fp16 section leaves open.
_LOSS_SCALING = {
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 2000,
    "hysteresis": 1,
    "min_loss_scale": 0,
}
# Names DeepSpeed and bertbench have for the same optimizer.
_OPTIMIZERS = {"adamw": ("adamw", "adam"), "lamb": ("lamb",)}

# Those of https://www.deepspeed.ai/docs/config-json/ and of the classes of DeepSpeed 0.19; former names too.
_TOP = """
    activation_checkpointing aio amp autotuning bf16 bfloat16 checkpoint checkpoint_parallel_write_pipeline
    comms_logger communication_data_type compile compression_training csv_monitor comet curriculum_learning
    data_efficiency data_types dataloader_drop_last disable_allgather disable_python_gc dump_state eigenvalue
    elasticity flops_profiler fp16 fp32_allreduce gradient_accumulation_dtype gradient_accumulation_steps
    gradient_allreduce_op gradient_clipping gradient_predivide_factor hybrid_engine load_universal_checkpoint
    log_level managed_gradient_accumulation memory_breakdown moe monitor_config nebula optimizer pipeline
    prescale_gradients progressive_layer_drop quantize_training scheduler seq_parallel_communication_data_type
    sparse_attention sparse_gradients steps_per_print tensor_parallel tensorboard torch_autocast
    train_batch_size train_micro_batch_size_per_gpu timers use_data_before_expert_parallelism
    use_node_local_storage vocabulary_size wall_clock_breakdown wandb weight_quantization zenflow
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_optimization
"""
_ZERO = """
    allgather_bucket_size allgather_partitions allgather_sequential compute_grad_norm contiguous_gradients
    cpu_offload cpu_offload_param cpu_offload_params cpu_offload_use_pin_memory elastic_checkpoint
    enable_sanity_checks gather_16bit_weights_on_model_save ignore_unused_parameters leaf_module legacy_stage1
    load_from_fp32_weights log_trace_cache_warnings max_live_parameters max_reuse_distance
    mics_hierarchical_params_gather mics_shard_size memory_efficient_linear model_persistence_threshold
    module_granularity_threshold offload_optimizer offload_param overlap_comm override_module_apply
    param_persistence_threshold parameter_alignment pipeline_loading_checkpoint prefetch_bucket_size
    reduce_bucket_size reduce_scatter round_robin_gradients save_muon_momentum_buffer_in_memory stage
    stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save stage3_leaf_module
    stage3_max_live_parameters stage3_max_reuse_distance stage3_model_persistence_threshold
    stage3_module_granularity_threshold stage3_param_persistence_threshold stage3_prefetch_bucket_size
    stage3_allgather_sequential stage3_use_all_reduce_for_fetch_params sub_group_size
    use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce zenflow zero_hpz_partition_size
    zero_quantized_gradients zero_quantized_nontrainable_weights zero_quantized_weights
"""
_FP16 = """
    auto_cast consecutive_hysteresis enabled fp16_master_weights_and_grads hysteresis initial_scale_power
    loss_scale loss_scale_window min_loss_scale
"""
_BF16 = """
    bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow enabled immediate_grad_update
"""
_KNOWN = {
    "": frozenset(_TOP.split()),
    "zero_optimization": frozenset(_ZERO.split()),
    "fp16": frozenset(_FP16.split()),
    "bf16": frozenset(_BF16.split()),
    "bfloat16": frozenset(_BF16.split()),
    "optimizer": frozenset(("type", "params", "legacy_fusion")),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """A configuration that holds for the run."""

    config: Mapping[str, Any]
    """The configuration for DeepSpeed, without an optimizer, which bertbench creates."""
    zero_stage: int
    """0 to 3."""
    optimizer: Mapping[str, Any]
    """Options of the optimizer that only the file gives, by their names in PyTorch: betas, eps, lr, weight_decay."""


def read_deepspeed_config(path: Path) -> dict[str, Any]:
    """Read a configuration. Raises InputError if it is not a file, or not one JSON object."""
    return read_json(path, "give one such as those in bench/deepspeed")


def said_of_training(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the training settings of a configuration, by field of bert.train.settings.TrainSettings."""
    optimizer = config.get("optimizer")
    params = optimizer.get("params", {}) if isinstance(optimizer, Mapping) else {}
    places = {
        "micro_batch_size": config.get("train_micro_batch_size_per_gpu"),
        "grad_accum_steps": config.get("gradient_accumulation_steps"),
        "global_batch_size": config.get("train_batch_size"),
        "max_grad_norm": config.get("gradient_clipping"),
        "learning_rate": params.get("lr") if isinstance(params, Mapping) else None,
        "weight_decay": params.get("weight_decay") if isinstance(params, Mapping) else None,
    }
    numbers = {name: value for name, value in places.items() if isinstance(value, int | float)}
    return {name: value for name, value in numbers.items() if not isinstance(value, bool)}


def resolve(config: Mapping[str, Any], plan: "StepPlan", zero_stage: int | None = None) -> Resolved:
    """Check a configuration against the run, and fill in what it leaves to it.

    Args:
        config: of DeepSpeed.
        plan: the steps of the run.
        zero_stage: 0 to 3; None if the run does not say: the file's, else 0.

    Raises:
        UsageError: the two say different things (each is named, with both values), or it asks for what is not done.
    """
    check_names(config)
    filled: dict[str, Any] = copy.deepcopy(dict(config))
    for name, remedy in _REFUSED.items():
        section = filled.pop(name, None)
        is_off = isinstance(section, Mapping) and section.get("enabled") is False
        if _given(section) and not is_off:
            raise UsageError(
                "option-not-applicable",
                f'the section "{name}" of the DeepSpeed configuration cannot be used here: {remedy}',
            )
    stage = _stage(filled, zero_stage)
    clipped = filled.get("gradient_clipping")
    if plan.optimizer_norm is not None and clipped == plan.optimizer_norm and not isinstance(clipped, bool):
        filled["gradient_clipping"] = 0.0  # the file agrees; clipped twice would be something else
    differences = [
        found for path, value, meaning in _expected(plan, stage) if (found := _fill(filled, path, value, meaning))
    ]
    optimizer, more = _optimizer(filled.pop("optimizer", None), plan)
    differences += more
    if differences:
        raise UsageError(
            "option-conflict",
            f"the DeepSpeed configuration contradicts the run: {'; '.join(differences)}. Change one of them, or "
            'write "auto" in the file to use the run\'s value',
        )
    _check_zero(filled["zero_optimization"], stage, plan)
    if plan.train.precision == "fp16":
        filled["fp16"] = {**_LOSS_SCALING, **_without_auto(filled["fp16"])}
    filled.setdefault("steps_per_print", 2**31 - 1)
    return Resolved(config=_without_auto(filled), zero_stage=stage, optimizer=optimizer)


def check_names(config: Mapping[str, Any]) -> None:
    """Refuse keys that DeepSpeed does not know and would pass over. Raises UsageError with the nearest known one."""
    for section, known in _KNOWN.items():
        found = config.get(section) if section else config
        for name in found if isinstance(found, Mapping) else ():
            if name in known:
                continue
            near = difflib.get_close_matches(str(name), sorted(known), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(
                "option-unknown",
                f"{f'{section}.' if section else ''}{name} in the DeepSpeed configuration is unknown to DeepSpeed, "
                f"which would ignore it: remove it{hint}",
            )


def _expected(plan: "StepPlan", stage: int) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    yield ("train_micro_batch_size_per_gpu",), plan.train.micro_batch_size, "micro batch size"
    yield ("gradient_accumulation_steps",), plan.train.grad_accum_steps, "accumulation"
    yield ("train_batch_size",), plan.train.global_batch_size, "global batch size"
    clipped = "gradient clipping norm (0 is none)"
    if plan.optimizer_norm is not None:
        clipped = f"{plan.optimizer} clips to {plan.optimizer_norm:g} itself, which the file may repeat;"
    yield ("gradient_clipping",), plan.max_grad_norm or 0.0, clipped
    yield ("fp16", "enabled"), plan.train.precision == "fp16", f"precision {plan.train.precision}"
    yield ("bf16", "enabled"), plan.train.precision == "bf16", f"precision {plan.train.precision}"
    yield ("zero_optimization", "stage"), stage, "ZeRO stage"


def _stage(filled: dict[str, Any], wanted: int | None) -> int:
    if "bfloat16" in filled:  # its former name
        filled.setdefault("bf16", filled.pop("bfloat16"))
    for name in ("zero_optimization", "fp16", "bf16"):
        if not isinstance(filled.setdefault(name, {}), dict):
            raise UsageError(
                "option-value", f'"{name}" of the DeepSpeed configuration must be an object, not {filled[name]!r}'
            )
    given = filled["zero_optimization"].get("stage", AUTO)
    stage = wanted if wanted is not None else 0 if given == AUTO else given
    if isinstance(stage, bool) or stage not in ZERO_STAGES:
        raise UsageError(
            "option-choice",
            f"zero_optimization.stage={stage!r} in the DeepSpeed configuration is invalid: use 0, 1, 2 or 3",
        )
    return int(stage)


def _fill(filled: dict[str, Any], path: tuple[str, ...], value: Any, meaning: str) -> str:
    """Put a value where the file leaves it open; return how the two differ, nothing if they agree."""
    *outer, name = path
    place = filled
    for part in outer:
        place = place[part]
    given = place.get(name, AUTO)
    if given == AUTO:
        place[name] = value
        return ""
    same = given == value and isinstance(given, bool) == isinstance(value, bool)
    return "" if same else f"{'.'.join(path)} is {given!r}, but the run's {meaning} requires {value!r}"


def _optimizer(section: Any, plan: "StepPlan") -> tuple[dict[str, Any], list[str]]:
    if not _given(section):
        return {}, []
    if not isinstance(section, dict) or not isinstance(section.get("params", {}), dict):
        raise UsageError(
            "option-value", '"optimizer" of the DeepSpeed configuration must be an object with "type" and "params"'
        )
    kind, params = section.get("type", AUTO), {**section.get("params", {})}
    differences = []
    if kind != AUTO and str(kind).lower() not in _OPTIMIZERS[plan.optimizer]:
        differences.append(f"optimizer.type is {kind!r}, but the run's optimizer is {plan.optimizer!r}")
    if str(kind).lower() == "adam" and params.pop("adam_w_mode", True) not in (True, AUTO):
        differences.append("optimizer.params.adam_w_mode is false, but the run uses decoupled weight decay (AdamW)")
    own = {}
    known = {"lr": plan.learning_rate, "weight_decay": plan.weight_decay}
    for name, value in params.items():
        if value == AUTO or name == "torch_adam":
            continue
        if name not in ("lr", "weight_decay", "betas", "eps"):
            raise UsageError(
                "option-not-applicable",
                f"optimizer.params.{name} in the DeepSpeed configuration is not a parameter of {plan.optimizer}",
            )
        _check_number(name, value)
        if known.get(name) not in (None, value):
            differences.append(f"optimizer.params.{name} is {value!r}, but the run's is {known[name]!r}")
        elif value != {"betas": list(DEFAULT_BETAS), "eps": DEFAULT_EPS}.get(name, _ABSENT):
            own[name] = tuple(value) if name == "betas" else value
    return own, differences


def _check_number(name: str, value: Any) -> None:
    values = value if name == "betas" and isinstance(value, list) and len(value) == 2 else [value]
    below = 1.0 if name == "betas" else float("inf")
    if not all(isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each < below for each in values):
        raise UsageError("option-value", f"optimizer.params.{name}={value!r} in the DeepSpeed configuration is invalid")
    if name == "betas" and len(values) != 2:
        raise UsageError(
            "option-value", f"optimizer.params.betas={value!r} of the DeepSpeed configuration must be two numbers"
        )


def _check_zero(zero: dict[str, Any], stage: int, plan: "StepPlan") -> None:
    for name in ("offload_optimizer", "offload_param", "cpu_offload"):
        section = zero.get(name)
        device = section.get("device") if isinstance(section, dict) else section
        if device not in (None, False, "none", AUTO):
            raise UsageError(
                "option-not-applicable",
                f"zero_optimization.{name} in the DeepSpeed configuration offloads work to the host, which bertbench "
                "does not measure: remove it",
            )
        zero.pop(name, None)
    if zero.get("mics_shard_size", -1) not in (-1, AUTO):
        raise UsageError(
            "option-not-applicable",
            "zero_optimization.mics_shard_size in the DeepSpeed configuration shards the model over some of the "
            "ranks, which bertbench's checkpoints do not support: remove it",
        )
    if stage > 0 and plan.optimizer == "lamb":
        raise UsageError(
            "unsupported-combination",
            f"ZeRO stage {stage} shards the parameters as one flat vector, but LAMB needs the norm of each of "
            "them: use optimizer adamw, --zero-stage 0, or strategy fsdp, which supports LAMB",
        )


def _without_auto(section: Mapping[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, value in section.items():
        if isinstance(value, Mapping):
            kept[name] = _without_auto(value)
        elif value != AUTO:
            kept[name] = value
    return kept


def _given(section: Any) -> bool:
    if isinstance(section, Mapping):
        return any(_given(value) for value in section.values())
    return section not in (None, AUTO, False)
