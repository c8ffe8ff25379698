"""Batches divided by work: the same samples in each global batch or pool, as many for every rank, of equal tokens."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.pretraining_shards import instances, write
from support.row_task import made_rows

from bert.data.batch import Batch
from bert.data.batches import DataSpec, RowBatches, divide, work_of
from bert.data.rows import Int64
from bert.model.config import PRESETS
from bert.tasks.pretrain.batches import Hdf5Batches, SyntheticBatches

SEQ_LEN = 24
LARGE, TINY = PRESETS["large"], PRESETS["tiny"].token_work


@settings(max_examples=examples(200), deadline=None)
@given(ranks=st.integers(1, 9), size=st.integers(1, 9), seed=st.integers(0, 999), shape=st.integers(0, 3))
def test_every_rank_gets_as_many_samples_and_none_more_work_than_in_runs(ranks, size, seed, shape):
    rng = np.random.default_rng(seed)
    highest = (2, 30, 513, 10**6)[shape]
    work = rng.integers(1, highest, ranks * size)
    own = divide(work, ranks)
    assert own.shape == (ranks, size) and sorted(own.ravel().tolist()) == list(range(ranks * size))
    assert (np.diff(own, axis=1) > 0).all(), "in the order of the data"
    loads, runs = work[own].sum(axis=1), work.reshape(ranks, size).sum(axis=1)
    assert loads.max() <= runs.max()
    if loads.max() < runs.max():  # what a turn adds to the difference of two ranks is at most what it can make up for
        assert loads.max() - loads.min() <= work.max() - work.min()


def test_a_known_batch_is_divided_as_by_hand() -> None:
    # 9 and 8; the 5s, the first to the rank with 8; the 2 to the rank with 13 and the 1 to that with 14.
    assert divide(np.array([9, 8, 5, 5, 2, 1]), 2).tolist() == [[0, 3, 5], [1, 2, 4]]
    assert divide(np.array([4, 4, 4, 4]), 2).tolist() == [[0, 1], [2, 3]], "runs, where nothing is gained"


def test_work_is_that_of_the_formula_of_model_flops() -> None:
    from bert.data.batch import BatchCounts
    from bert.model.step import Step

    step, lengths = Step(config=LARGE, head=()), np.array([1, 128, 512])
    for length, work in zip(lengths.tolist(), work_of(lengths, LARGE.token_work).tolist(), strict=True):
        counts = BatchCounts(1, length, length, 0, length * length)
        linear = sum(3 * gemm.times * gemm.model_flops(counts) for gemm in step.layers) / LARGE.num_layers
        attention = step.attention_flops(length * length)
        assert work * 12 * LARGE.hidden_size == linear + 3 * attention


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("balanced")
    for number, count in enumerate((11, 3, 23)):
        write(place / f"d_training_{number}.hdf5", instances(count, number, SEQ_LEN))
    return place


@pytest.fixture(params=["rows", "shards"])
def make(request: pytest.FixtureRequest, folder: Path) -> Callable[..., Any]:
    """Make the batches of a rank: (balanced, rank, world_size, micro_batch_size, pool)."""

    def stream(balanced: bool, rank: int = 0, world_size: int = 1, micro_batch_size: int = 4, pool: int = 1) -> Any:
        spec = DataSpec(
            data=str(folder), seq_len=SEQ_LEN, micro_batch_size=micro_batch_size, rank=rank, world_size=world_size,
            token_work=TINY * balanced, pool=pool,
        )  # fmt: skip
        if request.param == "rows":
            return RowBatches(spec, made_rows(37, seed=3))
        return Hdf5Batches(spec)

    return stream


def samples(batch: Batch) -> list[tuple[int, ...]]:
    """What is in each row, without its padding."""
    ids, mask = batch.tensors["input_ids"].numpy(), batch.tensors["attention_mask"].numpy() != 0
    return [tuple(row[real].tolist()) for row, real in zip(ids, mask, strict=True)]


def all_of(batches: Iterable[Batch]) -> list[tuple[int, ...]]:
    return sorted(itertools.chain(*map(samples, batches)))


def global_batches(streams: list[Any], count: int) -> Iterator[list[Batch]]:
    return itertools.islice(zip(*streams, strict=True), count)  # type: ignore[return-value]


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_global_batch_holds_the_same_samples_and_its_slowest_rank_has_no_more_work(
    make: Callable[..., Any], world_size: int
) -> None:
    plain = [make(False, rank, world_size) for rank in range(world_size)]
    divided = [make(True, rank, world_size) for rank in range(world_size)]
    moved, before, after = 0, 0, 0
    for runs, own in zip(global_batches(plain, 25), global_batches(divided, 25), strict=True):
        assert all_of(own) == all_of(runs)
        assert [len(samples(batch)) for batch in own] == [4] * world_size
        for batch in own:
            lengths = np.array([len(sample) for sample in samples(batch)])
            assert batch.counts.real_tokens == lengths.sum() and batch.counts.squared_lengths == (lengths**2).sum()
        slowest = [
            max(int(work_of(np.array([len(sample) for sample in samples(batch)]), TINY).sum()) for batch in batches)
            for batches in (runs, own)
        ]
        assert slowest[1] <= slowest[0]
        before, after = before + slowest[0], after + slowest[1]
        moved += any(samples(a) != samples(b) for a, b in zip(runs, own, strict=True))
    assert moved > 10 and after < before


def test_a_run_continues_with_another_number_of_ranks_without_losing_or_repeating_a_sample(
    make: Callable[..., Any],
) -> None:
    before = [make(True, rank, 2, 4) for rank in range(2)]
    seen = [sample for batches in global_batches(before, 2) for batch in batches for sample in samples(batch)]
    after = [make(True, rank, 3, 1) for rank in range(3)]
    for each in after:
        each.load_state_dict(before[0].state_dict())
    seen += [sample for batches in global_batches(after, 7) for batch in batches for sample in samples(batch)]
    # 16 + 21 samples: an epoch of 37.
    everything = [sample for batch in itertools.islice(make(True, 0, 1, 37), 1) for sample in samples(batch)]
    assert sorted(seen) == sorted(everything)


POOL = 5


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_pool_holds_the_samples_of_its_global_batches_and_goes_on_from_any_of_them(
    make: Callable[..., Any], world_size: int
) -> None:
    plain, pooled = (
        [make(True, rank, world_size, pool=pool) for rank in range(world_size)] for pool in (1, POOL)
    )  # fmt: skip
    before, after = [], []
    for pool in range(4):  # over the end of an epoch
        runs = list(itertools.chain(*global_batches(plain, POOL)))
        own = list(itertools.chain(*global_batches(pooled, POOL)))
        assert all_of(own) == all_of(runs) and {batch.counts.samples for batch in own} == {4}
        before.append(np.std([batch.counts.real_tokens for batch in runs]))
        after.append(np.std([batch.counts.real_tokens for batch in own]))
        for turn in range(POOL):
            again = make(True, 0, world_size, pool=POOL)
            again.load_state_dict({**plain[0].state_dict(), "samples": (pool * POOL + turn) * world_size * 4})
            rest = [samples(batch) for batch in itertools.islice(again, POOL - turn)]
            assert rest == [samples(batch) for batch in own[turn * world_size :: world_size]]
    assert sum(after) < 0.5 * sum(before)


@pytest.mark.parametrize(("size", "waste"), [(64, 0.01), (128, 0.005)])
def test_totals_of_a_large_model_vary_less_and_little_is_lost_if_they_are_rounded_up(size: int, waste: float) -> None:
    def totals(pool: int) -> Int64:
        spec = DataSpec(
            data="synthetic:mean254", seq_len=512, micro_batch_size=size, token_work=LARGE.token_work, pool=pool
        )
        return np.array([batch.counts.real_tokens for batch in itertools.islice(SyntheticBatches(spec), 128)])

    runs, pooled = totals(1), totals(8)
    assert runs.sum() == pooled.sum(), "128 batches are whole epochs"
    assert pooled.std() < 0.4 * runs.std() and pooled.reshape(-1, 8).std(axis=1).max() < 32
    rounded = -(-pooled // 256) * 256
    print(f"batch {size}: sd {runs.std():.0f} -> {pooled.std():.0f}, waste {rounded.sum() / pooled.sum() - 1:.2%}")
    assert rounded.sum() < (1 + waste) * pooled.sum() and len(set(rounded)) <= 12


def test_a_pool_reads_no_shard_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert.tasks.pretrain.batches._KEPT_BYTES", 0)  # the shard in use and the next
    for number, count in enumerate((70, 65, 90, 75)):
        write(tmp_path / f"d_training_{number}.hdf5", instances(count, number, SEQ_LEN))
    read = []
    for pool in (1, POOL):
        spec = DataSpec(data=str(tmp_path), seq_len=SEQ_LEN, micro_batch_size=4, token_work=TINY, pool=pool)
        batches = Hdf5Batches(spec)
        assert len(list(itertools.islice(batches, 750))) == 750
        read.append(batches.reading.samples)
    assert read[0] == read[1] < 2600
