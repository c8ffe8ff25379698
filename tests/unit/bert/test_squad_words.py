"""Words, tokens and windows: equal to the plain rules, and to the tokenizer on the whole text with its offsets."""

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import plain_squad
from support.examples import examples
from support.plain_squad import words_of

from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary
from bert.tasks.squad.windows import Pieces, encode_words, greatest_context, place_windows, split_words

LETTERS = "abcdefghijklmnopqrstuvwxyz\u00df\u00e9\u03c3\u03c2\u4e2d\u6587\u0130'.,-$"
VOCABULARY = Vocabulary(
    (*SPECIAL_PIECES, *LETTERS, *(f"##{letter}" for letter in LETTERS if letter.isalpha()), "the", "un", "##able"),
    lower_case=True,
)
# White space of every kind, control and format characters, marks that combine, ligatures, ideographs, capitals that
# change their length.
BLANKS = " \t\r\n\u202f\u00a0\u2003\u3000\u0085\u2028\x00\x0b\x1c\u200b"
ODD = BLANKS + "\u00ad\ufeff\ufffd\u0301\u0327\u0345\u0130\u1e9e\ufb01"
TEXTS = st.lists(
    st.text(st.one_of(st.sampled_from(ODD + LETTERS + "AZ\u03a3"), st.characters(codec="utf-8"))), max_size=6
)


def by_library(vocabulary: Vocabulary, texts: list[str]) -> list[list[int]]:
    found = vocabulary._tokenizer.encode_batch(texts, add_special_tokens=False)
    return [encoding.ids for encoding in found]


def ids_of(pieces: Pieces) -> list[list[int]]:
    return [pieces.values[begin:end].tolist() for begin, end in pairwise(pieces.offsets.tolist())]


@given(TEXTS)
@settings(max_examples=examples(300), deadline=None)
def test_words_are_those_of_the_published_loop(texts: list[str]) -> None:
    expected = [words_of(text) for text in texts]
    assert [split_words(text) for text in texts] == [words for words, _ in expected]
    pieces = encode_words(texts, VOCABULARY)
    assert pieces.word_offsets.tolist() == [0, *accumulate(len(words) for words, _ in expected)]
    for number, (_, word_of) in enumerate(expected):
        begin, end = pieces.character_offsets[number : number + 2].tolist()
        assert (pieces.begun[begin : end - 1] - 1 - pieces.word_offsets[number]).tolist() == word_of


@pytest.mark.parametrize("lower_case", [True, False])
def test_pieces_are_those_of_the_whole_text_and_of_each_word_alone(lower_case: bool) -> None:
    vocabulary = Vocabulary(VOCABULARY.pieces, lower_case)

    @given(TEXTS)
    @settings(max_examples=examples(300), deadline=None)
    def check(texts: list[str]) -> None:
        pieces = encode_words(texts, vocabulary)
        assert ids_of(pieces) == by_library(vocabulary, texts), "the whole text at once"
        alone = [[by_library(vocabulary, [word])[0] for word in words_of(text)[0]] for text in texts]
        assert ids_of(pieces) == [[number for ids in rows for number in ids] for rows in alone], "word by word"
        expected = [[word for word, ids in enumerate(rows) for _ in ids] for rows in alone]
        assert pieces.token_words.tolist() == [word for words in expected for word in words]

    check()


QUESTIONS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=6)


@given(QUESTIONS, st.integers(1, 25))
@settings(max_examples=examples(400), deadline=None)
def test_windows_and_greatest_context_are_those_of_the_published_loops(
    questions: list[tuple[int, int]], doc_stride: int
) -> None:
    tokens, most = (np.array(column, np.int64) for column in zip(*questions, strict=True))
    windows = place_windows(tokens, most, doc_stride)
    expected = [plain_squad.place_windows(size, place, doc_stride) for size, place in questions]
    assert windows.counts.tolist() == [len(spans) for spans in expected]
    placed = zip(windows.first.tolist(), windows.tokens.tolist(), strict=True)
    assert list(placed) == [span for spans in expected for span in spans]
    greatest = [
        plain_squad.is_max_context(spans, index, position)
        for spans in expected
        for index, (start, length) in enumerate(spans)
        for position in range(start, start + length)
    ]
    assert greatest_context(windows, tokens).astype(bool).tolist() == greatest
