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
from bert.tasks.squad.features import SquadFeatures
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

Span = tuple[int, int, float, float]
"""Token numbers in the context of first and last, start logit, end logit."""


def find_spans(
    features: SquadFeatures, logits: WindowLogits, n_best_size: int, max_answer_length: int
) -> Iterator[list[Span]]:
    """Yield the spans of each question, best first.

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
        yield from _spans_of(features, logits, begin, end, most, max_answer_length)
        begin = end


def _spans_of(
    features: SquadFeatures, logits: WindowLogits, begin: int, end: int, most: int, max_answer_length: int
) -> Iterator[list[Span]]:
    """Yield the spans of questions begin .. end - 1."""
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
    starts_fit &= np.append(features.max_context.values, 0)[rows] == 1
    ends_fit = (end_tokens >= 0) & (end_tokens < tokens)
    distance = ends[:, None, :] - starts[:, :, None]
    fits = starts_fit[:, :, None] & ends_fit[:, None, :] & (distance >= 0) & (distance < max_answer_length)
    window, start_rank, end_rank = np.nonzero(fits)
    firsts, lasts = starts[window, start_rank], ends[window, end_rank]
    start_logit = logits.start[offsets[window] + firsts]
    end_logit = logits.end[offsets[window] + lasts]
    question = features.window_question[low:high][window]
    order = np.lexsort((-(start_logit.astype(np.float64) + end_logit), question))
    shift = (features.window_first[low:high] - features.document_starts[low:high])[window]
    columns = [column[order].tolist() for column in (firsts + shift, lasts + shift, start_logit, end_logit)]
    for first, last in pairwise(np.searchsorted(question, np.arange(begin, end + 1)).tolist()):
        yield list(zip(*(column[first:last] for column in columns), strict=True))


def _best_positions(values: Float32, offsets: Int64, lengths: Int64, most: int) -> npt.NDArray[np.int64]:
    """Return the positions [windows, most] of the greatest values of each window, best first; of equal values the
    earlier one; -1 fills rows. Windows have the first of their `values` at `offsets`."""
    columns = np.arange(max(most, int(lengths.max(initial=0))))
    real = columns < lengths[:, None]
    keys = np.where(real, _descending_keys(values[np.where(real, offsets[:, None] + columns, 0)], columns), _LAST)
    best = np.sort(np.partition(keys, most - 1, axis=1)[:, :most], axis=1)
    return np.where(best == _LAST, -1, (best & np.uint64(0xFFFFFFFF)).astype(np.int64))


_LAST = np.uint64(2**64 - 1)


def _descending_keys(values: Float32, columns: Int64) -> npt.NDArray[np.uint64]:
    """Whole numbers that ascend where the values descend; of equal values the earlier column is smaller."""
    # + 0.0 turns -0.0 into 0.0. The bits of floats are in the order of the floats, backwards where they are negative.
    bits = (values + np.float32(0.0)).view(np.uint32)
    ascending = np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))
    keys: npt.NDArray[np.uint64] = (~ascending).astype(np.uint64) << np.uint64(32) | columns.astype(np.uint64)
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
    """Best starts and ends per window, and answers per question, to keep."""
    max_answer_length: int = 30
    """Maximum word pieces of an answer."""
    null_threshold: float = 0.0
    """SQuAD 2.0: answer "" unless the best answer scores higher than no answer by more than this."""

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
    without_windows: list[str]
    """Ids of questions without a window (empty contexts); answered ""."""
    without_spans: list[str]
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
    project = Projector(features, vocabulary.pieces).text
    answers = Answers({}, {}, {}, [], [])
    contexts, bounds = features.question_context.tolist(), features.question_windows.tolist()
    at_cls = [column[logits.offsets[:-1]].tolist() for column in (logits.start, logits.end)]
    for question, spans in enumerate(find_spans(features, logits, options.n_best_size, options.max_answer_length)):
        name = features.question_ids.text(question)
        windows = slice(bounds[question], bounds[question + 1])
        nulls = list(zip(at_cls[0][windows], at_cls[1][windows], strict=True))
        null: Entry | None = None
        if features.settings.version == "2.0":
            null = ("", *min(nulls, key=sum, default=(0.0, 0.0)))
        texts = (project(contexts[question], first, last) for first, last, _, _ in spans)
        entries = _gather(spans, texts, null, options.n_best_size if n_best else 1)
        best = next((entry for entry in entries if entry[0] and entry is not _NOTHING), None)
        if best is None and spans:  # the list is so short that no answer alone fills it
            best = (project(contexts[question], *spans[0][:2]), *spans[0][2:])
        answers.predictions[name] = "" if best is None else best[0]
        if null is not None:
            answers.null_odds[name] = _odds(null, best or _NOTHING) if nulls else NO_WINDOW_SCORE
            if answers.null_odds[name] > options.null_threshold:
                answers.predictions[name] = ""
        if n_best:
            answers.n_best[name] = _with_probabilities(entries)
        if not spans:
            (answers.without_spans if nulls else answers.without_windows).append(name)
    return answers


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
