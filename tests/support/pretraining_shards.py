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
    arrays = {
        name: np.zeros((count, *({"L": (seq_len,), "P": (predictions,), "": ()}[_width(name)])), kind)
        for name, kind in TYPES.items()
    }
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


def _width(name: str) -> str:
    return "" if name == "next_sentence_labels" else "P" if name.startswith("masked") else "L"


def write(path: Path, arrays: Mapping[str, Any], attributes: Mapping[str, Any] | None = None, **storage: Any) -> Path:
    """Write a shard as it is given; by default compressed, as everybody's are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, **(storage or {"compression": "gzip"}))
        file.attrs.update(attributes or {})
    return path


def write_shard(path: Path, instances: Instances) -> None:
    """Write a shard by the product's own writer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = ShardHeader(len(instances), instances.input_ids.shape[1], instances.masked_lm_ids.shape[1])
    write_blocks(path, header, [instances])


def write_folder(folder: Path, seed: int = 0, settings: str = "one") -> Path:
    """Write two training shards and a test shard with vocabulary and metadata."""
    sizes = {"small_training_0.hdf5": 40, "small_training_1.hdf5": 30, "small_test_0.hdf5": 20}
    for number, (name, count) in enumerate(sizes.items()):
        write(folder / name, instances(count, 100 * seed + number), {"bertbench_settings": settings})
    write_beside(folder, sizes, settings=settings)
    return folder


def write_beside(folder: Path, sizes: Mapping[str, int], **changes: Any) -> None:
    """Write vocabulary and metadata for shards of these sizes."""
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    known = {
        "schema_version": 1,
        "vocab_size": len(PIECES),
        "vocab": load_vocabulary(vocabulary, True).fingerprint,
        "lower_case": True,
        "instances": {
            "seq_len": SEQ_LEN,
            "max_predictions": PREDICTIONS,
            "masked_lm_prob": PROBABILITY,
            "whole_word_mask": False,
        },
        "shards": list(sizes),
    }
    (folder / "metadata.json").write_text(json.dumps({**known, **changes}), encoding="utf-8")


def length_of(arrays: dict[str, Any], row: int) -> int:
    return int(arrays["input_mask"][row].sum())


def overwrite(path: Path) -> None:
    """Overwrite bytes of the first chunk of ids."""
    with h5py.File(path) as file:
        chunk = file["input_ids"].id.get_chunk_info(0)
    with path.open("r+b") as plain:
        plain.seek(chunk.byte_offset + 20)
        plain.write(b"\x55" * (chunk.size // 2))
