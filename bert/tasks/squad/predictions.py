"""Answers, n-best lists and no-answer scores from the logits of all windows, and the files they are written to.

google-research/bert run_squad.py (write_predictions, get_final_text) with the entries for hopeless questions of Hugging
Face's version. Logits are those of all windows, real tokens only: [2, sum of lengths], that an answer begins at a
token, and that it ends there.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from bert.data.rows import Int64
from bert.data.vocabulary import Vocabulary
from bert.tasks.squad.features import SquadFeatures
from common.atomic import atomic_path
from common.errors import UsageError
from common.flags import flag

Float32 = npt.NDArray[np.float32]
Span = tuple[int, int, float, float]
"""Token numbers in the context of first and last, start logit, end logit."""
Entry = tuple[str, float, float]
"""Answer, start logit, end logit."""

PREDICTIONS_FILE = "predictions.json"
N_BEST_FILE = "nbest_predictions.json"
NULL_ODDS_FILE = "null_odds.json"
_QUESTIONS_AT_ONCE = 500
"""Bounds the memory that the pairs of starts and ends take."""
_NOTHING: Entry = ("empty", 0.0, 0.0)


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
    end_logit: float


@dataclass(frozen=True, slots=True)
class Answers:
    """What is predicted for each question, by id, in the order of the file."""

    predictions: dict[str, str] = field(default_factory=dict)
    """The answer; "" = none."""
    n_best: dict[str, list[NBestEntry]] = field(default_factory=dict)
    """The best different answers, best first; empty if they were not asked for."""
    null_odds: dict[str, float] = field(default_factory=dict)
    """SQuAD 2.0: score of no answer less that of the best answer; empty for 1.1."""

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


def decode(
    features: SquadFeatures,
    logits: Float32,
    vocabulary: Vocabulary,
    options: NBestOptions = NBestOptions(),
    *,
    n_best: bool = True,
) -> Answers:
    """Return the answers of all questions, from the logits of all windows [2, sum of lengths].

    The version of the features decides whether "" can be an answer. Without the n-best lists it takes a fraction of the
    time. Logits are finite.
    """
    normal_words = NormalWords(features.settings.lower_case)
    # Questions of one context follow one another.
    context_of = lru_cache(maxsize=1)(lambda number: Context(features, number, vocabulary.pieces, normal_words))
    answers = Answers()
    contexts, bounds = features.question_context.tolist(), features.question_windows.tolist()
    at_cls = logits[:, features.input_ids.offsets[:-1]].T.tolist()
    for question, spans in enumerate(find_spans(features, logits, options.n_best_size, options.max_answer_length)):
        name = features.question_ids.text(question)
        nulls = at_cls[bounds[question] : bounds[question + 1]]
        null: Entry | None = None
        if features.settings.version == "2.0":
            null = ("", *min(nulls, key=sum))
        project = context_of(contexts[question]).text
        texts = (project(first, last) for first, last, _, _ in spans)
        entries = _gather(spans, texts, null, options.n_best_size if n_best else 1)
        best = next((entry for entry in entries if entry[0] and entry is not _NOTHING), None)
        if best is None and spans:  # the list is so short that no answer alone fills it
            best = (project(*spans[0][:2]), *spans[0][2:])
        answers.predictions[name] = "" if best is None else best[0]
        if null is not None:
            _, start, end = best or _NOTHING
            answers.null_odds[name] = null[1] + null[2] - start - end
            if answers.null_odds[name] > options.null_threshold:
                answers.predictions[name] = ""
        if n_best:
            answers.n_best[name] = _with_probabilities(entries)
    return answers


def find_spans(
    features: SquadFeatures, logits: Float32, n_best_size: int, max_answer_length: int
) -> Iterator[list[Span]]:
    """Yield the spans of each question, best first: of at most `max_answer_length` word pieces, from the `n_best_size`
    best starts and ends of each window. Logits are finite [2, sum of lengths]."""
    count = len(features.question_ids)
    most = min(n_best_size, max(1, int(features.lengths.max(initial=0))))
    for begin in range(0, count, _QUESTIONS_AT_ONCE):
        yield from _spans_of(features, logits, begin, min(count, begin + _QUESTIONS_AT_ONCE), most, max_answer_length)


def _spans_of(
    features: SquadFeatures, logits: Float32, begin: int, end: int, most: int, max_answer_length: int
) -> Iterator[list[Span]]:
    """Yield the spans of questions begin .. end - 1."""
    low, high = int(features.question_windows[begin]), int(features.question_windows[end])
    offsets, lengths = features.input_ids.offsets[low:high], features.lengths[low:high]
    starts, ends = (_best_positions(side, offsets, lengths, most) for side in logits)
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
    start_logit, end_logit = logits[0, offsets[window] + firsts], logits[1, offsets[window] + lasts]
    question = features.window_question[low:high][window]
    order = np.lexsort((-(start_logit.astype(np.float64) + end_logit), question))
    shift = (features.window_first[low:high] - features.document_starts[low:high])[window]
    columns = [column[order].tolist() for column in (firsts + shift, lasts + shift, start_logit, end_logit)]
    for first, last in pairwise(np.searchsorted(question, np.arange(begin, end + 1)).tolist()):
        yield list(zip(*(column[first:last] for column in columns), strict=True))


def _best_positions(values: Float32, offsets: Int64, lengths: Int64, most: int) -> Int64:
    """Return the positions [windows, most] of the greatest values of each window, best first; of equal values the
    earlier one; -1 fills rows. Windows have the first of their `values` at `offsets`."""
    columns = np.arange(max(most, int(lengths.max(initial=0))))
    real = columns < lengths[:, None]
    rows = np.where(real, -values[np.where(real, offsets[:, None] + columns, 0)], np.inf)
    best = np.argsort(rows, axis=1, kind="stable")[:, :most]
    return np.where(best < lengths[:, None], best, -1)


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


class NormalWords(dict[str, str]):
    """Words as the tokenizer sees them before it cuts pieces: normal case, accents off or kept, signs apart."""

    def __init__(self, lower_case: bool) -> None:
        from tokenizers import normalizers, pre_tokenizers

        super().__init__()
        self._lower_case = lower_case
        self._normalizer: Any = normalizers.BertNormalizer(lowercase=lower_case)
        self._splitter: Any = pre_tokenizers.BertPreTokenizer()

    def __missing__(self, word: str) -> str:
        """Return the parts of a word, a space between them; empty if nothing is left of it."""
        if word.isascii() and word.isprintable():  # most words: the same result in a tenth of the time
            parts = re.findall("[A-Za-z0-9]+|[^A-Za-z0-9]", word.lower() if self._lower_case else word)
        else:
            parts = [part for part, _ in self._splitter.pre_tokenize_str(self._normalizer.normalize_str(word))]
        self[word] = " ".join(parts)
        return self[word]


class Context:
    """One context: from its word pieces back to the text they were cut from.

    The published projection (get_final_text), prepared once per context: pieces are joined to text, looked for in the
    normalized words of the span, and the first and the last character found are followed back into the original words
    by counting characters other than spaces. Where that is impossible the answer is the original words, one space
    between them.
    """

    def __init__(self, features: SquadFeatures, number: int, pieces: Sequence[str], normal_words: NormalWords) -> None:
        """Take the number of the context, and the pieces of the vocabulary by id."""
        begin, end = features.tokens.offsets[number : number + 2]
        self._token_words = features.token_words[begin:end].tolist()
        self._pieces = [pieces[piece] for piece in features.tokens[number].tolist()]
        words = re.findall("[^ \t\r\n\u202f]+", features.contexts.text(number))
        self._joined = " ".join(words)
        """All words, one space between them: word i begins at _before[i] + i."""
        self._before = [0, *accumulate(map(len, words))]
        """Characters of the words before each word."""
        normal = [normal_words[word] for word in words]
        self._lengths_before = [0, *accumulate(len(part) - part.count(" ") for part in normal)]
        """Characters other than spaces of the normal forms before each word."""
        self._normal = " ".join(filter(None, normal))
        """The normal forms of the words; some words have none."""
        self._normal_begins = [0, *accumulate(len(part) + bool(part) for part in normal)]

    def text(self, first: int, last: int) -> str:
        """Return the original text of tokens `first` .. `last`, both inclusive."""
        wanted = " ".join(self._pieces[first : last + 1])
        if "##" in wanted:
            wanted = " ".join(wanted.replace(" ##", "").replace("##", "").split())
        first_word, last_word = self._token_words[first], self._token_words[last]
        before = self._before
        begin, end = before[first_word], before[last_word + 1]
        original = self._joined[begin + first_word : end + last_word]
        normal_begin = self._normal_begins[first_word]
        found = self._normal.find(wanted, normal_begin, max(0, self._normal_begins[last_word + 1] - 1))
        if found < 0 or not wanted:
            return original
        if end - begin != self._lengths_before[last_word + 1] - self._lengths_before[first_word]:
            return original  # the normal form has more or fewer characters: they cannot be paired
        start = begin + found - normal_begin - self._normal.count(" ", normal_begin, found)
        stop = start + len(wanted) - 1 - wanted.count(" ")
        # Words are not empty, so the word of a character is found by the characters before each word.
        start += bisect_right(before, start) - 1
        stop += bisect_right(before, stop) - 1
        return self._joined[start : stop + 1]
