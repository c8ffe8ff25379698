"""Optimizers and their parameter groups, by name."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

DEFAULT_WEIGHT_DECAY = 0.01
_BETAS, _EPS = (0.9, 0.999), 1e-6


def parameter_groups(model: "nn.Module", weight_decay: float) -> list[dict[str, Any]]:
    """Split the trainable parameters into those that decay and those that do not (biases and LayerNorm).

    Biases and LayerNorm's parameters are what has one dimension; matrices and embeddings have two. A shared (tied)
    parameter appears once. Each group names its `weight_decay`.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def adamw(
    model: "nn.Module", learning_rate: float, weight_decay: float = DEFAULT_WEIGHT_DECAY, fused: bool = False
) -> "torch.optim.Optimizer":
    """AdamW (Loshchilov and Hutter 2019) in one fused kernel, on CPUs and GPUs.

    Make it after the model has been moved to its device, and has been given copies of its weights (bert.speed.copies)
    if it is to have any. It does not clip: the loop's `max_grad_norm` does. With `fused` the kernels of
    bert.optim.fused update the parameters (bert.speed.fuses_optimizer).
    """
    import torch

    from bert.speed.copies import copy_of

    groups = parameter_groups(model, weight_decay)
    if fused:
        from bert.optim.fused import FusedAdamW

        return FusedAdamW(groups, learning_rate, _BETAS, _EPS, weight_decay)
    if any(copy_of(parameter) is not None for group in groups for parameter in group["params"]):
        from bert.optim.adamw import AdamW

        return AdamW(groups, learning_rate, _BETAS, _EPS, weight_decay)
    # DeepSpeed's ZeRO knows PyTorch's own class alone.
    return torch.optim.AdamW(groups, lr=learning_rate, betas=_BETAS, eps=_EPS, fused=True)


def lamb(
    model: "nn.Module",
    learning_rate: float,
    weight_decay: float = DEFAULT_WEIGHT_DECAY,
    max_grad_norm: float | None = 1.0,
    fused: bool = False,
) -> "torch.optim.Optimizer":
    """NVIDIA's LAMB, which clips the gradients itself; the loop's `max_grad_norm` must stay None.

    Make it after the model has been moved to its device. With `fused` the kernels of bert.optim.fused update the
    parameters (bert.speed.fuses_optimizer).
    """
    groups = parameter_groups(model, weight_decay)
    if fused:
        from bert.optim.fused import FusedLamb

        return FusedLamb(groups, learning_rate, _BETAS, _EPS, weight_decay, max_grad_norm)
    from bert.optim.lamb import Lamb

    return Lamb(groups, learning_rate, _BETAS, _EPS, weight_decay, max_grad_norm)


# Factories, each called with (model, learning_rate, ...).
OPTIMIZERS: "dict[str, Callable[..., torch.optim.Optimizer]]" = {"adamw": adamw, "lamb": lamb}
# Those whose factory takes `max_grad_norm`; with the others the loop clips.
SELF_CLIPPING = frozenset({"lamb"})
