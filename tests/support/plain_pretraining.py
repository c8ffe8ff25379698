"""The published instance algorithm in plain Python, one token at a time: what the fast code is held against.

Nothing here is shared with bert.tasks.pretrain, and nothing is done for speed. Written from the description of the
algorithm (Devlin et al. 2018, appendix A.2, and the behaviour of google-research/bert's create_pretraining_data.py).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.plain_tokenizer import PlainTokenizer

Sentence = list[int]
Document = list[Sentence]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How instances are cut and masked."""

    seq_len: int
    max_predictions: int
    cls_id: int
    sep_id: int
    mask_id: int
    vocab_size: int
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    dupe_factor: int = 1
    continuing_ids: frozenset[int] = frozenset()
    """Ids of the pieces that begin with ##; whole-word masking only."""
    whole_word_mask: bool = False


@dataclass(slots=True)
class Instance:
    """One instance."""

    ids: list[int]
    segments: list[int]
    positions: list[int]
    labels: list[int]
    is_random: bool
    first_length: int
    second_length: int


def make_instances(documents: list[Document], settings: Settings, rng: random.Random) -> list[Instance]:
    """Return the shuffled instances of `documents`, none of which is empty."""
    instances: list[Instance] = []
    for _ in range(settings.dupe_factor):
        order = list(range(len(documents)))
        rng.shuffle(order)
        for index in order:
            instances.extend(instances_of(documents, index, settings, rng))
    rng.shuffle(instances)
    return instances


def instances_of(documents: list[Document], index: int, settings: Settings, rng: random.Random) -> list[Instance]:
    """Return the instances of one document, in its order."""
    room = settings.seq_len - 3
    target = room
    if rng.random() < settings.short_seq_prob:
        target = rng.randint(2, room)
    document = documents[index]
    instances = []
    begin = 0
    while begin < len(document):
        end, length = begin, 0
        fewest = 2 if len(documents) == 1 else 1  # segment B of a document alone is its next sentences
        while end < len(document) and (length < target or end - begin < fewest):
            length += len(document[end])
            end += 1
        middle = begin + (rng.randint(1, end - begin - 1) if end - begin > 1 else 1)
        first = [token for sentence in document[begin:middle] for token in sentence]
        second: list[int] = []
        other = index
        if end - begin < fewest:
            begin = end
            continue
        is_random = len(documents) > 1 and (end - begin == 1 or rng.random() < 0.5)
        if is_random:
            for _ in range(10):
                other = rng.randrange(len(documents))
                if other != index:
                    break
            start = rng.randrange(len(documents[other]))
            for number in range(start, len(documents[other])):
                second.extend(documents[other][number])
                if len(second) >= target - len(first):
                    break
            is_random = (other, start) != (index, middle)
            end = middle  # the other sentences come again
        else:
            for sentence in document[middle:end]:
                second.extend(sentence)
        begin = end
        truncate(first, second, room, rng)
        instances.append(assemble(first, second, is_random, settings, rng))
    return instances


def truncate(first: list[int], second: list[int], room: int, rng: random.Random) -> None:
    """Shorten the longer segment token by token."""
    while len(first) + len(second) > room:
        longer = first if len(first) > len(second) else second
        if rng.random() < 0.5:
            del longer[0]
        else:
            del longer[-1]


def assemble(first: list[int], second: list[int], is_random: bool, settings: Settings, rng: random.Random) -> Instance:
    """Return the masked instance of two segments."""
    ids = [settings.cls_id, *first, settings.sep_id, *second, settings.sep_id]
    segments = [0] * (len(first) + 2) + [1] * (len(second) + 1)
    wanted = min(settings.max_predictions, max(1, round(len(ids) * settings.masked_lm_prob)))
    candidates = [*range(1, len(first) + 1), *range(len(first) + 2, len(ids) - 1)]
    words: list[list[int]] = []
    for position in candidates:
        joined = settings.whole_word_mask and ids[position] in settings.continuing_ids
        if joined and words and words[-1][-1] == position - 1:
            words[-1].append(position)
        else:
            words.append([position])
    rng.shuffle(words)
    positions: list[int] = []
    for word in words:
        if len(positions) == wanted:
            break
        if len(positions) + len(word) <= wanted:
            positions.extend(word)
    positions.sort()
    labels = [ids[position] for position in positions]
    for position in positions:
        draw = rng.random()
        if draw < 0.8:
            ids[position] = settings.mask_id
        elif draw >= 0.9:
            ids[position] = rng.randrange(settings.vocab_size)
    return Instance(ids, segments, positions, labels, is_random, len(first), len(second))


def read_documents(paths: list[Path], encode: Callable[[str], list[int]]) -> list[Document]:
    """Read sentence text (a sentence per line, an empty line ends a document), tokenised sentence by sentence."""
    documents: list[Document] = [[]]
    for path in paths:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for line in lines:
                text = line.strip()
                if not text:
                    documents.append([])
                    continue
                ids = encode(text)
                if ids:
                    documents[-1].append(ids)
        documents.append([])
    return [document for document in documents if document]


def pieces_of(vocabulary: Path) -> list[str]:
    """Return the pieces of a vocab.txt in order."""
    return vocabulary.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def columns_of(instances: list[Instance], settings: Settings) -> dict[str, Any]:
    """Return the six arrays of the format."""
    import numpy as np

    count, length, most = len(instances), settings.seq_len, settings.max_predictions
    columns = {
        "input_ids": np.zeros((count, length), np.int32),
        "input_mask": np.zeros((count, length), np.int8),
        "segment_ids": np.zeros((count, length), np.int8),
        "masked_lm_positions": np.zeros((count, most), np.int32),
        "masked_lm_ids": np.zeros((count, most), np.int32),
        "next_sentence_labels": np.zeros(count, np.int8),
    }
    for row, instance in enumerate(instances):
        columns["input_ids"][row, : len(instance.ids)] = instance.ids
        columns["input_mask"][row, : len(instance.ids)] = [1] * len(instance.ids)
        columns["segment_ids"][row, : len(instance.ids)] = instance.segments
        columns["masked_lm_positions"][row, : len(instance.positions)] = instance.positions
        columns["masked_lm_ids"][row, : len(instance.labels)] = instance.labels
        columns["next_sentence_labels"][row] = int(instance.is_random)
    return columns


def write_hdf5(instances: list[Instance], settings: Settings, path: Path) -> None:
    """Write the six datasets of the format, gzip-compressed, at the end."""
    import h5py

    with h5py.File(path, "w") as file:
        for name, values in columns_of(instances, settings).items():
            file.create_dataset(name, data=values, compression="gzip")


def make(
    text: list[Path],
    vocabulary: Path,
    output: Path,
    *,
    seq_len: int = 128,
    max_predictions: int = 20,
    dupe_factor: int = 1,
    seed: int = 12345,
    lower_case: bool = True,
) -> int:
    """Turn sentence text into one HDF5 file; return how many instances it holds.

    The tokenizer is the published one in plain Python.
    """
    pieces = pieces_of(vocabulary)
    encode = PlainTokenizer(pieces, lower_case).encode
    settings = Settings(
        seq_len=seq_len,
        max_predictions=max_predictions,
        cls_id=pieces.index("[CLS]"),
        sep_id=pieces.index("[SEP]"),
        mask_id=pieces.index("[MASK]"),
        vocab_size=len(pieces),
        dupe_factor=dupe_factor,
    )
    instances = make_instances(read_documents(text, encode), settings, random.Random(seed))
    write_hdf5(instances, settings, output)
    return len(instances)
