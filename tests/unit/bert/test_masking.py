"""Pairs of segments, masks and whole instances against the plain algorithm, one by one and as distributions."""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support import plain_pretraining as plain
from support.examples import examples

from bert.data.vocabulary import Vocabulary
from bert.tasks.pretrain.instances import Instances, Pairs, Plan, TokenShard, cut, plan_instances, truncated
from bert.tasks.pretrain.masking import InstanceConfig, Pieces, mask, pieces_of, prediction_counts

CLS, SEP, MASK, SIZE = 1, 2, 3, 60
LEAST_P = 1e-4
"""Seeds are fixed, so a test passes always or never; code that is right fails one with this probability."""
CONTINUES = frozenset(range(40, SIZE))
PIECES = Pieces(SIZE, CLS, SEP, MASK, np.array([number in CONTINUES for number in range(SIZE)]))

# Special pieces away from their usual places, but for [SEP].
WORDS = ("w0", "[MASK]", "[SEP]", "[UNK]", "[CLS]", "[PAD]", *(f"{'##' * (i % 3 == 0)}w{i}" for i in range(6, 5000)))
KNOWN = pieces_of(Vocabulary(WORDS, True))
TokenDocuments = list[list[list[int]]]


def config(seq_len: int = 64, max_predictions: int = 10, **changes: object) -> InstanceConfig:
    return InstanceConfig(seq_len=seq_len, max_predictions=max_predictions, **{"dupe_factor": 2, **changes})  # type: ignore[arg-type]


def shard_of(documents: TokenDocuments) -> TokenShard:
    kept = [[sentence for sentence in document if sentence] for document in documents]
    kept = [document for document in kept if document]
    sentences = [sentence for document in kept for sentence in document]
    return TokenShard(
        np.array([token for sentence in sentences for token in sentence], np.uint16),
        np.cumsum([len(sentence) for sentence in sentences], dtype=np.int64),
        np.cumsum([len(document) for document in kept], dtype=np.int64),
    )


