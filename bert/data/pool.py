"""Text shards to HDF5 shards, in this process or in a pool of processes; the result is the same."""

import multiprocessing
import multiprocessing.process
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert.data.formatted import read_shard_text
from bert.data.instances import InstanceConfig, make_instances
from bert.data.shards import check_shard, read_shard, write_shard
from bert.data.vocabulary import Vocabulary
from common.errors import InputError, UsageError


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One shard to make; can be sent to another process."""

    text: Path
    """Sentences, one per line, a blank line after each document."""
    shard: Path
    """The HDF5 file."""
    stream: tuple[int, int]
    """1 for test, 0 for training; number of the shard."""
    vocabulary: Vocabulary
    """Word pieces."""
    config: InstanceConfig
    """How instances are cut and masked."""
    settings: str
    """Fingerprint of everything the shard's bytes depend on."""

    def is_done(self) -> bool:
        """Whether the shard exists, is whole, and was made with these settings."""
        try:
            return check_shard(self.shard).settings == self.settings
        except InputError:
            return False


@dataclass(frozen=True, slots=True)
class ShardResult:
    """A finished shard."""

    name: str
    """File name."""
    split: str
    """training or test."""
    samples: int
    """Instances."""
    real_tokens: int
    """Tokens that are not padding."""
    kept: bool
    """It was finished before."""


def make_shard(job: ShardJob) -> ShardResult:
    """Make one shard, or keep it when it is done. Raises InputError and StorageError as write_shard."""
    kept = job.is_done()
    if kept:
        instances = read_shard(job.shard)
    else:
        documents = [job.vocabulary.encode(sentences) for sentences in read_shard_text(job.text)]
        instances = make_instances(documents, job.vocabulary, job.config, job.stream)
        write_shard(job.shard, instances, job.settings)
    tokens = int(instances.input_mask.sum(dtype=np.int64))
    return ShardResult(job.shard.name, "test" if job.stream[0] else "training", len(instances), tokens, kept)


def run_jobs(jobs: list[ShardJob], workers: int, progress: Callable[[str, int, int], None]) -> list[ShardResult]:
    """Make all shards, in `workers` processes; results in the order of `jobs`.

    Raises:
        UsageError: a worker process died, most likely for lack of memory; finished shards are kept.
    """
    stage = "making shards"
    progress(stage, 0, len(jobs))
    if workers == 1 or len(jobs) == 1:
        results = []
        for number, job in enumerate(jobs, start=1):
            results.append(make_shard(job))
            progress(stage, number, len(jobs))
        return results
    # Not fork: the tokenizer's threads and a caller's torch do not survive it.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(min(workers, len(jobs)), context, initializer=_begin_worker)
    try:
        futures = [executor.submit(make_shard, job) for job in jobs]
        for number, future in enumerate(as_completed(futures), start=1):
            future.result()
            progress(stage, number, len(jobs))
        executor.shutdown()
        return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise UsageError(
            f"a worker process ended unexpectedly, most likely for lack of memory: use fewer than "
            f"--workers {workers}, or more --shards; finished shards are kept"
        ) from error
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent, end with it even when it is killed, and use one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: "multiprocessing.process.BaseProcess") -> None:
    parent.join()
    os._exit(1)
