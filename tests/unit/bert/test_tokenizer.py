import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import shared_files
from support.examples import examples
from support.plain_tokenizer import PlainTokenizer
from support.shared_files import DATA, OWN

from bert.data import vocabulary as module
from bert.data.vocabulary import (
    FAST,
    REFERENCE,
    SPECIAL_PIECES,
    Vocabulary,
    installed,
    load_vocabulary,
    vocabulary_notes,
)

SMALL = (*SPECIAL_PIECES, "the", "The", "un", "##able", "##s", "a", "##a", "b", ",", "!", "'", "\u4e2d", "\u00e9", "e",
         "x" * 101, "x" * 100, "##x", "U", "\u0301", "3", "##3", "[", "]", "mask", "##\u00df", "ss")  # fmt: skip
# fmt: off
WORDS = [
    "the", "The", "THE", "unable", "Unables", "a,b", "don't!", "[MASK]", "[UNK]", "##a", "\u4e2d\u6587", "\u00c9a",
    "e\u0301", "\u0301", "\u0301a", "x" * 100, "x" * 101, "X" * 101, "\u00a0", "a\u00a0b", "\u2028", "\u200b",
    "\u00ad", "\t", "a\tb", "\r", "\x00", "a\x7fb", "\x1c", "\x85", "\ufffd", "\u0130", "\u03a3", "\u00df", "\u3000",
    "=\u0338", "\u1100\u1161", "\U0001f600", "\U00020000", "\ufeff", "\u0e01\u0e33", "\uff01",
]
# fmt: on


def bert_rules(model: Any, lower_case: bool) -> Any:
    from tokenizers import Tokenizer, normalizers, pre_tokenizers

    made = Tokenizer(model)
    made.normalizer = normalizers.BertNormalizer(lowercase=lower_case)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def encoded_by_library(vocabulary: Vocabulary, texts: list[str]) -> list[list[int]]:
    from tokenizers import models

    library = bert_rules(models.WordPiece(vocabulary.ids, unk_token="[UNK]"), vocabulary.lower_case)
    return [encoding.ids for encoding in library.encode_batch(texts, add_special_tokens=False)]


def rows_of(found: Any) -> list[list[int]]:
    return [found[row].tolist() for row in range(len(found))]


def slow(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> Vocabulary:
    """Return the vocabulary on a machine without nanotoken."""
    made = Vocabulary(vocabulary.pieces, vocabulary.lower_case)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, FAST, None)
        assert installed() == REFERENCE
        made.tokens([""])
    return made


def assert_same(vocabulary: Vocabulary, texts: list[str]) -> None:
    expected = encoded_by_library(vocabulary, texts)
    assert installed() == FAST
    for _ in range(2):  # the second time from the cache
        assert rows_of(vocabulary.tokens([text.encode() for text in texts])) == expected
    assert rows_of(vocabulary.tokens(texts)) == expected
    assert rows_of(slow(vocabulary, pytest.MonkeyPatch()).tokens(texts)) == expected


texts = st.lists(
    st.one_of(
        st.sampled_from([*WORDS, " ", "  "]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
        st.text(st.characters(max_codepoint=0x17F), max_size=6),
        st.text("abex,!' ", max_size=12),
    ),
    max_size=30,
).map("".join)
SMALLS = {lower_case: Vocabulary(SMALL, lower_case) for lower_case in (True, False)}


@pytest.mark.parametrize("lower_case", [True, False])
@given(several=st.lists(texts, max_size=4))
@settings(max_examples=examples(150), deadline=None)
def test_any_text_gives_the_ids_of_the_library(lower_case: bool, several: list[str]) -> None:
    assert_same(SMALLS[lower_case], several)


@pytest.mark.parametrize("lower_case", [True, False])
def test_every_character_gives_the_ids_of_the_library(lower_case: bool) -> None:
    characters = [chr(code) for code in (*range(0x3100), *range(0xFB00, 0x10000), *range(0x1F300, 0x1F400))]
    assert_same(SMALLS[lower_case], [f"a{sign}the {sign}" for sign in characters])


def test_ids_beyond_16_bits_are_kept() -> None:
    words = tuple(f"w{number}" for number in range(module.MOST_SHORT_IDS - len(SPECIAL_PIECES)))
    small, large = Vocabulary((*SPECIAL_PIECES, *words), True), Vocabulary((*SPECIAL_PIECES, *words, "more"), True)
    text = " ".join(random.Random(1).choices(words, k=3000)) + " w65274\nw250! w65030 w251,w0 w507 w65274 w65274 more"
    assert [one.tokens(["w1"]).values.dtype for one in (small, large)] == [np.uint16, np.int32]
    assert_same(small, [text])
    assert_same(large, [text])


def test_without_nanotoken_the_library_encodes_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, FAST, None)
        (note,) = vocabulary_notes(SMALLS[False], {})
    assert FAST in note and vocabulary_notes(SMALLS[False], {}) == []


@pytest.mark.parametrize(
    ("folder", "vocab", "step"),
    [
        (OWN, "vocab/uncased.txt", 1),
        pytest.param(DATA, "vocab/bert-uncased.txt", 30, marks=pytest.mark.public),
        pytest.param(DATA, "vocab/bert-uncased.txt", 2, marks=[pytest.mark.public, pytest.mark.slow]),
        pytest.param(DATA, "vocab/bert-cased.txt", 30, marks=pytest.mark.public),
    ],
)
def test_text_gives_the_ids_of_the_library_and_of_the_published_tokenizer_in_plain_python(
    folder: Path, vocab: str, step: int
) -> None:
    vocabulary = load_vocabulary(folder / vocab, lower_case="uncased" in vocab)
    plain = PlainTokenizer(list(vocabulary.pieces), vocabulary.lower_case)
    lines = list(shared_files.lines(folder, step))
    found = rows_of(vocabulary.tokens(lines))
    assert installed() == FAST
    assert found == encoded_by_library(vocabulary, lines) and len(lines) > 2500
    assert found[::5] == [plain.encode(line) for line in lines[::5]]
