"""Several sequences of a batch in one row: without most of the padding, and still in few shapes.

CUDA graphs need shapes that do not change, and the number of real tokens does. Here sequences share rows, whose number
can be one of at most 8 for each size of a batch, and attention keeps them apart: packing without cross-contamination
(Krell et al. 2021, arXiv 2107.02027). bert.model.sequences leaves out all padding instead.

Shapes: B sequences in padded rows of S columns, R packed rows of S columns. A slot is a place in a packed row.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

# Numbers of rows for one size of batch: each is a CUDA graph of its own, with memory of its own.
_SIZES = 8


@dataclass(frozen=True, eq=False)
class Packed:
    """Where the tokens of a batch lie in packed rows. Every shape follows from B, S and R."""

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

    def position_ids(self) -> Tensor:
        """Return the column in the padded batch of the token of each slot [R, S]; 0 where there is none."""
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
    # Padding is written to one slot more, which is cut off: no size depends on how many tokens are real.
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
