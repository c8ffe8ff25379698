"""Batches of the windows of SQuAD's questions: endless ones to train on, one pass to predict with.

Torch is imported only where batches are made: plans look at features with this module.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.data.lengths import padded_length
from bert.data.loading.position import Position
from bert.data.squad.features import SquadFeatures
from bert.data.squad.store import command, open_features
from common.errors import InputError, UsageError

if TYPE_CHECKING:
    from bert.batch import Batch
    from bert.tasks.base import DataSpec

Int64 = npt.NDArray[np.int64]


class SquadBatches:
    """Endless batches of the windows of a features file.

    All ranks walk the same endless sequence of global batches: G = W B windows each, for W ranks and B =
    micro_batch_size, of which rank r takes the r-th run of B. The windows of an epoch come in an order shuffled by
    (seed, epoch), each once; an incomplete last batch is filled from the next epoch (see SampleOrder, with one shard).

    With padding 'longest' a micro batch is as long as its longest window, rounded up to a multiple of 8: ranks may
    differ. With 'fixed' it has max_seq_length tokens, as in most published code.

    Args:
        spec: `source` is what open_features takes.
        split: 'training' or 'evaluation'.
        features: to use instead of opening `spec.source`.

    Raises:
        InputError: there are no features (the message has the command that makes them), they are damaged, or they have
            windows of another length, a larger vocabulary than `spec`, or none.
        SchemaError: a newer version wrote them.
        UsageError: no such padding.
    """

    def __init__(self, spec: "DataSpec", split: str = "training", features: SquadFeatures | None = None) -> None:
        padded_length(spec.seq_len, spec.seq_len, spec.padding)
        self.spec = spec
        self.features = find_features(Path(spec.source), split, spec.seq_len) if features is None else features
        known = self.features.settings.vocab_size
        if known > spec.vocab_size:
            raise InputError(
                f"the features in {spec.source} have {known} word pieces, but the model has only {spec.vocab_size}: "
                "use the vocabulary they were made with"
            )
        if not len(self.features):
            raise InputError(f"the features in {spec.source} hold no window: make them from questions with contexts")
        self._position = Position(
            np.array([[len(self.features)]]),
            spec.seed,
            spec.micro_batch_size * spec.world_size,
            self.features.fingerprint,
            spec.source,
        )

    def __iter__(self) -> "Iterator[Batch]":
        """Yield micro batches on the CPU, epoch after epoch."""
        position, spec = self._position, self.spec
        while True:
            batch = window_batch(self.features, self._numbers(position.batches), spec.padding)
            position.batches += 1
            yield batch

    def lengths_of_batches(self, count: int) -> list[Int64]:
        """Return the real tokens of each window [B] of this rank's next `count` batches."""
        first = self._position.batches
        lengths = self.features.lengths
        return [lengths[self._numbers(number)] for number in range(first, first + count)]

    def _numbers(self, batch: int) -> Int64:
        """The windows of this rank in a global batch [B]."""
        order, size = self._position.order, self.spec.micro_batch_size
        _, first = order.batch(batch)
        start = first + self.spec.rank * size
        return np.concatenate([rows for _, rows in order.rows(0, start, start + size)])

    def state_dict(self) -> dict[str, Any]:
        """Position after the last batch that was yielded."""
        return self._position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position; the number of ranks and the batch size may differ: see Position.

        Raises:
            InputError: the state belongs to other features, or is damaged.
            UsageError: it was saved with another seed, hence another order.
        """
        self._position.load_state_dict(state)


def find_features(path: Path, split: str, seq_len: int) -> SquadFeatures:
    """Open features whose windows have up to `seq_len` tokens.

    Raises:
        InputError: as open_features (the message has the command that makes them), or the length is another one.
        SchemaError: a newer version wrote them.
    """
    features = open_features(path, split)
    longest = features.settings.max_seq_length
    if longest != seq_len:
        raise InputError(
            f"the windows in {path} have up to {longest} tokens, not {seq_len}: use {longest}, or make others with "
            f"`{prepare_command(seq_len)}`"
        )
    return features


def prepare_command(seq_len: int) -> str:
    """Return the command that makes features to train on whose windows have up to `seq_len` tokens."""
    return f"{command('training')} --max-seq-length {seq_len}"


def lengths_fingerprint(features: SquadFeatures) -> str:
    """Return a hash of everything that made-up batches like these windows depend on."""
    digest = hashlib.blake2b(str(features.settings.max_seq_length).encode(), digest_size=16)
    digest.update(features.lengths.astype("<i8").tobytes())
    return f"lengths-{digest.hexdigest()}"


def evaluation_batches(
    features: SquadFeatures,
    micro_batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    padding: str = "longest",
    chosen: Int64 | None = None,
) -> "Iterator[tuple[Int64, Batch]]":
    """Yield every window of a rank once, with the numbers of the windows [B] that each batch consists of.

    Where numbers of windows were `chosen`, only those are yielded.

    Windows of like length come together, the longest first, so that little is padded and a lack of memory shows at
    once. Batch i of all goes to rank i mod `world_size`; the last batch may be smaller, a rank may have one more than
    another, or none.
    """
    if min(micro_batch_size, world_size) < 1 or not 0 <= rank < world_size:
        raise UsageError(f"micro_batch_size={micro_batch_size}, rank={rank} of {world_size}: each must be at least 1")
    order = np.argsort(-features.lengths, kind="stable")
    if chosen is not None:
        order = order[np.isin(order, chosen)]
    for start in range(rank * micro_batch_size, len(order), world_size * micro_batch_size):
        numbers = order[start : start + micro_batch_size]
        yield numbers, window_batch(features, numbers, padding)


def window_batch(features: SquadFeatures, numbers: Int64, padding: str = "longest") -> "Batch":
    """Return the batch of these windows [B], tensors and counts as bert.batch documents them."""
    import torch

    from bert.batch import Batch, BatchCounts

    ids = features.input_ids
    begins = ids.offsets[numbers]
    lengths = ids.offsets[numbers + 1] - begins
    columns = padded_length(int(lengths.max()), features.settings.max_seq_length, padding)
    column = np.arange(columns)
    real = column < lengths[:, None]
    # Behind a window's end any place will do, as long as it is one.
    places = np.minimum(begins[:, None] + column, len(ids.values) - 1)
    document = lengths - features.window_tokens[numbers] - 1
    arrays = {
        "input_ids": np.where(real, ids.values[places], features.pad_id).astype(np.int64),
        "attention_mask": real.astype(np.int64),
        "token_type_ids": (real & (column >= document[:, None])).astype(np.int64),
        "start_positions": features.start_positions[numbers].astype(np.int64),
        "end_positions": features.end_positions[numbers].astype(np.int64),
    }
    return Batch(
        {name: torch.from_numpy(array) for name, array in arrays.items()},
        BatchCounts(
            samples=len(numbers),
            real_tokens=int(lengths.sum()),
            padded_tokens=len(numbers) * columns,
            predicted_positions=0,
            squared_lengths=int(lengths @ lengths),
        ),
    )


def put_values(features: SquadFeatures, numbers: Int64, values: npt.NDArray[Any], flat: npt.NDArray[Any]) -> None:
    """Write values [B, S] of the tokens of windows `numbers` [B] to where these lie in the features.

    Args:
        features: the windows.
        numbers: those in `values`, as evaluation_batches yields them.
        values: one value for each token of each window; those of padding are left out.
        flat: receives them, real tokens of all windows behind one another [sum of lengths].
    """
    offsets = features.input_ids.offsets
    begins = offsets[numbers]
    column = np.arange(values.shape[1])
    real = column < (offsets[numbers + 1] - begins)[:, None]
    flat[(begins[:, None] - offsets[0] + column)[real]] = values[real]
