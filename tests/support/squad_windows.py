"""Windows of made-up questions, in memory and in files, for tests of what is made of features."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from bert.data.features import prepare_features
from bert.data.finished import Counts
from bert.data.rows import Ragged
from bert.data.vocabulary import Vocabulary
from bert.tasks.squad.features import Settings, SquadFeatures

VOCAB = 1000
PAD, CLS, SEP = 0, 101, 102
FIRST_ID = 200


def ragged(rows: list[list[int]], dtype: type) -> Ragged:
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.int64)
    return Ragged(np.array([value for row in rows for value in row], dtype=dtype), offsets)


def squad_windows(
    count: int, max_seq_length: int = 64, seed: int = 0, split: str = "training", version: str = "1.1"
) -> SquadFeatures:
    """One question, context and window each; window i holds the word piece 200 + i as its first document token."""
    rng = np.random.default_rng(seed)
    queries = [rng.integers(FIRST_ID, VOCAB, rng.integers(1, 8)).tolist() for _ in range(count)]
    documents = [
        rng.integers(FIRST_ID, VOCAB, rng.integers(2, max_seq_length - 3 - len(query) + 1)).tolist()
        for query in queries
    ]
    for number, document in enumerate(documents):
        document[0] = FIRST_ID + number
    windows = [[CLS, *query, SEP, *document, SEP] for query, document in zip(queries, documents, strict=True)]
    numbers = np.arange(count, dtype=np.int32)
    upto = np.arange(count + 1, dtype=np.int64)
    impossible = (numbers % 5 == 0) & (version == "2.0")
    answered = (numbers % 3 > 0) & ~impossible & (split == "training")
    first = np.array([len(query) + 2 for query in queries])
    starts = np.where(answered, first, 0).astype(np.int32)
    ends = np.where(answered, first + 1, 0).astype(np.int32)
    texts = ragged([list(b"ab")] * count, np.uint8)
    return SquadFeatures(
        settings=Settings(
            split=split,
            version=version,
            lower_case=True,
            vocabulary="vocabulary",
            vocab_size=VOCAB,
            pad_id=PAD,
            max_seq_length=max_seq_length,
            doc_stride=128,
            max_query_length=64,
        ),
        fingerprint=f"windows-{count}-{max_seq_length}-{seed}-{split}-{version}",
        contexts=texts,
        tokens=ragged(documents, np.uint16),
        token_words=ragged([list(range(len(document))) for document in documents], np.int32).values,
        question_ids=ragged([list(f"q{number}".encode()) for number in range(count)], np.uint8),
        question_context=numbers,
        answers=texts,
        question_answers=upto,
        question_windows=upto,
        window_question=numbers,
        window_first=numbers * 0,
        window_tokens=np.array([len(document) for document in documents], dtype=np.int32),
        input_ids=ragged(windows, np.uint16),
        max_context=ragged([[1] * len(document) for document in documents], np.uint8),
        start_positions=starts,
        end_positions=ends,
    )


def write_windows(folder: Path, features: SquadFeatures) -> Path:
    """Write features into a folder, under the name that such a file has."""
    columns: dict[str, Any] = {}
    for field in dataclasses.fields(features)[2:]:
        value = getattr(features, field.name)
        if isinstance(value, Ragged):
            columns |= {f"{field.name}.values": value.values, f"{field.name}.offsets": value.offsets}
        else:
            columns[field.name] = value
    vocab = folder / "vocab.txt"
    folder.mkdir(parents=True, exist_ok=True)
    vocab.write_text("[PAD]\n")
    source = Path("dev.json")
    words = Vocabulary(("[PAD]",), True)
    made = prepare_features(
        folder, features.settings, source, features.fingerprint, vocab, words, lambda: (columns, Counts())
    )
    return made.features
