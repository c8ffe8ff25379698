"""Small SQuAD files as features: what decoding is tested on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bert.data.features import vocabulary_settings
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary
from bert.tasks.squad import reading
from bert.tasks.squad.features import Settings, SquadFeatures
from bert.tasks.squad.windows import make_columns

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SIGNS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»“”’–—…。、「」"  # noqa: RUF001
OTHERS = "éèüñçøåßıﬁλογσςабвиюяñ漢字東京語가각あア"
WORDS = ("the", "norman", "france", "steve", "smith", "##an", "##ce", "##mi", "##th", "new", "york", "##or")


@dataclass(frozen=True, slots=True)
class Question:
    """One question."""

    name: str
    text: str = "who"
    answers: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """One context and its questions."""

    text: str
    questions: Sequence[Question] = field(default_factory=list)


def small_vocabulary(lower_case: bool = True) -> Vocabulary:
    """Every letter as a word and as a continuation, every sign, a few words."""
    letters = list(dict.fromkeys(LETTERS + OTHERS + ("" if lower_case else LETTERS.upper() + "ÉÜÅÑÇ")))
    pieces = [*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters), *SIGNS, *WORDS]
    return Vocabulary(tuple(dict.fromkeys(pieces)), lower_case)


def features_of(
    contexts: Sequence[Context],
    vocabulary: Vocabulary,
    *,
    version: str = "1.1",
    max_seq_length: int = 24,
    doc_stride: int = 7,
    max_query_length: int = 6,
) -> SquadFeatures:
    """The windows of some contexts (evaluation: no targets)."""
    settings = Settings(
        **vocabulary_settings(vocabulary),
        split="evaluation",
        version=version,
        max_seq_length=max_seq_length,
        doc_stride=doc_stride,
        max_query_length=max_query_length,
    )
    paragraphs = [
        reading.Paragraph(
            context.text,
            [reading.Question(q.name, q.text, [reading.Answer(text) for text in q.answers]) for q in context.questions],
        )
        for context in contexts
    ]
    return SquadFeatures.of(settings, "test", make_columns(paragraphs, settings, vocabulary)[0])


def random_logits(features: SquadFeatures, seed: int, *, steps: int = 0) -> Any:
    """Normally distributed logits; with `steps` rounded to so many per unit, which makes ties."""
    generator = np.random.default_rng(seed)
    drawn = 3 * generator.standard_normal((2, int(features.lengths.sum())), dtype=np.float32)
    if steps:
        drawn = np.round(drawn * steps) / np.float32(steps)
    return drawn
