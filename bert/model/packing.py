"""Layouts of a batch: rows padded to one length, sequences concatenated without padding, or
packed rows that several sequences share.

CUDA graphs need shapes that do not change, and the number of real tokens does. In packed rows, whose number can be one
of at most 8 for each size of a batch, attention keeps the sequences apart: packing without cross-contamination (Krell
et al. 2021, arXiv 2107.02027).

Shapes: B sequences in padded rows of S columns, T real tokens, R packed rows of S columns, N heads, D width of a head.
A slot is a place in a packed row.
"""

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import Function

# Attention weights that are worked on together: 1 MiB in float32, which stays in the cache of a core.
_WEIGHTS_AT_ONCE = 1 << 18
# Sequences of different lengths are padded to the longest of them where at most this part of the weights is wasted.
_MOST_WASTE = 0.25
# So few weights cost less than one more call does.
_FEW_WEIGHTS = 1 << 16
# Numbers of rows for one size of batch: each is a CUDA graph of its own, with memory of its own.
_SIZES = 8


@dataclass(frozen=True)
class Chunk:
    """Neighboring sequences whose attention is computed at once."""

    first: int
    """Token at which it begins."""
    lengths: tuple[int, ...]
    """Tokens of each sequence."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(self.lengths)

    @property
    def padded(self) -> bool:
        """Whether its sequences differ in length."""
        return min(self.lengths) != self.longest

    @cached_property
    def places(self) -> Tensor:
        """Row x longest + column of each of its tokens [t], on the CPU."""
        return torch.from_numpy(np.flatnonzero(np.arange(self.longest) < np.array(self.lengths)[:, None]))

    def take(self, tokens: Tensor) -> Tensor:
        """Return [b, longest, ...] of what all tokens [T, ...] have; zeros where there is none."""
        own = tokens[self.first : self.first + sum(self.lengths)]
        if self.padded:
            zeros = own.new_zeros(len(self.lengths) * self.longest, *own.shape[1:])
            own = zeros.index_copy(0, self.places.to(own.device), own)
        rows: Tensor = own.unflatten(0, (len(self.lengths), self.longest))
        return rows

    def real(self, rows: Tensor) -> Tensor:
        """Return the tokens [t, ...] of [b, longest, ...] in their order."""
        flat = rows.flatten(0, 1)
        return flat.index_select(0, self.places.to(flat.device)) if self.padded else flat

    def put(self, tokens: Tensor, rows: Tensor) -> None:
        """Write [b, longest, ...] to the places of its tokens in [T, ...]."""
        own = tokens[self.first : self.first + sum(self.lengths)]
        if self.padded:
            own.copy_(self.real(rows))
        else:
            own.unflatten(0, (len(self.lengths), self.longest)).copy_(rows)

    def mask(self, device: torch.device) -> Tensor | None:
        """Return bool [b, 1, 1, longest], True for real tokens; None if all are."""
        if not self.padded:
            return None
        columns = torch.arange(self.longest, device=device)
        return (columns < torch.tensor(self.lengths, device=device)[:, None])[:, None, None, :]


def chunks(lengths: Sequence[int], heads: int, cut: bool = True) -> Iterator[Chunk]:
    """Cut a batch of sequences of these lengths, each of at least 1 token, into chunks; without `cut` it is one."""
    first, own = 0, list[int]()
    for length in lengths:
        if own and cut and not _fit([*own, length], heads):
            yield Chunk(first, tuple(own))
            first, own = first + sum(own), []
        own.append(length)
    if own:
        yield Chunk(first, tuple(own))


def _fit(lengths: list[int], heads: int) -> bool:
    weights = heads * len(lengths) * max(lengths) ** 2
    wasted = weights - heads * sum(length**2 for length in lengths)
    return weights <= _FEW_WEIGHTS or (weights <= _WEIGHTS_AT_ONCE and wasted <= _MOST_WASTE * weights)


class Bounds(NamedTuple):
    """Ends of concatenated sequences; no shape or Python number in it depends on their lengths."""

    ends: Tensor
    """Token before which each sequence ends, and 0 before them [B + 1], int32."""
    longest: int
    """Tokens that no sequence has more of."""


@dataclass(frozen=True)
class Unpadded:
    """The real tokens of a batch, with the sequences concatenated."""

    places: Tensor
    """Flat position row x S + column of each token [T], int64."""
    position_ids: Tensor
    """Column of each token [T], int64."""
    ends: Tensor
    """Token before which each sequence ends, and 0 before them [B + 1], int32."""
    lengths: tuple[int, ...]
    """Tokens of each sequence, known on the CPU."""
    columns: int
    """S, columns of the padded batch."""

    @property
    def bounds(self) -> Bounds:
        """Where the sequences end, on the device."""
        return Bounds(self.ends, self.columns)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Unpadded":
        """Return the layout with each tensor changed, as by a copy to another device."""
        return replace(
            self, places=change(self.places), position_ids=change(self.position_ids), ends=change(self.ends)
        )  # fmt: skip

    def chunks(self, heads: int, cut: bool = True) -> tuple[Chunk, ...]:
        """Return the chunks of these sequences, made once for all layers."""
        if (heads, cut) not in self._chunks:
            self._chunks[heads, cut] = tuple(chunks(self.lengths, heads, cut))
        return self._chunks[heads, cut]

    @cached_property
    def _chunks(self) -> dict[tuple[int, bool], tuple[Chunk, ...]]:
        return {}

    def take(self, padded: Tensor) -> Tensor:
        """Return [T, ...] of what the padded batch [B, S, ...] has."""
        return padded.flatten(0, 1).index_select(0, self.places)

    def put_back(self, tokens: Tensor) -> Tensor:
        """Return [B, S, ...] of [T, ...]; zeros where there is no token."""
        flat = tokens.new_zeros(len(self.lengths) * self.columns, *tokens.shape[1:])
        padded: Tensor = flat.index_copy(0, self.places, tokens).unflatten(0, (len(self.lengths), self.columns))
        return padded


def unpad(mask: Tensor) -> Unpadded | None:
    """Return where the real tokens are of a mask [B, S], nonzero for them.

    None if a row's first token is not real: heads look at it, and a row without any token attends to all alike.
    The lengths come from the device: of a mask on a GPU this waits for it (bert.data.batch.Batch.laid_out does not).
    """
    real = mask != 0
    if not bool(real[:, 0].all()):
        return None
    places, columns = real.flatten().nonzero().squeeze(1), mask.shape[1]
    lengths = tuple(real.sum(1).tolist())
    ends = torch.tensor((0, *itertools.accumulate(lengths)), dtype=torch.int32)
    return Unpadded(places, places % columns, ends.to(mask.device, non_blocking=True), lengths, columns)


@dataclass(frozen=True, eq=False)
class Packed:
    """Positions of the tokens of a batch in packed rows. Every shape follows from B, S and R."""

    mask: Tensor
    """bool [R, 1, S, S], True where the token of a row's slot may attend to that of another: never none at all."""
    source: Tensor
    """Flat position row x S + column in the padded batch of the token of each slot [R x S]; 0 where `filled` is not."""
    filled: Tensor
    """Whether a slot holds a token, bool [R x S]."""
    target: Tensor
    """Flat slot row x S + column of each token of the padded batch [B x S]; 0 where `kept` is not."""
    kept: Tensor
    """Whether a token of the padded batch has a slot, bool [B x S]."""

    @property
    def columns(self) -> int:
        """S, of both."""
        return self.mask.shape[-1]

    def take(self, padded: Tensor) -> Tensor:
        """Return [R, S, ...] of what the padded batch [B, S, ...] has; zeros in slots without a token."""
        return _gathered(padded, self.source, self.filled, self.target, self.kept, self.columns)

    def put_back(self, packed: Tensor) -> Tensor:
        """Return [B, S, ...] of [R, S, ...]; zeros where there is no token."""
        return _gathered(packed, self.target, self.kept, self.source, self.filled, self.columns)

    @property
    def position_ids(self) -> Tensor:
        """The column in the padded batch of the token of each slot [R, S]; 0 if there is none."""
        return (self.source % self.columns).view(-1, self.columns)


