import random

import numpy as np
import pytest
from scipy import stats
from support import plain_pretraining as plain

from bert.tasks.pretrain.instances import Pairs, TokenShard, cut, truncated
from bert.tasks.pretrain.masking import InstanceConfig

LEAST_P = 1e-4
"""Seeds are fixed, so a test passes always or never; code that is right fails one with this probability."""


def shard_of(documents: list[list[int]]) -> TokenShard:
    """Every token is unique: its id is its place."""
    sentences = np.cumsum([length for document in documents for length in document])
    return TokenShard(
        np.arange(sentences[-1], dtype=np.int32), sentences, np.cumsum([len(document) for document in documents])
    )


def config(**changes: object) -> InstanceConfig:
    return InstanceConfig(**{"seq_len": 63, "max_predictions": 10, "dupe_factor": 1, **changes})  # type: ignore[arg-type]


def column(parts: list[Pairs], name: str) -> np.ndarray:
    return np.concatenate([getattr(part, name) for part in parts])


def test_a_document_is_drawn_up_to_ten_times() -> None:
    # With two documents the tenth draw hits the document itself with a chance of 1 in 1024.
    shard, settings_ = shard_of([[10] * 3000, [10] * 3000]), config(short_seq_prob=0.0, seq_len=23)
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
