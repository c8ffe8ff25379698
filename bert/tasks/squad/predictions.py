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

from bert.data.vocabulary import Vocabulary
from bert.tasks.squad.features import SquadFeatures
from bert.tasks.squad.logits import WindowLogits
from bert.tasks.squad.projection import Projector
from bert.tasks.squad.spans import find_spans, null_scores
from common.atomic import atomic_path
from common.errors import InputError, UsageError
from common.flags import flag

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
    """The answer, as it stands in the context; "" = no answer, "empty" = there was nothing to choose from."""
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
    """The best different answers, best first; empty where they were not asked for."""
    null_odds: dict[str, float]
    """SQuAD 2.0: score of no answer less that of the best answer; empty for 1.1."""
    without_windows: tuple[str, ...]
    """Ids of questions without a window (empty contexts); answered ""."""
    without_spans: tuple[str, ...]
    """Ids of questions none of whose spans can be an answer; answered ""."""
    duplicates: int
    """Questions that have the id of an earlier one, whose answer they replace."""

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
    options: NBestOptions | None = None,
    *,
    n_best: bool = True,
) -> Answers:
    """Return the answers of all Q questions.

    Args:
        features: W windows; the version of their settings decides whether "" can be an answer.
        logits: of all W windows.
        vocabulary: the one the features were made with.
        options: limits; None = the published ones.
        n_best: keep the n-best lists, too; the answers alone take a fraction of the time.

    Raises:
        InputError: logits of other windows, NaN or infinite ones, or another vocabulary.
    """
    options = options or NBestOptions()
    _check_vocabulary(features, vocabulary)
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
    duplicates = len(contexts) - len(predictions)
    return Answers(predictions, lists, null_odds, tuple(without_windows), tuple(without_spans), duplicates)


def _check_vocabulary(features: SquadFeatures, vocabulary: Vocabulary) -> None:
    settings = features.settings
    if vocabulary.fingerprint != settings.vocabulary:
        raise InputError(
            "vocabulary-mismatch",
            f"the vocabulary ({len(vocabulary.pieces):,} pieces, fingerprint {vocabulary.fingerprint}) is not that of "
            f"the features ({settings.vocab_size:,} pieces, fingerprint {settings.vocabulary}): give the vocab.txt "
            "and the casing they were made with",
        )


def _spans_of_questions(
    features: SquadFeatures, logits: WindowLogits, options: NBestOptions
) -> Iterator[tuple[int, list[Span]]]:
    """Each question's number and its spans, best first."""
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
    """The score of no answer less that of the best answer, in the published order of operations."""
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
