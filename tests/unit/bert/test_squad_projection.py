"""From word pieces back to the original text."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import plain_squad_decoding as plain
from support.examples import examples
from support.squad_cases import LETTERS, OTHERS, SIGNS, Context, Question, features_of, small_vocabulary

from bert.tasks.squad.features import SquadFeatures
from bert.tasks.squad.projection import Projector, _Context, _NormalWords

UNCASED, CASED = small_vocabulary(), small_vocabulary(lower_case=False)
BLANKS = " \t\r\n\u202f\u00a0\u3000"
# A final sigma and private characters are left out: there the tokenizer and Python's own rules differ (tests below).
CHARACTERS = (
    LETTERS + LETTERS.upper()[:26] + OTHERS.replace("ς", "") + "ÉÜÅÑÇİẞ가\u0301\u0308\u200b\u00ad\ufeff" + SIGNS
)
TEXTS = st.text(st.sampled_from(CHARACTERS) | st.sampled_from(BLANKS + "  "), max_size=40)


def projected(text: str, answer: str, *, lower_case: bool = True) -> str:
    """The text of the tokens that `answer` is cut into, at its first place among the tokens of `text`."""
    vocabulary = UNCASED if lower_case else CASED
    features = one_context(text, lower_case=lower_case)
    tokens = features.tokens[0].tolist()
    (wanted,) = vocabulary.encode([answer])
    first = next(n for n in range(len(tokens)) if tokens[n : n + len(wanted)] == wanted)
    return Projector(features, vocabulary.pieces).text(0, first, first + len(wanted) - 1)


def one_context(text: str, *, lower_case: bool) -> SquadFeatures:
    contexts = [Context(text, [Question("q")])]
    return features_of(contexts, UNCASED if lower_case else CASED, max_seq_length=400, doc_stride=128)


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("In Steve Smith's house", "steve smith", "Steve Smith"),
        ("was “Norman”, they", "norman", "Norman"),
        ("the Émigré, said", "emigre", "Émigré"),
        ("the  New\nYork\u202fhouse", "new york house", "New York house"),
        ("in 東京語 now", "京", "京"),
        ("x–y co-op", "co-op", "co-op"),  # noqa: RUF001
        ("about $5.3 million", "5.3", "5.3"),
        ("ﬁne Straße", "straße", "Straße"),
        ("soft\u00adhyphen word", "softhyphen", "soft\u00adhyphen"),  # lengths differ: the original word
        ("a\u00a0b c", "b", "a\u00a0b"),  # likewise
        ("İstanbul's", "istanbul", "İstanbul"),
        ("e\u0301mile's", "emile", "e\u0301mile's"),  # a combining accent more than its normal form
        ("in 가나 now", "가", "가나"),
    ],
)
def test_answers_are_the_original_text(text: str, answer: str, expected: str) -> None:
    assert projected(text, answer) == expected


def test_case_and_accents_are_kept_where_the_vocabulary_has_them() -> None:
    assert projected("(Émile", "É", lower_case=False) == "É"
    assert projected("NEW York's", "York", lower_case=False) == "York"


def test_unknown_pieces_give_the_original_words() -> None:
    assert projected("say ☃☃, then", "☃☃") == "☃☃,"


def test_a_final_sigma_is_found_as_the_tokenizer_writes_it() -> None:
    assert projected("(ΛΟΓΟΣ), said", "ΛΟΓΟΣ") == "ΛΟΓΟΣ"
    assert plain.final_text("λογοσ", "(ΛΟΓΟΣ),", True) == "(ΛΟΓΟΣ),"  # Python's rules of case, not the tokenizer's


@settings(max_examples=examples(150), deadline=None)
@given(text=TEXTS, lower_case=st.booleans())
def test_every_span_of_any_text_equals_the_plain_projection(text: str, lower_case: bool) -> None:
    vocabulary = UNCASED if lower_case else CASED
    features = one_context(text, lower_case=lower_case)
    words = re.findall("[^ \t\r\n\u202f]+", text)
    word_of = features.token_words.tolist()
    pieces = [vocabulary.pieces[number] for number in features.tokens[0].tolist()]
    projector = Projector(features, vocabulary.pieces)
    for first in range(len(pieces)):
        for last in range(first, min(len(pieces), first + 8)):
            joined = " ".join(pieces[first : last + 1]).replace(" ##", "").replace("##", "")
            original = " ".join(words[word_of[first] : word_of[last] + 1])
            assert projector.text(0, first, last) == plain.final_text(" ".join(joined.split()), original, lower_case)


@settings(max_examples=examples(100), deadline=None)
@given(text=st.text(st.sampled_from(LETTERS + LETTERS.upper() + "éüñ.,-'()  "), max_size=60))
def test_an_answer_is_a_part_of_the_text_that_is_cut_into_the_same_pieces(text: str) -> None:
    features = one_context(text, lower_case=True)
    pieces = features.tokens[0].tolist()
    known = [UNCASED.pieces[number] for number in pieces]
    projector = Projector(features, UNCASED.pieces)
    joined = " ".join(text.split())
    for first in range(len(pieces)):
        for last in range(first, min(len(pieces), first + 6)):
            starts_word = not known[first].startswith("##")
            ends_word = last + 1 == len(pieces) or not known[last + 1].startswith("##")
            answer = projector.text(0, first, last)
            assert answer in joined
            if starts_word and ends_word:
                assert UNCASED.encode([answer])[0] == pieces[first : last + 1]


@pytest.mark.parametrize(
    ("text", "piece", "word", "expected"),
    [("x's", "##", 0, "x's"), ("\u200b xx", "x", 0, "\u200b"), ("\u200b xx", "xx", 1, "xx")],
    ids=["a piece without a character", "a word without a normal form", "the word after it"],
)
def test_pieces_that_fit_no_word_give_the_original_word(text: str, piece: str, word: int, expected: str) -> None:
    assert _Context(text, [piece], [word], _NormalWords(True)).text(0, 0) == expected


def test_contexts_may_be_asked_for_in_any_order() -> None:
    contexts = [Context("Norman one", [Question("a")]), Context("", [Question("b")]), Context("two Smith", [])]
    features = features_of(contexts, UNCASED)
    projector = Projector(features, UNCASED.pieces)
    lengths = features.tokens.lengths.tolist()
    assert lengths[1] == 0
    for number, expected in ((2, "two Smith"), (0, "Norman one"), (2, "two Smith"), (0, "Norman one")):
        assert projector.text(number, 0, lengths[number] - 1) == expected


@pytest.mark.parametrize("lower_case", [True, False])
def test_the_short_way_of_ascii_words_gives_the_tokenizers_parts(lower_case: bool) -> None:
    words = _NormalWords(lower_case)
    generator = np.random.default_rng(5)
    for _ in range(3000):
        letters = map(chr, generator.integers(0, 128, generator.integers(1, 12)))
        word = "".join(letter for letter in letters if letter not in " \t\r\n")
        parts = words._splitter.pre_tokenize_str(words._normalizer.normalize_str(word))
        assert words._parts(word) == [part for part, _ in parts], repr(word)
