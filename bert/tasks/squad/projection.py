"""From word pieces back to the text they were cut from: the published projection, prepared once per context.

google-research/bert run_squad.py (get_final_text). Pieces are joined to text, looked for in the normalized words of
the span, and the first and the last character found are followed back into the original words by counting characters
other than spaces. Where that is impossible the answer is the original words, one space between them.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from bert.tasks.squad.features import SquadFeatures

# What separates words in SQuAD as google-research/bert reads it; other spaces are parts of words.
_WORD = re.compile("[^ \t\r\n\u202f]+")
_ASCII_PART = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9]")


class Projector:
    """Answers of any context of a file; quick where consecutive calls ask about the same context."""

    def __init__(self, features: SquadFeatures, pieces: Sequence[str]) -> None:
        """Take the pieces of the vocabulary by id."""
        self._features = features
        self._pieces = pieces
        self._words = _NormalWords(features.settings.lower_case)
        self._number = -1
        self._context: _Context | None = None

    def text(self, context: int, first: int, last: int) -> str:
        """Return the original text of tokens `first` .. `last` of a context, both inclusive."""
        if self._context is None or context != self._number:
            self._context = self._prepared(context)
            self._number = context
        return self._context.text(first, last)

    def _prepared(self, number: int) -> "_Context":
        features = self._features
        begin, end = features.tokens.offsets[number], features.tokens.offsets[number + 1]
        pieces = [self._pieces[piece] for piece in features.tokens.values[begin:end].tolist()]
        return _Context(features.contexts.text(number), pieces, features.token_words[begin:end].tolist(), self._words)


class _NormalWords:
    """Words as the tokenizer sees them before it cuts pieces: normal case, accents off or kept, signs apart."""

    def __init__(self, lower_case: bool) -> None:
        from tokenizers import normalizers, pre_tokenizers

        self._lower_case = lower_case
        self._normalizer: Any = normalizers.BertNormalizer(lowercase=lower_case)
        self._splitter: Any = pre_tokenizers.BertPreTokenizer()
        self._known: dict[str, str] = {}

    def __getitem__(self, word: str) -> str:
        """Return the parts of a word, a space between them; empty if nothing is left of it."""
        found = self._known.get(word)
        if found is None:
            found = self._known[word] = " ".join(self._parts(word))
        return found

    def _parts(self, word: str) -> list[str]:
        if word.isascii() and word.isprintable():  # most words: the same result in a tenth of the time
            return _ASCII_PART.findall(word.lower() if self._lower_case else word)
        parts = self._splitter.pre_tokenize_str(self._normalizer.normalize_str(word))
        return [part for part, _ in parts]


class _Context:
    """One context, ready to give answers."""

    __slots__ = (
        "_before",
        "_joined",
        "_lengths_before",
        "_normal",
        "_normal_begins",
        "_normal_ends",
        "_pieces",
        "_token_words",
    )

    def __init__(self, text: str, pieces: list[str], token_words: list[int], normal_words: _NormalWords) -> None:
        words = _WORD.findall(text)
        self._pieces = pieces
        self._token_words = token_words
        self._joined = " ".join(words)
        """All words, one space between them: word i begins at _before[i] + i."""
        self._before = [0, *accumulate(map(len, words))]
        """Characters of the words before each word."""
        normal = [normal_words[word] for word in words]
        self._lengths_before = [0, *accumulate(len(part) - part.count(" ") for part in normal)]
        """Characters other than spaces of the normal forms before each word."""
        self._normal = " ".join(filter(None, normal))
        """The normal forms of the words; some words have none."""
        self._normal_begins, self._normal_ends = [], []
        place = 0
        for part in normal:
            self._normal_begins.append(place)
            place += len(part) + bool(part)
            self._normal_ends.append(max(0, place - 1))

    def text(self, first: int, last: int) -> str:
        """Return the original text of two tokens and all between them."""
        wanted = " ".join(self._pieces[first : last + 1])
        if "##" in wanted:
            wanted = " ".join(wanted.replace(" ##", "").replace("##", "").split())
        first_word, last_word = self._token_words[first], self._token_words[last]
        before = self._before
        begin, end = before[first_word], before[last_word + 1]
        original = self._joined[begin + first_word : end + last_word]
        normal_begin = self._normal_begins[first_word]
        found = self._normal.find(wanted, normal_begin, self._normal_ends[last_word])
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
