"""Attention and dropout: exact where nothing is random, the right distribution where something is."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from bert.speed.attention import attend as attend_packed
from bert.speed.elementwise import dropout


def seeded(function, *arguments, seed=3):
    torch.manual_seed(seed)
    return function(*arguments)


def attend(query, key, value, mask, probability):
    """Of queries, keys and values [B, N, S, D]."""
    qkv = torch.stack([query, key, value]).permute(1, 3, 0, 2, 4)
    return attend_packed(qkv, mask, probability).transpose(1, 2)


@pytest.mark.parametrize("probability", [0.1, 0.5])
@pytest.mark.parametrize("masked", [True, False])
def test_attention_dropout_keeps_scaled_weights_or_drops_them(probability, masked):
    torch.manual_seed(0)
    length = 64
    query, key = torch.randn(2, 4, 3, length, length)
    value = torch.eye(length).expand(4, 3, length, length)  # the result is then the matrix of weights itself
    mask = (torch.arange(length) < 50).expand(4, 1, 1, length) if masked else None
    plain = attend(query, key, value, mask, 0.0)
    dropped = attend(query, key, value, mask, probability)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], plain[kept] / (1 - probability), rtol=1e-4, atol=1e-7)
    possible = plain > 0
    count = int(possible.sum())
    deviation = math.sqrt(probability * (1 - probability) / count)
    assert abs(1 - float(kept.sum()) / count - probability) < 5 * deviation


# Products in float32 round the result alone; in bf16 scores and weights are rounded to 8 bits, too.
@pytest.mark.parametrize(("in_bf16", "rtol", "atol"), [(False, 2**-8, 1e-6), (True, 2**-6, 2**-6)])
def test_attention_dropout_takes_strided_heads_and_returns_their_type(in_bf16, rtol, atol, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr("bert.speed.attention.multiplies_bf16", lambda: in_bf16)
    qkv = torch.randn(2, 6, 3, 4, 8, dtype=torch.bfloat16, requires_grad=True)
    query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    result = seeded(attend, query, key, value, None, 0.2)
    expected = seeded(attend, query.float(), key.float(), value.float(), None, 0.2)
    result.sum().backward()
    assert result.dtype == qkv.grad.dtype == torch.bfloat16
    torch.testing.assert_close(result.float(), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_dropout_drops_each_position_with_the_probability(probability):
    torch.manual_seed(0)
    rounds, width = 4000, 8  # four elements share one random word: none of the four places may be special
    result = dropout(torch.ones(rounds, width), probability, training=True)
    dropped = (result == 0).float().mean(0)
    assert (dropped - probability).abs().max() < 5 * math.sqrt(probability * (1 - probability) / rounds)
    torch.testing.assert_close(result[result != 0].unique(), torch.tensor([1 / (1 - probability)]), rtol=1e-3, atol=0)


def test_neighbours_are_dropped_independently():
    torch.manual_seed(0)
    dropped = (dropout(torch.ones(20_000, 8), 0.5, training=True) == 0).float()
    correlation = torch.corrcoef(dropped.T) - torch.eye(8)
    assert correlation.abs().max() < 5 / math.sqrt(20_000)


@given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    probability=st.floats(0.0, 0.99),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
@settings(max_examples=examples(50), deadline=None)
def test_dropout_gradient_has_the_same_pattern_as_its_result(shape, probability, dtype):
    x = torch.ones(shape, dtype=dtype, requires_grad=True)
    result = dropout(x, probability, training=True)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert result.shape == x.shape and result.dtype == gradient.dtype == dtype
    torch.testing.assert_close(gradient, result)


@pytest.mark.parametrize(("probability", "training"), [(0.0, True), (0.1, False)])
def test_without_dropout_the_input_comes_back(probability, training):
    x = torch.randn(3, 4)
    assert dropout(x, probability, training) is x
