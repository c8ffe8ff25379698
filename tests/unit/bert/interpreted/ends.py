"""Kernels before and after the layers, and casts to FP8, in Triton's interpreter against float64.

Run by tests/unit/bert/test_kernels_interpreted.py, in a process of its own.
"""

import pytest
import torch
import torch.nn.functional as F
from support.layouts import assert_same, batch_of, loss_and_gradients, model
from support.philox import factors, key_of
from torch import Tensor, nn

from bert.model.encoder import recompute_activations
from bert.speed import kernels, scales
from bert.speed.copies import LOW, give_copies
from bert.speed.kernels import embedding, loss, quantize
from bert.speed.registry import use_levers

SEED = 3
FORMATS = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("multiprocessors", [132, 1])
def test_embeddings(
    dtype: torch.dtype, probability: float, segments: bool, multiprocessors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "processor", lambda device: kernels.Processor(9, multiprocessors))
    torch.manual_seed(0)
    width, shape = 24, (3, 5)
    tables = [torch.randn(count, width, requires_grad=True) for count in (11, 7, 2)]
    norm = nn.LayerNorm(width)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    which = [torch.randint(0, len(table), shape) for table in tables]
    which[0][0, :2] = 0  # the padding
    used = tables if segments else tables[:2]
    tokens = embedding.Tokens(which[0], which[1], which[2] if segments else None)
    torch.manual_seed(SEED)
    found = embedding.embed((*used, None)[:3], tokens, norm, probability, dtype, 0)
    kept = factors(key_of(SEED), 15, width, probability).view(*shape, width)
    mine = [tensor.detach().double().requires_grad_() for tensor in (*used, norm.weight, norm.bias)]
    summed = sum(
        F.embedding(ids, table, 0 if number == 0 else None)
        for number, (ids, table) in enumerate(zip(which, mine[: len(used)], strict=False))
    )
    expected = F.layer_norm(summed, (width,), mine[-2], mine[-1]) * kept
    tolerance = 1e-5 if dtype == torch.float32 else 2**-6
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    grad = torch.randn(*shape, width).to(dtype)
    gradients = torch.autograd.grad(found, [*used, norm.weight, norm.bias], grad)
    for one, other in zip(gradients, torch.autograd.grad(expected, mine, grad.double()), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_gradients_of_words_in_bf16_are_added_to_those_of_the_predictions() -> None:
    torch.manual_seed(0)
    words = nn.Parameter(torch.randn(11, 8))
    positions, norm, ids = torch.randn(4, 8, requires_grad=True), nn.LayerNorm(8), torch.tensor([[1, 2, 2, 0]])
    tokens = embedding.Tokens(ids, torch.arange(4)[None], None)
    result = embedding.embed((words, positions, None), tokens, norm, 0.0, torch.float32, 0)
    (expected,) = torch.autograd.grad(result.square().sum() + result.sum() * 3, words)
    give_copies([words], gradients=True)
    words.grad = torch.ones_like(words, dtype=LOW)
    again = embedding.embed((words, positions, None), tokens, norm, 0.0, torch.float32, 0)
    (again.square().sum() + again.sum() * 3).backward()
    torch.testing.assert_close(words.grad, (expected + 1).to(LOW))
    assert positions.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (4, 30), (3, 5000), (0, 30)], ids=str)
