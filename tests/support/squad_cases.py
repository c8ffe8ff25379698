"""Small SQuAD files as features: what decoding is tested on."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bert.data.features import vocabulary_settings
from bert.data.finished import fingerprint_of
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary
from bert.tasks.squad.features import Settings, SquadFeatures
from bert.tasks.squad.reading import Answer, Paragraph, Question
from bert.tasks.squad.windows import make_columns

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SIGNS = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~«»“”’–—…。、「」"  # noqa: RUF001
OTHERS = "éèüñçøåßıﬁλογσςабвиюяñ漢字東京語가각あア"
WORDS = ("the", "norman", "france", "steve", "smith", "##an", "##ce", "##mi", "##th", "new", "york", "##or")


def asked(name: str, text: str = "who", *answers: str) -> Question:
    """One question."""
    return Question(name, text, [Answer(answer, 0) for answer in answers])


def small_vocabulary(lower_case: bool = True) -> Vocabulary:
    """Every letter as a word and as a continuation, every sign, a few words."""
    letters = list(dict.fromkeys(LETTERS + OTHERS + ("" if lower_case else LETTERS.upper() + "ÉÜÅÑÇ")))
    pieces = [*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters), *SIGNS, *WORDS]
    return Vocabulary(tuple(dict.fromkeys(pieces)), lower_case)


def features_of(
    contexts: Sequence[Paragraph],
    vocabulary: Vocabulary,
    *,
    split: str = "evaluation",
    version: str = "1.1",
    max_seq_length: int = 24,
    doc_stride: int = 7,
    max_query_length: int = 6,
) -> SquadFeatures:
    """The windows of some contexts."""
    settings = Settings(
        **vocabulary_settings(vocabulary),
        split=split,
        version=version,
        max_seq_length=max_seq_length,
        doc_stride=doc_stride,
        max_query_length=max_query_length,
    )
    columns, _ = make_columns(contexts, settings, vocabulary)
    return SquadFeatures.of(settings, fingerprint_of(columns["input_ids.values"].tolist()), columns)


def random_logits(features: SquadFeatures, seed: int, *, steps: int = 0) -> Any:
    """Normally distributed logits; with `steps` rounded to so many per unit, which makes ties."""
    generator = np.random.default_rng(seed)
    drawn = 3 * generator.standard_normal((2, int(features.lengths.sum())), dtype=np.float32)
    if steps:
        drawn = np.round(drawn * steps) / np.float32(steps)
    return drawn
