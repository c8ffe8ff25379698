"""A training step as a GPU runs it, on tensors without values: its operators, and how many it has.

Tensors of the device "meta" stand for those of a GPU. PyTorch checks the shapes, types and order of the arguments of
FlashAttention and of FP8 products for them; kernels are not launched, but counted.
"""

from collections import Counter
from typing import Any

import pytest
import torch
from support.kernels import AsOnCuda, need_triton
from support.layouts import batch_of
from torch.utils._python_dispatch import TorchDispatchMode

from bert.model.config import ModelConfig
from bert.model.encoder import BertEncoder
from bert.model.heads import BertForPretraining
from bert.model.packing import unpad
from bert.speed import kernels
from bert.speed.copies import copy_of
from bert.speed.registry import use_levers, use_weight_copies

LENGTHS, COLUMNS, LAYERS = [64, 16, 33, 47], 64, 2
SHAPE = ModelConfig(
    num_layers=LAYERS, hidden_size=128, num_heads=2, intermediate_size=256, max_positions=COLUMNS, vocab_size=96
)  # fmt: skip
# Operators and kernels of a forward and backward pass that are no views, of which there may not be more.
MOST = {
    "unpad": 198,
    "fused-elementwise+unpad": 149,
    "bf16-weights+unpad": 187,
    "fp8+unpad": 228,
    "bf16-weights+fused-elementwise+unpad": 138,
    "fp8+fused-elementwise+unpad": 183,
}
NO_LAUNCH = ("detach", "empty", "new_empty", "empty_like", "_unsafe_view", "alias", "lift_fresh")


class Operators(TorchDispatchMode):
    """Counts what would be launched."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not func.is_view and name not in NO_LAUNCH:
            self.calls[name] += 1
        return func(*args, **kwargs or {})

    def launched(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        self.calls[kernel.fn.__name__] += 1


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Operators:
    """Have models on "meta" take the ways of a GPU in bf16; return what counts them."""
    need_triton()
    from bert.speed.kernels import embedding, gelu, heads, loss, norm, quantize

    operators = Operators()
    placed = unpad((torch.arange(COLUMNS) < torch.tensor(LENGTHS)[:, None]).long())
    assert placed is not None
    away = placed.map(lambda tensor: tensor.to("meta"))
    monkeypatch.setattr(kernels, "DEVICES", {"meta"})
    for module in (embedding, gelu, heads, loss, norm, quantize):
        monkeypatch.setattr(module, "launch", operators.launched)
    monkeypatch.setattr(BertEncoder, "placed", lambda *given: away)
    monkeypatch.setattr("bert.speed.copies._usable_copy", copy_of)
    for module in ("encoder", "attention"):
        monkeypatch.setattr(f"bert.model.{module}.product_dtype", lambda x: torch.bfloat16)
    return operators


@pytest.mark.parametrize("text", MOST)
def test_a_step(text: str, as_on_a_gpu: Operators) -> None:
    names = frozenset(text.split("+"))
    with torch.device("meta"):
        model = BertForPretraining(SHAPE)
    use_levers(model, names)
    use_weight_copies(model, names, precision="bf16", strategy="single", grad_accum_steps=1, optimizer="adamw")
    batch = batch_of(LENGTHS, COLUMNS).to(torch.device("meta"))
    calls = as_on_a_gpu.calls
    for _ in range(2):  # the first one of FP8 also measures its tensors
        model.zero_grad()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0)
        calls.clear()
        with as_on_a_gpu:
            with AsOnCuda():
                loss = model(batch).loss
            loss.backward()
    assert loss.shape == () and loss.dtype == torch.float32
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert calls["_flash_attention_forward"] == calls["_flash_attention_backward"] == LAYERS
    assert calls["_scaled_mm"] == (3 * 4 * LAYERS if "fp8" in names else 0)
    fused = "fused-elementwise" in names
    assert calls["dropout_layer_norm_forward"] == calls["dropout_layer_norm_backward"] == (2 * LAYERS if fused else 0)
    assert calls["cross_entropy_backward"] == calls["embedding_layer_norm_backward"] == fused
    assert calls["quantize_both_ways"] == (3 * 4 * LAYERS if "fp8" in names else 0)
    assert sum(calls.values()) <= MOST[text], calls
