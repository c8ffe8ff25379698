"""Documents of word pieces in, pretraining instances out (Devlin et al. 2018, appendix A.2; google-research/bert).

The algorithm is that of `create_pretraining_data.py`. Where every draw of another document hits the document itself (a
shard of one document), the pair is labelled by what it is: 0 if the second segment really continues the first, else 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bert.data.vocabulary import Vocabulary
from common.errors import UsageError

Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]
Tokens = Sequence[int]
TokenDocument = Sequence[Tokens]

SMALLEST_SEQ_LEN = 5
"""[CLS] a [SEP] b [SEP]."""
DRAWS_OF_A_DOCUMENT = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceConfig:
    """How instances are cut and masked."""

    seq_len: int
    """Tokens per instance, [CLS], two [SEP] and padding included."""
    max_predictions: int
    """Masked positions per instance at most."""
    masked_lm_prob: float = 0.15
    """Share of the tokens that is masked."""
    short_seq_prob: float = 0.1
    """Share of chunks whose target length is drawn from 2 .. seq_len - 3."""
    dupe_factor: int = 5
    """Times the corpus is gone through, each time with other cuts and masks."""
    whole_word_mask: bool = False
    """Mask all pieces of a word or none."""
    seed: int = 12345
    """Seed of every draw."""

    def __post_init__(self) -> None:
        """Refuse values no instance can be made with."""
        if self.seq_len < SMALLEST_SEQ_LEN:
            raise UsageError(f"seq_len={self.seq_len} is too short: [CLS] a [SEP] b [SEP] needs {SMALLEST_SEQ_LEN}")
        if self.max_predictions < 1:
            raise UsageError(f"max_predictions={self.max_predictions} must be at least 1")
        if self.dupe_factor < 1:
            raise UsageError(f"dupe_factor={self.dupe_factor} must be at least 1")
        if self.seed < 0:
            raise UsageError(f"seed={self.seed} must not be negative")
        for name in ("masked_lm_prob", "short_seq_prob"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UsageError(f"{name}={getattr(self, name)} must be in [0, 1]")


@dataclass(frozen=True, slots=True)
class Instances:
    """N instances of L tokens with at most P masked positions, padded with 0; the layout of the HDF5 shards."""

    input_ids: Int32
    """[N, L] ids after masking."""
    input_mask: Int8
    """[N, L] 1 = real token."""
    segment_ids: Int8
    """[N, L] 1 = second segment with its [SEP]."""
    masked_lm_positions: Int32
    """[N, P] columns of the masked tokens, ascending; 0 ends the list."""
    masked_lm_ids: Int32
    """[N, P] ids before masking."""
    next_sentence_labels: Int8
    """[N] 1 = the second segment is random."""

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two segments before masking."""

    first: list[int]
    """Pieces of segment A."""
    second: list[int]
    """Pieces of segment B."""
    is_random: bool
    """B does not continue A."""


def make_instances(
    documents: Sequence[TokenDocument], vocabulary: Vocabulary, config: InstanceConfig, stream: Sequence[int] = ()
) -> Instances:
    """Return the shuffled instances of one shard.

    Args:
        documents: per document its sentences, per sentence its ids; empty ones are left out.
        vocabulary: gives the special ids and the range of random ids.
        config: how to cut and mask.
        stream: numbers that tell this shard from others (split, shard index). Draws depend on the seed, these numbers
            and the number of the duplicate only, never on the process that makes the shard.
    """
    kept = [sentences for document in documents if (sentences := [sentence for sentence in document if sentence])]
    masker = _Masker(vocabulary, config)
    rows: list[_Row] = []
    for duplicate in range(config.dupe_factor):
        rng = np.random.default_rng([config.seed, *stream, duplicate])
        for index in rng.permutation(len(kept)):
            for pair in pairs_of(kept, int(index), config, rng):
                rows.append(masker.row(pair, rng))
    order = np.random.default_rng([config.seed, *stream, config.dupe_factor]).permutation(len(rows))
    return _stack([rows[index] for index in order], config)


def pairs_of(
    documents: Sequence[TokenDocument], index: int, config: InstanceConfig, rng: np.random.Generator
) -> Iterator[Pair]:
    """Yield the segment pairs of document `index`, truncated to seq_len - 3 pieces (steps 1 to 4)."""
    most = config.seq_len - 3
    target = _target(config, rng)
    document = documents[index]
    begin = end = length = 0
    while end < len(document):
        length += len(document[end])
        end += 1
        if end < len(document) and length < target:
            continue
        count = end - begin
        split = begin + (int(rng.integers(1, count)) if count > 1 else 1)
        first = _join(document[begin:split])
        is_random = True
        if count == 1 or rng.random() < 0.5:
            other, start = _draw_other(documents, index, rng)
            second: list[int] = []
            for sentence in documents[other][start:]:
                second.extend(sentence)
                if len(second) >= target - len(first):
                    break
            is_random = (other, start) != (index, split)
            end = split  # the sentences that segment B displaced come again
        else:
            second = _join(document[split:end])
            is_random = False
        _truncate(first, second, most, rng)
        yield Pair(first, second, is_random)
        begin, length = end, 0
        target = _target(config, rng)


