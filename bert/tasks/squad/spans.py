"""Which spans of the contexts can be answers, best first: the published search over the logits of all windows.

google-research/bert run_squad.py (write_predictions): in each window the n best starts and the n best ends among all
real tokens; of their pairs those whose two tokens belong to the document, whose start has its greatest context in this
window, whose end is not before the start, and which are not too long. Equal logits: the earlier token first; equal
sums: the earlier window, better start, better end first.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bert.tasks.squad.features import Int32, Int64, SquadFeatures
from bert.tasks.squad.logits import Float32, WindowLogits

_PAIRS_AT_ONCE = 2**20
"""Pairs of a start and an end looked at together, whole questions: bounds the memory."""
_ROWS_AT_ONCE = 256
"""Windows of like length that are sorted together, so that little is padded."""

Float64 = npt.NDArray[np.float64]
UInt64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Spans of some questions next to each other, question by question, best first."""

    first_question: int
    """Number of the first of these questions."""
    offsets: Int64
    """Question first_question + i has the spans offsets[i] .. offsets[i + 1] - 1: [questions + 1]."""
    first: Int32
    """Number in its context of each span's first token [spans]."""
    last: Int32
    """Number in its context of its last token [spans]."""
    start_logit: Float32
    """Logit of the first token as a start [spans]."""
    end_logit: Float32
    """Logit of the last token as an end [spans]."""

    def __len__(self) -> int:
        """Return the number of questions."""
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class NullScores:
    """What speaks for no answer, the smallest over the windows of each question (the first of equal ones)."""

    start_logit: Float32
    """Start logit of [CLS] [Q]; 0 where a question has no window."""
    end_logit: Float32
    """End logit of [CLS] [Q], likewise."""
    has_windows: npt.NDArray[np.bool_]
    """Whether the question has a window [Q]."""


def find_spans(
    features: SquadFeatures, logits: WindowLogits, n_best_size: int, max_answer_length: int
) -> Iterator[Candidates]:
    """Yield the spans of all questions, block by block in their order.

    Args:
        features: W windows of Q questions.
        logits: one start and one end logit per real token, all finite.
        n_best_size: best starts, and best ends, of a window.
        max_answer_length: word pieces of a span at most.
    """
    count = len(features.question_windows) - 1
    most = min(n_best_size, max(1, int(features.lengths.max(initial=0))))
    begin = 0
    while begin < count:
        full = int(features.question_windows[begin]) + max(1, _PAIRS_AT_ONCE // most**2)
        end = max(begin + 1, int(np.searchsorted(features.question_windows, full, side="right")) - 1)
        yield _block(features, logits, begin, end, most, max_answer_length)
        begin = end


def null_scores(features: SquadFeatures, logits: WindowLogits) -> NullScores:
    """Return start[0] + end[0] of the window where their sum is smallest, for each question."""
    starts, ends = logits.start[logits.offsets[:-1]], logits.end[logits.offsets[:-1]]
    order = np.lexsort((_sum(starts, ends), features.window_question))
    has_windows = np.diff(features.question_windows) > 0
    smallest = order[features.question_windows[:-1][has_windows]]
    count = len(has_windows)
    start_logit, end_logit = np.zeros(count, np.float32), np.zeros(count, np.float32)
    start_logit[has_windows], end_logit[has_windows] = starts[smallest], ends[smallest]
    return NullScores(start_logit, end_logit, has_windows)


def _block(
    features: SquadFeatures, logits: WindowLogits, begin: int, end: int, most: int, max_answer_length: int
) -> Candidates:
    """The spans of questions begin .. end - 1."""
    low, high = int(features.question_windows[begin]), int(features.question_windows[end])
    offsets, lengths = logits.offsets[low:high], np.diff(logits.offsets[low : high + 1])
    starts = _best_positions(logits.start, offsets, lengths, most)
    ends = _best_positions(logits.end, offsets, lengths, most)
    document = features.document_starts[low:high, None]
    tokens = features.window_tokens[low:high, None]
    start_tokens, end_tokens = starts - document, ends - document
    starts_fit = (start_tokens >= 0) & (start_tokens < tokens)
    rows = features.max_context.offsets[low:high, None] + np.where(starts_fit, start_tokens, 0)
    # A window without document tokens may have no row of its own: its index is not used, but must exist.
    greatest = features.max_context.values
    starts_fit &= greatest[np.minimum(rows, max(0, len(greatest) - 1))] == 1 if len(greatest) else False
    ends_fit = (end_tokens >= 0) & (end_tokens < tokens)
    distance = ends[:, None, :] - starts[:, :, None]
    fits = starts_fit[:, :, None] & ends_fit[:, None, :] & (distance >= 0) & (distance < max_answer_length)
    window, start_rank, end_rank = np.nonzero(fits)
    chosen_starts, chosen_ends = starts[window, start_rank], ends[window, end_rank]
    start_logit = logits.start[offsets[window] + chosen_starts]
    end_logit = logits.end[offsets[window] + chosen_ends]
    question = features.window_question[low:high][window]
    order = np.lexsort((-_sum(start_logit, end_logit), question))
    shift = (features.window_first[low:high] - features.document_starts[low:high])[window]
    return Candidates(
        first_question=begin,
        offsets=np.searchsorted(question, np.arange(begin, end + 1)).astype(np.int64),
        first=(chosen_starts + shift)[order].astype(np.int32),
        last=(chosen_ends + shift)[order].astype(np.int32),
        start_logit=start_logit[order],
        end_logit=end_logit[order],
    )


def _sum(starts: Float32, ends: Float32) -> Float64:
    total: Float64 = starts.astype(np.float64) + ends
    return total


def _best_positions(values: Float32, offsets: Int64, lengths: Int64, most: int) -> Int32:
    """Positions of the greatest values of each window, best first, the earlier of equal ones first; -1 fills rows.

    Args:
        values: of all tokens.
        offsets: of the first token of each window [windows].
        lengths: tokens of each window [windows].
        most: positions wanted.

    Returns:
        [windows, most].
    """
    found = np.full((len(offsets), most), -1, np.int32)
    by_length = np.argsort(lengths, kind="stable")
    for begin in range(0, len(by_length), _ROWS_AT_ONCE):
        rows = by_length[begin : begin + _ROWS_AT_ONCE]
        columns = np.arange(int(lengths[rows].max()), dtype=np.int64)
        real = columns < lengths[rows, None]
        keys = _descending_keys(values[np.where(real, offsets[rows, None] + columns, 0)], columns)
        keys[~real] = np.iinfo(np.uint64).max
        if len(columns) > most:
            keys = np.partition(keys, most - 1, axis=1)[:, :most]
        keys.sort(axis=1)
        best = (keys & np.uint64(0xFFFFFFFF)).astype(np.int32)
        best[keys == np.iinfo(np.uint64).max] = -1
        found[rows, : best.shape[1]] = best
    return found


def _descending_keys(values: Float32, columns: Int64) -> UInt64:
    """Whole numbers that ascend where the values descend; of equal values the earlier column is smaller."""
    # + 0.0 turns -0.0 into 0.0. The bits of floats are in the order of the floats, backwards where they are negative.
    bits = (values + np.float32(0.0)).view(np.uint32)
    ascending = np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))
    keys: UInt64 = (~ascending).astype(np.uint64) << np.uint64(32) | columns.astype(np.uint64)
    return keys
