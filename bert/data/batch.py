"""One micro-batch: its tensors and what it counts for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bert.data.packing import Unpadded, unpad


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Quantities of one micro-batch (or the sum of several) that throughput and FLOPs are computed from."""

    samples: int
    real_tokens: int
    """Tokens whose attention mask is 1."""
    padded_tokens: int
    """All tokens, padding included."""
    predicted_positions: int
    """Masked positions the MLM head computes logits for; 0 without such a head."""
    squared_lengths: int
    """Sum over sequences of (real length)^2, the attention term of the FLOP formula."""

    def __add__(self, other: "BatchCounts") -> "BatchCounts":
        return BatchCounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors by name, all on one device, with their counts (known on the CPU, so reading them never synchronizes).

    Pretraining (B sequences of S tokens, M predicted positions in the whole batch):
        input_ids [B, S] int64; attention_mask [B, S] int64, 1 = real; token_type_ids [B, S] int64;
        masked_positions [M] int64, flat index row * S + column; masked_labels [M] int64;
        next_sentence_labels [B] int64, 1 = the second segment is random.
    Question answering (B windows of S tokens):
        input_ids, attention_mask, token_type_ids as above, segment 1 = document;
        start_positions, end_positions [B] int64, columns of the answer's first and last token, 0 = no answer here.
    Classification and regression (B rows of S tokens):
        input_ids, attention_mask, token_type_ids as above, segment 1 = second text;
        labels [B], int64 classes or float32 values, absent where they are not known; what the task has besides.
    """

    tensors: dict[str, torch.Tensor]
    counts: BatchCounts
    layout: Unpadded | None = None
    """Where the real tokens lie, on the same device; without it a model reads the mask, which on a GPU waits for it."""
    weight: float = 1.0
    """What its predicted words weigh: their number as a multiple of the mean of all micro-batches of the step."""

    @property
    def mask(self) -> torch.Tensor | None:
        """The attention mask [B, S], None if all tokens are real; known on the CPU without asking the GPU."""
        all_real = self.counts.real_tokens == self.counts.padded_tokens
        return None if all_real else self.tensors["attention_mask"]

    def laid_out(self, *, full: bool = False) -> "Batch":
        """Return this batch, which is on the CPU, with its layout (bert.data.packing).

        One without padding needs none; `full` lays it out too.
        """
        mask = self.tensors["attention_mask"] if full else self.mask
        return self if mask is None else replace(self, layout=unpad(mask))

    def to(self, device: torch.device) -> "Batch":
        """Copy to `device`; from pinned memory the copy does not block."""
        return self if device.type == "cpu" else self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> "Batch":
        """Copy to page-locked memory, which makes copies to a GPU asynchronous."""
        return self._map(torch.Tensor.pin_memory)

    def _map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        changed = {name: change(tensor) for name, tensor in self.tensors.items()}
        return replace(self, tensors=changed, layout=None if self.layout is None else self.layout.map(change))


def batch_of(arrays: Mapping[str, npt.NDArray[Any]], lengths: npt.NDArray[np.int64]) -> Batch:
    """Return the batch of these arrays, whose rows have so many real tokens [B]."""
    rows, columns = arrays["input_ids"].shape
    return Batch(
        {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()},
        BatchCounts(
            samples=rows,
            real_tokens=int(lengths.sum()),
            padded_tokens=rows * columns,
            predicted_positions=len(arrays.get("masked_positions", ())),
            squared_lengths=int(lengths @ lengths),
        ),
    )
