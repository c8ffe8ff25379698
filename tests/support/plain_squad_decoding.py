"""Decoding of SQuAD in plain loops and dictionaries: what bert.tasks.squad is held against.

Written from the description of google-research/bert's run_squad.py (n best, projection onto the original text,
no-answer score) and of both official scoring scripts. Nothing is shared with bert.tasks.squad, nothing done for speed.
"""

import math
import re
import string
from collections import Counter
from dataclasses import dataclass
from typing import Any

from support.plain_tokenizer import PlainTokenizer

from bert.tasks.squad.features import SquadFeatures


@dataclass(frozen=True, slots=True)
class Span:
    """One candidate."""

    window: int
    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


def best_positions(logits: list[float], most: int) -> list[int]:
    ranked = sorted(range(len(logits)), key=lambda position: -logits[position])
    return ranked[:most]


def spans_of_question(features: SquadFeatures, logits: Any, question: int, most: int, longest: int) -> list[Span]:
    """The candidates of a question, best first."""
    found = []
    for window in range(int(features.question_windows[question]), int(features.question_windows[question + 1])):
        low, high = features.input_ids.offsets[window : window + 2].tolist()
        starts, ends = logits[:, low:high].tolist()
        word_of, greatest = token_maps(features, window)
        for start in best_positions(starts, most):
            for end in best_positions(ends, most):
                if start not in word_of or end not in word_of or not greatest[start]:
                    continue
                if start <= end < start + longest:
                    found.append(Span(window, start, end, starts[start], ends[end]))
    return sorted(found, key=lambda span: -span.score)


def token_maps(features: SquadFeatures, window: int) -> tuple[dict[int, int], dict[int, bool]]:
    """Position in the window -> word of the context, and -> whether this window is the token's best."""
    context = int(features.question_context[features.window_question[window]])
    words = features.token_words[features.tokens.offsets[context] : features.tokens.offsets[context + 1]].tolist()
    begin, place = int(features.window_first[window]), int(features.document_starts[window])
    word_of, greatest = {}, {}
    for number in range(int(features.window_tokens[window])):
        word_of[place + number] = words[begin + number]
        greatest[place + number] = bool(features.max_context[window][number])
    return word_of, greatest


def text_of_span(features: SquadFeatures, span: Span, pieces: tuple[str, ...]) -> str:
    """The answer as it stands in the context."""
    context = int(features.question_context[features.window_question[span.window]])
    words = re.split("[ \t\r\n\u202f]+", features.contexts.text(context).strip(" \t\r\n\u202f"))
    word_of, _ = token_maps(features, span.window)
    original = " ".join(words[word_of[span.start] : word_of[span.end] + 1])
    ids = features.input_ids[span.window][span.start : span.end + 1].tolist()
    joined = " ".join(pieces[number] for number in ids).replace(" ##", "").replace("##", "")
    return final_text(" ".join(joined.split()), original, features.settings.lower_case)


def final_text(wanted: str, original: str, lower_case: bool) -> str:
    """Project normalised text onto the original words."""
    normal = " ".join(PlainTokenizer([], lower_case).words(original))
    start = normal.find(wanted)
    if start < 0 or not wanted:
        return original
    normal_places = [place for place, character in enumerate(normal) if character != " "]
    original_places = [place for place, character in enumerate(original) if character != " "]
    if len(normal_places) != len(original_places):
        return original
    first = original_places[normal_places.index(start)]
    last = original_places[normal_places.index(start + len(wanted) - 1)]
    return original[first : last + 1]


