"""HDF5 files that announce more than they hold, or whose data lie in other files, are refused before any is read."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.refusals import refused

from bert.tasks.pretrain.shards import COLUMNS, check_shard, map_shard, read_shard

WIDTHS = {"L": 16, "P": 4}
BYTES_OF_A_ROW = sum(np.dtype(dtype).itemsize * WIDTHS.get(row, 1) for dtype, row in COLUMNS.values())


def write(path: Path, rows: int, make: Callable[[h5py.File, str, tuple[int, ...], str], Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, (dtype, row) in COLUMNS.items():
            make(file, name, (rows, WIDTHS[row]) if row else (rows,), dtype)
    return path


def empty_chunks(file: h5py.File, name: str, shape: tuple[int, ...], dtype: str) -> None:
    chunks = (min(shape[0], 1 << 10), *shape[1:])
    file.create_dataset(name, shape, dtype, chunks=chunks, compression="gzip", fillvalue=1)


@pytest.mark.parametrize("rows", [10**6, 10**12])
def test_a_shard_of_few_bytes_and_endless_rows_is_refused_without_memory(rows: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", rows, empty_chunks)
    assert path.stat().st_size < 10_000
    tracemalloc.start()
    try:
        for read in (check_shard, read_shard, map_shard):
            with refused("file-damaged", path, f"{path.stat().st_size:,} bytes", f"{rows * BYTES_OF_A_ROW:,} bytes"):
                read(path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def _linked(file: h5py.File, name: str, shape: tuple[int, ...], dtype: str) -> None:
    file[name] = h5py.ExternalLink(str(Path(file.filename).with_name("other.hdf5")), f"/{name}")


def _external(file: h5py.File, name: str, shape: tuple[int, ...], dtype: str) -> None:
    file.create_dataset(name, shape, dtype, external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])


def _virtual(file: h5py.File, name: str, shape: tuple[int, ...], dtype: str) -> None:
    layout = h5py.VirtualLayout(shape, dtype)
    layout[:] = h5py.VirtualSource("other.hdf5", name, shape)
    file.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("make", [_linked, _external, _virtual])
def test_data_in_another_file_of_this_machine_are_not_read(make: Any, tmp_path: Path) -> None:
    write(tmp_path / "other.hdf5", 4, lambda file, *about: file.create_dataset(*about))
    check_shard(tmp_path / "other.hdf5")
    path = write(tmp_path / "a.hdf5", 4, make)
    for read in (check_shard, read_shard):
        with refused("file-unsafe", path, "input_ids"):
            read(path)


def test_the_best_compressed_shard_is_read(tmp_path: Path) -> None:
    def constant(file: h5py.File, name: str, shape: tuple[int, ...], dtype: str) -> None:
        data = np.ones(shape, dtype)
        file.create_dataset(name, data=data, chunks=shape, compression="gzip", compression_opts=9, shuffle=True)

    path = write(tmp_path / "a.hdf5", 400_000, constant)
    assert len(read_shard(path)) == 400_000


def test_bins_without_end_are_damaged(tmp_path: Path) -> None:
    path = write(tmp_path / "a.hdf5", 4, lambda file, *about: file.create_dataset(*about))
    with h5py.File(path, "a") as file:
        file.attrs["bertbench_bin_lengths"], file.attrs["bertbench_bin_counts"] = [np.inf], [4]
    with refused("file-damaged", path, "bins", "infinity"):
        check_shard(path)
