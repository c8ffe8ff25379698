"""Windows of random questions, in memory and in files, for tests of what is made of features."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from support.squad_cases import asked, features_of

from bert.data.features import prepare_features
from bert.data.finished import Counts
from bert.data.rows import Ragged
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary
from bert.tasks.squad.features import SquadFeatures
from bert.tasks.squad.reading import Paragraph

VOCAB, FIRST_ID = 1000, len(SPECIAL_PIECES)
VOCABULARY = Vocabulary((*SPECIAL_PIECES, *(f"w{number}" for number in range(VOCAB - FIRST_ID))), lower_case=True)


def squad_windows(count: int, max_seq_length: int = 64, seed: int = 0) -> SquadFeatures:
    """One question, context and window each; window i has the word piece FIRST_ID + i as its first document token."""
    rng = np.random.default_rng(seed)

    def words(most: int) -> str:
        return " ".join(f"w{number}" for number in rng.integers(0, VOCAB - FIRST_ID, rng.integers(1, most)))

    contexts = []
    for number in range(count):
        question = words(8)
        context = f"w{number} {words(max_seq_length - 3 - question.count('w'))}"
        contexts.append(Paragraph(context, [asked(f"q{number}", question, f"w{number}")]))
    lengths = {"max_seq_length": max_seq_length, "doc_stride": 128, "max_query_length": 64}
    return features_of(contexts, VOCABULARY, split="training", **lengths)


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
    vocab.write_text("\n".join(VOCABULARY.pieces) + "\n")
    about = (folder, features.settings, Path("dev.json"), features.fingerprint, vocab, VOCABULARY)
    return prepare_features(*about, lambda: (columns, Counts())).features
