"""Attention by cumulative lengths: which operator a GPU takes, its shapes and gradients.

Tensors of the device "meta" stand for those of a GPU, and PyTorch checks arguments and shapes.
"""

import pytest
import torch
from support.triton_needed import need_triton
from torch import Tensor

from bert.data.batch import Unpadded, unpad
from bert.model.config import ModelConfig
from bert.speed import attention
from bert.speed.attention import FLASH, TRITON, _attend_padded, attend, operator_for
from bert.speed.kernels import Processor
from bert.speed.layers import FastAttention
from common.errors import MissingToolError

LENGTHS = (5, 1, 9, 3)
HEADS, WIDTH = 2, 8
META = torch.device("meta")


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    attention.operator_for.cache_clear()


def layout(device: str = "meta") -> Unpadded:
    found = unpad((torch.arange(16) < torch.tensor(LENGTHS)[:, None]).long())
    assert found is not None
    return found.map(lambda one: one.to(device))


def by_sequence(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention of [T, N, D], each sequence by itself."""
    contexts = []
    for part in zip(*(one.split(LENGTHS) for one in (query, key, value)), strict=True):
        own_query, own_key, own_value = (one.transpose(0, 1) for one in part)
        weights = torch.softmax(own_query @ own_key.transpose(1, 2) / WIDTH**0.5, -1)
        contexts.append((weights @ own_value).transpose(0, 1))
    return torch.cat(contexts)


def test_padded_rows_give_the_context_and_gradients_of_each_sequence_alone() -> None:
    torch.manual_seed(0)
    qkv = torch.randn(sum(LENGTHS), 3, HEADS, WIDTH, requires_grad=True)
    upstream = torch.randn(sum(LENGTHS), HEADS, WIDTH)
    results = [_attend_padded(qkv, layout("cpu"), 0.0), by_sequence(*qkv.unbind(1))]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(result, qkv, upstream) for result in results))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [FLASH, TRITON, None])
def test_shapes_on_a_gpu(name: str | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == TRITON:
        need_triton()
    monkeypatch.setattr(attention, "operator_for", lambda *given: name)
    qkv = torch.empty(sum(LENGTHS), 3, HEADS, 64, dtype=dtype, device="meta", requires_grad=True)
    bias = torch.empty(3 * HEADS * 64, device="meta", requires_grad=True)
    context = attend(qkv, layout(), 0.1, bias if name == TRITON else None)
    assert context.shape == (sum(LENGTHS), HEADS, 64) and context.dtype == dtype
    context.backward(torch.empty_like(context))
    assert qkv.grad is not None and qkv.grad.shape == qkv.shape and qkv.grad.dtype == dtype
    assert name != TRITON or (bias.grad is not None and bias.grad.shape == bias.shape)


@pytest.mark.parametrize(
    ("major", "dtype", "width", "expected"),
    [
        (9, torch.bfloat16, 64, TRITON),
        (8, torch.float16, 128, TRITON),
        (8, torch.float16, 80, FLASH),
        (9, torch.bfloat16, 256, FLASH),
        (8, torch.float32, 64, None),
        (7, torch.float16, 64, None),
        (9, torch.bfloat16, 12, None),
        (9, torch.bfloat16, 512, None),
    ],
)
def test_the_operator_follows_from_the_gpu_the_type_and_the_width(
    major: int, dtype: torch.dtype, width: int, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "processor", lambda device: Processor(major, 80))
    monkeypatch.setattr(attention, "triton_missing", lambda: None)
    assert operator_for(META, dtype, width) == expected
    assert operator_for(torch.device("cpu"), dtype, width) is None


def test_without_triton_a_gpu_takes_flash_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "triton_missing", lambda: MissingToolError("tool-missing", "no compiler"))
    assert operator_for(META, torch.bfloat16, 64) == FLASH


def test_the_widths_of_heads_are_those_of_the_kernels() -> None:
    need_triton()
    from bert.speed.kernels.attention import WIDTHS

    assert set(attention._TRITON_WIDTHS) == WIDTHS


def test_the_layers_take_the_operator_of_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[torch.dtype, int]]()
    monkeypatch.setattr(attention, "operator_for", lambda device, *given: asked.append(given))
    placed = layout()
    for dtype in (torch.bfloat16, torch.float32):
        with META:
            layer = FastAttention(ModelConfig(num_layers=1, hidden_size=160, num_heads=2, intermediate_size=64))
            layer.to(dtype)(torch.empty(sum(LENGTHS), 160, dtype=dtype), placed)
    assert asked == [(torch.bfloat16, 80), (torch.float32, 80)]