def pack(mask: Tensor, *, few_shapes: bool = True) -> Packed:
    """Return packed rows for the real tokens of a mask [B, S], nonzero for them.

    With `few_shapes` the number of rows is one of 8 for batches of one size, else what is needed.

    A batch with a row whose first token is not real stays as it is: heads look at that token, and a row without any
    attends to all alike. The lengths come from the device, which on a GPU waits for it.
    """
    real = mask != 0
    size, columns = mask.shape
    numbers = torch.arange(size * columns, device=mask.device)
    lengths: list[int] = (real.sum(1) * real[:, 0]).tolist()
    if 0 in lengths:
        every = torch.ones_like(numbers, dtype=torch.bool)
        attended = real[:, None, None, :].expand(-1, -1, columns, -1).contiguous()
        return Packed(attended, numbers, every, numbers, every)
    places = fit(lengths, columns)
    needed = 1 + max(row for row, _ in places)
    rows = static_rows(needed, size) if few_shapes else needed
    first = torch.tensor([row * columns + column for row, column in places]).to(mask.device, non_blocking=True)
    slots = first[:, None] + real.cumsum(1) - 1
    # Padding is written to an extra slot, which is dropped: no size depends on the number of real tokens.
    source = slots.new_full((rows * columns + 1,), -1)
    source = source.scatter_(0, slots.masked_fill(~real, rows * columns).flatten(), numbers)[:-1]
    filled, kept = source >= 0, real.flatten()
    # Slots without a token share -1: they attend to each other, and softmax has something to sum up.
    sequences = source.div(columns, rounding_mode="floor").view(rows, 1, columns)
    attended = sequences[..., :, None] == sequences[..., None, :]
    return Packed(attended, source.clamp(min=0), filled, slots.flatten().masked_fill(~kept, 0), kept)


