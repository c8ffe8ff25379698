"""Attention by cumulative lengths: arguments, shapes and gradients of operators for a GPU.

Tensors of the device "meta" stand for those of a GPU, and PyTorch checks arguments and shapes. For values, operators
that PyTorch has for GPUs only get an implementation on the CPU: the formula, called with the operator's own arguments.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support.triton_needed import need_triton
from torch import Tensor

from bert.model import varlen
from bert.model.attention import SelfAttention, attend
from bert.model.config import ModelConfig
from bert.model.packing import Bounds
from bert.model.varlen import OPERATORS, Kind, Operator, default_operator
from bert.speed.kernels import Processor
from common.errors import MissingToolError

LENGTHS = (5, 1, 9, 3)
HEADS, WIDTH = 2, 8


def bounds(device: str = "cpu") -> Bounds:
    ends = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32)
    return Bounds(ends.to(device), 16)


def kind(dtype: torch.dtype = torch.bfloat16, width: int = 64, compiled: bool = False) -> Kind:
    return Kind(torch.device("meta"), dtype, width, compiled)


def formula(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of [..., S, D], by hand."""
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    return torch.softmax(scores if mask is None else scores + mask, -1) @ value


def by_sequence(query: Tensor, key: Tensor, value: Tensor, ends: Tensor) -> Tensor:
    """Attention of [T, N, D], each sequence by itself."""
    parts = zip(*(one.split(ends.diff().tolist()) for one in (query, key, value)), strict=True)
    return torch.cat([formula(*(one.transpose(0, 1) for one in part)).transpose(0, 1) for part in parts])


def derivative(
    given: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Gradients of `formula`, by hand: autograd does not reach into an operator."""
    scale = query.shape[-1] ** -0.5
    scores = query @ key.transpose(-1, -2) * scale
    weights = torch.softmax(scores if mask is None else scores + mask, -1)
    of_weights = given @ value.transpose(-1, -2)
    of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * scale
    return of_scores @ key, of_scores.transpose(-1, -2) @ query, weights.transpose(-1, -2) @ given


def derivative_by_sequence(given: Tensor, query: Tensor, key: Tensor, value: Tensor, ends: Tensor) -> Tensor:
    """Gradients [T, 3, N, D]."""
    parts = zip(*(one.split(ends.diff().tolist()) for one in (given, query, key, value)), strict=True)
    found = [derivative(*(one.transpose(0, 1) for one in part)) for part in parts]
    return torch.cat([torch.stack([one.transpose(0, 1) for one in three], 1) for three in found])


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the CPU compute what are operators of GPUs; seed and offset must come back to the backward pass."""
    library = torch.library.Library("aten", "IMPL")
    seed, offset = torch.tensor(17), torch.tensor(29)

    def returned(found_seed: Tensor, found_offset: Tensor) -> None:
        assert int(found_seed) == 17 and int(found_offset) == 29

    def cudnn(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False,
              return_debug_mask=False, *, scale=None) -> tuple[Any, ...]:  # fmt: skip
        assert compute_log_sumexp and not is_causal and scale is None and attn_bias.dtype == query.dtype
        size = query.shape[2]
        logsumexp = torch.full((*query.shape[:3], 1), dropout_p)
        return formula(query, key, value, attn_bias), logsumexp, None, None, size, size, seed, offset, None

    def cudnn_backward(grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q,
                       cum_seq_k, max_q, max_k, dropout_p, is_causal, *, scale=None) -> tuple[Tensor, ...]:  # fmt: skip
        returned(philox_seed, philox_offset)
        assert max_q == max_k == query.shape[2] and cum_seq_q is cum_seq_k is None
        assert torch.all(logsumexp == dropout_p)
        torch.testing.assert_close(out, formula(query, key, value, attn_bias))
        return derivative(grad_out, query, key, value, attn_bias)

    def efficient(query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p,
                  custom_mask_type, compute_log_sumexp=False, *, scale=None, seqlen_k=None,
                  window_size=None) -> tuple[Any, ...]:  # fmt: skip
        assert custom_mask_type == 0 and compute_log_sumexp and bias is None and cu_seqlens_q.dtype == torch.int32
        assert max(LENGTHS) <= max_seqlen_q == max_seqlen_k <= query.shape[1]
        context = by_sequence(query[0], key[0], value[0], cu_seqlens_q)
        return context[None], torch.full((1,), dropout_p), seed, offset, max_seqlen_q, max_seqlen_k

    def efficient_backward(grad_out_, query, key, value, bias, out, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                           max_seqlen_k, logsumexp, dropout_p, philox_seed, philox_offset, custom_mask_type,
                           bias_requires_grad, *, scale=None, num_splits_key=None, window_size=None,
                           shared_storage_dqdkdv=False) -> tuple[Tensor, ...]:  # fmt: skip
        returned(philox_seed, philox_offset)
        assert shared_storage_dqdkdv and not bias_requires_grad and torch.all(logsumexp == dropout_p)
        torch.testing.assert_close(out[0], by_sequence(query[0], key[0], value[0], cu_seqlens_q))
        chunk = derivative_by_sequence(grad_out_[0], query[0], key[0], value[0], cu_seqlens_q)[None]
        return *(chunk.select(2, place) for place in range(3)), torch.empty(0)

    library.impl("_scaled_dot_product_cudnn_attention", cudnn, "CPU")
    library.impl("_scaled_dot_product_cudnn_attention_backward", cudnn_backward, "CPU")
    library.impl("_efficient_attention_forward", efficient, "CPU")
    library.impl("_efficient_attention_backward", efficient_backward, "CPU")
    yield
    library._destroy()


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize(
    ("name", "probability"),
    # The last one drops nothing, but computes what drops something.
    [("cudnn-padded", 0.25), ("efficient", 0.0), ("efficient", 1e-12)],
)
def test_context_and_gradients_are_those_of_each_sequence_alone(name: str, probability: float) -> None:
    torch.manual_seed(0)
    bias = torch.randn(3 * HEADS * WIDTH, requires_grad=True)
    product = torch.randn(sum(LENGTHS), 3 * HEADS * WIDTH)
    given = torch.randn(sum(LENGTHS), HEADS, WIDTH)
    where = bounds()

    def own(product: Tensor, bias: Tensor) -> Tensor:
        qkv = (product + bias.detach()).unflatten(1, (3, HEADS, WIDTH))
        return OPERATORS[name].run(qkv, where, probability, bias, False)

    def plain(product: Tensor, bias: Tensor) -> Tensor:
        return by_sequence(*(product + bias).unflatten(1, (3, HEADS, WIDTH)).unbind(1), where.ends)

    results = [function(product.requires_grad_(), bias) for function in (own, plain)]
    torch.testing.assert_close(*results)
    grads = [torch.autograd.grad(result, (product, bias), given) for result in results]
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected)


