"""Pairs of segments and masks against the plain algorithm."""

import random
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support import plain_pretraining as plain
from support.examples import examples

from bert.tasks.pretrain.instances import Pairs, TokenShard, cut, truncated
from bert.tasks.pretrain.masking import InstanceConfig, Masked, Pieces, mask, prediction_counts

CLS, SEP, MASK, SIZE = 1, 2, 3, 60
LEAST_P = 1e-4
"""Seeds are fixed, so a test passes always or never; code that is right fails one with this probability."""
CONTINUES = frozenset(range(40, SIZE))
PIECES = Pieces(SIZE, CLS, SEP, MASK, np.array([number in CONTINUES for number in range(SIZE)]))


def config(seq_len: int = 32, max_predictions: int = 5, **changes: object) -> InstanceConfig:
    return InstanceConfig(seq_len=seq_len, max_predictions=max_predictions, **changes)  # type: ignore[arg-type]


def masked(
    pairs: list[tuple[list[int], list[int]]], settings_: InstanceConfig, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, Masked]:
    """Return the ids before and after, and the predictions."""
    ids = np.zeros((len(pairs), settings_.seq_len), np.int32)
    for row, (first, second) in enumerate(pairs):
        whole = [CLS, *first, SEP, *second, SEP]
        ids[row, : len(whole)] = whole
    first_lengths, lengths = np.array([(len(a), len(a) + len(b) + 3) for a, b in pairs], np.int32).T
    before = ids.copy()
    return before, ids, mask(ids, lengths, first_lengths, settings_, PIECES, np.random.default_rng(seed))


def chosen_sets(found: Masked) -> list[tuple[int, ...]]:
    return [tuple(row[row > 0].tolist()) for row in found.positions]


@pytest.mark.parametrize(("seq_len", "most", "share"), [(128, 20, 0.15), (512, 80, 0.15), (64, 3, 0.3), (9, 9, 1.0)])
def test_the_count_is_the_rounded_share_of_all_tokens_at_least_one_at_most_the_limit(
    seq_len: int, most: int, share: float
) -> None:
    counts = prediction_counts(config(seq_len, most, masked_lm_prob=share))
    for length in range(5, seq_len + 1):
        assert counts[length] == min(most, max(1, round(share * length)), length - 3)


segments = st.lists(st.integers(4, SIZE - 1), min_size=1, max_size=14)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(segments, segments), min_size=1, max_size=8),
    st.integers(1, 40),
    st.sampled_from([0.0, 0.15, 0.5, 1.0]),
    st.booleans(),
    st.integers(0, 999),
)
def test_any_rows_are_masked_soundly(
    pairs: list[tuple[list[int], list[int]]], most: int, share: float, whole_words: bool, seed: int
) -> None:
    settings_ = config(32, most, masked_lm_prob=share, whole_word_mask=whole_words)
    before, after, found = masked(pairs, settings_, seed)
    assert found.positions.shape == found.labels.shape == (len(pairs), most)
    for row, (first, second) in enumerate(pairs):
        count = np.count_nonzero(found.positions[row])
        wanted = prediction_counts(settings_)[len(first) + len(second) + 3]
        assert count <= wanted if whole_words else count == wanted
        positions = found.positions[row, :count].tolist()
        assert not found.positions[row, count:].any() and not found.labels[row, count:].any()
        assert positions == sorted(set(positions))
        assert not {0, len(first) + 1} & set(positions) and max(positions, default=1) < len(first) + len(second) + 2
        assert found.labels[row, :count].tolist() == before[row, positions].tolist()
        untouched = np.setdiff1d(np.arange(32), positions)
        assert (after[row, untouched] == before[row, untouched]).all()


def test_of_ten_tokens_eight_are_hidden_one_stays_and_one_becomes_any_piece() -> None:
    before, after, found = masked([([10, 11], [12, 13, 14])] * 30_000, config(8, 2, masked_lm_prob=0.3))
    rows = np.arange(len(before))[:, None]
    shown, hidden = (ids[rows, found.positions].ravel() for ids in (after, before))
    counts = np.bincount(shown[shown != hidden], minlength=SIZE)
    for number, share in ((counts[MASK], 0.8), (np.count_nonzero(shown == hidden), 0.1)):
        assert stats.binomtest(int(number), len(shown), share + 0.1 / SIZE).pvalue > LEAST_P
    others = [count for piece, count in enumerate(counts) if piece != MASK and not 10 <= piece <= 14]
    assert stats.chisquare(others).pvalue > LEAST_P