def fit(lengths: Sequence[int], columns: int) -> list[tuple[int, int]]:
    """Return row and first column of each sequence, in as few rows of S columns as best-fit decreasing finds.

    The longest come first, each into the row that it leaves the least room in: at most 11/9 of the fewest rows that
    there can be, and 4 more (Johnson et al. 1974, SIAM Journal on Computing 3(4)).
    """
    places = [(0, 0)] * len(lengths)
    rooms = list[tuple[int, int]]()  # free columns and number of each row, fullest first
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        fullest = bisect_left(rooms, (lengths[index], 0))
        free, row = rooms.pop(fullest) if fullest < len(rooms) else (columns, len(rooms))
        places[index] = (row, columns - free)
        insort(rooms, (free - lengths[index], row))
    return places


def static_rows(needed: int, size: int) -> int:
    """Return R: the rows that are needed for a batch of B sequences, rounded up to a multiple of B / 8, itself rounded
    up; at most B.
    """
    step = -(-size // _SIZES)
    return min(size, -(-needed // step) * step)


def _gathered(rows: Tensor, source: Tensor, there: Tensor, back: Tensor, used: Tensor, columns: int) -> Tensor:
    flat: Tensor = _Gather.apply(rows.flatten(0, 1), source, there, back, used)  # type: ignore[no-untyped-call]
    gathered: Tensor = flat.unflatten(0, (-1, columns))
    return gathered


class _Gather(Function):
    """Elements by their numbers, each at most once: so the gradient is gathered too, by the numbers of the way back.

    PyTorch's own gradient adds up, one addition after another where padding shares a number.
    """

    @staticmethod
    def forward(ctx: Any, flat: Tensor, source: Tensor, there: Tensor, back: Tensor, used: Tensor) -> Tensor:
        ctx.save_for_backward(back, used)
        return _select(flat, source, there)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        back, used = ctx.saved_tensors
        return _select(grad, back, used), None, None, None, None


def _select(flat: Tensor, source: Tensor, there: Tensor) -> Tensor:
    return flat.index_select(0, source).masked_fill(~there.view(-1, *[1] * (flat.dim() - 1)), 0)
