"""Hugging Face models of masked words on real tokens only: the sequences of a batch are concatenated to one row.

Embeddings, GEMMs and everything between them work on tokens without padding. Attention is a function that transformers
calls instead of its own (AttentionInterface): the one of bertbench, by the lengths of the sequences.

Shapes: T real tokens of all sequences, N heads, D width of a head.
"""

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.implementations.given import GivenModel
from bench.implementations.hugging_face import HuggingFaceImplementation
from bench.implementations.model_folder import positions_after_padding
from bert.data.batch import Batch
from bert.model.attention import attend
from bert.model.packing import Unpadded
from bert.tasks import task_data
from common.errors import UsageError
from records.trial import Trial

_ATTENTION = "bertbench-unpadded"


class UnpaddedImplementation(HuggingFaceImplementation):
    """The model that --model names, on input without padding."""

    def check(self, trial: Trial) -> None:
        """Refuse presets and other heads, which look at the first token of each row. Raises UsageError."""
        super().check(trial)
        if not trial.model:
            raise UsageError(
                "unsupported-combination",
                f"implementation {trial.implementation} builds only models that --model names: give --model, or use "
                "--implementations bertbench, which has no padding by default",
            )
        if task_data(trial.task).heads != "masked words":
            raise UsageError(
                "unsupported-combination",
                f"implementation {trial.implementation} trains masked words only: use --implementations hf for task "
                f"{trial.task}",
            )


class UnpaddedModel(GivenModel):
    """A given model whose input has no padding. Raises InputError: its configuration cannot be read."""

    def adapt(self, batch: Batch) -> Batch:
        """Return a batch with one row of T tokens: input_ids, position_ids, labels and segments [1, T]."""
        laid = super().adapt(batch).laid_out(full=True)
        layout = laid.layout
        if layout is None:  # a row begins with padding
            raise UsageError(
                "unsupported-combination",
                "a sequence of the data begins with padding, so it cannot be concatenated: use --implementations hf",
            )
        first = int(self.config.pad_token_id or 0) + 1 if positions_after_padding(self.config) else 0
        row = {name: laid.tensors[name].flatten()[layout.places][None] for name in ("input_ids", "labels")}
        types = laid.tensors["token_type_ids"].flatten()[layout.places][None]
        row["token_type_ids"] = types if self._two_segments else torch.zeros_like(types)
        return Batch({**row, "position_ids": layout.position_ids[None] + first}, batch.counts, layout)

    def output(self, model: torch.nn.Module, batch: Batch, *further: str) -> Any:
        """Return what the module computes of a batch that `adapt` returned; `further` are tensors of it to hand on."""
        tensors = {name: batch.tensors[name] for name in (*self._names, *further)}
        return model(**tensors, **{_LAYOUT: batch.layout})

    def _attention(self) -> str:
        _register()
        return _ATTENTION

    def _arguments(self, model: Any) -> list[str]:
        takes = inspect.signature(model.forward).parameters
        if not getattr(model, "_supports_attention_backend", False) or "position_ids" not in takes:
            raise UsageError(
                "unsupported-combination",
                f"{type(model).__name__} has attention of its own or no position_ids, so its input needs padding: use "
                "--implementations hf",
            )
        return ["input_ids", "position_ids", *["token_type_ids"] * ("token_type_ids" in takes)]


_LAYOUT = "bertbench_layout"


def attend_unpadded(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **further: Any,
) -> tuple[Tensor, None]:
    """Return the context [1, T, N, D] of queries, keys and values [1, N, T, D], as AttentionInterface calls it.

    Args:
        module: the layer that asks.
        query: one row of concatenated sequences; `further` has their layout.
        key: as `query`.
        value: as `query`.
        attention_mask: None; the layout says which tokens see each other.
        scaling: of the logits; None is 1 / sqrt(D).
        dropout: probability of the weights.
        sliding_window: tokens see those nearer than this; None sees the whole sequence.
        further: what else transformers hands on.
    """
    layout: Unpadded = further[_LAYOUT]
    width = query.shape[-1]
    if scaling is not None and scaling != width**-0.5:
        query = query * (scaling * width**0.5)
    qkv = torch.stack([each[0].transpose(0, 1) for each in (query, key, value)], dim=1)
    if sliding_window is None or max(layout.lengths) <= sliding_window:
        return attend(qkv, layout, dropout)[None], None
    return _within(qkv, layout, dropout, sliding_window)[None], None


def _within(qkv: Tensor, layout: Unpadded, dropout: float, window: int) -> Tensor:
    """Attention [T, N, D] of tokens to those nearer than `window` in their sequences."""
    parts = []
    for chunk in layout.chunks(qkv.shape[2], qkv.device.type == "cpu"):
        query, key, value = chunk.take(qkv).permute(2, 0, 3, 1, 4).unbind(0)
        places = torch.arange(chunk.longest, device=qkv.device)
        mask = (places[:, None] - places).abs() < window
        real = chunk.mask(qkv.device)
        # Rows of padding see themselves, so that none sees nothing.
        mask = mask[None, None] if real is None else mask & (real | torch.eye(chunk.longest, device=qkv.device).bool())
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        parts.append(chunk.real(context.transpose(1, 2)))
    return torch.cat(parts)


def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(_ATTENTION, attend_unpadded)
