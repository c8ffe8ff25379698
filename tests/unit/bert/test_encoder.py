import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.plain_tokenizer import PlainTokenizer
from support.shared_files import DATA

from bert.data import encoder
from bert.data.encoder import ChunkEncoder, Encoded
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary, load_vocabulary

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


def encoded_by_library(vocabulary: Vocabulary, text: str) -> list[list[int]]:
    """Return the ids of each line that has some."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece(vocabulary.ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=vocabulary.lower_case)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found = tokenizer.encode_batch(text.split("\n"), add_special_tokens=False)
    return [encoding.ids for encoding in found if encoding.ids]


def sentences_of(encoded: Encoded) -> list[list[int]]:
    cut = np.split(encoded.ids, encoded.sentence_ends)
    assert not len(cut.pop())
    return [sentence.tolist() for sentence in cut]


def assert_same(chunk_encoder: ChunkEncoder, vocabulary: Vocabulary, text: str) -> None:
    expected = encoded_by_library(vocabulary, text)
    for _ in range(2):  # the second time from the cache
        assert sentences_of(chunk_encoder.encode(text.encode())) == expected


texts = st.lists(
    st.one_of(
        st.sampled_from([*WORDS, " ", "  ", "\n", "\n\n"]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
        st.text(st.characters(max_codepoint=0x17F), max_size=6),
        st.text("abex,!' \n", max_size=12),
    ),
    max_size=30,
).map("".join)


@pytest.mark.parametrize("lower_case", [True, False])
@given(text=texts)
@settings(max_examples=examples(400), deadline=None)
def test_any_text_gives_the_ids_of_the_library(lower_case: bool, text: str) -> None:
    vocabulary = Vocabulary(SMALL, lower_case)
    assert_same(ChunkEncoder(vocabulary), vocabulary, text)


@pytest.mark.parametrize("lower_case", [True, False])
def test_each_hard_word_gives_the_ids_of_the_library_alone_and_beside_others(lower_case: bool) -> None:
    vocabulary = Vocabulary(SMALL, lower_case)
    both = [first + blank + second for first in WORDS for second in WORDS for blank in ("", " ")]
    assert_same(ChunkEncoder(vocabulary), vocabulary, "\n".join(both))


@pytest.mark.parametrize("lower_case", [True, False])
def test_every_character_gives_the_ids_of_the_library(lower_case: bool) -> None:
    vocabulary = Vocabulary(SMALL, lower_case)
    characters = [chr(code) for code in (*range(0x3100), *range(0xFB00, 0x10000), *range(0x1F300, 0x1F400))]
    assert_same(ChunkEncoder(vocabulary), vocabulary, "\n".join(f"a{sign}the {sign}" for sign in characters))


@pytest.mark.parametrize(
    "pieces",
    [
        ("a", "b"),
        ("##a", "##b", ","),
        ("the", "quick", "THE", "##"),
        tuple("abcdefghijklmnopqrstuvwxyz"),
        ("ab", "##c", "##", "abc\u0301", "[", "a b", "\t", " ", "\x07"),
    ],
)
@pytest.mark.parametrize("lower_case", [True, False])
def test_any_vocabulary_gives_the_ids_of_the_library(pieces: tuple[str, ...], lower_case: bool) -> None:
    vocabulary = Vocabulary((*SPECIAL_PIECES, *pieces), lower_case)
    assert_same(ChunkEncoder(vocabulary), vocabulary, " ".join(WORDS) + " abc abcd quick a\x07 a b\nABC, [PAD] ## ab##")


def test_ids_beyond_16_bits_are_kept() -> None:
    words = tuple(f"w{number}" for number in range(encoder.MOST_SHORT_IDS - len(SPECIAL_PIECES)))
    small, large = Vocabulary((*SPECIAL_PIECES, *words), True), Vocabulary((*SPECIAL_PIECES, *words, "more"), True)
    text = " ".join(random.Random(1).choices(words, k=3000)) + " w65274\nw250! w65030 w251,w0 w507 w65274 w65274 more"
    assert (ChunkEncoder(small).dtype, ChunkEncoder(large).dtype) == (np.dtype(np.uint16), np.dtype(np.int32))
    assert_same(ChunkEncoder(small), small, text)
    assert_same(ChunkEncoder(large), large, text)


def test_special_ids_never_come_from_text() -> None:
    vocabulary = Vocabulary(SMALL, True)
    assert vocabulary.mask_id not in ChunkEncoder(vocabulary).encode(b"[MASK] [mask]").ids


def test_empty_lines_end_documents_and_lines_without_pieces_do_not() -> None:
    encoded = ChunkEncoder(Vocabulary(SMALL, True)).encode("a b\n\u200b\nthe\n\n \n\na\n\n\nb".encode())
    assert sentences_of(encoded) == [[10, 12], [5], [10], [12]]
    assert encoded.document_ends.tolist() == [2, 2, 3, 3]
    assert ChunkEncoder(Vocabulary(SMALL, True)).encode(b"\na\n").document_ends.tolist() == [0]
    assert len(ChunkEncoder(Vocabulary(SMALL, True)).encode(b"").ids) == 0


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(UnicodeDecodeError):
        ChunkEncoder(Vocabulary(SMALL, True)).encode(b"a \xff\xfe b")


@pytest.mark.parametrize("limits", [(0, 10**9), (10**9, 0), (60, 10**9), (10**9, 900)])
def test_a_full_cache_is_emptied_and_the_ids_stay_the_same(
    limits: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "_SPAN", 200)
    vocabulary = Vocabulary(SMALL, True)
    random_words = random.Random(3)
    text = "".join(f"{random_words.randrange(500)} the{random_words.choice([' ', chr(10)])}" for _ in range(4000))
    chunk_encoder = ChunkEncoder(vocabulary, *limits)
    assert_same(chunk_encoder, vocabulary, text)
    fixed = len(chunk_encoder._fixed)
    assert len(chunk_encoder._cache) < max(fixed, 60) + 130, "what one span of text holds, and no more"


@pytest.mark.parametrize(
    "chunk",
    ["ab,", "\u4e2d", "\u4e2d\u0301", "\u00e9", "a\u0301=\u0338", "x\u3000", "a\u00a0\u0301b", "\u2019\u0301\u00e9a"],
)
def test_a_long_chunk_is_cut_where_the_rules_cut_it(chunk: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary(SMALL, True)
    for size in (1, 2, 3, 5, 7, 64):
        monkeypatch.setattr(encoder, "_SPAN", size)
        assert_same(ChunkEncoder(vocabulary), vocabulary, f"the {chunk * 300} a")
        assert_same(ChunkEncoder(Vocabulary(SMALL, False)), Vocabulary(SMALL, False), f"the {chunk * 300} a")


@given(text=texts)
@settings(max_examples=examples(200), deadline=None)
def test_cutting_text_anywhere_it_may_be_cut_changes_nothing(text: str) -> None:
    vocabulary = Vocabulary(SMALL, True)
    before, encoder._SPAN = encoder._SPAN, 2
    try:
        assert_same(ChunkEncoder(vocabulary), vocabulary, text)
    finally:
        encoder._SPAN = before


def test_a_page_without_a_blank_is_not_kept() -> None:
    chunk_encoder = ChunkEncoder(Vocabulary(SMALL, True), most_bytes=2**20)
    encoded = chunk_encoder.encode(b"the " + b"unable," * 2**18 + b"\n")
    assert len(encoded.ids) == 1 + 3 * 2**18
    chunk_encoder.encode(b"the a\n")
    assert sum(map(len, chunk_encoder._cache)) < 2**10


def real_texts() -> list[str]:
    """Return the beginnings of the real books and of the wiki excerpt, markup and all; bench_data.py takes all."""
    import bz2

    books = sorted((DATA / "pretrain/books").glob("*.txt"))
    found = [book.read_bytes().decode("latin-1" if book.name == "1661-8.txt" else "utf-8") for book in books]
    found.append(bz2.decompress((DATA / "pretrain/wiki/enwiki-sample.xml.bz2").read_bytes()).decode())
    return [text[: 2 * 10**5] for text in found]


@pytest.mark.skipif(not DATA.exists(), reason="the real text is not beside this checkout (shared/data)")
@pytest.mark.parametrize(("name", "lower_case"), [("uncased", True), ("cased", False)])
def test_real_text_gives_the_ids_of_the_library(name: str, lower_case: bool) -> None:
    vocabulary = load_vocabulary(DATA / f"vocab/bert-{name}.txt", lower_case)
    chunk_encoder = ChunkEncoder(vocabulary)
    for text in real_texts():
        expected = encoded_by_library(vocabulary, text)
        encoded = chunk_encoder.encode(text.encode())
        assert encoded.ids.tolist() == [number for ids in expected for number in ids]
        assert encoded.sentence_ends.tolist() == np.cumsum([len(ids) for ids in expected]).tolist()


@pytest.mark.skipif(not DATA.exists(), reason="the real text is not beside this checkout (shared/data)")
@pytest.mark.parametrize(("name", "lower_case"), [("uncased", True), ("cased", False)])
def test_ids_are_those_of_the_published_tokenizer_in_plain_python(name: str, lower_case: bool) -> None:
    vocabulary = load_vocabulary(DATA / f"vocab/bert-{name}.txt", lower_case)
    plain = PlainTokenizer(list(vocabulary.pieces), lower_case)
    lines = [line for text in real_texts() for line in text.split("\n")[::10] if line.strip()]
    expected = [ids for line in lines if (ids := plain.encode(line))]
    assert len(expected) > 1000
    assert sentences_of(ChunkEncoder(vocabulary).encode("\n".join(lines).encode())) == expected
