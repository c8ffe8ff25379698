"""Batches of the windows of SQuAD's questions: endless ones to train on, one pass to predict with.

Torch is imported only where batches are made: plans look at features with this module.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert.data.loading.batches import FlatBatches, evaluation_order, padded_batch
from bert.data.rows import Int64
from bert.tasks.squad.features import FORM, SquadFeatures
from common.errors import InputError

if TYPE_CHECKING:
    from bert.data.batch import Batch
    from bert.tasks.base import DataSpec


class SquadBatches(FlatBatches):
    """Endless batches of the windows of a features file, in FlatBatches' order.

    Args:
        spec: which batches.
        features: from `spec.data`.

    Raises:
        InputError: they have no window, or a larger vocabulary than `spec`.
        UsageError: no such padding.
    """

    def __init__(self, spec: "DataSpec", features: SquadFeatures) -> None:
        if not len(features):
            raise InputError(
                "data-missing", f"the features in {spec.data} hold no window: make them from questions with contexts"
            )
        self.features = features
        super().__init__(spec, features.lengths, features.settings.vocab_size, features.fingerprint)

    def _batch(self, numbers: Int64) -> "Batch":
        return window_batch(self.features, numbers, self.spec.padding)


def find_features(path: Path, split: str, seq_len: int) -> SquadFeatures:
    """Open features whose windows have up to `seq_len` tokens.

    Raises:
        InputError: as FORM.open (the message has the command that makes them), or the length is another one.
        SchemaError: a newer version wrote them.
    """
    features = FORM.open(path, split)
    longest = features.settings.max_seq_length
    if longest != seq_len:
        raise InputError(
            "data-mismatch",
            f"the windows in {path} have up to {longest} tokens, not {seq_len}: use {longest}, or make others with "
            f"`{prepare_command(seq_len)}`",
        )
    return features


def prepare_command(seq_len: int) -> str:
    """Return the command that makes features to train on whose windows have up to `seq_len` tokens."""
    return FORM.command("training", max_seq_length=seq_len)


def evaluation_batches(
    features: SquadFeatures,
    micro_batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    chosen: Int64 | None = None,
) -> "Iterator[tuple[Int64, Batch]]":
    """Yield every window of a rank once, with the numbers of the windows [B] that each batch consists of.

    Where numbers of windows were `chosen`, only those are yielded. The order is that of evaluation_order.
    """
    for numbers in evaluation_order(features.lengths, micro_batch_size, rank, world_size, chosen):
        yield numbers, window_batch(features, numbers)


def window_batch(features: SquadFeatures, numbers: Int64, padding: str = "longest") -> "Batch":
    """Return the batch of these windows [B], tensors and counts as bert.data.batch documents them."""
    targets = {
        "start_positions": features.start_positions[numbers].astype(np.int64),
        "end_positions": features.end_positions[numbers].astype(np.int64),
    }
    offsets = features.input_ids.offsets
    document = offsets[numbers + 1] - offsets[numbers] - features.window_tokens[numbers] - 1
    return padded_batch(
        features.input_ids,
        document,
        numbers,
        targets,
        pad_id=features.pad_id,
        longest=features.settings.max_seq_length,
        padding=padding,
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
