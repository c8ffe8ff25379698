"""A small task on whole rows, for tests of what such tasks have in common: made-up rows."""

import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.rows import Labels, Ragged, TokenRows
from bert.data.synthetic import is_synthetic, lengths_folder
from bert.tasks.base import FINE_TUNING, DataSource, TaskOption
from bert.tasks.classification import EVALUATION, ClassificationTask

NAME = "rows"
VOCAB = 300
CLS, SEP = 101, 102
FIRST_ID = 200


def made_rows(
    count: int,
    labels: int = 3,
    max_seq_length: int = 24,
    seed: int = 0,
    regression: bool = False,
    columns: Mapping[str, Any] | None = None,
) -> TokenRows:
    """Rows that can be learned: the first word of a row says its label; row i has the number i in column 2."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, max(labels, 2), count)
    rows, second = [], []
    for number in range(count):
        length = int(rng.integers(5, max_seq_length + 1))
        ids = rng.integers(FIRST_ID + 50, VOCAB, length)
        ids[0], ids[1], ids[2], ids[-1] = CLS, FIRST_ID + classes[number], FIRST_ID + 50 + number % 50, SEP
        rows.append(ids)
        second.append(int(rng.integers(3, length + 1)))
    values = (classes / 2).astype(np.float32) if regression else classes.astype(np.int64)
    content = np.concatenate(rows).tobytes() + values.tobytes() if rows else b""
    return TokenRows(
        ids=Ragged.of(rows),
        second=np.array(second, dtype=np.int64),
        labels=values,
        columns=columns or {},
        fingerprint=hashlib.blake2b(content, digest_size=8).hexdigest(),
        vocab_size=VOCAB,
        vocabulary="words",
        pad_id=0,
        max_seq_length=max_seq_length,
    )


def write_rows(folder: Path, training: TokenRows, evaluation: TokenRows) -> Path:
    """Write both splits into a folder that RowTask reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "training.pickle").write_bytes(pickle.dumps(training))
    (folder / "evaluation.pickle").write_bytes(pickle.dumps(evaluation))
    return folder


class RowTask(ClassificationTask):
    """Accuracy of made-up rows in folders."""

    name = NAME
    seq_len = 24
    options = (
        TaskOption(name="labels", kind=int, from_data=True),
        TaskOption(name="head", kind=str, default="concat", choices=("concat", "mul")),
        TaskOption(name="sample_limit", kind=int),
        TaskOption(name="train_on_all", kind=bool, default=False),
    )
    scores = ("accuracy", "log_loss")
    deciding_score = "accuracy"
    higher_is_better = True
    defaults = MappingProxyType({**FINE_TUNING, "seq_len": 24, "preset": "tiny", "epochs": 1.0})

    def rows(self, source: Path, split: str) -> TokenRows:
        found: TokenRows = pickle.loads((source / f"{split}.pickle").read_bytes())
        limit = self.values.get("sample_limit") if split != EVALUATION else None
        count = min(limit or len(found), len(found))
        offsets = found.ids.offsets[: count + 1]
        ids = Ragged(found.ids.values[: offsets[-1]], offsets)
        columns = {"second": found.second[:count], "labels": found.labels[:count]}
        return replace(found, ids=ids, **columns, fingerprint=f"{found.fingerprint}-{count}")

    @property
    def labels(self) -> int:
        return int(self.values["labels"])

    def resolve(self, source: DataSource) -> Mapping[str, Any]:
        modelled = lengths_folder(source.source)
        if modelled is None and is_synthetic(source.source):
            return {"labels": 2, **self.values}
        found = self.rows(modelled or Path(source.source), "training")
        return {**self.values, "labels": int(found.labels.max()) + 1}

    def prepare_command(self, seq_len: int) -> str:
        return f"bertbench data rows --max-seq-length {seq_len}"

    def score(self, logits: npt.NDArray[np.float32], labels: Labels) -> Mapping[str, float]:
        from bert.tasks.evaluation import mean_log_loss

        return {"accuracy": float((logits.argmax(1) == labels).mean()), "log_loss": mean_log_loss(logits, labels)}
