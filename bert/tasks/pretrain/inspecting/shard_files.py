"""HDF5 shards as files: found in a folder, opened, read in blocks of rows. Imports no torch."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.tasks.pretrain.naming import PREPARATION_NAME, SHARD_NAME
from bert.tasks.pretrain.shards import opened
from common.errors import InputError, read_code

SUFFIXES = (".hdf5", ".h5")
_BLOCK_VALUES = 2**20
"""Values of the widest dataset in one block: a few MiB, which stays in the processor's cache."""
_MOST_BLOCKS_PER_CHUNK = 16
"""A block grows to a whole chunk up to this many times its size; a still larger chunk is decompressed repeatedly."""

Block = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """One folder that holds shards."""

    folder: Path
    shards: tuple[Path, ...]
    """Its shards, training before test, in the order of dataset and number."""
    others: tuple[Path, ...]
    """HDF5 files with names of another form: no loader reads them."""

    def of_split(self, split: str) -> tuple[Path, ...]:
        """Return the shards of one split."""
        return tuple(path for path in self.shards if split_of(path) == split)


def split_of(path: Path) -> str:
    """Return "training" or "test"."""
    match = SHARD_NAME.fullmatch(path.name)
    assert match is not None, path
    return match["split"]


def hdf5_files(folder: Path) -> list[Path]:
    """Return all HDF5 files at any depth below `folder`, by relative name.

    Raises:
        InputError: there is no such folder.
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(
            "path-kind" if folder.exists() else "path-missing", f"{folder} {what}: give a folder of HDF5 shards"
        )
    found = (path for path in folder.rglob("*.h*5") if path.suffix in SUFFIXES and path.is_file())
    return sorted((path for path in found if not path.name.startswith(".")), key=lambda path: path.as_posix())


def shard_groups(folder: Path, seq_len: int | None = None) -> list[ShardGroup]:
    """Return every folder at or below `folder` that holds shards `<dataset>_{training|test}_<number>.hdf5`.

    Args:
        folder: the shards' own folder, or one above one or several preparations.
        seq_len: only those of this length, by the preparation's name or else its first shard's header.

    Raises:
        InputError: no such folder, no shard in it, or none of that length; the message says what there is.
    """
    files: dict[Path, list[Path]] = {}
    for path in hdf5_files(folder):
        files.setdefault(path.parent, []).append(path)
    groups = []
    for parent, paths in sorted(files.items()):
        shards = sorted((path for path in paths if SHARD_NAME.fullmatch(path.name)), key=_order)
        if shards:
            others = tuple(path for path in paths if not SHARD_NAME.fullmatch(path.name))
            groups.append(ShardGroup(parent, tuple(shards), others))
    if not groups:
        raise InputError(
            "data-missing",
            f"{folder} holds no HDF5 shard named <dataset>_training_<number>.hdf5 or <dataset>_test_<number>.hdf5: "
            "make some with `bertbench data pretrain`, or give the folder that holds them",
        )
    if seq_len is None:
        return groups
    lengths = {group.folder: _seq_len(group) for group in groups}
    fitting = [group for group in groups if lengths[group.folder] == seq_len]
    if not fitting:
        listed = "".join(f"\n  {path} ({length or 'unknown'})" for path, length in lengths.items())
        raise InputError("data-mismatch", f"{folder} holds no preparation of {seq_len} tokens; there is:{listed}")
    return fitting


def _order(path: Path) -> tuple[bool, str, int]:
    match = SHARD_NAME.fullmatch(path.name)
    assert match is not None
    return match["split"] == "test", match["dataset"], int(match["number"])


def _seq_len(group: ShardGroup) -> int | None:
    for parent in (group.folder, *group.folder.parents):
        if match := PREPARATION_NAME.fullmatch(parent.name):
            return int(match["seq_len"])
    for path in group.shards:
        try:
            with opened(path) as file:
                return int(file["input_ids"].shape[1])
        except (InputError, KeyError, IndexError, AttributeError):
            continue
    return None


def read_blocks(file: Any, names: Sequence[str]) -> Iterator[tuple[int, Block]]:
    """Yield (first row, rows of each dataset), block by block: memory does not depend on the number of rows.

    Blocks end where HDF5's chunks end, so that no chunk is decompressed twice.

    Args:
        file: an open HDF5 file.
        names: datasets of at least one axis and equal length.
    """
    datasets = {name: file[name] for name in names}
    count = min(len(dataset) for dataset in datasets.values())
    widest = max(int(np.prod(dataset.shape[1:])) for dataset in datasets.values())
    rows = max(1, _BLOCK_VALUES // max(1, widest))
    chunk = max((dataset.chunks[0] for dataset in datasets.values() if dataset.chunks), default=1)
    if chunk <= _MOST_BLOCKS_PER_CHUNK * rows:
        rows = max(1, rows // chunk) * chunk
    for begin in range(0, count, rows):
        yield begin, {name: dataset[begin : begin + rows] for name, dataset in datasets.items()}


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object, None where there is no such file.

    Raises:
        InputError: the file is no JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        code = read_code(error) if isinstance(error, OSError) else "file-damaged"
        raise InputError(
            code, f"{path} cannot be read ({error}): make it again with `bertbench data pretrain`"
        ) from error
    if not isinstance(found, dict):
        raise InputError("file-format", f"{path} is no JSON object: make it again with `bertbench data pretrain`")
    return found
