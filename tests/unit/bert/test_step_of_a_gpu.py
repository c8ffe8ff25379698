"""A training step as a GPU runs it, fast and plain: arguments of its operators, and a budget that may not grow.

BERT large with few layers, 64 sequences of 256 tokens at most, in bf16 or FP8, on tensors without values.
"""

from functools import cache
from typing import NamedTuple

import pytest
import torch
from support.gpu_step import ATTENTION, ATTENTION_KERNELS, GEMMS, Call, Step, step_of
from support.triton_needed import need_triton

from bert.model.config import ModelConfig
from bert.speed.attention import FLASH
from common.train_spec import TrainSpec

LENGTHS = [256] * 63 + [208]  # 16 x 1,021 tokens: nothing else has as many elements
TOKENS, HIDDEN, LAYERS = sum(LENGTHS), 1024, 2
SHAPE = ModelConfig(
    num_layers=LAYERS, hidden_size=HIDDEN, num_heads=16, intermediate_size=4 * HIDDEN, max_positions=256,
    vocab_size=30522,
)  # fmt: skip
FP8 = {torch.float8_e4m3fn, torch.float8_e5m2}


class Budget(NamedTuple):
    """Launches, bytes and host calls of a step; GEMMs and attention are launches, but their bytes do not count."""

    kernels: int
    """Of each layer, forward and backward."""
    host_calls: int
    """Of each layer: operators that PyTorch dispatches, views and allocations too, and launches of Triton."""
    bytes: float
    """Of each layer, by token and hidden unit, without those of weights and their gradients."""
    weight_bytes: float
    """Of each layer's weights and their gradients, by weight, forward and backward."""
    other_kernels: int
    """Before and after the layers, forward and backward."""
    other_host_calls: int
    other_megabytes: int
    update_kernels: int
    """Of AdamW, with a model of 2 layers."""
    update_host_calls: int
    update_bytes: float
    """By parameter; 0 where a kernel reads all by their addresses."""


# None may grow: one more elementwise kernel, copy or view in a layer is refused. After a change that lowers a number
# the test fails too, and prints the row to put here. "without Triton" is a GPU where no kernel of ours runs,
# "without copies" a strategy that shards the weights.
BUDGETS = {
    "plain bf16": Budget(59, 123, 222.7, 12.0, 83, 134, 13988, 4, 6, 32.0),
    "plain fp8": Budget(57, 133, 278.9, 0.0, 83, 134, 13988, 57, 151, 37.1),
    "fast bf16": Budget(27, 82, 77.9, 0.0, 70, 118, 3291, 2, 6, 0.0),
    "fast fp8": Budget(29, 126, 97.4, 0.0, 71, 120, 3325, 23, 29, 0.0),
    "fast bf16 without copies": Budget(34, 97, 77.9, 12.0, 76, 132, 3291, 4, 6, 32.0),
    "fast bf16 without Triton": Budget(47, 81, 198.0, 0.0, 82, 125, 14319, 48, 173, 43.9),
}


@cache
def step(text: str, layers: int) -> Step:
    """Run a step of a row of BUDGETS, once for all tests."""
    need_triton()
    with pytest.MonkeyPatch.context() as patch:
        shape = SHAPE.replace(num_layers=layers)
        return step_of(spec_of(text), shape, LENGTHS, patch, "without Triton" not in text)


def spec_of(text: str) -> TrainSpec:
    way, precision = text.split()[:2]
    return TrainSpec(step=way, precision=precision, strategy="fsdp" if "without copies" in text else "single")


def measured(text: str) -> Budget:
    few, more = (step(text, layers) for layers in (LAYERS, LAYERS + 1))

    def each(kind: str) -> int:  # what one more layer adds
        return sum(getattr(more.passes, kind).values()) - sum(getattr(few.passes, kind).values())

    def rest(kind: str) -> int:
        return sum(getattr(few.passes, kind).values()) - LAYERS * each(kind)

    weights = 12 * HIDDEN**2
    parameters = sum(few.sizes)
    return Budget(
        each("calls"), each("host"),
        round(each("bytes") / TOKENS / HIDDEN, 1), round(each("parameter_bytes") / weights, 1),
        rest("calls"), rest("host"), round(rest("bytes") / 1e6),
        sum(few.update.calls.values()), sum(few.update.host.values()),
        round((sum(few.update.bytes.values()) + sum(few.update.parameter_bytes.values())) / parameters, 1),
    )  # fmt: skip


