"""Texts longer than a row: cut into rows that each stand for themselves. Imports no torch."""

from collections.abc import Iterator, Sequence

from bert.tasks.classify.config import SPECIAL_TOKENS


def fold(pieces: Sequence[int], max_seq_length: int, cls_id: int, sep_id: int) -> Iterator[list[int]]:
    """Yield the rows of one text: [CLS] the next pieces [SEP], each of max_seq_length tokens but the last.

    Args:
        pieces: word pieces of the text, without special ones; none make no row.
        max_seq_length: tokens of a row at most, special ones included; at least 3.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
    """
    room = max_seq_length - SPECIAL_TOKENS
    for first in range(0, len(pieces), room):
        yield [cls_id, *pieces[first : first + room], sep_id]
