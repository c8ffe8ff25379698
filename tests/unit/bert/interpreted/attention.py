"""Attention's kernels in Triton's interpreter against the formula in float64, sequence by sequence.

Run by tests/unit/bert/test_kernels_interpreted.py, in a process of its own.
"""

import itertools

import pytest
import torch
from support.philox import key_of, weight_factors
from torch import Tensor

from bert.data.batch import tiles_of
from bert.speed.kernels import attention
from bert.speed.kernels.attention import Tiles
from common.errors import UsageError

SEED, LENGTHS = 3, (63, 1, 0, 131, 64, 65)
STEP = {torch.bfloat16: 2**-8, torch.float16: 2**-11}
Tables = tuple[Tiles, Tiles, Tiles]
SQUARE: Tables = (Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2))
OTHERS: Tables = (Tiles(64, 128, 4, 2), Tiles(64, 128, 4, 2), Tiles(32, 64, 4, 2))


def use(tiles: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, one in zip(("FORWARD", "OF_QUERIES", "OF_KEYS"), tiles, strict=True):
        monkeypatch.setattr(attention, name, dict.fromkeys(attention.WIDTHS, one))


def inputs(heads: int, width: int, dtype: torch.dtype, lengths: tuple[int, ...] = LENGTHS) -> tuple[Tensor, ...]:
    """Queries, keys and values, a bias that was added to them, and the gradient of the context."""
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, heads, width).to(dtype).requires_grad_()
    return qkv, torch.zeros(3 * heads * width, requires_grad=True), torch.randn(sum(lengths), heads, width).to(dtype)


def formula(qkv: Tensor, lengths: tuple[int, ...], probability: float) -> Tensor:
    """Context in float64, with the weights dropped that the paper's random bits drop."""
    found, begin, key = [], 0, key_of(SEED)
    for part in qkv.split(lengths):
        query, keys, value = part.transpose(0, 2).unbind(1)
        weights = torch.softmax(query @ keys.transpose(1, 2) / query.shape[-1] ** 0.5, -1)
        kept = [weight_factors(key, begin, len(part), head, probability) for head in range(len(query))]
        found.append(((weights * torch.stack(kept)) @ value).transpose(0, 1))
        begin += len(part)
    return torch.cat(found)


