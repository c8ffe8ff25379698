"""Precisions: what is refused, and the loss scaling with both kinds of optimizers."""

import json
import math

import pytest
import torch
from support.layouts import scaled
from torch import nn

from bert.optim.precision import Precision
from bert.optim.registry import OPTIMIZERS


def fp16() -> Precision:
    return Precision("fp16", "cpu")


def step(precision: Precision, model: nn.Module, optimizer: torch.optim.Optimizer, factor: float = 1.0) -> bool | None:
    loss = model(torch.ones(2, 4)).square().mean() * factor
    precision.scale(loss).backward()
    applied = precision.step(optimizer)
    optimizer.zero_grad(set_to_none=True)
    return applied


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_without_scaling_every_update_is_applied(name: str) -> None:
    precision = Precision(name, "cpu")
    model = nn.Linear(4, 3)
    assert step(precision, model, OPTIMIZERS["lamb"](model, learning_rate=0.1)) is True
    assert precision.state_dict() == {}
    precision.load_state_dict({"scale": 3.0})  # of an fp16 run: there is nothing to scale here


def test_the_scale_and_its_history_survive_json_exactly() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = OPTIMIZERS["adamw"](model, learning_rate=0.1)
    first = scaled("fp16", 4096.0, 3)
    for factor in (1.0, math.inf, 1.0, 1.0):
        step(first, model, optimizer, factor)
    second = fp16()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()
    for precision in (first, second):
        step(precision, model, optimizer)
        assert precision.scaler is not None
        assert precision.scaler.get_scale() == 4096.0, "the third good step, two of them before the save"
