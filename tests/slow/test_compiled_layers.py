"""Layers under a real compiler give what they give without it, padded and recomputed."""

import shutil

import pytest
import torch
from support.layouts import assert_same, batch_of, loss_and_gradients, model

from bert.model.encoder import recompute_activations
from bert.speed.registry import resolve_levers, use_levers

pytestmark = [pytest.mark.timeout(1800)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
@pytest.mark.parametrize("recompute", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_compiled_layers_give_the_same_losses_and_gradients(recompute: bool) -> None:
    torch._dynamo.reset()
    plain, compiled = model(False), model(None)
    use_levers(compiled, resolve_levers("compile", "cpu"))
    if recompute:
        recompute_activations(compiled)
    for seed, lengths in enumerate(([16, 3, 9, 1], [20, 20, 20, 20], [5])):
        batch = batch_of(lengths, 20, seed=seed)
        plain.zero_grad()
        compiled.zero_grad()
        expected = loss_and_gradients(plain, plain(batch).loss)
        found = loss_and_gradients(compiled, compiled(batch).loss)
        assert_same(found, expected, 1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "something was compiled"
