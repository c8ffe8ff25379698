"""Vocabularies: ids, training, what is refused; tokens are those of the library and of the published tokenizer."""

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
from support.refusals import refused
from support.shared_files import DATA, OWN

from bert.corpus.texts import documents
from bert.data import vocabulary as module
from bert.data.vocabulary import (
    FAST,
    REFERENCE,
    SPECIAL_PIECES,
    Vocabulary,
    installed,
    load_vocabulary,
    sample_lines,
    train_vocabulary,
    vocabulary_notes,
)
from common.errors import Code

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


TEXT = [
    f"The {word} unbelievable fox{word[0]} jumps over \u00e9clairs, no?" for word in ("quick", "lazy", "brown", "dog")
]


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes(("\n".join(lines) + "\n").encode())
    return path


def test_ids_are_looked_up_wherever_the_special_pieces_stand(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab.txt", ["a", "[MASK]", "[SEP]", "##b", "[UNK]", "[CLS]", "\u2028", "[PAD]"])
    vocabulary = load_vocabulary(path, lower_case=True)
    found = (vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)
    assert found == (7, 5, 2, 1)
    assert vocabulary.encode(["A ab", "zz", "", "[MASK]"])[:3] == [[0, 0, 3], [4], []]
    assert vocabulary.mask_id not in vocabulary.encode(["[MASK]"])[0], "text cannot smuggle special pieces in"


def test_a_sample_is_spread_over_all_files_and_stays_below_its_size(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.txt" for name in "abc"]
    for path in paths:
        path.write_text("".join(f"{path.stem} sentence {number}\n\n" for number in range(1000)), encoding="utf-8")
    everything = sample_lines(paths, 10**6)
    assert len(everything) == 3000 and everything[1000] == "b sentence 0" and "" not in everything
    some = sample_lines(paths, 5000)
    assert some == sample_lines(paths, 5000)
    assert {line[0] for line in some} == {"a", "b", "c"}
    assert 2000 < sum(len(line) + 1 for line in some) <= 5000


def test_a_trained_vocabulary_spells_its_text_and_survives_the_file(tmp_path: Path) -> None:
    vocabulary = train_vocabulary(TEXT, 200, lower_case=True)
    assert vocabulary.pieces[:5] == SPECIAL_PIECES
    assert len(set(vocabulary.pieces)) == len(vocabulary.pieces) <= 200
    assert vocabulary.ids["[UNK]"] not in {piece for ids in vocabulary.encode(TEXT) for piece in ids}
    assert "the" in vocabulary.pieces and "##!" not in vocabulary.pieces and "##," not in vocabulary.pieces
    vocabulary.save(tmp_path / "vocab.txt")
    again = load_vocabulary(tmp_path / "vocab.txt", lower_case=True)
    assert again == vocabulary and again.fingerprint == vocabulary.fingerprint
    assert Vocabulary(vocabulary.pieces, False).fingerprint != vocabulary.fingerprint


def test_training_gives_the_same_pieces_every_time() -> None:
    text = b"".join(documents(5, 60_000)).decode().split(". ")
    assert len({train_vocabulary(text, 900, True).fingerprint for _ in range(3)}) == 1


@pytest.mark.parametrize(
    ("content", "code", "fact"),
    [
        ("\n".join([*SPECIAL_PIECES, "a", "b", "a"]), "vocabulary-mismatch", "'a'"),
        ("\n".join([*SPECIAL_PIECES, "", "a"]), "vocabulary-mismatch", "line 6"),
        ('{"[PAD]": 0}', "vocabulary-mismatch", "[PAD]"),
        ("[PAD]\n[UNK]\n[CLS]\na", "vocabulary-mismatch", "[SEP] [MASK]"),
        (b"\xff\xfe\xfa", "file-encoding", "UTF-8"),
        (None, "path-missing", "vocab.txt"),
    ],
)
def test_a_bad_vocabulary_is_refused_by_name(
    tmp_path: Path, content: str | bytes | None, code: Code, fact: str
) -> None:
    path = tmp_path / "vocab.txt"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with refused(code, path, fact):
        load_vocabulary(path, lower_case=True)


def test_a_vocabulary_that_cannot_hold_the_text_is_refused() -> None:
    # Lower-cased and without accents these are 55 letters, at the start of a word and inside one: 5 + 2 * 55.
    with refused("option-value", "64 pieces", 115):
        train_vocabulary(["".join(map(chr, range(0x400, 0x480)))], 64, lower_case=True)
    with refused("data-missing"):
        train_vocabulary([" "], 100, lower_case=True)
