"""Where kernels for a GPU are used, and what PyTorch's functions do elsewhere."""

import pytest
import torch
from support.kernels import need_triton

from bert.model.config import ModelConfig
from bert.model.encoder import Layer
from bert.speed import kernels
from bert.speed.elementwise import product
from bert.speed.registry import use_levers
from bert.train.observer import Observer


@pytest.fixture
def on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    need_triton()
    monkeypatch.setattr(kernels, "DEVICES", {"meta"})


def of(dtype: torch.dtype, device: str = "meta") -> torch.Tensor:
    return torch.empty(2, device=device, dtype=dtype)


@pytest.mark.usefixtures("on_meta")
def test_types_and_devices_without_kernels_are_left_to_pytorch() -> None:
    assert all(kernels.usable(of(dtype)) for dtype in (torch.float32, torch.bfloat16, torch.float16))
    assert not kernels.usable(of(torch.float64)) and not kernels.usable(of(torch.float32, "cpu"))


@pytest.mark.usefixtures("on_meta")
def test_parameters_that_are_cut_up_are_left_to_their_modules() -> None:
    whole, part = of(torch.float32), of(torch.float32)
    part.ds_id = 3  # type: ignore[attr-defined]  # of DeepSpeed's ZeRO stage 3
    assert kernels.usable(whole, whole) and not kernels.usable(whole, part)


@pytest.mark.usefixtures("on_meta")
@pytest.mark.parametrize("major", [7, 8])
def test_gpus_without_bf16_are_left_to_pytorch(major: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "processor", lambda device: kernels.Processor(major, 80))
    assert kernels.usable(of(torch.float32)) == (major >= 8)


@pytest.mark.usefixtures("on_meta")
def test_a_linear_layer_keeps_its_bias_unless_a_kernel_adds_it() -> None:
    with torch.device("meta"):
        layer = Layer(ModelConfig(num_layers=1, hidden_size=32, num_heads=4, intermediate_size=64), 0, Observer())
        x = torch.empty(3, 32)
    assert product(layer.intermediate, x, True).bias is layer.intermediate.bias
    assert product(layer.intermediate, x, False).bias is None


def test_a_compiled_layer_is_one_graph_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    need_triton()
    monkeypatch.setattr(kernels, "DEVICES", {"cpu"})
    torch.manual_seed(0)
    layer = Layer(ModelConfig(num_layers=1, hidden_size=32, num_heads=4, intermediate_size=64), 0, Observer()).eval()
    x = torch.randn(2, 5, 32)
    expected = layer(x, None)
    use_levers(layer, frozenset({"fused-elementwise"}))
    found = torch.compile(layer, backend="eager", fullgraph=True)(x, None)
    torch.testing.assert_close(found.wide, expected)
