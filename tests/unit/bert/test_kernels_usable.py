"""Where kernels for a GPU are used, and what PyTorch's functions do elsewhere."""

import pytest
import torch
from support.refusals import refused
from support.triton_needed import need_triton

from bert.model.config import ModelConfig
from bert.model.encoder import Layer
from bert.observer import Observer
from bert.optim.fused import FusedAdamW, FusedLamb
from bert.optim.registry import OPTIMIZERS
from bert.speed import kernels
from bert.speed.copies import has_low_gradients
from bert.speed.elementwise import product
from bert.speed.registry import (
    Setup,
    check_effect,
    default_levers,
    fuses_optimizer,
    resolve_levers,
    use_levers,
    use_weight_copies,
)
from common.errors import MissingToolError


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
    torch.testing.assert_close(found, expected)


FUSED = frozenset({"fused-optimizer", "bf16-weights"})


@pytest.mark.usefixtures("on_meta")
def test_an_optimizer_is_fused_where_parameters_are_whole_and_in_float32() -> None:
    with torch.device("meta"):
        layer = torch.nn.Linear(4, 4)
    assert all(fuses_optimizer(layer, FUSED, strategy) for strategy in ("single", "ddp"))
    assert not any(fuses_optimizer(layer, FUSED, strategy) for strategy in ("fsdp", "deepspeed", "horovod", "dp"))
    assert not fuses_optimizer(layer, frozenset(), "single")
    assert not fuses_optimizer(layer.half(), FUSED, "single")
    assert not fuses_optimizer(torch.nn.Linear(4, 4), FUSED, "single")


@pytest.mark.usefixtures("on_meta")
@pytest.mark.parametrize(
    ("names", "optimizer", "low"),
    [(FUSED, "lamb", True), (FUSED, "adamw", True), (FUSED - {"fused-optimizer"}, "lamb", False)],
)
def test_a_fused_optimizer_reads_gradients_in_bf16(names: frozenset[str], optimizer: str, low: bool) -> None:
    with torch.device("meta"):
        layer = Layer(ModelConfig(num_layers=1, hidden_size=32, num_heads=4, intermediate_size=64), 0, Observer())
    use_weight_copies(layer, names, precision="bf16", strategy="single", grad_accum_steps=1, optimizer=optimizer)
    assert has_low_gradients(layer.intermediate.weight) == low


def test_copies_of_weights_are_a_default_of_gpus_where_the_optimizer_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in (None, MissingToolError("tool-missing", "Triton")):
        monkeypatch.setattr("bert.speed.registry.triton_missing", lambda found=missing: found)
        assert ({"fused-optimizer", "bf16-weights"} <= resolve_levers("auto", "cuda")) == (missing is None)
        assert ("bf16-weights" in resolve_levers("auto", "cuda")) == (missing is None)
    assert "bf16-weights" in resolve_levers("bf16-weights+unpad", "cuda")


def test_a_fused_optimizer_is_the_default_of_gpus_and_refused_on_a_cpu() -> None:
    assert "fused-optimizer" in default_levers("cuda") and "fused-optimizer" not in default_levers("cpu")
    for setup in (Setup("cpu", "bf16"), Setup("cuda", "bf16", "fsdp")):
        with refused("unsupported-combination", "fused-optimizer"):
            check_effect("unpad+fused-optimizer", setup)
    for strategy in ("single", "ddp"):
        check_effect("unpad+fused-optimizer", Setup("cuda", "fp32", strategy))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_of_a_fused_optimizer_is_that_of_the_plain_one(name: str) -> None:
    need_triton()
    layer = torch.nn.Linear(3, 3)
    fused, plain = (OPTIMIZERS[name](layer, 1e-3, fused=each) for each in (True, False))
    assert isinstance(fused, FusedLamb if name == "lamb" else FusedAdamW)
    assert fused.state_dict() == plain.state_dict()


def test_dropout_that_the_kernel_of_attention_would_round_to_0_is_refused() -> None:
    need_triton()
    from bert.speed.kernels.attention import attention

    with refused("option-value", "--dropout 0.0019", "0.002"):
        attention(torch.zeros(4, 3, 1, 16, dtype=torch.bfloat16), torch.tensor([0, 4]), 4, 0.0019, None)
