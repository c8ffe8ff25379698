import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert.data.instances import InstanceConfig, Instances, make_instances, pairs_of
from bert.data.vocabulary import Vocabulary
from common.errors import UsageError

# Special pieces away from their usual places; ids from 100 up tell document and sentence.
PIECES = [
    "w0",
    "[MASK]",
    "[SEP]",
    "[UNK]",
    "[CLS]",
    "[PAD]",
    *(f"{'##' if i % 3 == 0 else ''}w{i}" for i in range(6, 5000)),
]
VOCABULARY = Vocabulary(tuple(PIECES), True)
CLS, SEP, MASK = 4, 2, 1


def corpus(documents: int, sentences: int, seed: int = 0) -> list[list[list[int]]]:
    """Every token is unique to its document: id = 100 + document * 100 + a number below 100."""
    rng = np.random.default_rng(seed)
    return [
        [[100 + d * 100 + int(t) for t in rng.integers(0, 100, rng.integers(3, 30))] for _ in range(sentences)]
        for d in range(documents)
    ]


def config(**changes: object) -> InstanceConfig:
    return InstanceConfig(**{"seq_len": 64, "max_predictions": 10, "dupe_factor": 2, **changes})  # type: ignore[arg-type]


def restored(instances: Instances) -> np.ndarray:
    """Ids before masking."""
    ids = instances.input_ids.copy()
    for row, (positions, labels) in enumerate(zip(instances.masked_lm_positions, instances.masked_lm_ids, strict=True)):
        used = positions > 0
        ids[row, positions[used]] = labels[used]
    return ids


@pytest.fixture(scope="module")
def large() -> Instances:
    return make_instances(corpus(40, 120), VOCABULARY, config(dupe_factor=4))


def test_layout_is_cls_a_sep_b_sep_and_padding(large: Instances) -> None:
    lengths = large.input_mask.sum(axis=1)
    ids = restored(large)
    assert len(large) > 3000
    for row, length in enumerate(lengths):
        assert (large.input_mask[row, :length] == 1).all() and not large.input_mask[row, length:].any()
        assert not ids[row, length:].any() and not large.segment_ids[row, length:].any()
        separators = np.flatnonzero(ids[row, :length] == SEP)
        assert ids[row, 0] == CLS and len(separators) == 2 and separators[1] == length - 1
        assert 2 <= separators[0] <= length - 3, "both segments hold something"
        assert (large.segment_ids[row, :length] == (np.arange(length) > separators[0])).all()


def test_lengths_reach_the_target_and_a_tenth_is_short(large: Instances) -> None:
    lengths = large.input_mask.sum(axis=1)
    assert lengths.max() == 64 and lengths.min() >= 5
    assert 0.04 < (lengths < 50).mean() < 0.2
    never_short = make_instances(corpus(40, 120), VOCABULARY, config(short_seq_prob=0.0))
    assert (never_short.input_mask.sum(axis=1) < 50).mean() < 0.03
    always_short = make_instances(corpus(40, 120), VOCABULARY, config(short_seq_prob=1.0, dupe_factor=1))
    assert always_short.input_mask.sum(axis=1).mean() < 55


def test_masked_count_is_fifteen_percent_of_all_tokens_up_to_the_limit(large: Instances) -> None:
    counts = (large.masked_lm_positions > 0).sum(axis=1)
    lengths = large.input_mask.sum(axis=1)
    assert counts.tolist() == [min(10, max(1, round(0.15 * int(length)))) for length in lengths]
    assert (np.diff(large.masked_lm_positions, axis=1)[large.masked_lm_positions[:, 1:] > 0] > 0).all(), "ascending"
    few = make_instances(corpus(5, 20), VOCABULARY, config(max_predictions=3))
    assert (few.masked_lm_positions > 0).sum(axis=1).max() == 3


def test_special_tokens_are_never_predicted_and_every_other_place_is_as_likely(large: Instances) -> None:
    used = large.masked_lm_positions > 0
    assert not np.isin(large.masked_lm_ids[used], (CLS, SEP)).any()
    full = large.input_mask.sum(axis=1) == 64
    places = large.masked_lm_positions[full][used[full]]
    first, second = (places < 32).mean(), (places >= 32).mean()
    assert abs(first - second) < 0.03
    assert places.min() == 1 and places.max() == 62


def test_eighty_ten_ten(large: Instances) -> None:
    rows, slots = np.nonzero(large.masked_lm_positions)
    shown = large.input_ids[rows, large.masked_lm_positions[rows, slots]]
    labels = large.masked_lm_ids[rows, slots]
    count = len(labels)
    assert count > 20_000
    # Six standard deviations of a share around 0.8 and 0.1 at this count.
    assert abs((shown == MASK).mean() - 0.8) < 6 * (0.16 / count) ** 0.5
    assert abs((shown == labels).mean() - 0.1) < 6 * (0.09 / count) ** 0.5
    random = shown[(shown != MASK) & (shown != labels)]
    assert random.min() < 100 and random.max() > 4900, "random ids come from the whole vocabulary"


