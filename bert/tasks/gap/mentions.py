"""Where three mentions are among the tokens of their text, and what of a long text is kept around them.

The text is cut where a mention begins or ends and the pieces are tokenised one by one, so that a mention always begins
and ends with a token: its first token's number is the number of tokens of the pieces before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from bert.data.ragged import Int64
from bert.data.vocabulary import Vocabulary
from bert.tasks.gap.config import SPECIAL_TOKENS
from bert.tasks.gap.examples import GapExample


@dataclass(frozen=True, slots=True)
class TokenText:
    """A text as tokens."""

    ids: Int64
    """Word pieces, without special ones [T]."""
    starts: Int64
    """Number of the first token of pronoun, A and B [3]."""
    ends: Int64
    """One past the last token of each [3]; as its start where a mention has no pieces."""


def tokenize(examples: Sequence[GapExample], vocabulary: Vocabulary) -> list[TokenText]:
    """Return the tokens of each example's text, and where its mentions are among them."""
    cuts = [_cuts(example) for example in examples]
    pieces = [
        example.text[begin:end]
        for example, places in zip(examples, cuts, strict=True)
        for begin, end in pairwise(places)
    ]
    encoded = iter(vocabulary.encode(pieces))
    found = []
    for example, places in zip(examples, cuts, strict=True):
        own = [next(encoded) for _ in pairwise(places)]
        before = dict(zip(places, accumulate(map(len, own), initial=0), strict=True))
        found.append(
            TokenText(
                np.array([token for piece in own for token in piece], np.int64),
                np.array([before[mention.offset] for mention in example.mentions], np.int64),
                np.array([before[mention.end] for mention in example.mentions], np.int64),
            )
        )
    return found


def _cuts(example: GapExample) -> list[int]:
    inner = {place for mention in example.mentions for place in (mention.offset, mention.end)}
    return sorted({0, len(example.text)} | inner)


def fit(text: TokenText, max_seq_length: int) -> TokenText | None:
    """Return a text of at most max_seq_length - 2 tokens; None where the mentions alone are longer.

    Of a longer text stays one window, with the mentions in its middle. Where they lie too far apart for that, as many
    tokens stay on both sides of each as there is place for, and what is between is left out.
    """
    most = max_seq_length - SPECIAL_TOKENS
    count = len(text.ids)
    if count <= most:
        return text
    first, last = int(text.starts.min()), int(text.ends.max())
    if last - first <= most:
        begin = min(max(0, first - (most - (last - first)) // 2), count - most)
        kept = np.zeros(count, np.bool_)
        kept[begin : begin + most] = True
    else:
        kept = _around(text, 0)
        if kept.sum() > most:
            return None
        fewest, too_many = 0, count
        while too_many - fewest > 1:
            middle = (fewest + too_many) // 2
            fewest, too_many = (middle, too_many) if _around(text, middle).sum() <= most else (fewest, middle)
        kept = _around(text, fewest)
    before = np.concatenate([[0], np.cumsum(kept)])
    return TokenText(text.ids[kept], before[text.starts], before[text.ends])


def _around(text: TokenText, more: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which tokens are in a mention or up to `more` before or behind one [T]."""
    kept = np.zeros(len(text.ids), np.bool_)
    for start, end in zip(text.starts.tolist(), text.ends.tolist(), strict=True):
        kept[max(0, start - more) : end + more] = True
    return kept
