"""Where kernels for a GPU are used, and what PyTorch's functions do elsewhere."""

import pytest
import torch
from support.triton_needed import need_triton

from bert.model.config import ModelConfig
from bert.model.encoder import Layer
from bert.observer import Observer
from bert.optim.registry import OPTIMIZERS
from bert.parallel import STRATEGIES
from bert.speed import copy_weights, fuses_optimizer, kernels
from bert.speed.copies import has_low_gradients
from bert.speed.elementwise import product
from common.train_spec import TrainSpec


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
def test_a_linear_layer_keeps_its_bias_unless_a_kernel_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        layer = Layer(ModelConfig(num_layers=1, hidden_size=32, num_heads=4, intermediate_size=64), 0, Observer())
        x = torch.empty(3, 32)
    assert product(layer.intermediate, x).bias is layer.intermediate.bias
    monkeypatch.setattr(kernels, "DEVICES", set())
    assert product(layer.intermediate, x).bias is None


@pytest.mark.usefixtures("on_meta")
def test_an_optimizer_is_fused_where_parameters_are_whole_and_in_float32() -> None:
    with torch.device("meta"):
        layer = torch.nn.Linear(4, 4)
    fused = {name for name in STRATEGIES if fuses_optimizer(layer, TrainSpec(strategy=name))}
    assert fused == {"single", "ddp"}
    single = TrainSpec(strategy="single")
    assert not fuses_optimizer(layer, TrainSpec(strategy="single", step="plain"))
    assert not fuses_optimizer(layer.half(), single) and not fuses_optimizer(torch.nn.Linear(4, 4), single)


@pytest.mark.parametrize(
    ("kernels_run", "optimizer", "low"), [(True, "lamb", True), (True, "adamw", True), (False, "lamb", False)]
)
def test_a_fused_optimizer_reads_gradients_in_bf16(
    kernels_run: bool, optimizer: str, low: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_triton()
    monkeypatch.setattr(kernels, "DEVICES", {"meta"} if kernels_run else set())
    with torch.device("meta"):
        layer = Layer(ModelConfig(num_layers=1, hidden_size=32, num_heads=4, intermediate_size=64), 0, Observer())
    copy_weights(layer, TrainSpec(strategy="single"), optimizer)
    assert has_low_gradients(layer.intermediate.weight) == low


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_a_fused_optimizer_is_that_of_the_plain_one(name: str) -> None:
    need_triton()
    from bert.optim.fused import FusedAdamW, FusedLamb

    layer = torch.nn.Linear(3, 3)
    fused, plain = (OPTIMIZERS[name](layer, 1e-3, fused=each) for each in (True, False))
    assert isinstance(fused, FusedLamb if name == "lamb" else FusedAdamW)
    assert fused.state_dict() == plain.state_dict()
