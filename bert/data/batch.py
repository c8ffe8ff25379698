"""One micro-batch: its tensors, what it counts for, and where its real tokens lie.

Shapes: B sequences in padded rows of S columns, T real tokens.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 256  # bytes between tensors in one piece of memory: kernels are compiled for multiples of 16


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


@dataclass(frozen=True)
class Unpadded:
    """The real tokens of a batch, with the sequences concatenated."""

    places: Tensor
    """Flat position row x S + column of each token [T], int64."""
    position_ids: Tensor
    """Column of each token [T], int64."""
    ends: Tensor
    """Token before which each sequence ends, and 0 before them [B + 1], int32."""
    work: Tensor
    """The tiles that kernels of attention compute [E, 3], as of `tiles_of`."""
    lengths: tuple[int, ...]
    """Tokens of each sequence, known on the CPU."""
    columns: int
    """S, columns of the padded batch."""
    predicted: Tensor | None = None
    """Token at each of the batch's masked positions [M], int64; None if it has none."""

    @property
    def tokens(self) -> int:
        """T, the real tokens of the batch."""
        return len(self.places)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Unpadded":
        """Return the layout with each tensor changed, as by a copy to another device."""
        changed: dict[str, Any] = {name: change(one) for name, one in vars(self).items() if isinstance(one, Tensor)}
        return replace(self, **changed)

    def take(self, padded: Tensor) -> Tensor:
        """Return [T, ...] of what the padded batch [B, S, ...] has."""
        return padded.flatten(0, 1).index_select(0, self.places)

    def tokens_at(self, positions: Tensor) -> Tensor:
        """Return the tokens at flat positions row x S + column, which must be real [M]."""
        return torch.searchsorted(self.places, positions.contiguous())

    def put_back(self, tokens: Tensor) -> Tensor:
        """Return [B, S, ...] of [T, ...]; zeros where there is no token."""
        rows = len(self.lengths)
        flat = tokens.new_zeros(rows * self.columns, *tokens.shape[1:]).index_copy_(0, self.places, tokens)
        padded: Tensor = flat.unflatten(0, (rows, self.columns))
        return padded


def unpad(mask: Tensor) -> Unpadded | None:
    """Return where the real tokens are of a mask [B, S], nonzero for them.

    None if a row's first token is not real: heads look at it, and a row without any token attends to all alike.
    The lengths come from the device: of a mask on a GPU this waits for it (Batch.laid_out does not).
    """
    real = mask != 0
    if not bool(real[:, 0].all()):
        return None
    places, columns = real.flatten().nonzero().squeeze(1), mask.shape[1]
    lengths: list[int] = real.sum(1).tolist()
    ends = torch.tensor((0, *itertools.accumulate(lengths)), dtype=torch.int32).to(mask.device, non_blocking=True)
    work = tiles_of(lengths).to(mask.device, non_blocking=True)
    return Unpadded(places, places % columns, ends, work, tuple(lengths), columns)


def tiles_of(lengths: Sequence[int], rows: int = 64) -> Tensor:
    """Return the tiles of `rows` tokens of concatenated sequences, those of the longest sequences first [E, 3], int32.

    Each has the first token of its sequence, the number of that sequence's tokens, and its own first row among them.
    """
    sequences = sorted(zip(lengths, itertools.accumulate(lengths, initial=0), strict=False), reverse=True)
    found = [(begin, length, row) for length, begin in sequences for row in range(0, length, rows)]
    return torch.from_numpy(np.array(found, dtype=np.int32).reshape(-1, 3))


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

    tensors: dict[str, Tensor]
    counts: BatchCounts
    layout: Unpadded | None = None
    """Where the real tokens lie, on the same device; without it a model reads the mask, which on a GPU waits for it."""
    weight: float = 1.0
    """What its predicted words weigh: their number as a multiple of the mean of all micro-batches of the step."""
    key: Tensor | None = None
    """What dropout by kernels follows from, int64 [1]; without it they draw keys from the device's generator."""
    memory: Tensor | None = None
    """The page-locked bytes that hold all of it."""

    @property
    def mask(self) -> Tensor | None:
        """The attention mask [B, S], None if all tokens are real; known on the CPU without asking the GPU."""
        all_real = self.counts.real_tokens == self.counts.padded_tokens
        return None if all_real else self.tensors["attention_mask"]

    def laid_out(self, *, full: bool = False) -> "Batch":
        """Return this batch, which is on the CPU, with its layout.

        One without padding needs none; `full` lays it out too.
        """
        mask = self.tensors["attention_mask"] if full else self.mask
        layout, positions = None if mask is None else unpad(mask), self.tensors.get("masked_positions")
        if layout is not None and positions is not None:
            layout = replace(layout, predicted=layout.tokens_at(positions))
        return self if mask is None else replace(self, layout=layout)

    def to(self, device: torch.device) -> "Batch":
        """Copy to `device`; what is pinned by one copy, which does not block."""
        if device.type == "cpu" or self.memory is None:
            return self if device.type == "cpu" else self._map(lambda tensor: tensor.to(device, non_blocking=True))
        there, begin = self.memory.to(device, non_blocking=True), self.memory.data_ptr()
        moved = self._map(lambda tensor: _seen_as(tensor, there, tensor.data_ptr() - begin))
        return replace(moved, memory=None)

    def pin(self) -> "Batch":
        """Copy to one piece of page-locked memory, with room for a key."""
        keyed = self if self.key is not None else replace(self, key=torch.zeros(1, dtype=torch.int64))
        layout = {} if self.layout is None else vars(self.layout)
        held = [each for each in (*self.tensors.values(), *layout.values(), keyed.key) if isinstance(each, Tensor)]
        sizes = [-(-each.nbytes // _ALIGNMENT) * _ALIGNMENT for each in held]
        memory, begins = torch.empty(sum(sizes), dtype=torch.uint8).pin_memory(), itertools.accumulate(sizes, initial=0)
        return replace(keyed._map(lambda tensor: _seen_as(tensor, memory, next(begins)).copy_(tensor)), memory=memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        changed = {name: change(tensor) for name, tensor in self.tensors.items()}
        layout = None if self.layout is None else self.layout.map(change)
        return replace(self, tensors=changed, layout=layout, key=None if self.key is None else change(self.key))


def _seen_as(tensor: Tensor, memory: Tensor, begin: int) -> Tensor:
    """Return bytes of a memory from `begin` on, in the type and shape of a tensor."""
    return memory[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)


def dropout_keys(key: Tensor | None, sites: int) -> tuple[Tensor | None, ...]:
    """Return the keys of the dropouts of a model, in their order, of that of a micro-step int64 [1]."""
    if key is None:
        return (None,) * sites
    # Two numbers apart: kernels are compiled for addresses that are multiples of 16 bytes.
    return (key + torch.arange(2 * sites, device=key.device)).view(sites, 2)[:, :1].unbind()


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