@pytest.mark.parametrize("text", BUDGETS)
def test_the_budget(text: str) -> None:
    found, more, few = measured(text), step(text, LAYERS + 1).passes, step(text, LAYERS).passes
    row = f'    "{text}": Budget{tuple(found)},'
    assert found == BUDGETS[text], f"{row}\nof each layer: {dict(more.host - few.host)}"


@pytest.mark.parametrize("text", BUDGETS)
def test_every_parameter_has_a_gradient_and_the_loss_is_wide(text: str) -> None:
    found = step(text, LAYERS)
    assert found.without_gradient == [] and found.loss.shape == () and found.loss.dtype == torch.float32


def kept(text: str, *names: str) -> list[Call]:
    return [call for call in step(text, LAYERS).passes.kept if call.name.startswith(names)]


@pytest.mark.parametrize("text", BUDGETS)
def test_no_gemm_is_wider_than_16_bits(text: str) -> None:
    found = kept(text, *GEMMS)
    types = [
        {one.dtype for name, one in call.arguments.items() if name in ("self", "mat1", "mat2", "batch1", "batch2")}
        for call in found
        if call.name != "_scaled_mm"
    ]
    assert types and all(each == {torch.bfloat16} for each in types)


@pytest.mark.parametrize("text", [text for text in BUDGETS if "fp8" in text])
def test_products_in_fp8(text: str) -> None:
    found = kept(text, "_scaled_mm")
    assert len(found) == 3 * 4 * LAYERS  # output, and the gradients of input and weight, of 4 linear layers
    for call in found:
        assert {call.arguments["self"].dtype, call.arguments["mat2"].dtype} <= FP8
        assert call.arguments["out_dtype"] == torch.bfloat16
        assert call.arguments["scale_a"].dtype == call.arguments["scale_b"].dtype == torch.float32
    fast: dict[bool, set[bool]] = {True: set(), False: set()}
    for call in found:
        of_gradients = torch.float8_e5m2 in (call.arguments["self"].dtype, call.arguments["mat2"].dtype)
        fast[of_gradients].add(call.arguments.get("use_fast_accum", False))
    # Sums of gradients keep the wide accumulator.
    assert fast == {True: {False}, False: {True}}


@pytest.mark.parametrize("text", [text for text in BUDGETS if "fast" in text])
def test_attention_by_kernels_drops_out_and_sees_whole_sequences(text: str) -> None:
    every = set[int]()
    for layer in range(LAYERS):
        keys = set[int]()
        for name in ATTENTION_KERNELS:
            found = kept(text, name)
            assert len(found) == LAYERS
            # The backward pass goes from the last layer to the first.
            given = found[layer if name == "attention_forward" else LAYERS - 1 - layer].arguments
            assert given["qkv"].shape == (TOKENS, 3, 16, HIDDEN // 16) and given["tokens"] == TOKENS
            assert given["work"].dtype == torch.int32 and given["work"].shape == (-(-TOKENS // 64), 3)
            assert given["dropped"] == round(256 * SHAPE.attention_dropout)
            keys.add(id(given["key"]))
        assert len(keys) == 1  # the backward pass recomputes the mask of the forward pass
        every |= keys
    assert len(every) == LAYERS  # and layers have masks of their own


@pytest.mark.parametrize("text", ["plain bf16", "fast bf16", "fast bf16 without Triton"])
def test_attention_by_operators_drops_out_and_sees_whole_sequences(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    need_triton()
    monkeypatch.setattr("bert.speed.attention.operator_for", lambda *_: FLASH)
    passes = step_of(spec_of(text), SHAPE, LENGTHS, monkeypatch, "without" not in text).passes
    calls = [call for call in passes.kept if call.name.startswith(ATTENTION)]
    forward = [call for call in calls if not call.name.endswith("_backward")]
    backward = [call for call in calls if call.name.endswith("_backward")]
    assert len(forward) == len(backward) == LAYERS
    assert {call.arguments["dropout_p"] for call in calls} == {SHAPE.attention_dropout}
    assert not any(call.arguments.get("is_causal", False) for call in calls)
    if "plain" in text:
        return
    for call in calls:
        given = call.arguments
        assert given["query"].shape == given["key"].shape == given["value"].shape == (TOKENS, 16, HIDDEN // 16)
        for name, longest in (("cum_seq_q", "max_q"), ("cum_seq_k", "max_k")):
            assert given[name].dtype == torch.int32 and given[name].shape == (len(LENGTHS) + 1,)
            assert given[longest] == max(LENGTHS)
    for call in backward:  # recomputes the mask of the forward pass
        assert {name for name in call.arguments if "seed" in name or "rng" in name}
