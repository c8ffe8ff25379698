"""The choice of the operator for attention without padding, the same on all ranks, before the first step."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import torch

from bert.data.batch import Batch
from bert.model.attention import SelfAttention
from bert.model.encoder import BertEncoder
from bert.model.varlen import Kind
from bert.optim.precision import Precision
from bert.parallel.base import Strategy
from bert.speed.attention_choice import choose
from bert.train.agreement import text_of_first, together


def choose_attention(
    model: torch.nn.Module, batches: Callable[[], Iterable[Batch]], precision: Precision, strategy: Strategy
) -> dict[str, Any] | None:
    """Have all layers use the operator that is fastest for the first batch; every rank must call it.

    Rank 0 measures. The random numbers of the run stay as they are.

    Args:
        model: on its device, wrapped by the strategy.
        batches: opens batches like those of the run; called on rank 0 only.
        precision: of the GEMMs.
        strategy: the ranks.

    Returns:
        bert.speed.attention_choice.Choice as JSON values; None where there is nothing to choose: on a CPU, or with
        padding.

    Raises:
        BertbenchError: the first batch cannot be read.
    """
    encoders = [part for part in model.modules() if isinstance(part, BertEncoder)]
    layers = [part for part in model.modules() if isinstance(part, SelfAttention)]
    if strategy.device.type == "cpu" or not layers or not any(encoder.unpads for encoder in encoders):
        return None
    compiled = any(encoder.compiles for encoder in encoders)

    def measured() -> str:
        if strategy.rank:
            return ""
        first = next(iter(batches()))
        mask = first.tensors["attention_mask"]
        lengths = [max(1, length) for length in mask.ne(0).sum(1).tolist()]
        layer = layers[0]
        kind = Kind(strategy.device, precision.matmul_dtype, layer.output.in_features // layer.num_heads, compiled)
        with torch.random.fork_rng([strategy.device], device_type=strategy.device.type):
            chosen = choose(lengths, layer.num_heads, layer.dropout, kind, columns=mask.shape[1])
        return json.dumps(asdict(chosen))

    found: dict[str, Any] = json.loads(text_of_first(strategy, together(strategy, measured)))
    for layer in layers:
        layer.operator = found["operator"]
    return found
