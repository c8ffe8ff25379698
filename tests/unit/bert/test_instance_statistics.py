"""Instances of the fast code against those of the plain reference, as distributions.

Both go through the same documents many times. What is compared is measured once per time through (a replicate), because
the instances of one time depend on each other; replicates do not. If both codes draw from the same distribution, the
labels "fast" and "plain" of the replicates could be exchanged: that is a permutation test, and it is exact.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from support import plain_pretraining as plain
from test_masking import shard_of

from bert.tasks.pretrain.instances import Instances, Pairs, TokenShard, plan_instances
from bert.tasks.pretrain.masking import InstanceConfig, Pieces

REPLICATES = 40
PERMUTATIONS = 2999
LEAST_P = 0.002
"""Seeds are fixed, so a test passes always or never; code that is right fails one with this probability."""
CLS, SEP, MASK, FIRST_ID = 1, 2, 3, 10
SEQ_LEN, PREDICTIONS = 64, 8


@dataclass(frozen=True)
class Corpus:
    """Documents whose token ids are their places (plus FIRST_ID): so all is found back."""

    documents: list[plain.Document]
    shard: TokenShard

    @property
    def tokens(self) -> int:
        return len(self.shard.ids)

    @property
    def vocab_size(self) -> int:
        return FIRST_ID + self.tokens


def generated_corpus() -> Corpus:
    """Sentences of 1 to 150 tokens, documents of 1 to 49 of them."""
    rng, numbers = np.random.default_rng(1), itertools.count(FIRST_ID)
    sizes = [np.clip(rng.lognormal(2.7, 0.8, rng.integers(1, 50)).astype(int), 1, 150).tolist() for _ in range(45)]
    documents = [[list(itertools.islice(numbers, size)) for size in document] for document in sizes]
    return Corpus(documents, shard_of(documents))


def sample_of(made: Instances) -> Pairs:
    """Return all pairs of one time through the documents; segments begin at places in the corpus."""
    rows, slots = np.nonzero(made.masked_lm_positions)
    columns, labels = made.masked_lm_positions[rows, slots], made.masked_lm_ids[rows, slots]
    ids = made.input_ids.copy()
    ids[rows, columns] = labels
    second_length = made.segment_ids.sum(axis=1, dtype=int) - 1
    first_length = made.input_mask.sum(axis=1, dtype=int) - second_length - 3
    return Pairs(
        first_begin=ids[:, 1] - FIRST_ID,
        first_length=first_length,
        second_begin=ids[np.arange(len(ids)), first_length + 2] - FIRST_ID,
        second_length=second_length,
        is_random=made.next_sentence_labels.astype(bool),
    )


def fast_samples(corpus: Corpus) -> list[Pairs]:
    config = InstanceConfig(seq_len=SEQ_LEN, max_predictions=PREDICTIONS, dupe_factor=1, seed=77)
    pieces, samples = Pieces(corpus.vocab_size, CLS, SEP, MASK, np.zeros(corpus.vocab_size, np.bool_)), []
    for replicate in range(REPLICATES):
        blocks = [*plan_instances(corpus.shard, pieces, config, (replicate,)).blocks()]
        columns = {name.name: [getattr(block, name.name) for block in blocks] for name in fields(Instances)}
        samples.append(sample_of(Instances(**{name: np.concatenate(parts) for name, parts in columns.items()})))
    return samples


def plain_samples(corpus: Corpus) -> list[Pairs]:
    settings = plain.Settings(
        seq_len=SEQ_LEN,
        max_predictions=PREDICTIONS,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        vocab_size=corpus.vocab_size,
    )
    made = (plain.make_instances(corpus.documents, settings, random.Random(number)) for number in range(REPLICATES))
    return [sample_of(Instances(**plain.columns_of(instances, settings))) for instances in made]


def p_value(fast: list[Pairs], plain: list[Pairs], measure: Callable[[Pairs], np.ndarray]) -> float:
    """Return the chance of a difference as large as this, the largest over the numbers that `measure` returns."""
    values = np.array([np.atleast_1d(measure(sample)) for sample in (*fast, *plain)], dtype=float)
    values = values[:, values.std(axis=0) > 0]
    assert values.size, "nothing varies"
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    signs = np.repeat([1.0, -1.0], REPLICATES)
    rng = np.random.default_rng(0)
    shuffled = np.array([signs, *(rng.permutation(signs) for _ in range(PERMUTATIONS))])
    statistics = np.abs(shuffled @ values).max(axis=1)
    return float((statistics >= statistics[0] - 1e-9).mean())


@pytest.fixture(scope="module")
def samples() -> tuple[Corpus, list[Pairs], list[Pairs]]:
    """A corpus, and what the fast and the plain code make of it."""
    corpus = generated_corpus()
    return corpus, fast_samples(corpus), plain_samples(corpus)


def shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the shares of the values below each edge."""
    return np.searchsorted(np.sort(values), edges) / max(1, len(values))


