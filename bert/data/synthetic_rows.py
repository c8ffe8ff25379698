"""Made-up samples as one sequence that repeats, of which each rank takes those that are its own."""

import numpy as np
import torch

from bert.data.batch import Batch, BatchCounts
from bert.data.lengths import Lengths, padded_length

_ROWS = 1920  # the common micro batches of 1 to 8 ranks divide it, so that batches repeat soon
_MOST_TOKENS = 2**20
_PREDICTED = ("masked_positions", "masked_labels")


def rows_in_all(seq_len: int) -> int:
    """Return after how many samples of this length they repeat: the same for any batch size and number of ranks."""
    return max(15, _ROWS >> max(0, (_ROWS * seq_len - 1).bit_length() - _MOST_TOKENS.bit_length() + 1))


class Rows:
    """All samples, padded to the same length, and batches of those that follow each other.

    Args:
        samples: all of them as one batch [N, S].
        lengths: their lengths [N].
        padding: of the batches, one of bert.data.lengths.PADDINGS; pretraining knows full ones only.
    """

    def __init__(self, samples: Batch, lengths: Lengths, padding: str) -> None:
        self._tensors = samples.tensors
        self._lengths = lengths
        self._padding = padding
        self._columns = int(samples.tensors["input_ids"].shape[1])
        positions = samples.tensors.get(_PREDICTED[0])
        ends = np.arange(len(lengths) + 1) * self._columns
        self._bounds = None if positions is None else np.searchsorted(positions.numpy(), ends)

    def batch(self, first: int, count: int) -> Batch:
        """Return the samples `first` to `first + count` of the endless sequence [count, S]."""
        pieces = self._pieces(first, count)
        lengths = np.concatenate([self._lengths[start:end] for start, end in pieces])
        tensors = {
            name: _joined([tensor[start:end] for start, end in pieces])
            for name, tensor in self._tensors.items()
            if name not in _PREDICTED
        }
        columns = self._columns
        if self._bounds is None:
            columns = padded_length(int(lengths.max()), columns, self._padding)
            tensors = {
                name: each[:, :columns].contiguous() if each.dim() > 1 else each for name, each in tensors.items()
            }
        else:
            tensors |= self._predicted(pieces)
            tensors = {name: tensors[name] for name in self._tensors}
        return Batch(
            tensors,
            BatchCounts(
                samples=count,
                real_tokens=int(lengths.sum()),
                padded_tokens=count * columns,
                predicted_positions=len(tensors[_PREDICTED[0]]) if self._bounds is not None else 0,
                squared_lengths=int((lengths**2).sum()),
            ),
        )

    def _pieces(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return the parts of the sequence, each [start, end), that a batch is put together from."""
        pieces = []
        while count:
            start = first % len(self._lengths)
            taken = min(count, len(self._lengths) - start)
            pieces.append((start, start + taken))
            first, count = first + taken, count - taken
        return pieces

    def _predicted(self, pieces: list[tuple[int, int]]) -> dict[str, torch.Tensor]:
        assert self._bounds is not None
        positions, labels, rows = [], [], 0
        for start, end in pieces:
            within = slice(int(self._bounds[start]), int(self._bounds[end]))
            positions.append(self._tensors[_PREDICTED[0]][within] + (rows - start) * self._columns)
            labels.append(self._tensors[_PREDICTED[1]][within])
            rows += end - start
        return {_PREDICTED[0]: _joined(positions), _PREDICTED[1]: _joined(labels)}


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
