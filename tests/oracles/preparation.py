"""Data prepared by the commands, and digests of their values."""

import sqlite3
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
from frozen import digest
from safetensors.numpy import load_file
from support.commands import called

ROWS = {
    "labels": "SELECT code, label, texts FROM labels ORDER BY code",
    "texts": "SELECT number, line, label, split FROM texts ORDER BY number",
    "samples": "SELECT number, text, label, length, token_ids FROM samples ORDER BY number",
    "left_out": "SELECT line FROM left_out ORDER BY line",
}


def prepare(task: str, inputs: tuple[Path, ...], vocabulary: Path, output: Path, *options: object) -> dict[str, str]:
    """Prepare data of a task with one process; return the digest of each shard, table or file of features."""
    called("data", task, "--input", *inputs, "--vocab", vocabulary, "--output", output, *options)
    if task == "csv":
        with closing(sqlite3.connect(output)) as database:
            rows = {name: repr(database.execute(query).fetchall()).encode() for name, query in ROWS.items()}
            return {name: digest({"": np.frombuffer(content, dtype=np.uint8)}) for name, content in rows.items()}
    if task == "pretrain":
        return digests_of_shards(output)
    features = sorted(output.glob("*.safetensors"))
    # Names go on with casing, lengths and hashes.
    return {path.name.partition("-uncased")[0]: digest(load_file(path)) for path in features}


def digests_of_shards(folder: Path) -> dict[str, str]:
    """Return the digest of each HDF5 shard below a folder, by its path there."""
    return {str(path.relative_to(folder)): _shard(path) for path in sorted(folder.rglob("*.hdf5"))}


def _shard(path: Path) -> str:
    with h5py.File(path) as file:
        return digest({name: file[name][()] for name in file})
