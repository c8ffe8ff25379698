"""Parameter groups, AdamW and the registry."""

import pytest
import torch
from support.plain_optimizers import PlainAdamW
from torch import nn

from bert.model.config import ModelConfig
from bert.model.heads import BertForPretraining
from bert.optim.lamb import Lamb
from bert.optim.registry import OPTIMIZERS, SELF_CLIPPING, adamw, parameter_groups

CONFIG = ModelConfig(num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32, vocab_size=21, max_positions=8)


def test_biases_and_layer_norms_do_not_decay_and_all_else_does():
    model = BertForPretraining(CONFIG)
    decayed, undecayed = parameter_groups(model, 0.01)
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.01, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    exempt = {names[id(parameter)] for parameter in undecayed["params"]}
    assert exempt == {name for name in names.values() if name.endswith("bias") or "norm" in name}
    assert len(decayed["params"]) + len(undecayed["params"]) == len(names)


def test_tied_parameters_appear_once_and_frozen_ones_never():
    model = nn.ModuleDict({"one": nn.Linear(3, 3), "two": nn.Linear(3, 3)})
    model["two"].weight = model["one"].weight
    model["two"].bias.requires_grad_(False)
    decayed, undecayed = parameter_groups(model, 0.01)
    assert len(decayed["params"]) == 1 and len(undecayed["params"]) == 1


def test_step_is_the_published_update():
    torch.manual_seed(0)
    model = nn.Linear(5, 4)
    optimizer = adamw(model, learning_rate=0.1, weight_decay=0.3)
    assert all(group["fused"] for group in optimizer.param_groups)
    plain = PlainAdamW([p.detach().double() for p in model.parameters()], [0.3, 0.0], max_grad_norm=None)
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        plain.step([parameter.grad.double() for parameter in model.parameters()], 0.1)
        optimizer.step()
    for parameter, value in zip(model.parameters(), plain.values, strict=True):
        torch.testing.assert_close(parameter.detach().double(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_decays_matrices_only_and_has_the_constants_of_bert(name):
    model = BertForPretraining(CONFIG)
    optimizer = OPTIMIZERS[name](model, learning_rate=2e-3, weight_decay=0.02)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.02, 0.0]
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (2e-3, (0.9, 0.999), 1e-6)


@pytest.mark.parametrize("name", sorted(SELF_CLIPPING))
def test_those_that_clip_take_the_norm_and_are_lamb(name):
    optimizer = OPTIMIZERS[name](nn.Linear(2, 2), learning_rate=1e-3, max_grad_norm=0.5)
    assert isinstance(optimizer, Lamb)
    assert [group["max_grad_norm"] for group in optimizer.param_groups] == [0.5, 0.5]
