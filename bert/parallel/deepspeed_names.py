"""The keys that a DeepSpeed configuration has, so that a misspelt one is not taken for a setting. Imports no torch.

Those of https://www.deepspeed.ai/docs/config-json/ and of the configuration classes of DeepSpeed 0.19; former
names too.
"""

import difflib
from collections.abc import Mapping
from typing import Any

from common.errors import UsageError

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
                f"{f'{section}.' if section else ''}{name} of the DeepSpeed configuration is no setting of DeepSpeed, "
                f"which would pass over it: take it out{hint}",
            )
