"""Optimizers and their parameter groups."""

from typing import Any

import torch
from torch import nn


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
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
    model: nn.Module,
    learning_rate: float,
    weight_decay: float = 0.01,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019) in one fused kernel, on CPUs and GPUs.

    Make it after the model has been moved to its device.
    """
    return torch.optim.AdamW(parameter_groups(model, weight_decay), lr=learning_rate, betas=betas, eps=eps, fused=True)