def test_every_set_of_positions_is_as_likely() -> None:
    # Five candidates, in columns 1, 2, 4, 5, 6; two of them are predicted.
    pairs = [([10, 11], [12, 13, 14])] * 30_000
    _, _, found = masked(pairs, config(8, 2, masked_lm_prob=0.3))
    counts = Counter(chosen_sets(found))
    assert set(counts) == set(combinations([1, 2, 4, 5, 6], 2))
    assert stats.chisquare(list(counts.values())).pvalue > LEAST_P


@pytest.mark.parametrize(
    ("first", "second", "most"),
    [
        ([10, 41, 42], [11, 43], 2),  # a word of three never fits
        ([41, 42, 10], [43, 11, 44], 3),  # segments that begin inside a word
        ([10, 11, 12], [13, 14], 2),  # whole words of one piece
        ([10, 41, 42], [43, 44, 45], 2),  # no word fits
        ([10, 41], [41, 42, 12, 13, 41], 4),
    ],
)
def test_whole_words_are_chosen_as_the_plain_algorithm_does(first: list[int], second: list[int], most: int) -> None:
    repeats, share = 8_000, 0.5
    settings_ = plain.Settings(
        seq_len=16,
        max_predictions=most,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        vocab_size=SIZE,
        masked_lm_prob=share,
        continuing_ids=CONTINUES,
        whole_word_mask=True,
    )
    rng = random.Random(5)
    expected = Counter(
        tuple(plain.assemble(list(first), list(second), False, settings_, rng).positions) for _ in range(repeats)
    )
    _, _, found = masked([(first, second)] * repeats, config(16, most, masked_lm_prob=share, whole_word_mask=True))
    made = Counter(chosen_sets(found))
    assert set(made) == set(expected)
    if len(expected) > 1:
        assert stats.chi2_contingency([[c[key] for key in expected] for c in (expected, made)]).pvalue > LEAST_P


def shard_of(documents: list[list[int]]) -> TokenShard:
    """Every token is unique: its id is its place."""
    sentences = np.cumsum([length for document in documents for length in document])
    return TokenShard(
        np.arange(sentences[-1], dtype=np.int32), sentences, np.cumsum([len(document) for document in documents])
    )


def column(parts: list[Pairs], name: str) -> np.ndarray:
    return np.concatenate([getattr(part, name) for part in parts])


def test_a_document_is_drawn_up_to_ten_times() -> None:
    # With two documents the tenth draw hits the document itself with a chance of 1 in 1024.
    shard, settings_ = shard_of([[10] * 3000, [10] * 3000]), config(23, 10, short_seq_prob=0.0, dupe_factor=1)
    parts = [cut(shard, settings_, np.random.default_rng(seed)) for seed in range(150)]
    first, second = column(parts, "first_begin") // 30_000, column(parts, "second_begin") // 30_000
    continues = column(parts, "second_begin") == column(parts, "first_begin") + column(parts, "first_length")
    drawn_itself = (first == second) & ~continues
    drawn = drawn_itself | (first != second)
    assert column(parts, "is_random")[drawn].all() and not column(parts, "is_random")[~drawn].any()
    assert drawn.sum() > 150_000
    assert stats.binomtest(int(drawn_itself.sum()), int(drawn.sum()), 2**-10).pvalue > LEAST_P


@pytest.mark.parametrize("most", [2, 3, 10, 13])
def test_truncation_ends_at_the_lengths_that_token_by_token_gives(most: int) -> None:
    sizes = [(a, b) for a in range(1, 31) for b in range(1, 31)]
    rng = random.Random(0)
    expected = []
    for a, b in sizes:
        first, second = list(range(a)), list(range(b))
        plain.truncate(first, second, most, rng)
        expected.append((len(first), len(second)))
    first, second = np.array(sizes, np.int32).T
    pairs = Pairs(np.full(900, 1000), first, np.full(900, 5000), second, np.zeros(900, np.bool_))
    found = truncated(pairs, most, np.random.default_rng(0))
    assert [*zip(found.first_length.tolist(), found.second_length.tolist(), strict=True)] == expected
