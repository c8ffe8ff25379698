"""`data check`: what shards and features hold; what training would refuse."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from support import pretraining_shards as shards
from support.commands import document, result
from support.datasets import gap_features
from support.refusals import refused

FIRST = "small_training_0.hdf5"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shards.write_folder(tmp_path / "small")


def test_header_and_counts_are_those_of_the_arrays(folder: Path) -> None:
    found = document("data", "check", folder)
    assert (found["seq_len"], found["max_predictions"]) == (shards.SEQ_LEN, shards.PREDICTIONS)
    assert found["vocab_size"] == len(shards.PIECES) and found["datasets"]["input_ids"] == "int32 [40, 24] gzip"
    training, test = found["splits"]
    parts = [shards.instances(40, 0), shards.instances(30, 1)]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in shards.TYPES}
    assert training == {
        "split": "training",
        "shards": 2,
        "instances": 70,
        "real_tokens": arrays["input_mask"].sum(),
        "masked_tokens": (arrays["masked_lm_positions"] > 0).sum(),
        "random_pairs": arrays["next_sentence_labels"].sum(),
    }
    assert (test["split"], test["shards"], test["instances"]) == ("test", 1, 20)


def test_ten_rows_are_decoded_with_what_is_hidden_and_their_label(folder: Path) -> None:
    rows = document("data", "check", folder)["rows"]
    assert [row["row"] for row in rows] == [0, 7, 14, 21, 28, 35, 2, 9, 16, 23]
    assert [row["shard"] for row in rows] == [FIRST] * 6 + ["small_training_1.hdf5"] * 4
    arrays, row = shards.instances(40, 0), 7
    expected = [shards.PIECES[number] for number in arrays["input_ids"][row, : arrays["input_mask"][row].sum()]]
    for place, label in zip(arrays["masked_lm_positions"][row], arrays["masked_lm_ids"][row], strict=True):
        if place:
            expected[place] = f"[{expected[place]}:{shards.PIECES[label]}]"
    assert rows[1]["tokens"] == expected and rows[1]["is_random"] == bool(arrays["next_sentence_labels"][row])


def test_what_training_refuses_is_refused(folder: Path, tmp_path: Path) -> None:
    with refused("path-missing", tmp_path / "none"):
        result("data", "check", tmp_path / "none")
    with h5py.File(folder / FIRST, "r+") as file:
        file["input_mask"][33, 0] = 0
    with refused("rows-invalid", folder / FIRST):
        result("data", "check", folder)
    with h5py.File(folder / FIRST, "r+") as file:
        del file["segment_ids"]
    with refused("columns-missing", folder / FIRST, "segment_ids"):
        result("data", "check", folder)


def test_features_show_their_header_and_counts(tmp_path: Path) -> None:
    path = gap_features(tmp_path, validation=3)
    (path,) = path.glob("gap-validation*.safetensors")
    for given, count in ((path, 1), (path.parent, 2)):
        found = document("data", "check", given)["features"]
        assert len(found) == count and found[-1]["kind"] == "gap-validation"
        assert found[-1]["settings"]["split"] == "validation" and found[-1]["counts"]["features"] == 3
        assert found[-1]["columns"]["labels"] == "int64 [3]"
    path.write_bytes(path.read_bytes()[:-1])
    with refused("file-damaged", path):
        result("data", "check", path)