def _target(config: InstanceConfig, rng: np.random.Generator) -> int:
    most = config.seq_len - 3
    return int(rng.integers(2, most + 1)) if rng.random() < config.short_seq_prob else most


def _draw_other(documents: Sequence[TokenDocument], index: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return document and sentence where a random segment starts."""
    other = index
    for _ in range(DRAWS_OF_A_DOCUMENT):
        other = int(rng.integers(len(documents)))
        if other != index:
            break
    return other, int(rng.integers(len(documents[other])))


def _join(sentences: TokenDocument) -> list[int]:
    return [piece for sentence in sentences for piece in sentence]


def _truncate(first: list[int], second: list[int], most: int, rng: np.random.Generator) -> None:
    """Drop pieces of the longer segment (the second on ties), from its front or its back with equal chance."""
    excess = len(first) + len(second) - most
    if excess <= 0:
        return
    # [first kept, one past the last kept] of each segment: deleting at the front of a list one by one is slow.
    bounds = [[0, len(first)], [0, len(second)]]
    for from_front in rng.random(excess) < 0.5:
        bound = max(bounds[1], bounds[0], key=lambda pair: pair[1] - pair[0])
        if from_front:
            bound[0] += 1
        else:
            bound[1] -= 1
    first[:] = first[slice(*bounds[0])]
    second[:] = second[slice(*bounds[1])]


@dataclass(frozen=True, slots=True)
class _Row:
    ids: Int32
    first_length: int
    positions: npt.NDArray[np.int64]
    labels: Int32
    is_random: bool


class _Masker:
    """Step 5: which tokens are predicted, and what stands in their place."""

    def __init__(self, vocabulary: Vocabulary, config: InstanceConfig) -> None:
        self.config = config
        self.cls_id, self.sep_id, self.mask_id = vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id
        self.vocab_size = len(vocabulary.pieces)
        self.continues = np.array([piece.startswith("##") for piece in vocabulary.pieces])

    def row(self, pair: Pair, rng: np.random.Generator) -> _Row:
        ids = np.array([self.cls_id, *pair.first, self.sep_id, *pair.second, self.sep_id], dtype=np.int32)
        config = self.config
        wanted = min(config.max_predictions, max(1, round(config.masked_lm_prob * len(ids))))
        middle = len(pair.first) + 1
        candidates = np.concatenate([np.arange(1, middle), np.arange(middle + 1, len(ids) - 1)])
        if config.whole_word_mask:
            positions = self._whole_words(ids, candidates, wanted, rng)
        else:
            positions = np.sort(rng.permutation(candidates)[:wanted])
        labels = ids[positions]
        draws = rng.random(len(positions))
        ids[positions[draws < 0.8]] = self.mask_id
        replaced = positions[draws >= 0.9]
        ids[replaced] = rng.integers(0, self.vocab_size, len(replaced))
        return _Row(ids, len(pair.first), positions, labels, pair.is_random)

    def _whole_words(
        self, ids: Int32, candidates: npt.NDArray[np.int64], wanted: int, rng: np.random.Generator
    ) -> npt.NDArray[np.int64]:
        """Take words in random order; one that would overshoot `wanted` is skipped."""
        # A word begins at a piece without "##", and after a special token whatever piece follows (a truncated word).
        begins = ~self.continues[ids[candidates]]
        begins[0] = True
        begins[1:] |= np.diff(candidates) > 1
        words = np.split(candidates, np.flatnonzero(begins)[1:])
        chosen: list[npt.NDArray[np.int64]] = []
        count = 0
        for index in rng.permutation(len(words)):
            if count >= wanted:
                break
            if count + len(words[index]) <= wanted:
                chosen.append(words[index])
                count += len(words[index])
        return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, dtype=np.int64)


def _stack(rows: list[_Row], config: InstanceConfig) -> Instances:
    shape, masked = (len(rows), config.seq_len), (len(rows), config.max_predictions)
    instances = Instances(
        input_ids=np.zeros(shape, np.int32),
        input_mask=np.zeros(shape, np.int8),
        segment_ids=np.zeros(shape, np.int8),
        masked_lm_positions=np.zeros(masked, np.int32),
        masked_lm_ids=np.zeros(masked, np.int32),
        next_sentence_labels=np.array([row.is_random for row in rows], dtype=np.int8),
    )
    for index, row in enumerate(rows):
        length, count = len(row.ids), len(row.positions)
        instances.input_ids[index, :length] = row.ids
        instances.input_mask[index, :length] = 1
        instances.segment_ids[index, row.first_length + 2 : length] = 1
        instances.masked_lm_positions[index, :count] = row.positions
        instances.masked_lm_ids[index, :count] = row.labels
    return instances
