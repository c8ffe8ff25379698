"""Judging a trained classifier: in one process, also in that of a rank of a launched world."""

from pathlib import Path

import numpy as np
import pytest
from support.datasets import colours_and_animals, csv_database, write_csv

from bert.model.config import preset
from bert.predict import Opened
from bert.tasks.classify.task import TEST, ClassifyTask
from bert.tasks.evaluation import row_logits


def test_the_process_of_a_rank_judges_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    csv = write_csv(tmp_path / "things.csv", colours_and_animals(60))
    source = csv_database(csv).source
    rows, _ = ClassifyTask().texts(source, TEST)
    config = preset("tiny").replace(vocab_size=rows.vocab_size, hidden_size=16, num_heads=2, intermediate_size=32)
    model = ClassifyTask(labels=len(source.labels)).build_model(config).eval()
    opened = Opened(model, config, tmp_path)
    alone = row_logits(opened.ready("cpu", "fp32", 4), rows, len(source.labels))
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert np.array_equal(row_logits(opened.ready("cpu", "fp32", 4), rows, len(source.labels)), alone)
    assert len(alone) == len(rows)
