"""Small HDF5 shards of pretraining instances, made without the pipeline."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from bert.data.vocabulary import load_vocabulary
from bert.tasks.pretrain.hdf5 import write_blocks
from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.shards import ShardHeader

Arrays = dict[str, npt.NDArray[Any]]

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(60)), "##ing", "[bold]")
PAD, UNK, CLS, SEP, MASK = range(5)
SEQ_LEN, PREDICTIONS, PROBABILITY = 24, 3, 0.15
TYPES = {
    "input_ids": "i4",
    "input_mask": "i1",
    "segment_ids": "i1",
    "masked_lm_positions": "i4",
    "masked_lm_ids": "i4",
    "next_sentence_labels": "i1",
}


def instances(count: int, seed: int = 0, seq_len: int = SEQ_LEN, predictions: int = PREDICTIONS) -> Arrays:
    """Valid instances of random pieces; half of them are short."""
    rng = np.random.default_rng(seed)
    shapes = dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), (count, predictions))
    shapes |= {"next_sentence_labels": (count,)}
    arrays = {name: np.zeros(shapes.get(name, (count, seq_len)), kind) for name, kind in TYPES.items()}
    for row in range(count):
        length = seq_len if row % 2 else int(rng.integers(5, seq_len + 1))
        first = int(rng.integers(1, length - 3))
        ids = rng.integers(5, len(PIECES), length)
        ids[0], ids[first + 1], ids[-1] = CLS, SEP, SEP
        wanted = min(predictions, max(1, round(PROBABILITY * length)))
        candidates = [place for place in range(1, length - 1) if place != first + 1]
        places = np.sort(rng.permutation(candidates)[:wanted])
        arrays["masked_lm_positions"][row, : len(places)] = places
        arrays["masked_lm_ids"][row, : len(places)] = ids[places]
        draws = rng.random(len(places))
        ids[places[draws < 0.8]] = MASK
        ids[places[draws >= 0.9]] = rng.integers(0, len(PIECES), int((draws >= 0.9).sum()))
        arrays["input_ids"][row, :length] = ids
        arrays["input_mask"][row, :length] = 1
        arrays["segment_ids"][row, first + 2 : length] = 1
        arrays["next_sentence_labels"][row] = rng.random() < 0.5
    return arrays


def write(path: Path, arrays: Mapping[str, Any]) -> Path:
    """Write a shard as it is given, compressed, as everybody's are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, compression="gzip")
    return path


def write_shard(path: Path, instances: Instances) -> None:
    """Write a shard by the product's own writer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = ShardHeader(len(instances), instances.input_ids.shape[1], instances.masked_lm_ids.shape[1])
    write_blocks(path, header, [instances])


def write_folder(
    folder: Path,
    seq_len: int = SEQ_LEN,
    predictions: int = PREDICTIONS,
    seed: int = 0,
    sizes: tuple[int, int, int] = (40, 30, 20),
) -> Path:
    """Write two training shards and a test shard with vocabulary and metadata."""
    names = ("small_training_0.hdf5", "small_training_1.hdf5", "small_test_0.hdf5")
    for number, (name, count) in enumerate(zip(names, sizes, strict=True)):
        write(folder / name, instances(count, 100 * seed + number, seq_len, predictions))
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    known = {
        "schema_version": 1,
        "vocab_size": len(PIECES),
        "vocab": load_vocabulary(vocabulary, True).fingerprint,
        "lower_case": True,
        "instances": {
            "seq_len": seq_len,
            "max_predictions": predictions,
            "masked_lm_prob": PROBABILITY,
            "whole_word_mask": False,
        },
        "shards": names,
    }
    (folder / "metadata.json").write_text(json.dumps(known), encoding="utf-8")
    return folder
