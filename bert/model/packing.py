"""Layouts of a batch: rows padded to one length, or sequences concatenated without padding.

CUDA graphs need shapes that do not change, and the number of real tokens does. So their total can be padded to one of
at most 8 for each size of a batch, its token budget, by dummy sequences that no other token attends to: packing without
cross-contamination (Krell et al. 2021, arXiv 2107.02027), with one row for the whole batch.

Shapes: B sequences in padded rows of S columns, T computed tokens, N heads, D width of a head, K dummy
sequences.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

# Attention weights that are worked on together: 1 MiB in float32, which stays in the cache of a core.
_WEIGHTS_AT_ONCE = 1 << 18
# Sequences of different lengths are padded to the longest of them where at most this part of the weights is wasted.
_MOST_WASTE = 0.25
# So few weights cost less than one more call does.
_FEW_WEIGHTS = 1 << 16
# Totals of tokens for one size of batch: each has CUDA graphs of its own.
_BUDGETS = 8
# Totals are multiples of this, as GEMMs compute rows in such blocks.
_BLOCK = 64
# Standard deviations from the mean total at which budgets lie: most batches waste half of one, 1 in 10,000 all slots.
_SPREAD = (-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 4.0)


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
    """The real tokens of a batch, with the sequences concatenated; behind them the tokens of dummy sequences, if any.

    A dummy token is padding at position 0 of segment 0. It reaches neither a head nor a gradient.
    """

    places: Tensor
    """Flat position row x S + column of each token [T], int64; 0 for dummy tokens."""
    position_ids: Tensor
    """Column of each token [T], int64; 0 for dummy tokens."""
    ends: Tensor
    """Token before which each sequence ends, and 0 before them [B + K + 1], int32."""
    lengths: tuple[int, ...]
    """Tokens of each sequence, the K dummy sequences last, known on the CPU."""
    rows: int
    """B, sequences of the batch."""
    columns: int
    """S, columns of the padded batch."""
    longest: int
    """Tokens that no sequence of any batch with this budget has more of; S without a budget."""
    budget: "TokenBudget | None" = None
    """The totals that T is one of."""

    @property
    def bounds(self) -> Bounds:
        """Where the sequences end, on the device."""
        return Bounds(self.ends, self.longest)

    @property
    def tokens(self) -> int:
        """T, all tokens that are computed."""
        return len(self.places)

    @functools.cached_property
    def real_tokens(self) -> int:
        """Tokens of the batch itself."""
        return sum(self.lengths[: self.rows])

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
        """Return [T, ...] of what the padded batch [B, S, ...] has; zeros for dummy tokens."""
        return _take(padded.flatten(0, 1), self.places, self.real_tokens)

    def put_back(self, tokens: Tensor) -> Tensor:
        """Return [B, S, ...] of [T, ...]; zeros where there is no token."""
        flat: Tensor = _PutBack.apply(tokens, self.places, self.real_tokens, self.rows * self.columns)  # type: ignore[no-untyped-call]
        padded: Tensor = flat.unflatten(0, (self.rows, self.columns))
        return padded


def _take(flat: Tensor, places: Tensor, real: int) -> Tensor:
    found = flat.index_select(0, places)
    if real < len(found):
        found[real:] = 0
    return found


class _PutBack(Function):
    """Real tokens to their places; one pass each way, where a slice and its gradient would copy again."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, places: Tensor, real: int, slots: int) -> Tensor:
        ctx.save_for_backward(places)
        ctx.real = real
        return tokens.new_zeros(slots, *tokens.shape[1:]).index_copy_(0, places[:real], tokens[:real])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (places,) = ctx.saved_tensors
        return _take(grad, places, ctx.real), None, None, None


def unpad(mask: Tensor, budget: "TokenBudget | None" = None) -> Unpadded | None:
    """Return where the real tokens are of a mask [B, S], nonzero for them; dummy sequences fill a budget for B rows.

    None if a row's first token is not real: heads look at it, and a row without any token attends to all alike.
    The lengths come from the device: of a mask on a GPU this waits for it (bert.data.batch.Batch.laid_out does not).
    """
    real = mask != 0
    if not bool(real[:, 0].all()):
        return None
    places, (rows, columns), longest = real.flatten().nonzero().squeeze(1), mask.shape, mask.shape[1]
    lengths: list[int] = real.sum(1).tolist()
    position_ids = places % columns
    if budget is not None:
        dummies, longest = budget.padding(len(places)), max(budget.columns, 2)
        lengths += dummies
        places, position_ids = (F.pad(each, (0, sum(dummies))) for each in (places, position_ids))
    ends = torch.tensor((0, *itertools.accumulate(lengths)), dtype=torch.int32).to(mask.device, non_blocking=True)
    return Unpadded(places, position_ids, ends, tuple(lengths), rows, columns, longest, budget)


@dataclass(frozen=True)
class TokenBudget:
    """The totals that the tokens of batches of one size are padded to. The last one holds every batch."""

    rows: int
    """B, sequences of a batch."""
    columns: int
    """S, tokens that no sequence has more of."""
    totals: tuple[int, ...]
    """At most 8, ascending, multiples of 64."""
    dummies: int
    """K, dummy sequences of every batch. Each has at least 1 token, as not every attention operator takes empty
    sequences, and at most S (2 where S is 1)."""

    @classmethod
    def holding(cls, rows: int, columns: int, held: Iterable[float]) -> "TokenBudget":
        """Return budgets for so many real tokens, all slots besides."""
        slots = rows * columns
        tokens = sorted({slots, *(min(slots, max(rows, math.ceil(each))) for each in held)})
        gap = max(end - begin for begin, end in itertools.pairwise((0, *tokens)))
        dummies = -(-(gap + _BLOCK) // max(1, columns - 1))
        totals = sorted({-(-(each + dummies) // _BLOCK) * _BLOCK for each in tokens})
        return cls(rows, columns, tuple(totals), dummies)

    @classmethod
    def of_batches(cls, columns: int, lengths: Tensor) -> "TokenBudget":
        """Return budgets around the mean total of the first n batches, by their lengths [n, B].

        The standard deviation of a total is sqrt(B) times that of a length if lengths are independent. Where batches
        hold sequences of like length it is more, so that of the n totals counts if it is larger.
        """
        lengths = lengths.double()
        totals, rows = lengths.sum(1), lengths.shape[1]
        spread = max(float(totals.std(correction=0)), rows**0.5 * float(lengths.std(correction=0)))
        return cls.holding(rows, columns, (float(totals.mean()) + spread * each for each in _SPREAD))

    def padding(self, tokens: int) -> list[int]:
        """Return the lengths of the K dummy sequences of a batch with so many real tokens, as equal as possible."""
        added = next(total for total in self.totals if total >= tokens + self.dummies) - tokens
        return [added // self.dummies + (place < added % self.dummies) for place in range(self.dummies)]


@functools.cache
def even_budget(rows: int, columns: int) -> TokenBudget:
    """Return budgets for 1 / 8, 2 / 8 ... of the slots, for batches whose lengths are not known beforehand."""
    return TokenBudget.holding(rows, columns, (rows * columns * part / _BUDGETS for part in range(1, _BUDGETS)))
