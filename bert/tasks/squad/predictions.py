"""Answers, n-best lists and no-answer scores from the logits of all windows, and the files they are written to.

google-research/bert run_squad.py (write_predictions) with the entries for hopeless questions of Hugging Face's version.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bert.data.rows import Int64
from bert.data.vocabulary import Vocabulary
from bert.tasks.squad.features import Int32, SquadFeatures
from bert.tasks.squad.projection import Projector
from common.atomic import atomic_path
from common.errors import InputError, UsageError
from common.flags import flag

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WindowLogits:
    """Logits of all windows of SquadFeatures, real tokens only, in the order of the windows."""

    start: Float32
    """That the answer begins at a token [sum of lengths]."""
    end: Float32
    """That it ends there [sum of lengths]."""
    offsets: Int64
    """Window i has start[offsets[i] : offsets[i + 1]]: [W + 1]."""

    def check(self, features: SquadFeatures) -> None:
        """Refuse logits that are NaN or infinite. Raises InputError that names the first question."""
        for name, values in (("start", self.start), ("end", self.end)):
            wrong = np.flatnonzero(~np.isfinite(values))
            if len(wrong):
                window = int(np.searchsorted(self.offsets, wrong[0], side="right")) - 1
                question = features.question_ids.text(int(features.window_question[window]))
                raise InputError(
                    "logits-not-finite",
                    f"the model outputs the {name} logit {values[wrong[0]]} for question {question!r}: its weights are "
                    "damaged or the precision overflows; use other weights or --precision fp32",
                )


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
    """No-answer scores: the smallest over the windows of each question (the first of equal ones)."""

    start_logit: Float32
    """Start logit of [CLS] [Q]; 0 if a question has no window."""
    end_logit: Float32
    """End logit of [CLS] [Q]; 0 if a question has no window."""
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


PREDICTIONS_FILE = "predictions.json"
N_BEST_FILE = "nbest_predictions.json"
NULL_ODDS_FILE = "null_odds.json"
NO_WINDOW_SCORE = 1_000_000.0
"""Score of no answer for a question without a window: where the published search for the smallest one begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NBestOptions:
    """How answers are looked for."""

    n_best_size: int = 20
    """Best starts and best ends of a window, and answers of a question that are kept."""
    max_answer_length: int = 30
    """Word pieces of an answer at most."""
    null_threshold: float = 0.0
    """SQuAD 2.0: the answer is "" where its score exceeds that of the best other answer by more than this."""

    def __post_init__(self) -> None:
        """Refuse numbers without meaning."""
        for name in ("n_best_size", "max_answer_length"):
            if getattr(self, name) < 1:
                raise UsageError("option-value", f"{flag(name)} {getattr(self, name)} must be 1 or more")
        if not math.isfinite(self.null_threshold):
            raise UsageError("option-value", f"--null-threshold {self.null_threshold} must be a finite number")


class NBestEntry(msgspec.Struct, frozen=True, gc=False):
    """One answer of an n-best list."""

    text: str
    """The answer as written in the context; "" = no answer, "empty" = there was no candidate."""
    probability: float
    """Softmax over the summed logits of the list."""
    start_logit: float
    """Logit of its first token as a start."""
    end_logit: float
    """Logit of its last token as an end."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What is predicted for each question, by id, in the order of the file."""

    predictions: dict[str, str]
    """The answer; "" = none."""
    n_best: dict[str, list[NBestEntry]]
    """The best different answers, best first; empty if they were not asked for."""
    null_odds: dict[str, float]
    """SQuAD 2.0: score of no answer less that of the best answer; empty for 1.1."""
    without_windows: tuple[str, ...]
    """Ids of questions without a window (empty contexts); answered ""."""
    without_spans: tuple[str, ...]
    """Ids of questions none of whose spans can be an answer; answered ""."""

    def write(self, folder: Path) -> list[Path]:
        """Write predictions.json and, where there are any, nbest_predictions.json and null_odds.json.

        Each file is whole or keeps its former content. Returns their paths. Raises StorageError.
        """
        contents: list[tuple[str, Any]] = [(N_BEST_FILE, self.n_best), (NULL_ODDS_FILE, self.null_odds)]
        written = [(name, content) for name, content in contents if content] + [(PREDICTIONS_FILE, self.predictions)]
        for name, content in written:
            with atomic_path(folder / name) as temporary:
                temporary.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
        return [folder / name for name, _ in written]