def test_half_of_the_pairs_are_random_and_come_from_another_document(large: Instances) -> None:
    ids = restored(large)
    for row in range(len(large)):
        length = int(large.input_mask[row].sum())
        middle = int(np.flatnonzero(ids[row] == SEP)[0])
        first, second = ids[row, 1:middle] // 100, ids[row, middle + 1 : length - 1] // 100
        assert len(set(first)) == 1 and len(set(second)) == 1
        assert (first[0] != second[0]) == bool(large.next_sentence_labels[row])
    # A chunk of one sentence is always random, so a little over a half.
    assert 0.5 < large.next_sentence_labels.mean() < 0.58


def test_a_continuation_continues_and_nothing_is_lost() -> None:
    documents = [[[100 * d + s] * 5 for s in range(1, 40)] for d in range(1, 6)]
    rng = np.random.default_rng(0)
    settings_ = config(seq_len=43, short_seq_prob=0.0)
    for index, document in enumerate(documents):
        seen: list[int] = []
        for pair in pairs_of(documents, index, settings_, rng):
            firsts = list(dict.fromkeys(pair.first))
            seen.extend(firsts)
            if not pair.is_random:
                seconds = list(dict.fromkeys(pair.second))
                assert seconds == list(range(firsts[-1] + 1, firsts[-1] + 1 + len(seconds)))
                seen.extend(seconds)
        # Displaced sentences come again: every sentence is used once, in order.
        assert seen == [sentence[0] for sentence in document]


def test_truncation_takes_from_the_longer_segment_and_from_both_ends() -> None:
    documents = [[list(range(100, 400)), list(range(400, 420))], [list(range(1000, 1300))]]
    fronts = 0
    for seed in range(200):
        (pair, *_) = pairs_of(documents, 0, config(short_seq_prob=0.0), np.random.default_rng(seed))
        assert len(pair.first) + len(pair.second) == 61
        assert abs(len(pair.first) - len(pair.second)) <= 1 and len(pair.first) >= len(pair.second)
        assert pair.first == list(range(pair.first[0], pair.first[-1] + 1)), "one run, cut at its ends only"
        fronts += pair.first[0] - 100
    assert 0.47 < fronts / 200 / 269 < 0.53


def test_a_lone_document_is_labelled_by_what_the_pair_is() -> None:
    documents = [[[100 + s] for s in range(60)]]
    labels = []
    for seed in range(30):
        for pair in pairs_of(documents, 0, config(seq_len=11, short_seq_prob=0.0), np.random.default_rng(seed)):
            assert pair.is_random == (pair.second[0] != pair.first[-1] + 1)
            labels.append(pair.is_random)
    assert 0.35 < np.mean(labels) < 0.75


def test_the_seed_and_the_stream_decide_every_byte() -> None:
    def flat(**changes: object) -> bytes:
        stream = changes.pop("stream", (0, 1))
        made = make_instances(corpus(6, 20), VOCABULARY, config(**changes), stream)  # type: ignore[arg-type]
        return b"".join(getattr(made, name).tobytes() for name in made.__dataclass_fields__)

    assert flat() == flat()
    assert len({flat(), flat(seed=1), flat(stream=(0, 2)), flat(stream=(1, 1))}) == 4


def test_duplicates_are_different_cuts_of_the_same_text() -> None:
    once = make_instances(corpus(6, 20), VOCABULARY, config(dupe_factor=1))
    thrice = make_instances(corpus(6, 20), VOCABULARY, config(dupe_factor=3))
    assert 2.5 * len(once) < len(thrice) < 3.5 * len(once)
    assert len({row.tobytes() for row in thrice.input_ids}) > 0.98 * len(thrice)


def test_whole_words_are_masked_together_or_not_at_all() -> None:
    made = make_instances(corpus(20, 40), VOCABULARY, config(whole_word_mask=True))
    ids = restored(made)
    continues = np.array([piece.startswith("##") for piece in PIECES])
    counts = (made.masked_lm_positions > 0).sum(axis=1)
    lengths = made.input_mask.sum(axis=1)
    assert (counts <= [min(10, max(1, round(0.15 * int(n)))) for n in lengths]).all() and counts.mean() > 6
    parted = 0
    for row in range(len(made)):
        masked = set(made.masked_lm_positions[row].tolist()) - {0}
        for position in range(2, lengths[row] - 1):
            if not continues[ids[row, position]]:
                continue
            if ids[row, position - 1] == SEP:
                parted += (position in masked) != (position - 2 in masked)
            else:
                assert (position in masked) == (position - 1 in masked)
    assert parted > 20, "the first piece of segment B is no part of the last word of segment A"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.integers(6, 4999), max_size=12), max_size=6), max_size=5),
    st.integers(5, 40),
    st.integers(1, 8),
    st.integers(0, 1000),
)
def test_any_documents_give_sound_instances(documents: list, seq_len: int, predictions: int, seed: int) -> None:
    made = make_instances(
        documents, VOCABULARY, config(seq_len=seq_len, max_predictions=predictions, seed=seed, dupe_factor=1)
    )
    has_text = any(sentence for document in documents for sentence in document)
    assert (len(made) > 0) == has_text
    if has_text:
        lengths = made.input_mask.sum(axis=1)
        assert lengths.min() >= 5 and lengths.max() <= seq_len
        assert ((made.masked_lm_positions > 0).sum(axis=1) >= 1).all()


@pytest.mark.parametrize(
    "changes", [{"seq_len": 4}, {"max_predictions": 0}, {"dupe_factor": 0}, {"masked_lm_prob": 1.5}, {"seed": -1}]
)
def test_impossible_settings_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(changes))):
        config(**changes)
