"""Instances of the fast code against those of the plain reference, as distributions, on real and on generated text.

Both go through the same documents many times. What is compared is measured once per time through (a replicate), because
the instances of one time depend on each other; replicates do not. If both codes draw from the same distribution, the
labels "fast" and "plain" of the replicates could be exchanged: that is a permutation test, and it is exact.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from support import plain_pretraining as plain
from support.shared_files import DATA

from bert.tasks.pretrain.config import InstanceConfig
from bert.tasks.pretrain.instances import TokenShard, plan_instances
from bert.tasks.pretrain.masking import Pieces

REPLICATES = 40
PERMUTATIONS = 2999
LEAST_P = 0.002
"""Seeds are fixed, so a test passes always or never; code that is right fails one with this probability."""
CLS, SEP, MASK, FIRST_ID = 1, 2, 3, 10
SEQ_LEN, PREDICTIONS = 64, 8


@dataclass(frozen=True)
class Corpus:
    """Documents of real structure, whose token ids are their places (plus FIRST_ID): so all is found back."""

    sizes: list[list[int]]
    """Tokens of each sentence of each document."""
    continues: np.ndarray
    """Whether a token begins with ##."""

    @property
    def documents(self) -> list[plain.Document]:
        numbers = iter(range(FIRST_ID, FIRST_ID + self.tokens))
        return [[[next(numbers) for _ in range(size)] for size in document] for document in self.sizes]

    @property
    def tokens(self) -> int:
        return len(self.continues)

    @property
    def vocab_size(self) -> int:
        return FIRST_ID + self.tokens

    @property
    def shard(self) -> TokenShard:
        sentence_ends = np.cumsum([size for document in self.sizes for size in document])
        document_ends = np.cumsum([len(document) for document in self.sizes])
        return TokenShard(np.arange(FIRST_ID, self.vocab_size, dtype=np.int32), sentence_ends, document_ends)


def real_corpus() -> Corpus:
    text, vocabulary = DATA / "pretrain/books/84-0.txt", DATA / "vocab/bert-uncased.txt"
    words = " ".join(text.read_text(encoding="utf-8-sig").split()[:20_000])
    sentences = re.split(r"(?<=[.!?]) ", words)
    encode = plain.library_tokenizer(vocabulary, True)
    known = plain.pieces_of(vocabulary)
    pieces = [[known[number] for number in ids] for sentence in sentences if (ids := encode(sentence))]
    # A letter, a chapter, a page: documents of 1 to 60 sentences.
    rng = random.Random(0)
    documents = []
    while pieces:
        size = rng.choice([1, 2, 5, 20, 60])
        documents.append(pieces[:size])
        del pieces[:size]
    flat = [piece for document in documents for sentence in document for piece in sentence]
    return Corpus(
        [[len(sentence) for sentence in document] for document in documents],
        np.array([piece.startswith("##") for piece in flat]),
    )


def generated_corpus() -> Corpus:
    rng = np.random.default_rng(1)
    sizes = [np.clip(rng.lognormal(2.7, 0.8, rng.integers(1, 50)).astype(int), 1, 150).tolist() for _ in range(45)]
    return Corpus(sizes, rng.random(sum(map(sum, sizes))) < 0.2)


@dataclass(frozen=True)
class Sample:
    """All instances of one time through the documents."""

    first_begin: np.ndarray
    first_length: np.ndarray
    second_begin: np.ndarray
    second_length: np.ndarray
    is_random: np.ndarray
    positions: np.ndarray
    """Row by row, without padding."""
    labels: np.ndarray
    shown: np.ndarray
    counts: np.ndarray
    """Predictions of each row."""

    @property
    def lengths(self) -> np.ndarray:
        return self.first_length + self.second_length + 3


def fast_samples(corpus: Corpus, whole_words: bool) -> list[Sample]:
    config = InstanceConfig(
        seq_len=SEQ_LEN, max_predictions=PREDICTIONS, dupe_factor=1, whole_word_mask=whole_words, seed=77
    )
    continues = np.concatenate([np.zeros(FIRST_ID, np.bool_), corpus.continues])
    pieces = Pieces(corpus.vocab_size, CLS, SEP, MASK, continues)
    shard, samples = corpus.shard, []
    for replicate in range(REPLICATES):
        blocks = [*plan_instances(shard, pieces, config, (replicate,)).blocks()]
        ids, positions, labels, segments, mask, is_random = (
            np.concatenate([getattr(block, name) for block in blocks])
            for name in (
                "input_ids",
                "masked_lm_positions",
                "masked_lm_ids",
                "segment_ids",
                "input_mask",
                "next_sentence_labels",
            )
        )
        rows, slots = np.nonzero(positions)
        columns = positions[rows, slots]
        shown = ids[rows, columns]
        ids[rows, columns] = labels[rows, slots]
        second_length = segments.sum(axis=1, dtype=int) - 1
        first_length = mask.sum(axis=1, dtype=int) - second_length - 3
        samples.append(
            Sample(
                first_begin=ids[:, 1] - FIRST_ID,
                first_length=first_length,
                second_begin=ids[np.arange(len(ids)), first_length + 2] - FIRST_ID,
                second_length=second_length,
                is_random=is_random.astype(bool),
                positions=columns,
                labels=labels[rows, slots],
                shown=shown,
                counts=(positions > 0).sum(axis=1),
            )
        )
    return samples