Span = tuple[int, int, float, float]
"""Token numbers in the context of first and last, start logit, end logit."""
Entry = tuple[str, float, float]
"""Answer, start logit, end logit."""
_NOTHING: Entry = ("empty", 0.0, 0.0)


def decode(
    features: SquadFeatures,
    logits: WindowLogits,
    vocabulary: Vocabulary,
    options: NBestOptions = NBestOptions(),
    *,
    n_best: bool = True,
) -> Answers:
    """Return the answers of all Q questions.

    Args:
        features: W windows; the version of their settings decides whether "" can be an answer.
        logits: of all W windows.
        vocabulary: the one the features were made with.
        options: limits; the published ones by default.
        n_best: keep the n-best lists, too; the answers alone take a fraction of the time.

    Raises:
        InputError: a logit is NaN or infinite.
    """
    logits.check(features)
    nulls = null_scores(features, logits) if features.settings.version == "2.0" else None
    project = Projector(features, vocabulary.pieces).text
    predictions: dict[str, str] = {}
    lists: dict[str, list[NBestEntry]] = {}
    null_odds: dict[str, float] = {}
    without_windows: list[str] = []
    without_spans: list[str] = []
    contexts = features.question_context.tolist()
    has_windows = (np.diff(features.question_windows) > 0).tolist()
    for question, spans in _spans_of_questions(features, logits, options):
        name = features.question_ids.text(question)
        texts = (project(contexts[question], first, last) for first, last, _, _ in spans)
        null = None if nulls is None else ("", float(nulls.start_logit[question]), float(nulls.end_logit[question]))
        entries = _gather(spans, texts, null, options.n_best_size if n_best else 1)
        best = next((entry for entry in entries if entry[0] and entry is not _NOTHING), None)
        if best is None and spans:  # the list is so short that no answer alone fills it
            best = (project(contexts[question], *spans[0][:2]), *spans[0][2:])
        predictions[name] = "" if best is None else best[0]
        if null is not None:
            null_odds[name] = _odds(null, best or _NOTHING) if has_windows[question] else NO_WINDOW_SCORE
            if null_odds[name] > options.null_threshold:
                predictions[name] = ""
        if n_best:
            lists[name] = _with_probabilities(entries)
        if not spans:
            (without_spans if has_windows[question] else without_windows).append(name)
    return Answers(predictions, lists, null_odds, tuple(without_windows), tuple(without_spans))


def _spans_of_questions(
    features: SquadFeatures, logits: WindowLogits, options: NBestOptions
) -> Iterator[tuple[int, list[Span]]]:
    for block in find_spans(features, logits, options.n_best_size, options.max_answer_length):
        columns = [block.first.tolist(), block.last.tolist(), block.start_logit.tolist(), block.end_logit.tolist()]
        bounds = block.offsets.tolist()
        for number, (begin, end) in enumerate(pairwise(bounds), start=block.first_question):
            yield number, list(zip(*(column[begin:end] for column in columns), strict=True))


def _gather(spans: list[Span], texts: Iterator[str], null: Entry | None, most: int) -> list[Entry]:
    """The best different answers, best first, at most `most`; with `null` one more where that is not among them.

    `texts` are those of the spans, drawn only as far as they are needed.
    """
    entries: list[Entry] = []
    seen: set[str] = set()
    null_score = math.inf if null is None else null[1] + null[2]
    waiting = null
    for (_, _, start, end), text in zip(spans, texts, strict=False):
        if waiting is not None and start + end < null_score:
            entries.append(waiting)
            waiting = None
        if len(entries) >= most:
            break
        if text not in seen:
            seen.add(text)
            entries.append((text, start, end))
            if len(entries) >= most:
                break
    if waiting is not None:
        entries.append(waiting)
    if not spans:
        entries.insert(0, _NOTHING)
    return entries


def _odds(null: Entry, best: Entry) -> float:
    return null[1] + null[2] - best[1] - best[2]


def _with_probabilities(entries: list[Entry]) -> list[NBestEntry]:
    scores = [start + end for _, start, end in entries]
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    total = 0.0
    for power in powers:  # sum() of Python 3.12 and later rounds differently
        total += power
    return [
        NBestEntry(text, power / total, start, end) for (text, start, end), power in zip(entries, powers, strict=True)
    ]