def test_cross_entropy(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    leaf = (torch.randn(*shape) * 5).to(dtype).requires_grad_()
    labels = torch.randint(0, shape[1], shape[:1])
    if shape[0] > 2:
        labels[1] = -100
    logits = leaf * 1
    found = loss.mean_cross_entropy(logits, labels)
    mine = leaf.detach().double().requires_grad_()
    expected = F.cross_entropy(mine, labels, reduction="sum") / max(len(labels), 1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(found, logits, torch.tensor(3.0), retain_graph=True)
    (wanted,) = torch.autograd.grad(expected, mine, torch.tensor(3.0).double())
    step = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(gradient.double(), wanted, rtol=step, atol=1e-7)
    assert gradient.data_ptr() == logits.data_ptr()
    with pytest.raises(RuntimeError, match="overwritten"):
        torch.autograd.grad(found, logits)


def test_large_logits_lose_nothing_and_a_label_that_is_no_class_is_seen() -> None:
    logits = torch.tensor([[1e4, 1e4, -1e4], [-3e38, 0.0, 3e38]])
    torch.testing.assert_close(
        loss.mean_cross_entropy(logits, torch.tensor([0, 2])), F.cross_entropy(logits, torch.tensor([0, 2]))
    )
    for label in (3, -1):
        assert loss.mean_cross_entropy(logits, torch.tensor([0, label])).isnan()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("shape", [(1, 16), (48, 32), (70, 80)], ids=str)
def test_a_cast_is_pytorchs_both_ways(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(*shape) * 100).to(LOW)
    scale = scales.scale_of(x.abs().amax().float(), dtype, 0.5)  # numbers above half of the largest saturate
    expected = scales.quantize(x, dtype, scale)
    # The interpreter loses the carry of a number that is rounded up to a power of 2; a GPU's own instruction does not.
    carried = expected.float().abs().frexp().mantissa == 0.5
    x = x.where(~carried, 0)
    expected = expected.float().where(~carried, 0)
    recorded = torch.zeros(3)
    low, transposed = quantize.cast_both_ways(x, dtype, scale, recorded[1])
    rows = shape[0]
    assert len(low) % 16 == 0 and len(low) < rows + 16
    assert (~carried).sum() > 9 and torch.equal(low[:rows].float(), expected)
    assert (expected.abs() == torch.finfo(dtype).max).any()
    assert not low[rows:].float().any()
    assert torch.equal(transposed.float(), low.float().t()) and transposed.is_contiguous()
    assert recorded.tolist() == [0, float(x.abs().max()), 0]
    again = quantize.cast_both_ways(x / 2, dtype, scale, recorded[1])
    assert recorded[1] == x.abs().max() and not torch.equal(again[0].float(), low.float())
    unrecorded, _ = quantize.cast_both_ways(x, dtype, scale, None)
    assert torch.equal(unrecorded.float(), low.float())


def test_what_is_not_finite_is_no_number_and_zeros_stay_zeros() -> None:
    dtype = torch.float8_e5m2  # the interpreter makes 384 of NaN in E4M3, where a GPU's own instruction keeps it
    x, one, recorded = torch.zeros(1, 16).to(LOW), torch.ones(()), torch.zeros(())
    low, _ = quantize.cast_both_ways(x, dtype, one, recorded)
    assert not low.float().any() and recorded == 0
    x[0, :4] = torch.tensor([float("nan"), float("inf"), float("-inf"), 1e30])
    low, _ = quantize.cast_both_ways(x, dtype, one, recorded)
    assert low[0, :3].float().isnan().all() and low[0, 3].float() == torch.finfo(dtype).max
    assert not recorded.isfinite()


def _trained(fused: bool, probability: float, recomputed: bool = False) -> dict[str, Tensor]:
    made = model(None, hidden_dropout=probability)
    use_levers(made, frozenset({"unpad", *(["fused-elementwise"] if fused else [])}))
    if recomputed:
        recompute_activations(made)
    torch.manual_seed(SEED)
    return loss_and_gradients(made, made(batch_of([5, 3, 1], 6)).loss)


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have models on a CPU compute with kernels."""
    monkeypatch.setattr(kernels, "DEVICES", {"cpu"})


@pytest.mark.usefixtures("one_thread")
def test_a_model_is_the_one_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _trained(False, 0.0)
    calls = []
    monkeypatch.setattr(kernels, "DEVICES", {"cpu"})
    monkeypatch.setattr(loss, "launch", lambda *a, **k: (calls.append(a[0]), kernels.launch(*a, **k)))
    found = _trained(True, 0.0)
    assert calls == [loss.cross_entropy_forward, loss.cross_entropy_backward]
    assert_same(found, expected, 1e-4)


@pytest.mark.usefixtures("on_a_cpu", "one_thread")
def test_recomputed_layers_draw_the_same_masks() -> None:
    found = [_trained(True, 0.3, recomputed) for recomputed in (False, True)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