def test_gradients_in_one_tensor_are_not_copied() -> None:
    grads = torch.randn(4, 3, HEADS, WIDTH)
    whole = varlen._together(*grads.unbind(1))
    assert whole.data_ptr() == grads.data_ptr() and torch.equal(whole, grads)
    apart = [torch.randn(4, HEADS, WIDTH) for _ in range(3)]
    assert torch.equal(varlen._together(*apart), torch.stack(apart, 1))
    other_order = grads.flip(1).unbind(1)
    assert torch.equal(varlen._together(*other_order), grads.flip(1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["flash", "triton", "cudnn-padded", "efficient"])
def test_shapes_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    if name == "triton":
        need_triton()
    qkv = torch.empty(sum(LENGTHS), 3, HEADS, 64, dtype=dtype, device="meta", requires_grad=True)
    bias = torch.empty(3 * HEADS * 64, device="meta", requires_grad=True)
    context = OPERATORS[name].run(qkv, bounds("meta"), 0.1, bias if name != "flash" else None, False)
    assert context.shape == (sum(LENGTHS), HEADS, 64) and context.dtype == dtype
    context.backward(torch.empty_like(context))
    assert qkv.grad is not None and qkv.grad.shape == qkv.shape and qkv.grad.dtype == dtype
    assert name == "flash" or (bias.grad is not None and bias.grad.shape == bias.shape)


def test_cudnn_by_lengths_gets_its_arguments_in_order() -> None:
    seen: dict[str, Any] = {}

    def forward(query, key, value, attn_bias, cum_seq_q, cum_seq_k, max_q, max_k, compute_log_sumexp, dropout_p=0.0,
                is_causal=False, return_debug_mask=False, *, scale=None) -> tuple[Any, ...]:  # fmt: skip
        seen.update(forward=(attn_bias, cum_seq_q.shape, max_q, max_k, compute_log_sumexp, dropout_p, is_causal))
        one = torch.empty((), dtype=torch.long, device="meta")
        stats = torch.empty(query.shape[0], query.shape[1], 1, device="meta")
        return torch.empty_like(query), stats, cum_seq_q, cum_seq_k, max_q, max_k, one, one, one

    def backward(grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q,
                 cum_seq_k, max_q, max_k, dropout_p, is_causal, *, scale=None) -> tuple[Tensor, ...]:  # fmt: skip
        seen.update(backward=(cum_seq_q.shape, max_q, max_k, dropout_p, is_causal, philox_seed.dtype))
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)

    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("_cudnn_attention_forward", forward, "Meta")
        library.impl("_cudnn_attention_backward", backward, "Meta")
        qkv = torch.empty(sum(LENGTHS), 3, HEADS, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
        context = OPERATORS["cudnn"].run(qkv, bounds("meta"), 0.1, None, False)
        context.backward(torch.empty_like(context))
    finally:
        library._destroy()
    assert seen["forward"] == (None, (len(LENGTHS) + 1,), 16, 16, True, 0.1, False)
    assert seen["backward"] == ((len(LENGTHS) + 1,), 16, 16, 0.1, False, torch.long)
    assert qkv.grad is not None and qkv.grad.shape == qkv.shape


@pytest.mark.parametrize(("version", "usable"), [("2.10.0", False), ("2.13.1+cu130", False), ("2.14.0", True)])
def test_cudnn_by_lengths_is_used_only_where_its_gradients_are_right(
    version: str, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    reason = OPERATORS["cudnn"].missing(kind())
    assert (reason is None) == usable
    assert usable or version in str(reason)


@pytest.mark.parametrize(
    ("major", "dtype", "width", "compiled", "expected"),
    [
        (9, torch.bfloat16, 64, False, {"flash", "triton", "cudnn-padded", "efficient"}),
        (9, torch.bfloat16, 64, True, {"flash"}),
        (8, torch.float16, 64, False, {"flash", "triton", "efficient"}),
        (8, torch.float16, 80, False, {"flash", "efficient"}),
        (8, torch.float32, 64, False, {"efficient"}),
        (7, torch.float16, 64, False, {"efficient"}),
        (7, torch.bfloat16, 64, False, set()),
        (9, torch.float64, 64, False, set()),
        (9, torch.bfloat16, 12, False, set()),
        (9, torch.bfloat16, 256, False, {"flash", "efficient"}),
    ],
)  # fmt: skip
def test_operators_that_a_gpu_can_use(
    major: int, dtype: torch.dtype, width: int, compiled: bool, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(varlen, "processor", lambda device: Processor(major, 80))
    monkeypatch.setattr(torch, "__version__", "2.13.0")
    monkeypatch.setattr(varlen, "triton_missing", lambda: None)
    of = kind(dtype, width, compiled)
    assert {name for name, operator in OPERATORS.items() if operator.missing(of) is None} == expected
    assert default_operator(of) == next((name for name in OPERATORS if name in expected), None)


def test_without_triton_its_operator_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "triton_missing", lambda: MissingToolError("tool-missing", "no compiler"))
    assert "Triton" in str(OPERATORS["triton"].missing(kind()))
    assert default_operator(kind()) == "flash"


def test_the_widths_of_heads_are_those_of_the_kernels() -> None:
    need_triton()
    from bert.speed.kernels.attention import WIDTHS

    assert set(varlen._TRITON_WIDTHS) == WIDTHS


def test_a_cpu_has_no_operator() -> None:
    assert default_operator(Kind(torch.device("cpu"), torch.bfloat16, 64)) is None


def test_the_chosen_operator_computes_all_but_what_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []

    def noting(name: str) -> Operator:
        def run(qkv: Tensor, where: Bounds, probability: float, bias: Tensor | None, fused: bool) -> Tensor:
            used.append(name)
            return qkv[:, 0]

        return Operator(run, OPERATORS[name].missing)

    for name in ("flash", "cudnn-padded", "efficient"):
        monkeypatch.setitem(OPERATORS, name, noting(name))
    config = ModelConfig(num_layers=1, hidden_size=128, num_heads=2, intermediate_size=64)
    for dtype in (torch.bfloat16, torch.float32):
        qkv = torch.empty(sum(LENGTHS), 3, HEADS, 64, dtype=dtype, device="meta")
        attend(qkv, bounds("meta"), 0.0)
        attend(qkv, bounds("meta"), 0.0, operator="cudnn-padded")
    with torch.device("meta"):
        layer = SelfAttention(config).to(torch.bfloat16)
        layer.operator = "efficient"
        layer(torch.empty(sum(LENGTHS), 128, dtype=torch.bfloat16), bounds("meta"))
    assert used == ["flash", "cudnn-padded", "efficient", "efficient", "efficient"]
