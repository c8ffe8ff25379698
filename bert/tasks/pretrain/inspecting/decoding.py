"""Rows of shards as text: what a model would see, and what it has to find."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert.tasks.pretrain.inspecting.invariants import Integers, Specials, layout_of
from bert.tasks.pretrain.inspecting.shard_files import Block
from bert.tasks.pretrain.shard_writer import COLUMNS
from bert.tasks.pretrain.shards import opened


@dataclass(frozen=True, slots=True)
class Sample:
    """One decoded instance; a predicted position is [shown:hidden]: [MASK:fox], same [fox:fox], other [cat:fox]."""

    shard: str
    """Name of the file."""
    row: int
    """Row in it."""
    tokens: int
    """Real tokens."""
    masked: int
    """Predicted positions."""
    label: int
    """1 = segment B is random."""
    first: str
    """Segment A."""
    second: str
    """Segment B."""


def decode_row(path: Path, row: int, pieces: Sequence[str] | None, specials: Specials | None) -> Sample:
    """Read and decode one row of a shard.

    Args:
        path: the shard, with the datasets and shapes of the format.
        row: which row.
        pieces: word pieces by id; None shows the ids themselves.
        specials: ids of the special pieces.

    Raises:
        InputError: the file cannot be read.
    """
    with opened(path) as file:
        block: Block = {column: file[column][row : row + 1] for column in COLUMNS}
    layout = layout_of(block)
    length, switch = int(layout.lengths[0]), int(layout.switches[0])
    hidden = {int(column): int(layout.original[0, column]) for column in layout.columns}
    ids = layout.ids[0]
    mask_id = None if specials is None else specials.mask_id
    texts = [_join(ids, range(begin, end), hidden, pieces, mask_id) for begin, end in _segments(length, switch)]
    label = int(block["next_sentence_labels"][0])
    return Sample(path.name, row, length, int(layout.counts[0]), label, texts[0], texts[1])


def _segments(length: int, switch: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Columns of A and B, without [CLS] and [SEP]."""
    return (1, max(1, switch - 1)), (switch, max(switch, length - 1))


def _join(
    ids: Integers, columns: range, hidden: Mapping[int, int], pieces: Sequence[str] | None, mask_id: int | None
) -> str:
    """Word pieces with `##` joined to the piece before; a predicted one keeps its `##`."""
    text = ""
    for column in columns:
        own = _piece(int(ids[column]), pieces)
        before = hidden.get(column)
        whole = own if before is None else _piece(before, pieces)
        if before is not None:
            shown = "MASK" if np.equal(ids[column], -1 if mask_id is None else mask_id) else own
            part = f"[{shown}:{whole}]"
        else:
            part = own.removeprefix("##") if text else own
        text += part if whole.startswith("##") and text else f" {part}" if text else part
    return text


def _piece(number: int, pieces: Sequence[str] | None) -> str:
    if pieces is None:
        return str(number)
    return pieces[number] if 0 <= number < len(pieces) else f"<{number}>"
