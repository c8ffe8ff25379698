"""CPU time of one core that loads pretraining batches: from HDF5 shards, and with masking on the fly besides.

Measured once per trial, by rank 0, after its last step: never while steps are measured. analysis.metrics.loading turns
the times into cores per device.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from bench.run.processes import TRIAL_FOLDER, own_folder
from bert.tasks.base import DataSpec
from bert.tasks.pretrain.batches import Hdf5Batches, HeldBatches, ahead, from_batch, largest_id
from bert.tasks.pretrain.config import InstanceConfig
from bert.tasks.pretrain.folder import ShardFolder, folder_info
from bert.tasks.pretrain.instances import Instances, unmasked
from bert.tasks.pretrain.masking import Pieces, mask
from bert.tasks.pretrain.shards import check_values, cut, map_shard, opened, read_rows, read_shard, write_shard
from bert.train.feed import Feed

# Rounds, after one that is left out: the fewest whose smallest and largest value enclose the median with 95 %.
_ROUNDS = 6
# A round that takes longer than this is the only one: a shard may be one chunk, which is decompressed as a whole.
_LONG_ROUND_SECONDS = 0.1
_READ_TOKENS = 2**18
"""Tokens that a round reads: few enough to be quick; more of them take as long each."""
_HELD_SAMPLES = 2048
"""Samples that batches are drawn from at least; from more of them a batch takes up to a third longer."""
_BATCH_SAMPLES = 256
"""Samples that a round makes batches of, in whole batches."""
_SAID = 300


Work = Callable[[int], tuple[int, int]]
"""Does its part of the round of this number, and returns the samples and the CPU time in ns that it took."""


def loading_record(feed: Feed, spec: DataSpec, cores: float, local_ranks: int) -> dict[str, Any]:
    """Return how long one core takes to load a sample.

    Args:
        feed: the batches of the training, which has ended; its stream is of Hdf5Batches or synthetic.
        spec: of the stream.
        cores: physical cores that this rank may use.
        local_ranks: ranks on this node.

    Returns:
        source (shards, or synthetic: of the stream, written to a temporary shard), storage (compressed or plain),
        read_us, batch_us and masking_us (lists over rounds, CPU time in µs per sample: of reading and checking a sample
        of a shard; of making it part of a batch and handing that over; of masking it in a batch), readers (ranks that
        each read every shard), cores_per_rank, local_ranks. Where the measurement fails: problem, and the last three.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one core is measured
    try:
        with _folder_of(feed.stream, spec) as (info, source):
            found = {"source": source, **_times(info, feed, spec)}
    except Exception as error:  # what was measured before stands
        found = {"problem": f"{type(error).__name__}: {error}"[:_SAID]}
    finally:
        torch.set_num_threads(threads)
    about = {"readers": spec.world_size, "cores_per_rank": cores, "local_ranks": local_ranks}
    return {**found, **about}


@contextmanager
def _folder_of(stream: Any, spec: DataSpec) -> Iterator[tuple[ShardFolder, str]]:
    """The shards of a stream; of a synthetic one its first samples as a shard of their own."""
    if isinstance(stream, Hdf5Batches):
        yield stream.info, "shards"
        return
    wanted = max(_HELD_SAMPLES, 2 * spec.micro_batch_size)
    batches = itertools.islice(iter(stream), -(-wanted // spec.micro_batch_size))
    parts = [from_batch(batch, spec.max_predictions) for batch in batches]
    longest = max(part.input_ids.shape[1] for part in parts)
    with own_folder(TRIAL_FOLDER) as folder:
        write_shard(folder / "synthetic_training_0.hdf5", _joined([_padded(part, longest) for part in parts]))
        yield folder_info(folder), "synthetic"


def _padded(part: Instances, columns: int) -> Instances:
    """Instances with so many columns: batches of a binned folder differ in them."""
    more = [(0, 0), (0, columns - part.input_ids.shape[1])]
    wide = {name: np.pad(getattr(part, name), more) for name in ("input_ids", "input_mask", "segment_ids")}
    return replace(part, **wide)


def _joined(parts: Sequence[Instances]) -> Instances:
    return Instances(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Instances)})


