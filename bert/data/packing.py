"""Where the real tokens of a batch lie: its sequences concatenated without padding.

Shapes: B sequences in padded rows of S columns, T real tokens.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


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
    def tokens(self) -> int:
        """T, the real tokens of the batch."""
        return len(self.places)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Unpadded":
        """Return the layout with each tensor changed, as by a copy to another device."""
        return replace(
            self, places=change(self.places), position_ids=change(self.position_ids), ends=change(self.ends)
        )  # fmt: skip

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
