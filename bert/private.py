"""Names of PyTorch and DeepSpeed that may change from version to version, one function each; all have a test.

PyTorch 2.10 to 2.13, DeepSpeed 0.19.
"""

from typing import Any

import torch
from torch import Tensor


def scaled_product(
    first: Tensor, second: Tensor, first_scale: Tensor, second_scale: Tensor, bias: Tensor | None = None,
    fast: bool = False, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return FP8 matrices first [M, K] times second [K, N] in bf16; `fast` adds up in fewer bits."""
    product: Tensor = torch._scaled_mm(
        first, second, scale_a=first_scale, scale_b=second_scale, bias=bias, out_dtype=torch.bfloat16,
        use_fast_accum=fast, out=out,
    )  # fmt: skip
    return product


def flash_attention(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, dropout: float) -> Tensor:
    """Return the context [T, N, D] by FlashAttention-2; `ends` [B + 1] are the places where sequences end."""
    context: Tensor = torch.ops.aten._flash_attention_forward(
        query, key, value, ends, ends, longest, longest, dropout, False, False
    )[0]
    return context


def multiplies_bf16() -> bool:
    """Whether the CPU multiplies bf16 matrices by instructions of its own."""
    return bool(torch.cpu._is_avx512_bf16_supported())


def update_by_adam(
    values: list[Tensor], gradients: list[Tensor], means: list[Tensor], squares: list[Tensor], steps: list[Tensor], *,
    lr: float, betas: tuple[float, float], eps: float, weight_decay: float, divisor: Tensor | None,
    left_out: Tensor | None,
) -> None:  # fmt: skip
    """Update values and moments by one fused kernel of AdamW.

    The gradients are divided by `divisor` first. Where `left_out`, a float32 scalar, is 1 nothing changes.
    """
    torch._fused_adamw_(
        values, gradients, means, squares, [], steps, lr=lr, beta1=betas[0], beta2=betas[1], weight_decay=weight_decay,
        eps=eps, amsgrad=False, maximize=False, grad_scale=divisor, found_inf=left_out,
    )  # fmt: skip


class Scaler(torch.amp.GradScaler):
    """PyTorch's scaler, which asks optimizers that look for overflows themselves (bert.optim.fused).

    It would otherwise read and write all gradients to find them.
    """

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        overflow = getattr(optimizer, "overflow", None)
        if overflow is None:
            return super()._check_inf_per_device(optimizer)
        found = overflow()
        per_device: dict[Any, Tensor] = {found.device: found}
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = per_device
        return per_device


def process_groups() -> list[Any]:
    """Return the process groups of this process."""
    return list(torch.distributed.distributed_c10d._world.pg_map)


def without_shared_memory() -> None:
    """Have DeepSpeed reduce over gloo on CPUs, as every strategy does.

    Its all-reduce in shared memory is compiled by the first run, for minutes, while the other ranks wait on a lock file
    that outlives a killed run.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def loss_scaling(wrapped: Any) -> Any:
    """Return where an optimizer of DeepSpeed has its loss scale: those of ZeRO and the others do not agree."""
    return getattr(wrapped, "loss_scaler", None) or getattr(wrapped, "loss_scale_config", None)


def float32_copies(wrapped: Any) -> dict[Tensor, Tensor]:
    """Return the float32 copy of each parameter that DeepSpeed's optimizer without ZeRO has; none in fp32."""
    groups = zip(getattr(wrapped, "fp16_groups", []), getattr(wrapped, "fp32_groups", []), strict=True)
    return {parameter: copy for group in groups for parameter, copy in zip(*group, strict=True)}


def flat_vectors(wrapped: Any) -> list[Tensor]:
    """Return this rank's float32 vectors of an optimizer of ZeRO, which has one name for them or another."""
    names = ("single_partition_of_fp32_groups", "fp32_groups_flat_partition", "fp32_partitioned_groups_flat")
    (vectors,) = [getattr(wrapped, name) for name in names if hasattr(wrapped, name)]
    return list(vectors)


def link_optimizer_state(wrapped: Any) -> None:
    """Have ZeRO's optimizer find the state of all groups.

    It does so once by itself, after the first group's first step: the other groups have no state yet.
    """
    if hasattr(wrapped, "_lazy_init_hp_params_optimizer_state"):
        wrapped._hp_optimizer_states_linked = False
        wrapped._lazy_init_hp_params_optimizer_state()