def agree(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """The error of rounding weights and gradients of scores once, relative to the whole tensor and to each row."""
    assert found.shape == expected.shape
    error = found.detach().double() - expected.detach()
    assert error.norm() <= 2 * STEP[dtype] * expected.norm()
    assert error.abs().max() <= 8 * STEP[dtype] * expected.abs().max()


@pytest.mark.parametrize(
    ("dtype", "width", "probability", "tiles", "lengths"),
    [
        (torch.bfloat16, 64, 0.3, SQUARE, LENGTHS),
        pytest.param(torch.bfloat16, 64, 0.1, SQUARE, (3, 512), marks=pytest.mark.slow),
        pytest.param(torch.bfloat16, 64, 0.0, OTHERS, LENGTHS, marks=pytest.mark.slow),
        pytest.param(torch.float16, 16, 0.3, OTHERS, LENGTHS, marks=pytest.mark.slow),
        (torch.float16, 128, 0.0, SQUARE, LENGTHS),
    ],
    ids=["bf16, dropout", "bf16, longest", "bf16, other tiles", "fp16, dropout, other tiles", "fp16, wide heads"],
)
def test_context_and_gradients(
    dtype: torch.dtype, width: int, probability: float, tiles: Tables, lengths: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    use(tiles, monkeypatch)
    qkv, bias, given = inputs(2, width, dtype, lengths)
    torch.manual_seed(SEED)
    context = attention.attention(qkv, tiles_of(lengths), probability, bias)
    found, of_bias = torch.autograd.grad(context, [qkv, bias], given)
    exact = qkv.detach().double().requires_grad_()
    expected = formula(exact, lengths, probability)
    (wanted,) = torch.autograd.grad(expected, exact, given.double())
    assert context.dtype == found.dtype == dtype and of_bias.dtype == torch.float32
    agree(context, expected, dtype)
    for part in range(3):
        agree(found[:, part], wanted[:, part], dtype)
    agree(of_bias[2 * 2 * width :], wanted[:, 2].sum(0).flatten(), dtype)
    # Exact gradients of keys add up to 0, as a constant in all of them changes nothing: compare with their size.
    assert (of_bias.double() - wanted.sum(0).flatten()).abs().max() <= 8 * STEP[dtype] * wanted.abs().sum(0).max()


def test_without_a_bias_gradients_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    use(OTHERS, monkeypatch)
    qkv, bias, given = inputs(1, 32, torch.bfloat16, (65, 3))
    found = []
    for one in (bias, None):
        torch.manual_seed(SEED)
        context = attention.attention(qkv, tiles_of((65, 3)), 0.1, one)
        found.append((context, torch.autograd.grad(context, qkv, given)[0]))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_the_order_of_the_tiles_and_tiles_without_tokens_change_nothing() -> None:
    qkv, bias, given = inputs(2, 16, torch.bfloat16, (65, 3, 130))
    work = tiles_of((65, 3, 130))
    found = []
    for tiles in (work, torch.cat([work.flip(0), torch.zeros(2, 3, dtype=torch.int32)])):
        torch.manual_seed(SEED)
        context = attention.attention(qkv, tiles, 0.1, bias)
        found.append((context, *torch.autograd.grad(context, [qkv, bias], given)))
    (*same, of_bias), (*others, sum_of_others) = found
    assert all(torch.equal(*pair) for pair in zip(same, others, strict=True))
    torch.testing.assert_close(sum_of_others, of_bias)


def test_a_program_has_the_rows_of_a_tile() -> None:
    assert {one.queries for table in (attention.FORWARD, attention.OF_QUERIES) for one in table.values()} == {64}
    assert {one.keys for one in attention.OF_KEYS.values()} == {64}


def test_large_scores_overflow_nowhere() -> None:
    qkv, bias, given = inputs(1, 16, torch.float16, (20,))
    with torch.no_grad():
        qkv[:, :2] *= 40
        qkv[3, 0], qkv[:, 1] = -60.0, qkv[:, 1].abs()  # all scores of a row far below 0
    context = attention.attention(qkv, tiles_of((20,)), 0.0, bias)
    found = torch.autograd.grad(context, [qkv, bias], given)
    agree(context, formula(qkv.detach().double(), (20,), 0.0), torch.float16)
    assert all(bool(one.isfinite().all()) for one in found)


def test_each_call_drops_other_weights_and_its_seed_repeats_them() -> None:
    qkv, _, _ = inputs(1, 16, torch.float16, (40,))

    def context(calls: int) -> Tensor:
        torch.manual_seed(SEED)
        return [attention.attention(qkv.detach(), tiles_of((40,)), 0.5, None) for _ in range(calls)][-1]

    first, again, second = context(1), context(1), context(2)
    assert torch.equal(first, again)
    assert not torch.isclose(first, second).all(-1).any()  # in no row of 40 weights


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_weights_are_dropped_independently(probability: float) -> None:
    key, size = key_of(SEED), 128
    dropped = round(probability * 256) / 256
    masks = [
        weight_factors(key, begin, size, head, probability) > 0 for begin, head in ((0, 0), (0, 1), (size, 0), (1, 0))
    ]
    for mask in masks:
        deviation = (dropped * (1 - dropped) / mask.numel()) ** 0.5
        assert abs(1 - mask.double().mean() - dropped) < 4 * deviation
    alike = 1 - 2 * dropped * (1 - dropped)
    neighbors = [(masks[0][1:], masks[0][:-1]), (masks[0][:, 1:], masks[0][:, :-1])]
    for one, other in [*itertools.combinations(masks, 2), *neighbors]:
        assert abs((one == other).double().mean() - alike) < 4 * (alike * (1 - alike) / one.numel()) ** 0.5


def test_a_probability_is_never_1_and_refused_where_it_would_be_0() -> None:
    qkv, _, _ = inputs(1, 16, torch.float16, (9,))
    assert attention.attention(qkv, tiles_of((9,)), 1.0, None).isfinite().all()
    with pytest.raises(UsageError, match=r"--dropout 0\.0019"):
        attention.attention(qkv, tiles_of((9,)), 0.0019, None)
