"""bf16 copies of weights are never behind, and training with them is what it is without."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import layouts
from torch import Tensor, nn

from bert.data.batch import Batch
from bert.model.encoder import recompute_activations
from bert.model.heads import BertForPretraining
from bert.observer import Observer
from bert.optim.adamw import AdamW
from bert.optim.arena import Arena
from bert.optim.precision import Precision
from bert.optim.registry import adamw, parameter_groups
from bert.parallel.base import SingleStrategy
from bert.speed import copy_weights
from bert.speed.copies import LOW, _add_all, _add_used, add_embedding, copy_of, give_copies, has_low_gradients, linear
from common.train_spec import TrainSpec


def batch_of(seed: int) -> Batch:
    return layouts.batch_of([16, 16, 16], 16, seed)


def model(step: str = "fast", optimizer: str = "adamw", **changes: Any) -> BertForPretraining:
    made = layouts.model(True)
    copy_weights(made, TrainSpec(**{"step": step, "precision": "bf16", "strategy": "single", **changes}), optimizer)
    return made


def backward(made: nn.Module, batch: Batch, precision: str = "bf16") -> Tensor:
    with Precision(precision, "cpu").autocast():
        loss: Tensor = made(batch).loss
    loss.backward()
    return loss.detach()


def gradients(made: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}


def assert_close_gradients(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].float() - value).norm() <= tolerance * value.norm(), name


@pytest.mark.parametrize("recompute", [False, True])
def test_losses_and_gradients_are_those_of_autocast(recompute: bool) -> None:
    plain, quick = model("plain"), model()
    if recompute:
        recompute_activations(quick)
    losses = [backward(made, batch_of(1)) for made in (plain, quick)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-6, atol=1e-6)
    assert_close_gradients(gradients(quick), gradients(plain), 4e-3)  # one more rounding to bf16, 2^-8 at most
    assert quick.encoder.layers[0].intermediate.weight.grad.dtype == LOW
    assert quick.encoder.embeddings.word.weight.grad.dtype == LOW
    assert quick.encoder.embeddings.position.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "ddp"}, {"grad_accum_steps": 2}, {"optimizer": "lamb"},
    ],
    ids=str,
)  # fmt: skip
def test_gradients_that_others_read_are_float32(changes: dict[str, Any]) -> None:
    plain, quick = model("plain"), model(**changes)
    for made in (plain, quick):
        backward(made, batch_of(1))
        backward(made, batch_of(2))
    assert copy_of(quick.encoder.layers[0].intermediate.weight) is not None
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in quick.parameters())
    assert_close_gradients(gradients(quick), gradients(plain), 4e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "fsdp"},
        {"strategy": "deepspeed"},
        {"strategy": "dp"},
        {"strategy": "horovod"},
        {"precision": "fp32"},
    ],
    ids=str,
)
def test_none_are_made_where_they_would_not_fit(changes: dict[str, Any]) -> None:
    assert all(copy_of(p) is None and not has_low_gradients(p) for p in model(**changes).parameters())


def test_without_autocast_the_float32_weights_count() -> None:
    plain, quick = model("plain"), model(strategy="ddp")
    for made in (plain, quick):
        backward(made, batch_of(1), "fp32")
    assert_close_gradients(gradients(quick), gradients(plain), 0.0)


def _by_hand(made: BertForPretraining) -> None:
    with torch.no_grad():
        made.encoder.layers[0].intermediate.weight[3] += 1.0


def _by_loading(made: BertForPretraining) -> None:
    other = {name: value * 0.5 for name, value in made.state_dict().items()}
    made.load_state_dict(other)


def _by_stepping(made: BertForPretraining) -> None:
    optimizer = adamw(made, 0.1)
    backward(made, batch_of(5))
    optimizer.step()
    optimizer.zero_grad()


def _by_another_optimizer(made: BertForPretraining) -> None:
    backward(made, batch_of(5))
    torch.optim.SGD([p for p in made.parameters() if p.ndim == 1], lr=0.1).step()
    with torch.no_grad():
        made.encoder.layers[1].output.weight.mul_(0.5)


@pytest.mark.parametrize("gradients", ["bf16", "float32"])
@pytest.mark.parametrize("change", [_by_hand, _by_loading, _by_stepping, _by_another_optimizer])
def test_a_copy_is_never_behind(change: Callable[[BertForPretraining], None], gradients: str) -> None:
    quick = model(grad_accum_steps=1 if gradients == "bf16" else 2)
    backward(quick, batch_of(1))
    quick.zero_grad()
    change(quick)
    plain = copy.deepcopy(quick)
    assert all(copy_of(parameter) is None for parameter in plain.parameters())
    with torch.no_grad(), Precision("bf16", "cpu").autocast():
        torch.testing.assert_close(quick(batch_of(2)).loss, plain(batch_of(2)).loss, rtol=1e-6, atol=1e-6)


def _run(optimizer: torch.optim.Optimizer, made: nn.Module, steps: int, clip: float | None) -> None:
    strategy, precision = SingleStrategy(), Precision("bf16", "cpu")
    for step in range(steps):
        backward(made, batch_of(step))
        if clip is not None:
            strategy.clip(made, optimizer, clip, precision)
        strategy.step(optimizer, precision)


@pytest.mark.parametrize("clip", [None, 0.5, 1e6])
def test_updates_are_those_of_torch_given_the_same_gradients(
    clip: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert.optim.adamw._AT_ONCE", 96)  # parts that end inside of tensors
    quick = model()
    ours = adamw(quick, 1e-2)
    assert isinstance(ours, AdamW)
    assert type(adamw(model("plain"), 1e-2)) is torch.optim.AdamW, "the only class that DeepSpeed's ZeRO takes"
    reference = copy.deepcopy(quick)
    theirs = torch.optim.AdamW(parameter_groups(reference, 0.01), lr=1e-2, eps=1e-6, fused=True)
    strategy, precision = SingleStrategy(), Precision("bf16", "cpu")
    for step in range(4):
        backward(quick, batch_of(step))
        for (_, own), (_, other) in zip(quick.named_parameters(), reference.named_parameters(), strict=True):
            other.grad = None if own.grad is None else own.grad.float()
        if clip is not None:
            strategy.clip(quick, ours, clip, precision)
            nn.utils.clip_grad_norm_(reference.parameters(), clip)
        strategy.step(ours, precision)
        theirs.step()
    tolerance = 0.0 if clip is None else 1e-5
    for (name, own), (_, other) in zip(quick.named_parameters(), reference.named_parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")
    ours_state, theirs_state = ours.state_dict(), theirs.state_dict()
    assert ours_state["state"].keys() == theirs_state["state"].keys()
    for index, expected in theirs_state["state"].items():
        assert ours_state["state"][index].keys() == expected.keys()
        assert ours_state["state"][index]["step"] == 4
        for key in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(
                ours_state["state"][index][key], expected[key], rtol=10 * tolerance, atol=tolerance
            )


def test_memory_of_gradients_is_used_again() -> None:
    quick, strategy = layouts.model(True), SingleStrategy()
    strategy.wrap(quick, Observer())
    copy_weights(quick, TrainSpec(step="fast", precision="bf16", strategy="single"), "adamw")
    optimizer = adamw(quick, 1e-3)
    strategy.prepare(optimizer, Precision("bf16", "cpu"))
    weights = [p for p in quick.parameters() if has_low_gradients(p)]
    assert len(weights) == 4 * layouts.SHAPE.num_layers + 3  # pooler, head, words
    _run(optimizer, quick, 1, None)
    backward(quick, batch_of(1))
    first = {p.grad.data_ptr() for p in weights if p.grad is not None}
    optimizer.step()
    optimizer.zero_grad()
    assert all(p.grad is None for p in quick.parameters())
    backward(quick, batch_of(2))
    assert {p.grad.data_ptr() for p in weights if p.grad is not None} == first and len(first) == len(weights)


@pytest.mark.parametrize("low", [True, False])
def test_a_weight_that_is_used_twice_adds_both_gradients_up(low: bool) -> None:
    weight = nn.Parameter(torch.randn(4, 8))
    give_copies([weight], gradients=low)
    Arena(nn.Module(), [[weight]], moves=False)
    optimizer = AdamW([weight], 0.0, (0.9, 0.999), 1e-6, 0.0)
    x, bias = torch.randn(2, 5, 8), torch.zeros(4)
    expected = (torch.ones(5, 4).t() @ (x[0] + x[1]).bfloat16().float()).bfloat16().float()
    for _ in range(3):  # the second and third time with memory of the first
        with Precision("bf16", "cpu").autocast():
            (linear(x[0], weight, bias).sum() + linear(x[1], weight, bias).sum()).backward()
        assert weight.grad is not None
        torch.testing.assert_close(weight.grad.float(), expected, rtol=2e-2, atol=5e-2)
        optimizer.step()
        optimizer.zero_grad()


def test_a_gpu_adds_rows_of_words_as_a_cpu_does() -> None:
    torch.manual_seed(0)
    ids, rows, totals = torch.tensor([3, 1, 3, 0, 4, 3]), torch.randn(6, 8).to(LOW), []
    for add in (_add_used, _add_all):
        total = torch.ones(6, 8, dtype=LOW)
        add(total, ids, rows, 0)
        totals.append(total)
    assert torch.equal(*totals) and torch.equal(totals[0][0], torch.ones(8, dtype=LOW))


@pytest.mark.parametrize("decoded", [False, True])
def test_rows_of_words_add_up_in_float32(decoded: bool) -> None:
    torch.manual_seed(0)
    plain, quick = nn.Parameter(torch.randn(7, 16)), nn.Parameter(torch.zeros(7, 16))
    quick.data.copy_(plain.data)
    give_copies([quick], gradients=True)
    ids = torch.cat([torch.full((300,), 3), torch.tensor([0, 0, 1, 6])])
    others = torch.randn(16, requires_grad=True)
    upstream = torch.randn(len(ids), 16)
    bias = torch.zeros(7)
    for weight in (plain, quick):
        with Precision("bf16", "cpu").autocast():
            summed = add_embedding(others, ids, weight, 0)
            loss = (summed * upstream).sum()
            if decoded:
                loss = loss + linear(summed[:2], weight, bias).float().sum()
        others.grad = None
        loss.backward()
        if weight is plain:
            wanted = others.grad
    assert plain.grad is not None and quick.grad is not None and quick.grad.dtype == LOW
    torch.testing.assert_close(others.grad, wanted)
    # Summed one after the other in bf16, 300 rows would be off by several percent.
    torch.testing.assert_close(quick.grad.float(), plain.grad, rtol=1e-2, atol=1e-2)
    expected = torch.zeros(16) if not decoded else plain.grad[0]
    torch.testing.assert_close(quick.grad[0].float(), expected, rtol=1e-2, atol=1e-2)
    assert F.embedding(ids, quick).shape == summed.shape