TOKENS = np.arange(1, SEQ_LEN)


def lost(values: np.ndarray) -> np.ndarray:
    return shares(values, np.arange(1, 40))


def pairs_measures(corpus: Corpus) -> list[Callable[[Pairs], np.ndarray]]:
    """Numbers and lengths of instances and segments, and where segments begin and end."""
    ends = corpus.shard.sentence_ends
    begins = np.concatenate([[0], ends[:-1]])
    document_ends = ends[corpus.shard.document_ends - 1]
    numbers, places = np.arange(1, len(document_ends)), np.linspace(0, corpus.tokens, 60)

    def document(begin: np.ndarray) -> np.ndarray:
        return shares(np.searchsorted(document_ends, begin, "right"), numbers)

    def front(place: np.ndarray) -> np.ndarray:
        """How many tokens of its first sentence a segment lost."""
        return lost(place - begins[np.searchsorted(ends, place, "right")])

    def back(place: np.ndarray) -> np.ndarray:
        return lost(ends[np.searchsorted(ends, place, "right")] - 1 - place)

    return [
        lambda sample: np.array([len(sample.lengths)]),
        lambda sample: np.array([sample.is_random.mean()]),
        lambda sample: shares(sample.lengths, TOKENS),
        lambda sample: shares(sample.first_length[sample.is_random], TOKENS),
        lambda sample: shares(sample.second_length[sample.is_random], TOKENS),
        lambda sample: shares(sample.first_length[~sample.is_random], TOKENS),
        lambda sample: shares(sample.second_length[~sample.is_random], TOKENS),
        lambda sample: shares((sample.first_length - sample.second_length)[sample.lengths == SEQ_LEN], TOKENS),
        lambda sample: front(sample.first_begin),
        lambda sample: front(sample.second_begin),
        lambda sample: back(sample.first_begin + sample.first_length - 1),
        lambda sample: back(sample.second_begin + sample.second_length - 1),
        lambda sample: document(sample.first_begin),
        lambda sample: document(sample.second_begin[sample.is_random]),
        lambda sample: shares(sample.first_begin, places),
        lambda sample: shares(sample.second_begin[sample.is_random], places),
        lambda sample: shares(sample.second_begin[~sample.is_random], places),
    ]


def test_pairs_are_drawn_from_the_published_distribution(samples: tuple[Corpus, list[Pairs], list[Pairs]]) -> None:
    corpus, fast, plain = samples
    for number, measure in enumerate(pairs_measures(corpus)):
        assert p_value(fast, plain, measure) > LEAST_P, number
    ends = corpus.shard.sentence_ends[corpus.shard.document_ends - 1]
    for sample in (*fast, *plain):
        first, second = (np.searchsorted(ends, begin, "right") for begin in (sample.first_begin, sample.second_begin))
        assert ((first != second) == sample.is_random).all()


def test_the_comparison_finds_a_small_difference(samples: tuple[Corpus, list[Pairs], list[Pairs]]) -> None:
    """One token more in every third segment is seen: the test above is no formality."""
    _, fast, plain = samples
    changed = [replace(one, first_length=one.first_length + (np.arange(len(one)) % 3 == 0)) for one in fast]
    assert p_value(changed, plain, lambda sample: shares(sample.first_length, TOKENS)) < LEAST_P
