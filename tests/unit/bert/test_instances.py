import itertools
from dataclasses import fields

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from bert.data.vocabulary import Vocabulary
from bert.tasks.pretrain.instances import Instances, Plan, TokenShard, plan_instances
from bert.tasks.pretrain.masking import InstanceConfig, pieces_of

# Special pieces away from their usual places.
PIECES = ("w0", "[MASK]", "[SEP]", "[UNK]", "[CLS]", "[PAD]", *(f"{'##' * (i % 3 == 0)}w{i}" for i in range(6, 5000)))
KNOWN = pieces_of(Vocabulary(PIECES, True))
CLS, SEP, MASK = 4, 2, 1
TokenDocuments = list[list[list[int]]]


def shard_of(documents: TokenDocuments) -> TokenShard:
    kept = [[sentence for sentence in document if sentence] for document in documents]
    kept = [document for document in kept if document]
    sentences = [sentence for document in kept for sentence in document]
    return TokenShard(
        np.array([token for sentence in sentences for token in sentence], np.uint16),
        np.cumsum([len(sentence) for sentence in sentences], dtype=np.int64),
        np.cumsum([len(document) for document in kept], dtype=np.int64),
    )


def corpus(documents: int, sentences: int) -> TokenDocuments:
    rng = np.random.default_rng(0)
    return [[rng.integers(100, 5000, rng.integers(3, 30)).tolist() for _ in range(sentences)] for _ in range(documents)]


def config(**changes: object) -> InstanceConfig:
    return InstanceConfig(**{"seq_len": 64, "max_predictions": 10, "dupe_factor": 2, **changes})  # type: ignore[arg-type]


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
