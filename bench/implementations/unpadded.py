"""Hugging Face models of masked words on real tokens only: the sequences of a batch are concatenated to one row.

Embeddings, GEMMs and everything between them work on tokens without padding. Attention is a function that transformers
calls instead of its own (AttentionInterface): the one of bertbench, by the lengths of the sequences.

Shapes: T real tokens of all sequences, N heads, D width of a head.
"""

import inspect
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.implementations.hugging_face import GivenModel
from bench.implementations.model_folder import first_position
from bert.data.batch import Batch, Unpadded
from bert.speed.attention import attend, chunks
from bert.tasks.base import Task
from common.errors import UsageError
from common.train_spec import TrainSpec


class UnpaddedModel(GivenModel):
    """A given model whose input has no padding. Raises UsageError: its input needs it; InputError, as GivenModel."""

    ATTENTION: ClassVar[dict[str, str]] = {"attn_implementation": "bertbench-unpadded"}

    def __init__(self, spec: TrainSpec, task: Task) -> None:
        from transformers import AttentionInterface

        super().__init__(spec, task)
        AttentionInterface.register(self.ATTENTION["attn_implementation"], _attend)
        takes = inspect.signature(self.on_meta.forward).parameters
        if not getattr(self.on_meta, "_supports_attention_backend", False) or "position_ids" not in takes:
            raise UsageError(
                "unsupported-combination",
                f"{type(self.on_meta).__name__} has attention of its own or no position_ids, so its input needs "
                "padding: use --implementations hf",
            )
        self.inputs = ["input_ids", "position_ids", *["token_type_ids"] * ("token_type_ids" in takes)]

    def adapt(self, batch: Batch) -> Batch:
        """Return a batch with one row of T tokens: input_ids, position_ids, labels and segments [1, T]."""
        laid = super().adapt(batch).laid_out(full=True)
        layout = laid.layout
        if layout is None:  # a row begins with padding
            raise UsageError(
                "unsupported-combination",
                "a sequence of the data begins with padding, so it cannot be concatenated: use --implementations hf",
            )
        names = ("input_ids", "labels", "token_type_ids")
        row = {name: laid.tensors[name].flatten()[layout.places][None] for name in names}
        if not self.two_segments:
            row["token_type_ids"] = torch.zeros_like(row["token_type_ids"])
        return Batch(
            {**row, "position_ids": layout.position_ids[None] + first_position(self.config)}, batch.counts, layout
        )

    def output(self, model: torch.nn.Module, batch: Batch, **further: Any) -> Any:
        """Return what the module computes of a batch that `adapt` returned; `further` are other arguments."""
        return super().output(model, batch, bertbench_layout=batch.layout, **further)


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    bertbench_layout: Unpadded,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **further: Any,
) -> tuple[Tensor, None]:
    """Return the context [1, T, N, D] of queries, keys and values [1, N, T, D], as AttentionInterface calls it.

    The layout says which tokens see each other; in a sliding window they see those nearer than it.
    """
    layout, width = bertbench_layout, query.shape[-1]
    if scaling is not None and scaling != width**-0.5:
        query = query * (scaling * width**0.5)
    qkv = torch.stack([each[0].transpose(0, 1) for each in (query, key, value)], dim=1)
    if sliding_window is None or max(layout.lengths) <= sliding_window:
        return attend(qkv, layout, dropout)[None], None
    return _within(qkv, layout, dropout, sliding_window)[None], None


def _within(qkv: Tensor, layout: Unpadded, dropout: float, window: int) -> Tensor:
    """Attention [T, N, D] of tokens to those nearer than `window` in their sequences."""
    parts = []
    for chunk in chunks(layout.lengths, qkv.shape[2]):
        query, key, value = chunk.take(qkv).permute(2, 0, 3, 1, 4).unbind(0)
        places = torch.arange(chunk.longest, device=qkv.device)
        mask = (places[:, None] - places).abs() < window
        real = chunk.mask(qkv.device)
        # Rows of padding see themselves, so that none sees nothing.
        mask = mask[None, None] if real is None else mask & (real | torch.eye(chunk.longest, device=qkv.device).bool())
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        parts.append(chunk.real(context.transpose(1, 2)))
    return torch.cat(parts)