def predict(
    features: SquadFeatures,
    logits: Any,
    pieces: tuple[str, ...],
    most: int = 20,
    longest: int = 30,
    threshold: float = 0.0,
) -> tuple[dict[str, str], dict[str, list[dict[str, Any]]], dict[str, float]]:
    """Predictions, n-best lists, no-answer scores."""
    predictions: dict[str, str] = {}
    lists: dict[str, list[dict[str, Any]]] = {}
    odds: dict[str, float] = {}
    with_null = features.settings.version == "2.0"
    for question in range(len(features.question_ids)):
        name = features.question_ids.text(question)
        ranked: list[Span | None] = list(spans_of_question(features, logits, question, most, longest))
        had_spans = bool(ranked)
        null_score, null_start, null_end = 1000000.0, 0.0, 0.0
        for window in range(int(features.question_windows[question]), int(features.question_windows[question + 1])):
            place = int(features.input_ids.offsets[window])
            score = float(logits[0, place]) + float(logits[1, place])
            if score < null_score:
                null_score, null_start, null_end = score, float(logits[0, place]), float(logits[1, place])
        if with_null:
            ranked.append(None)
            ranked.sort(key=lambda span: -(null_start + null_end if span is None else span.score))
        entries: list[tuple[str, float, float]] = []
        seen = set()
        for span in ranked:
            if len(entries) >= most:
                break
            text = "" if span is None else text_of_span(features, span, pieces)
            if text in seen:
                continue
            seen.add(text)
            values = (null_start, null_end) if span is None else (span.start_logit, span.end_logit)
            entries.append((text, *values))
        if with_null and "" not in seen:
            entries.append(("", null_start, null_end))
        if not had_spans:
            entries.insert(0, ("empty", 0.0, 0.0))
        best = next(entry for entry in entries if entry[0])
        predictions[name] = best[0] if had_spans else ""
        if with_null:
            odds[name] = null_score - best[1] - best[2]
            if odds[name] > threshold:
                predictions[name] = ""
        highest = max(start + end for _, start, end in entries)
        total = 0.0
        for _, start, end in entries:
            total += math.exp(start + end - highest)
        lists[name] = [
            {
                "text": text,
                "probability": math.exp(start + end - highest) / total,
                "start_logit": start,
                "end_logit": end,
            }
            for text, start, end in entries
        ]
    return predictions, lists, odds


def normalize(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles, single blanks."""
    letters = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def f1_of(prediction: str, gold: str, version: str) -> float:
    found, wanted = normalize(prediction).split(), normalize(gold).split()
    if version == "2.0" and (not found or not wanted):
        return float(found == wanted)
    same = sum((Counter(found) & Counter(wanted)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(found), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def scores_1(dataset: dict[str, Any], predictions: dict[str, str]) -> dict[str, float]:
    """The figures of SQuAD 1.1."""
    exact, f1, total = 0, 0.0, 0
    for question in _questions(dataset):
        total += 1
        if question["id"] in predictions:
            prediction = predictions[question["id"]]
            golds = [answer["text"] for answer in question["answers"]]
            exact += max(normalize(prediction) == normalize(gold) for gold in golds)
            f1 += max(f1_of(prediction, gold, "1.1") for gold in golds)
    return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total}


def scores_2(
    dataset: dict[str, Any], predictions: dict[str, str], odds: dict[str, float] | None = None, threshold: float = 1.0
) -> dict[str, float]:
    """The figures of SQuAD 2.0; no prediction may be missing, as with the official script."""
    exact, f1, answered = {}, {}, {}
    for question in _questions(dataset):
        name = question["id"]
        golds = [answer["text"] for answer in question["answers"] if normalize(answer["text"])]
        golds = golds or [""]
        answered[name] = len(question["answers"]) > 0
        exact[name] = max(int(normalize(predictions[name]) == normalize(gold)) for gold in golds)
        f1[name] = max(f1_of(predictions[name], gold, "2.0") for gold in golds)
    result: dict[str, float] = {}
    for prefix, names in (
        ("", list(answered)),
        ("HasAns_", [name for name in answered if answered[name]]),
        ("NoAns_", [name for name in answered if not answered[name]]),
    ):
        if not names:
            continue
        for kind, values in (("exact", exact), ("f1", f1)):
            total = 0.0
            for name in names:
                silent = odds is not None and odds[name] > threshold
                total += float(not answered[name]) if silent else values[name]
            result[prefix + kind] = 100.0 * total / len(names)
        result[prefix + "total"] = len(names)
    if odds is None:
        return result
    order = sorted(odds, key=lambda name: odds[name])
    for kind, values in (("exact", exact), ("f1", f1)):
        current: float = sum(1 for name in answered if not answered[name])
        best, where = current, 0.0
        for name in order:
            if answered[name]:
                current += values[name]
            elif predictions[name]:
                current -= 1
            if current > best:
                best, where = current, odds[name]
        result[f"best_{kind}"], result[f"best_{kind}_thresh"] = 100.0 * best / len(answered), where
    possible = sum(answered.values())
    oracle = {name: float(answered[name]) for name in answered}
    for kind, values in (("exact", exact), ("f1", f1), ("oracle", oracle)):
        if possible:
            right, area, last = 0.0, 0.0, 0.0
            for place, name in enumerate(order):
                right += values[name] if answered[name] else 0.0
                if place + 1 == len(order) or odds[order[place + 1]] != odds[name]:
                    area += right / (place + 1) * (right / possible - last)
                    last = right / possible
            result[f"pr_{kind}_ap"] = 100.0 * area
    return result


def _questions(dataset: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        question for article in dataset["data"] for paragraph in article["paragraphs"] for question in paragraph["qas"]
    ]
