"""Layouts of a batch: rows padded to one length, or sequences concatenated without padding.

Shapes: B sequences in padded rows of S columns, T real tokens, N heads, D width of a head.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Attention weights that are worked on together: 1 MiB in float32, which stays in the cache of a core.
_WEIGHTS_AT_ONCE = 1 << 18
# Sequences of different lengths are padded to the longest of them where at most this part of the weights is wasted.
_MOST_WASTE = 0.25
# So few weights cost less than one more call does.
_FEW_WEIGHTS = 1 << 16


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

    @functools.cached_property
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

    @property
    def tokens(self) -> int:
        """T, the real tokens of the batch."""
        return len(self.places)

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

    @functools.cached_property
    def _chunks(self) -> dict[tuple[int, bool], tuple[Chunk, ...]]:
        return {}

    def take(self, padded: Tensor) -> Tensor:
        """Return [T, ...] of what the padded batch [B, S, ...] has."""
        return padded.flatten(0, 1).index_select(0, self.places)

    def put_back(self, tokens: Tensor) -> Tensor:
        """Return [B, S, ...] of [T, ...]; zeros where there is no token."""
        rows = len(self.lengths)
        flat = tokens.new_zeros(rows * self.columns, *tokens.shape[1:]).index_copy_(0, self.places, tokens)
        padded: Tensor = flat.unflatten(0, (rows, self.columns))
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
    lengths: list[int] = real.sum(1).tolist()
    ends = torch.tensor((0, *itertools.accumulate(lengths)), dtype=torch.int32).to(mask.device, non_blocking=True)
    return Unpadded(places, places % columns, ends, tuple(lengths), columns)