def masked(
    pairs: list[tuple[list[int], list[int]]], settings_: InstanceConfig, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids before and after, and the positions and labels of the predictions."""
    ids = np.zeros((len(pairs), settings_.seq_len), np.int32)
    for row, (first, second) in enumerate(pairs):
        whole = [CLS, *first, SEP, *second, SEP]
        ids[row, : len(whole)] = whole
    first_lengths, lengths = np.array([(len(a), len(a) + len(b) + 3) for a, b in pairs], np.int32).T
    before = ids.copy()
    return before, ids, *mask(ids, lengths, first_lengths, settings_, PIECES, np.random.default_rng(seed))


def chosen_sets(positions: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(row[row > 0].tolist()) for row in positions]


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
    before, after, columns, labels = masked(pairs, settings_, seed)
    assert columns.shape == labels.shape == (len(pairs), most)
    for row, (first, second) in enumerate(pairs):
        count = np.count_nonzero(columns[row])
        wanted = prediction_counts(settings_)[len(first) + len(second) + 3]
        assert count <= wanted if whole_words else count == wanted
        positions = columns[row, :count].tolist()
        assert not columns[row, count:].any() and not labels[row, count:].any()
        assert positions == sorted(set(positions))
        assert not {0, len(first) + 1} & set(positions) and max(positions, default=1) < len(first) + len(second) + 2
        assert labels[row, :count].tolist() == before[row, positions].tolist()
        untouched = np.setdiff1d(np.arange(32), positions)
        assert (after[row, untouched] == before[row, untouched]).all()


def test_of_ten_tokens_eight_are_hidden_one_stays_and_one_becomes_any_piece() -> None:
    before, after, positions, _ = masked([([10, 11], [12, 13, 14])] * 30_000, config(8, 2, masked_lm_prob=0.3))
    rows = np.arange(len(before))[:, None]
    shown, hidden = (ids[rows, positions].ravel() for ids in (after, before))
    counts = np.bincount(shown[shown != hidden], minlength=SIZE)
    for number, share in ((counts[MASK], 0.8), (np.count_nonzero(shown == hidden), 0.1)):
        assert stats.binomtest(int(number), len(shown), share + 0.1 / SIZE).pvalue > LEAST_P
    others = [count for piece, count in enumerate(counts) if piece != MASK and not 10 <= piece <= 14]
    assert stats.chisquare(others).pvalue > LEAST_P


def test_every_set_of_positions_is_as_likely() -> None:
    # Five candidates, in columns 1, 2, 4, 5, 6; two of them are predicted.
    pairs = [([10, 11], [12, 13, 14])] * 30_000
    _, _, positions, _ = masked(pairs, config(8, 2, masked_lm_prob=0.3))
    counts = Counter(chosen_sets(positions))
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
    _, _, found, _ = masked([(first, second)] * repeats, config(16, most, masked_lm_prob=share, whole_word_mask=True))
    made = Counter(chosen_sets(found))
    assert set(made) == set(expected)
    if len(expected) > 1:
        assert stats.chi2_contingency([[c[key] for key in expected] for c in (expected, made)]).pvalue > LEAST_P


def column(parts: list[Pairs], name: str) -> np.ndarray:
    return np.concatenate([getattr(part, name) for part in parts])


def test_a_document_is_drawn_up_to_ten_times() -> None:
    # With two documents the tenth draw hits the document itself with a chance of 1 in 1024.
    shard, settings_ = shard_of([[[7] * 10] * 3000] * 2), config(23, 10, short_seq_prob=0.0, dupe_factor=1)
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


def corpus(documents: int, sentences: int) -> TokenDocuments:
    rng = np.random.default_rng(0)
    return [[rng.integers(100, 5000, rng.integers(3, 30)).tolist() for _ in range(sentences)] for _ in range(documents)]


def all_rows(plan: Plan) -> Instances:
    blocks = [*plan.blocks()]
    return Instances(*(np.concatenate([getattr(block, field.name) for block in blocks]) for field in fields(Instances)))


def make(documents: TokenDocuments, settings_: InstanceConfig, stream: tuple[int, ...] = ()) -> Instances:
    return all_rows(plan_instances(shard_of(documents), KNOWN, settings_, stream))


def digest(instances: Instances) -> bytes:
    return b"".join(getattr(instances, field.name).tobytes() for field in fields(Instances))


def restored(instances: Instances) -> np.ndarray:
    """Ids before masking."""
    ids = instances.input_ids.copy()
    for row, (positions, labels) in enumerate(zip(instances.masked_lm_positions, instances.masked_lm_ids, strict=True)):
        used = positions > 0
        ids[row, positions[used]] = labels[used]
    return ids


def test_every_instance_is_found_again_in_the_documents() -> None:
    # Ids that are unique in the corpus: where a segment begins and ends is plain to see.
    rng = np.random.default_rng(0)
    sizes = [[int(size) for size in rng.integers(1, 12, 60)] for _ in range(9)]
    ids = iter(range(100, 5000))
    documents = [[[next(ids) for _ in range(size)] for size in document] for document in sizes]
    flat = {
        token: (number, place)
        for number, document in enumerate(documents)
        for place, token in enumerate(itertools.chain.from_iterable(document))
    }
    made = make(documents, config(dupe_factor=6))
    unmasked = restored(made)
    covered = set()
    for row, length in enumerate(made.input_mask.sum(axis=1)):
        middle = int(np.flatnonzero(unmasked[row] == SEP)[0])
        first = [flat[int(token)] for token in unmasked[row, 1:middle]]
        second = [flat[int(token)] for token in unmasked[row, middle + 1 : length - 1]]
        for segment in (first, second):
            document, begin = segment[0]
            assert segment == [(document, begin + n) for n in range(len(segment))], "a run of one document"
        covered |= set(first)
        if made.next_sentence_labels[row]:
            assert first[0][0] != second[0][0]
        else:
            assert first[0][0] == second[0][0] and second[0][1] > first[-1][1]
            # Without truncation B goes on where A ends.
            assert length == 64 or second[0][1] == first[-1][1] + 1
            covered |= set(second)
    assert len(covered) > 0.995 * len(flat), "truncation may leave out some tokens, each duplicate others"


def test_the_seed_the_stream_and_nothing_else_decide_every_byte() -> None:
    def flat(stream: tuple[int, ...] = (), **changes: object) -> bytes:
        return digest(make(corpus(6, 20), config(**changes), stream))

    streams = [(0,), (1,), (0, 1), (0, 2), (1, 1), (0, 1, 0)]
    assert flat() == flat()
    assert len({flat(), flat(seed=1), *map(flat, streams)}) == len(streams) + 2


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.lists(st.lists(st.integers(6, 4999), max_size=12), max_size=6), max_size=5),
    st.integers(5, 40),
    st.integers(1, 8),
    st.integers(0, 1000),
    st.booleans(),
)
def test_any_documents_give_sound_instances(
    documents: TokenDocuments, seq_len: int, predictions: int, seed: int, whole_words: bool
) -> None:
    if not any(map(any, documents)):
        return
    plan = plan_instances(
        shard_of(documents),
        KNOWN,
        config(seq_len=seq_len, max_predictions=predictions, seed=seed, dupe_factor=1, whole_word_mask=whole_words),
    )
    sentences = [count for document in documents if (count := sum(map(bool, document)))]
    has_text = len(sentences) > 1 or sum(sentences) > 1  # a sentence alone makes no pair
    assert (len(plan) > 0) == has_text
    if has_text:
        made = all_rows(plan)
        lengths = made.input_mask.sum(axis=1)
        assert lengths.min() >= 5 and lengths.max() <= seq_len
        assert whole_words or ((made.masked_lm_positions > 0).sum(axis=1) >= 1).all()


def test_a_document_alone_gives_no_pairs_that_are_called_random() -> None:
    ids = itertools.count(100)
    document = [[next(ids) for _ in range(size)] for size in [5, 9, 3, 7] * 30]
    made = make([document], config(seq_len=128, dupe_factor=4, short_seq_prob=0.0))
    assert len(made) > 20 and not made.next_sentence_labels.any()
    assert len(plan_instances(shard_of([[[7] * 9]]), KNOWN, config())) == 0


# Instances of the fast code against those of the plain reference, as distributions: both go through the same documents
# many times. What is compared is measured once per time through (a replicate), because the instances of one time depend
# on each other; replicates do not. If both codes draw from the same distribution, the labels "fast" and "plain" of the
# replicates could be exchanged: that is a permutation test, and it is exact.
REPLICATES = 40
PERMUTATIONS = 2999
RAREST = 0.002
"""Seeds are fixed, so a test passes always or never; code that is right fails one with this probability."""
FIRST_ID = 10
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
        assert p_value(fast, plain, measure) > RAREST, number
    ends = corpus.shard.sentence_ends[corpus.shard.document_ends - 1]
    for sample in (*fast, *plain):
        first, second = (np.searchsorted(ends, begin, "right") for begin in (sample.first_begin, sample.second_begin))
        assert ((first != second) == sample.is_random).all()


def test_the_comparison_finds_a_small_difference(samples: tuple[Corpus, list[Pairs], list[Pairs]]) -> None:
    """One token more in every third segment is seen: the test above is no formality."""
    _, fast, plain = samples
    changed = [replace(one, first_length=one.first_length + (np.arange(len(one)) % 3 == 0)) for one in fast]
    assert p_value(changed, plain, lambda sample: shares(sample.first_length, TOKENS)) < RAREST