def plain_samples(corpus: Corpus, whole_words: bool) -> list[Sample]:
    settings = plain.Settings(
        seq_len=SEQ_LEN,
        max_predictions=PREDICTIONS,
        cls_id=CLS,
        sep_id=SEP,
        mask_id=MASK,
        vocab_size=corpus.vocab_size,
        continuing_ids=frozenset((FIRST_ID + np.flatnonzero(corpus.continues)).tolist()),
        whole_word_mask=whole_words,
    )
    documents, samples = corpus.documents, []
    for replicate in range(REPLICATES):
        made = plain.make_instances(documents, settings, random.Random(replicate))
        shown = [[instance.ids[position] for position in instance.positions] for instance in made]
        for instance in made:
            for position, label in zip(instance.positions, instance.labels, strict=True):
                instance.ids[position] = label
        samples.append(
            Sample(
                first_begin=np.array([instance.ids[1] for instance in made]) - FIRST_ID,
                first_length=np.array([instance.first_length for instance in made]),
                second_begin=np.array([instance.ids[instance.first_length + 2] for instance in made]) - FIRST_ID,
                second_length=np.array([instance.second_length for instance in made]),
                is_random=np.array([instance.is_random for instance in made]),
                positions=np.array([position for instance in made for position in instance.positions]),
                labels=np.array([label for instance in made for label in instance.labels]),
                shown=np.array([value for row in shown for value in row]),
                counts=np.array([len(instance.positions) for instance in made]),
            )
        )
    return samples


@dataclass(frozen=True)
class Comparison:
    corpus: Corpus
    fast: list[Sample]
    plain: list[Sample]

    def p_value(self, measure: Callable[[Sample], np.ndarray]) -> float:
        """Return the chance of a difference as large as this, the largest over the numbers that `measure` returns."""
        values = np.array([np.atleast_1d(measure(sample)) for sample in (*self.fast, *self.plain)], dtype=float)
        values = values[:, values.std(axis=0) > 0]
        assert values.size, "nothing varies"
        values = (values - values.mean(axis=0)) / values.std(axis=0)
        signs = np.repeat([1.0, -1.0], REPLICATES)
        rng = np.random.default_rng(0)
        shuffled = np.array([signs, *(rng.permutation(signs) for _ in range(PERMUTATIONS))])
        statistics = np.abs(shuffled @ values).max(axis=1)
        return float((statistics >= statistics[0] - 1e-9).mean())


@pytest.fixture(scope="module", params=[pytest.param("real", marks=pytest.mark.public), "generated"])
def corpus(request: pytest.FixtureRequest) -> Corpus:
    return real_corpus() if request.param == "real" else generated_corpus()


@pytest.fixture(scope="module")
def comparison(corpus: Corpus) -> Comparison:
    return Comparison(corpus, fast_samples(corpus, False), plain_samples(corpus, False))


@pytest.fixture(scope="module")
def whole_words(corpus: Corpus) -> Comparison:
    return Comparison(corpus, fast_samples(corpus, True), plain_samples(corpus, True))


def shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the shares of the values below each edge."""
    return np.searchsorted(np.sort(values), edges) / max(1, len(values))


TOKENS = np.arange(1, SEQ_LEN)


def test_the_number_of_instances(comparison: Comparison) -> None:
    assert comparison.p_value(lambda sample: np.array([len(sample.lengths)])) > LEAST_P


def test_the_lengths_of_instances_and_of_both_segments(comparison: Comparison) -> None:
    for values in (
        lambda sample: sample.lengths,
        lambda sample: sample.first_length,
        lambda sample: sample.second_length,
        lambda sample: sample.first_length[sample.is_random],
        lambda sample: sample.second_length[sample.is_random],
        lambda sample: sample.first_length[~sample.is_random],
        lambda sample: sample.second_length[~sample.is_random],
        lambda sample: (sample.first_length - sample.second_length)[sample.lengths == SEQ_LEN],
    ):
        assert comparison.p_value(lambda sample, values=values: shares(values(sample), TOKENS)) > LEAST_P
    assert min(sample.lengths.min() for sample in comparison.fast) >= 5


def test_the_share_of_random_pairs(comparison: Comparison) -> None:
    assert comparison.p_value(lambda sample: np.array([sample.is_random.mean()])) > LEAST_P


def test_the_place_of_both_segments_in_their_sentences(comparison: Comparison) -> None:
    """How many tokens of its first sentence a segment lost, and of its last one: truncation from front and back."""
    ends = comparison.corpus.shard.sentence_ends
    begins = np.concatenate([[0], ends[:-1]])

    def front(places: np.ndarray) -> np.ndarray:
        return places - begins[np.searchsorted(ends, places, "right")]

    def back(places: np.ndarray) -> np.ndarray:
        return ends[np.searchsorted(ends, places, "right")] - 1 - places

    for values in (
        lambda sample: front(sample.first_begin),
        lambda sample: front(sample.second_begin),
        lambda sample: back(sample.first_begin + sample.first_length - 1),
        lambda sample: back(sample.second_begin + sample.second_length - 1),
    ):
        assert comparison.p_value(lambda sample, values=values: shares(values(sample), np.arange(1, 40))) > LEAST_P


def test_where_segments_come_from(comparison: Comparison) -> None:
    shard = comparison.corpus.shard
    ends = shard.sentence_ends[shard.document_ends - 1]

    def document(places: np.ndarray) -> np.ndarray:
        return np.searchsorted(ends, places, "right")

    numbers = np.arange(1, len(ends))
    for values in (
        lambda sample: document(sample.first_begin),
        lambda sample: document(sample.second_begin[sample.is_random]),
    ):
        assert comparison.p_value(lambda sample, values=values: shares(values(sample), numbers)) > LEAST_P
    places = np.linspace(0, comparison.corpus.tokens, 60)
    for values in (
        lambda sample: sample.first_begin,
        lambda sample: sample.second_begin[sample.is_random],
        lambda sample: sample.second_begin[~sample.is_random],
    ):
        assert comparison.p_value(lambda sample, values=values: shares(values(sample), places)) > LEAST_P
    for sample in (*comparison.fast, *comparison.plain):
        assert ((document(sample.first_begin) != document(sample.second_begin)) == sample.is_random).all()


def test_how_many_tokens_are_masked_and_where(comparison: Comparison) -> None:
    _masks_agree(comparison)


def test_how_many_tokens_are_masked_and_where_by_whole_words(whole_words: Comparison) -> None:
    _masks_agree(whole_words)
    # A word that does not fit is skipped, so long words are masked less often than short ones.
    continues = whole_words.corpus.continues
    masked = np.concatenate([continues[sample.labels - FIRST_ID] for sample in whole_words.fast])
    assert masked.mean() < continues.mean()


def _masks_agree(comparison: Comparison) -> None:
    continues = comparison.corpus.continues
    for measure in (
        lambda sample: shares(sample.counts, np.arange(1, PREDICTIONS + 1)),
        lambda sample: np.array([sample.counts.sum() / sample.lengths.sum()]),
        lambda sample: shares(sample.positions, TOKENS),
        lambda sample: np.array([continues[sample.labels - FIRST_ID].mean()]),
    ):
        assert comparison.p_value(measure) > LEAST_P


def test_what_stands_in_place_of_masked_tokens(comparison: Comparison) -> None:
    assert comparison.p_value(lambda sample: np.array([(sample.shown == MASK).mean()])) > LEAST_P
    assert comparison.p_value(lambda sample: np.array([(sample.shown == sample.labels).mean()])) > LEAST_P

    def replacements(sample: Sample) -> np.ndarray:
        shown = sample.shown[(sample.shown != MASK) & (sample.shown != sample.labels)]
        return shares(shown, np.linspace(0, comparison.corpus.vocab_size, 30))

    assert comparison.p_value(replacements) > LEAST_P
    shown = np.concatenate([sample.shown for sample in comparison.fast])
    labels = np.concatenate([sample.labels for sample in comparison.fast])
    for share, expected in (((shown == MASK).mean(), 0.8), ((shown == labels).mean(), 0.1)):
        assert abs(share - expected) < 4 * (expected * (1 - expected) / len(shown)) ** 0.5


def test_the_comparison_finds_a_small_difference(comparison: Comparison) -> None:
    """One token more in every third segment is seen: the tests above are no formality."""
    changed = [
        Sample(**{**vars(sample), "first_length": sample.first_length + (np.arange(len(sample.lengths)) % 3 == 0)})
        for sample in comparison.fast
    ]
    other = Comparison(comparison.corpus, changed, comparison.plain)
    assert other.p_value(lambda sample: shares(sample.first_length, TOKENS)) < LEAST_P
