"""Packed rows under a real compiler: one machine code for batches of many lengths."""

import shutil

import pytest
import torch
from support.layouts import assert_same, batch_of, loss_and_gradients, model

from bert.model.attention import Where
from bert.model.packing import pack

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_layers_are_not_compiled_again_for_other_lengths() -> None:
    plain, packed = model(False), model(None)
    packed.encoder.packs = True
    compiled = torch.compile(lambda layer, hidden, where: layer(hidden, where), dynamic=False, fullgraph=True)

    def run_layer(layer: torch.nn.Module, hidden: torch.Tensor, where: Where) -> torch.Tensor:
        result: torch.Tensor = compiled(layer, hidden, where)
        return result

    packed.encoder.run_layer = run_layer
    for number, lengths in enumerate(([16, 3, 9, 1], [5, 20, 7, 2], [11, 11, 9, 9])):
        batch = batch_of(lengths, 20, seed=number)
        assert len(pack(batch.tensors["attention_mask"]).mask) == 2
        expected = loss_and_gradients(plain, plain(batch).loss)
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            found = loss_and_gradients(packed, packed(batch).loss)
        assert_same(found, expected, 1e-5)
        plain.zero_grad()
        packed.zero_grad()
    with torch._dynamo.config.patch(error_on_recompile=True), pytest.raises(torch._dynamo.exc.RecompileError):
        packed(batch_of([20, 20, 17, 1], 20))  # 4 rows: what is watched for does happen