def _times(info: ShardFolder, feed: Feed, spec: DataSpec) -> dict[str, Any]:
    """Rounds of all parts in turn, so that a machine that changes its speed changes it for all."""
    storage = "plain" if info.mappable[0] else "compressed"
    with contextlib.ExitStack() as stack:
        batch, masking = _making(info, feed, spec, stack)
        parts = {"read_us": _reading(info, stack), "batch_us": batch, "masking_us": masking}
        times: dict[str, list[float]] = {name: [] for name in parts}
        for number in range(1 + _ROUNDS):
            began = time.perf_counter()
            for name, work in parts.items():
                samples, took_ns = work(number)
                times[name].append(took_ns / 1000 / samples)
            if number and time.perf_counter() - began > _LONG_ROUND_SECONDS:
                break
    # The first round fills caches.
    return {"storage": storage, **{name: values[1:] for name, values in times.items()}}


def _reading(info: ShardFolder, stack: contextlib.ExitStack) -> Work:
    """Read and check some rows of the first shard, other ones in each round, in whole chunks where there are any."""
    path, samples = info.paths[0], sum(info.counts[0])
    rows = max(1, _READ_TOKENS // info.seq_len)
    if info.mappable[0]:
        mapped = map_shard(path)

        def read(part: slice) -> Instances:
            piece = cut(mapped, None, part)
            check_values(path, piece)
            return piece

    else:
        file = stack.enter_context(opened(path))
        chunk = int((file["input_ids"].chunks or (1,))[0])
        rows = -(-rows // chunk) * chunk

        def read(part: slice) -> Instances:
            return read_rows(path, file, part)

    places = max(1, samples // rows)

    def work(number: int) -> tuple[int, int]:
        first = number % places * rows
        began = time.thread_time_ns()
        piece = read(slice(first, min(samples, first + rows)))
        largest_id(piece)
        return len(piece), time.thread_time_ns() - began

    return work


def _making(info: ShardFolder, feed: Feed, spec: DataSpec, stack: contextlib.ExitStack) -> tuple[Work, Work]:
    """Make batches of samples in memory as training takes them, from a second thread; mask the samples of batches."""
    ranks = spec.world_size if spec.balanced else 1  # balanced ranks look at the lengths of the whole global batch
    own = replace(spec, world_size=ranks, rank=spec.rank if spec.balanced else 0)
    held = HeldBatches(own, _held(info, max(_HELD_SAMPLES, 2 * ranks * spec.micro_batch_size)))
    maker = stack.enter_context(ThreadPoolExecutor(max_workers=1))
    drawn = ahead(maker, held.batch, 0)
    count = max(1, _BATCH_SAMPLES // spec.micro_batch_size)
    rows = [unmasked(held.rows(number)) for number in range(count)]
    config = InstanceConfig(seq_len=info.seq_len, max_predictions=info.max_predictions)
    # Whole tokens are masked: which pieces continue a word does not matter, and hardly which ids the special ones have.
    pieces = Pieces(spec.vocab_size, 0, 0, min(103, spec.vocab_size - 1), np.zeros(spec.vocab_size, dtype=np.bool_))
    rng = np.random.default_rng(abs(spec.seed))

    def batch(number: int) -> tuple[int, int]:
        made_ns = maker.submit(time.thread_time_ns).result()  # once it has made what it is ahead
        began = time.thread_time_ns()
        samples = sum(feed.finish(next(drawn)).counts.samples for _ in range(count))
        own_ns = time.thread_time_ns() - began
        return samples, own_ns + maker.submit(time.thread_time_ns).result() - made_ns

    def masking(number: int) -> tuple[int, int]:
        began = time.thread_time_ns()
        for ids, lengths, first_lengths in rows:
            mask(ids.copy(), lengths, first_lengths, config, pieces, rng)
        return sum(len(ids) for ids, _, _ in rows), time.thread_time_ns() - began

    return batch, masking


def _held(info: ShardFolder, wanted: int) -> list[Instances]:
    """The first samples of each bin of the first shard, in proportion; so many in all, if there are."""
    samples, pieces, first = sum(info.counts[0]), [], 0
    for which, count in enumerate(info.counts[0]):
        if count:
            kept = min(count, -(-wanted * count // samples))
            pieces.append(read_shard(info.paths[0], slice(first, first + kept), info.columns(which)))
        first += count
    return pieces
