"""A handful of questions whose answers can be learned by heart: dataset, vocabulary, features of both splits."""

import itertools
from pathlib import Path
from typing import Any

from support import squad_columns
from support.squad_columns import paragraph, question
from support.training_runs import settings

from bert.data.vocabulary import SPECIAL_PIECES
from bert.tasks.squad.prepare import SquadConfig, prepare

SEQ_LEN = 48
# Three contexts of two or three sentences, the questions with their answers.
TEXTS = (
    ("Rollo came from Norway. His son William ruled Rouen.",
     ("who came from norway", "Rollo"), ("who ruled rouen", "William")),
    ("The river runs north; the old bridge is red, the new bridge is blue.",
     ("what is red", "old bridge"), ("where does the river run", "north"), ("what is blue", "new bridge")),
    ("Ada wrote notes in 1843, Alan wrote papers in 1936.",
     ("what did ada write", "notes"), ("when did alan write", "1936")),
)  # fmt: skip


def dataset(path: Path, version: str = "1.1", times: int = 1) -> Path:
    """Write the questions as SQuAD's JSON; for 2.0 with one question more per context, which has no answer."""
    paragraphs = []
    more = {"is_impossible": False} if version == "2.0" else {}
    for copy, (number, (text, *asked)) in itertools.product(range(times), enumerate(TEXTS)):
        qas = [
            question(f"{copy}-{number}-{q}", words, (answer, text.index(answer)), **more)
            for q, (words, answer) in enumerate(asked)
        ]
        qas += [question(f"{copy}-{number}-x", "why", is_impossible=True)] if more else []
        paragraphs.append(paragraph(text, *qas))
    return squad_columns.dataset(path, *paragraphs, version=f"v{version}" if more else version)


def features(folder: Path, version: str = "1.1", times: int = 1, **changes: Any) -> dict[str, Path]:
    """Make the features of both splits; return the file of each."""
    folder.mkdir(parents=True, exist_ok=True)
    words = {word.strip(".,;").lower() for text, *asked in TEXTS for part in (text, *(q for q, _ in asked))
             for word in part.split()}  # fmt: skip
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = dict.fromkeys([*SPECIAL_PIECES, *sorted(words), *letters, *(f"##{letter}" for letter in letters), *".,;?"])
    vocab = folder / "vocab.txt"
    vocab.write_text("\n".join(pieces) + "\n")
    inputs = {
        "training": dataset(folder / "train.json", version, times),
        "evaluation": dataset(folder / "dev.json", version),
    }
    options = {"max_seq_length": SEQ_LEN, "doc_stride": 16, "max_query_length": 12, "workers": 1, **changes}
    config = SquadConfig(input=tuple(inputs.values()), vocab=vocab, output=folder / "features", **options)
    made = prepare(config, lambda *_: None)
    return dict(zip(inputs, (summary.features for summary in made), strict=True))


def squad_settings(files: dict[str, Path], **changes: Any) -> Any:
    """Return settings of a tiny model that learns these questions."""
    from bert.tasks.squad.features import open_features

    known = open_features(files["training"], "training").settings
    values = {
        "task": "squad", "seq_len": known.max_seq_length, "vocab_size": known.vocab_size, "optimizer": "adamw",
        "schedule": "linear", "learning_rate": 1e-3, "warmup": 0.1, "eval_data": str(files["evaluation"]), **changes,
    }  # fmt: skip
    return settings(str(files["training"]), **values)
