import dataclasses
import errno
import hashlib
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.refusals import refused
from support.shard_files import write_shard

from bert.tasks.pretrain import shards as shard_writer
from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.shards import ShardHeader, check_shard, read_shard, write_blocks
from common.errors import InputError

SEQ_LEN, PREDICTIONS = 12, 3
NAMES = [field.name for field in dataclasses.fields(Instances)]


def instances(samples: int, seed: int = 1) -> Instances:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(6, SEQ_LEN + 1, samples)
    mask = (np.arange(SEQ_LEN) < lengths[:, None]).astype(np.int8)
    columns = np.sort(1 + np.argsort(rng.random((samples, 4)), axis=1)[:, :PREDICTIONS], axis=1)
    used = np.arange(PREDICTIONS) < (np.arange(samples) % (PREDICTIONS + 1))[:, None]
    return Instances(
        input_ids=(rng.integers(5, 90_000, (samples, SEQ_LEN)) * mask).astype(np.int32),
        input_mask=mask,
        segment_ids=(mask * (np.arange(SEQ_LEN) > 3)).astype(np.int8),
        masked_lm_positions=(columns * used).astype(np.int32),
        masked_lm_ids=(rng.integers(1, 900, columns.shape) * used).astype(np.int32),
        next_sentence_labels=rng.integers(0, 2, samples).astype(np.int8),
    )


def same(first: Instances, second: Instances) -> bool:
    return all((getattr(first, name) == getattr(second, name)).all() for name in NAMES)


def blocks_of(made: Instances, size: int) -> Iterator[Instances]:
    for begin in range(0, len(made), size):
        yield Instances(*(getattr(made, name)[begin : begin + size] for name in NAMES))


def header(samples: int, **changes: Any) -> ShardHeader:
    return ShardHeader(samples=samples, seq_len=SEQ_LEN, max_predictions=PREDICTIONS, **changes)


@pytest.mark.parametrize("samples", [1, 7, 1024, 1025, 5000])
def test_what_is_written_in_blocks_is_read_again(tmp_path: Path, samples: int) -> None:
    made = instances(samples)
    path = tmp_path / "a.hdf5"
    write_blocks(path, header(samples, settings="s"), blocks_of(made, 2048))
    assert same(read_shard(path), made)
    with h5py.File(path) as file:
        found = {
            name: (file[name].dtype.str, file[name].shape, file[name].compression, file[name].compression_opts)
            for name in file
        }
        packing = {(file[name].shuffle, file[name].chunks) for name in ("input_ids", "input_mask")}
    kind = ("gzip", 1)
    assert found == {
        "input_ids": ("<i4", (samples, 12), *kind),
        "input_mask": ("|i1", (samples, 12), *kind),
        "segment_ids": ("|i1", (samples, 12), *kind),
        "masked_lm_positions": ("<i4", (samples, 3), *kind),
        "masked_lm_ids": ("<i4", (samples, 3), *kind),
        "next_sentence_labels": ("|i1", (samples,), *kind),
    }
    assert packing == {(True, (min(samples, 1024), 12))}
    info = check_shard(path)
    assert (info.samples, info.seq_len, info.max_predictions, info.settings) == (samples, 12, 3, "s")
    assert [item.name for item in tmp_path.iterdir()] == ["a.hdf5"]


def test_the_same_instances_give_the_same_bytes_at_any_time_and_in_any_blocks(tmp_path: Path) -> None:
    made, digests = instances(3000), set()
    for size in (1024, 2048, 4096):
        write_blocks(tmp_path / "a.hdf5", header(3000, settings="x"), blocks_of(made, size))
        digests.add(hashlib.sha256((tmp_path / "a.hdf5").read_bytes()).hexdigest())
    time.sleep(1.0)  # times in a file have a resolution of a second
    write_shard(tmp_path / "b.hdf5", made, "x")
    digests.add(hashlib.sha256((tmp_path / "b.hdf5").read_bytes()).hexdigest())
    assert len(digests) == 1


def test_without_zlib_ng_the_bytes_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zlib_ng")
    made = instances(1500)
    for path, hidden in ((tmp_path / "fast.hdf5", False), (tmp_path / "slow.hdf5", True)):
        shard_writer._compressobj.cache_clear()
        with monkeypatch.context() as patch:
            if hidden:
                patch.setitem(sys.modules, "zlib_ng", None)
            write_shard(path, made)
        assert (shard_writer._compressobj() is zlib.compressobj) == hidden
    shard_writer._compressobj.cache_clear()
    assert same(read_shard(tmp_path / "fast.hdf5"), made)
    assert (tmp_path / "fast.hdf5").read_bytes() == (tmp_path / "slow.hdf5").read_bytes()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 2000)), max_size=60))
def test_zlib_ng_compresses_to_the_bytes_of_zlib(parts: list[tuple[bytes, int]]) -> None:
    zlib_ng = pytest.importorskip("zlib_ng.zlib_ng")
    data = b"".join(part * count for part, count in parts)
    found = [of.compressobj(1, strategy=zlib.Z_RLE) for of in (zlib, zlib_ng)]
    one, other = (compressor.compress(data) + compressor.flush() for compressor in found)
    assert one == other


@pytest.mark.parametrize("types", [("i8", "i8"), ("i4", "i1"), (">i4", "i1")])
@pytest.mark.parametrize("options", [{"compression": "gzip"}, {"compression": "gzip", "shuffle": True}, {}])
def test_shards_from_elsewhere_are_read(tmp_path: Path, types: tuple[str, str], options: dict[str, Any]) -> None:
    made = instances(300)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in NAMES:
            values = getattr(made, name)
            file.create_dataset(name, data=values.astype(types[values.dtype.itemsize == 1]), **options)
    info = check_shard(tmp_path / "a.hdf5")
    assert same(read_shard(tmp_path / "a.hdf5"), made) and info.settings is None


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with refused("disk-full", tmp_path / "a.hdf5"):
        write_shard(tmp_path / "a.hdf5", instances(5))


def test_an_error_in_the_rows_leaves_no_file(tmp_path: Path) -> None:
    def blocks() -> Iterator[Instances]:
        yield instances(1024)
        raise InputError("file-truncated", "the rows end here")

    with refused("file-truncated", "the rows end here"):
        write_blocks(tmp_path / "a.hdf5", header(2048), blocks())
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_shard_is_named(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "a.hdf5"
    write_shard(path, instances(50))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    for reader in (check_shard, read_shard):
        with refused("file-truncated" if keep else "file-damaged", path):
            reader(path)
