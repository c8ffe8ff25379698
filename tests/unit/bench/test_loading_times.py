"""Times of loading are recorded of real shards and of synthetic batches, and cost the trial nothing else."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.cli import ROOT

from bench.machine import devices
from bench.run.loading import loading_record
from bench.run.processes import TRIAL_FOLDER, clear_stale
from bert.data.synthetic import PRETRAINING, SyntheticBatches
from bert.tasks.base import DataSpec
from bert.tasks.pretrain.batches import Hdf5Batches, HeldBatches, from_batch, to_batch
from bert.tasks.pretrain.config import InstanceConfig
from bert.tasks.pretrain.instances import Instances, unmasked
from bert.tasks.pretrain.masking import Pieces, mask
from bert.tasks.pretrain.shards import COLUMNS, ShardHeader, write_blocks, write_shard
from bert.train.feed import Feed

SEQ_LEN, ROUNDS = 32, 6
SPEC: dict[str, Any] = {"seq_len": SEQ_LEN, "micro_batch_size": 4, "max_predictions": 5, "vocab_size": 1000}


def spec(data: object = "synthetic", **changes: Any) -> DataSpec:
    return DataSpec(**{"data": str(data), **SPEC, **changes})


def made(samples: int) -> Instances:
    """Samples of the synthetic stream, sorted by length."""
    stream = SyntheticBatches(spec("synthetic:uniform", micro_batch_size=samples))
    found = from_batch(next(iter(stream)), SPEC["max_predictions"])
    order = np.argsort(found.input_mask.sum(axis=1), kind="stable")
    return Instances(**{name: getattr(found, name)[order] for name in COLUMNS})


def equal(one: Instances, other: Instances) -> bool:
    return all((getattr(one, name) == getattr(other, name)).all() for name in COLUMNS)


def test_batches_and_instances_turn_into_each_other() -> None:
    stream = iter(SyntheticBatches(spec("synthetic:uniform")))
    for batch in itertools.islice(stream, 20):
        again = to_batch([(from_batch(batch, SPEC["max_predictions"]), np.arange(4))])
        assert again.counts == batch.counts and again.tensors.keys() == batch.tensors.keys()
        for name, tensor in batch.tensors.items():
            assert torch.equal(again.tensors[name], tensor), name


def test_unmasked_is_what_was_masked() -> None:
    rng = np.random.default_rng(1)
    ids, lengths, first_lengths = unmasked(made(200))
    assert not (ids == 103).any() and (ids[:, 0] == 101).all()
    rows = np.arange(len(ids))
    assert (ids[rows, first_lengths + 1] == 102).all() and (ids[rows, lengths - 1] == 102).all()
    before, config = ids.copy(), InstanceConfig(seq_len=SEQ_LEN, max_predictions=5)
    found = mask(ids, lengths, first_lengths, config, Pieces(1000, 101, 102, 103, np.zeros(1000, np.bool_)), rng)
    column = np.arange(SEQ_LEN)
    real = (column < lengths[:, None]).astype(np.int8)
    second = ((column > first_lengths[:, None] + 1) & (real == 1)).astype(np.int8)
    masked = Instances(ids, real, second, found.positions, found.labels, np.zeros(len(ids), np.int8))
    assert (ids != before).any()
    for one, other in zip(unmasked(masked), (before, lengths, first_lengths), strict=True):
        assert (one == other).all()


def check(record: dict[str, Any], source: str, storage: str) -> None:
    assert (record.get("problem"), record["source"], record["storage"]) == (None, source, storage)
    for name in ("read_us", "batch_us", "masking_us"):
        assert 1 <= len(record[name]) <= ROUNDS and min(record[name]) > 0, name


@pytest.mark.parametrize("level", [1, 0])
@pytest.mark.parametrize("bins", [(), (16, 32)])
@pytest.mark.parametrize("world", [{}, {"world_size": 3, "rank": 0, "balanced": True, "preset": "tiny"}])
def test_real_shards_are_timed_in_all_their_forms(
    tmp_path: Path, level: int, bins: tuple[int, ...], world: dict[str, Any]
) -> None:
    rows = made(700)
    counts = tuple(np.bincount((rows.input_mask.sum(axis=1) - 1) // 16, minlength=2).tolist()) if bins else ()
    header = ShardHeader(
        samples=700, seq_len=SEQ_LEN, max_predictions=5, gzip_level=level, bin_lengths=bins, bin_counts=counts
    )
    write_blocks(tmp_path / "d_training_0.hdf5", header, [rows])
    own = spec(tmp_path, **world)
    feed = Feed(Hdf5Batches(own), False)
    before = [next(feed).tensors["input_ids"] for _ in range(3)]
    threads = torch.get_num_threads()
    check(loading_record(feed, own, 2.0, 1), "shards", "compressed" if level else "plain")
    assert torch.get_num_threads() == threads
    # Nothing of the training's own stream was taken.
    after = [next(feed).tensors["input_ids"] for _ in range(3)]
    expected = [batch.tensors["input_ids"] for batch in itertools.islice(Hdf5Batches(own), 6)]
    feed.close()
    assert all(torch.equal(one, other) for one, other in zip([*before, *after], expected, strict=True))


@pytest.mark.parametrize("data", ["synthetic", "binned"])
def test_synthetic_batches_are_timed_as_a_shard_and_their_adaptation_counts(tmp_path: Path, data: str) -> None:
    if data == "binned":
        rows = made(600)
        counts = tuple(np.bincount((rows.input_mask.sum(axis=1) - 1) // 16, minlength=2).tolist())
        header = ShardHeader(samples=600, seq_len=SEQ_LEN, max_predictions=5, bin_lengths=(16, 32), bin_counts=counts)
        write_blocks(tmp_path / "d_training_0.hdf5", header, [rows])
        data = f"synthetic:{tmp_path}"
    own = spec(data)
    record = loading_record(Feed(SyntheticBatches(own, content=PRETRAINING), False), own, 2.5, 3)
    check(record, "synthetic", "compressed")
    assert (record["readers"], record["cores_per_rank"], record["local_ranks"]) == (1, 2.5, 3)

    def slow(batch: Any) -> Any:
        until = time.thread_time_ns() + 400_000
        while time.thread_time_ns() < until:
            pass
        return batch

    slowed = loading_record(Feed(SyntheticBatches(own, content=PRETRAINING), False, slow), own, 2.5, 3)
    assert np.median(slowed["batch_us"]) > 100, "400 µs for each batch of 4"


def test_the_time_is_that_of_the_same_work_by_hand(tmp_path: Path) -> None:
    rows = made(1500)
    write_shard(tmp_path / "d_training_0.hdf5", rows)
    own = spec(tmp_path, micro_batch_size=64)
    record = loading_record(Feed(Hdf5Batches(own), False), own, 1.0, 1)
    held = HeldBatches(own, [rows])
    assert equal(held.rows(3), from_batch(held.batch(3), 5)), "it draws the rows that its batches are made of"
    times = []
    for _ in range(5):
        began = time.thread_time()
        for number in range(40):
            held.batch(number)
        times.append((time.thread_time() - began) / 40 / 64 * 1e6)
    # The hand-over between two threads comes on top.
    assert 0.5 * np.median(times) < np.median(record["batch_us"]) < 20 * np.median(times)


def test_a_failure_is_a_reason_and_not_an_error(tmp_path: Path) -> None:
    path = tmp_path / "d_training_0.hdf5"
    write_shard(path, made(50))
    own = spec(tmp_path)
    feed = Feed(Hdf5Batches(own), False)
    path.unlink()
    record = loading_record(feed, own, 4.0, 2)
    assert "path" not in record and str(path) in record["problem"]
    assert (record["readers"], record["cores_per_rank"], record["local_ranks"]) == (1, 4.0, 2)


@pytest.mark.parametrize(
    ("groups", "quota", "local_ranks", "bound", "expected"),
    [
        (32, None, 8, False, 4.0),
        (4, None, 8, True, 4.0),  # of each of 8 ranks
        (4, 16, 8, True, 2.0),  # the quota is of all of them
        (3, None, 2, False, 1.5),
        (64, 6, 4, False, 1.5),
        (1, None, 2, False, 0.5),
    ],
)
def test_the_cores_of_a_rank_follow_affinity_quota_and_binding(
    monkeypatch: pytest.MonkeyPatch, groups: int, quota: int | None, local_ranks: int, bound: bool, expected: float
) -> None:
    monkeypatch.setattr(devices, "core_groups", lambda: [[number] for number in range(groups)])
    monkeypatch.setattr(devices, "_cgroup_cores", lambda: quota)
    assert devices.cores_per_rank(local_ranks, bound) == expected


KILLED = """
import os, signal, sys
from bench.run.loading import TRIAL_FOLDER, own_folder
with own_folder(TRIAL_FOLDER) as folder:
    (folder / "shard").write_bytes(bytes(1000))
    os.kill(os.getpid(), int(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_rank_leaves_is_removed_by_the_harness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    argv = [sys.executable, "-c", KILLED, str(int(number))]
    done = subprocess.run(argv, cwd=ROOT, env=os.environ | {"TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -number and len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    clear_stale(TRIAL_FOLDER)
    assert list(tmp_path.iterdir()) == []
