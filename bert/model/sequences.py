"""Where the tokens of a batch lie: in rows padded to one length, or one sequence behind the other without padding.

Shapes: B sequences in rows of S columns, T real tokens, N heads, D width of a head.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

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
    """Neighbouring sequences whose attention is computed at once."""

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
        columns = torch.arange(self.longest)
        return (columns < torch.tensor(self.lengths)[:, None]).flatten().nonzero().squeeze(1)

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
        """Return bool [b, 1, 1, longest], True for real tokens; None where all are."""
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
    """Where sequences that lie behind one another end; no shape or number in it depends on their lengths."""

    ends: Tensor
    """Token before which each sequence ends, and 0 before them [B + 1], int32."""
    longest: int
    """Tokens that no sequence has more of."""


@dataclass(frozen=True)
class Unpadded:
    """The real tokens of a batch, one sequence behind the other."""

    places: Tensor
    """Flat position row x S + column of each token [T]."""
    lengths: tuple[int, ...]
    """Tokens of each sequence."""
    columns: int
    """S, columns of the padded batch."""

    @cached_property
    def bounds(self) -> Bounds:
        """Where the sequences end, on the device."""
        ends = torch.tensor((0, *itertools.accumulate(self.lengths)), dtype=torch.int32)
        return Bounds(ends.to(self.places.device, non_blocking=True), self.columns)

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

    def position_ids(self) -> Tensor:
        """Return the column of each token [T]."""
        return self.places % self.columns


def unpad(mask: Tensor) -> Unpadded | None:
    """Return where the real tokens are of a mask [B, S], nonzero for them.

    None where a row's first token is not real: heads look at it, and a row without any token attends to all alike.
    The lengths come from the device, which on a GPU waits for it.
    """
    real = mask != 0
    if not bool(real[:, 0].all()):
        return None
    places = real.flatten().nonzero().squeeze(1)
    return Unpadded(places, tuple(real.sum(1).tolist()), mask.shape[1])
