"""What each rank does in a trial of kind comm: a collective, size by size, timed on the device and checked."""

import os
import platform
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from bench.run.comm import COLLECTIVES, sizes_of
from bench.run.recorder import RowWriter
from bench.run.stopwatch import stopwatch
from bert.parallel.base import Strategy
from records.files import write_record
from records.kinds import collectives_csv
from records.run import TrialDirectory
from records.schema import COLLECTIVE_COLUMNS
from records.trial import Trial

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Long enough for clocks and wake-ups of processes not to count, short enough for many sizes.
_REPETITION_MS = 20.0
_MOST_ITERATIONS = 100
# Results are checked in parts, so that checking needs little memory beside the tensors.
_CHECKED_AT_ONCE = 1 << 20
_PRIME = 2_654_435_761  # Knuth's multiplicative hash: adjacent numbers get different values


def measure(directory: TrialDirectory, trial: Trial, strategy: Strategy, record: Mapping[str, Any]) -> None:
    """Measure every size and placement of the trial; rank 0, which alone has to reach the folder, writes all records.

    `record` are further fields of a rank's record. Raises StorageError.
    """
    test = dict(trial.collective)
    device = strategy.device
    here = {
        "host": platform.node(),
        "pid": os.getpid(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine() + " CPU",
        "local_rank": strategy.local_rank,
        "backend": dist.get_backend(),
    }
    places: list[Any] = [None] * strategy.world_size
    dist.all_gather_object(places, here)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # PyTorch 2.13 renamed two collectives; their old names are all that 2.11 has.
        warnings.simplefilter("ignore", FutureWarning)
        writer = None
        if strategy.rank == 0:
            for rank, place in enumerate(places):
                write_record(directory.rank_json(rank), {"rank": rank, "place": place, **record})
            writer = stack.enter_context(RowWriter(collectives_csv(directory), list(COLLECTIVE_COLUMNS)))
        for size in sizes_of(test, strategy.world_size):
            for placement in COLLECTIVES[test["name"]]:
                rows = _measure_size(test, _Buffers.make(test["name"], placement, size, trial.precision, strategy))
                if writer is not None:
                    for row in rows:
                        writer.write({"size_bytes": size, "placement": placement, **row})


@dataclass(frozen=True, slots=True)
class _Buffers:
    """The tensors of one size and placement on one rank."""

    name: str
    strategy: Strategy
    source: torch.Tensor
    target: torch.Tensor
    count: int

    @classmethod
    def make(cls, name: str, placement: str, size: int, precision: str, strategy: Strategy) -> "_Buffers":
        """Allocate them. In place, a rank's part is a view of the whole tensor, as NCCL defines it."""
        dtype, ranks, rank = _DTYPES[precision], strategy.world_size, strategy.rank
        whole = torch.empty(size // dtype.itemsize, dtype=dtype, device=strategy.device)
        if name in ("all_reduce", "broadcast"):
            return cls(name, strategy, whole, whole, whole.numel())
        part = whole.chunk(ranks)[rank]
        if placement == "out_of_place":
            part = torch.empty_like(part)
        source, target = (part, whole) if name == "all_gather" else (whole, part)
        return cls(name, strategy, source, target, part.numel())

    def run(self) -> None:
        """Do the collective once; on a GPU the current stream waits for it."""
        if self.name == "all_reduce":
            dist.all_reduce(self.target)
        elif self.name == "broadcast":
            dist.broadcast(self.target, 0)
        elif self.name == "all_gather":
            (getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor)(self.target, self.source)
        else:
            (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(self.target, self.source)

    def clear(self) -> None:
        self.source.zero_()
        self.target.zero_()

    def fill(self) -> None:
        """Give this rank's source its values."""
        self.clear()
        for begin, part in _parts(self.source):
            part.copy_(self._sent(_indices(begin, part), self.strategy.rank))

    def wrong(self) -> int:
        """Return how many elements of this rank's target are not what the collective must give."""
        count = 0
        for begin, part in _parts(self.target):
            expected = self._expected(_indices(begin, part))
            # Sums of small whole numbers are exact, in whatever order; where there are too many ranks for that they
            # are rounded once per addition at most.
            count += int(((part.double() - expected).abs() > self._tolerance() * expected).sum())
        return count

    def _sent(self, index: torch.Tensor, rank: int | torch.Tensor) -> torch.Tensor:
        """Values of a rank's source at these places: small whole numbers, exact in every dtype."""
        mixed = index * _PRIME % (1 << 32) >> 16
        return (mixed % 4 + 1 + rank % 3 if "reduce" in self.name else (mixed + 7 * rank) % 251).double()

    def _expected(self, index: torch.Tensor) -> torch.Tensor:
        ranks = self.strategy.world_size
        if self.name == "broadcast":
            return self._sent(index, 0)
        if self.name == "all_gather":
            return self._sent(index % self.count, index // self.count)
        if self.name == "reduce_scatter":
            index = index + self.strategy.rank * self.count
        return self._sent(index, 0) * ranks + sum(rank % 3 for rank in range(ranks))

    def _tolerance(self) -> float:
        ranks, resolution = self.strategy.world_size, torch.finfo(self.target.dtype).eps
        return 0.0 if 6 * ranks <= 2 / resolution else ranks * resolution


def _parts(tensor: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
    return [(begin, tensor[begin : begin + _CHECKED_AT_ONCE]) for begin in range(0, tensor.numel(), _CHECKED_AT_ONCE)]


def _indices(begin: int, part: torch.Tensor) -> torch.Tensor:
    return torch.arange(begin, begin + part.numel(), device=part.device)


def _measure_size(test: Mapping[str, Any], buffers: _Buffers) -> list[dict[str, Any]]:
    """Warm up, choose the iterations, time the repetitions, check once. Every rank gets the same rows."""
    buffers.clear()  # zeros stay zeros, however often they are added up
    for _ in range(test["warmup"]):
        buffers.run()
    operation_ms = _time_ms(buffers, 2) / 2 if test["iterations"] is None else 0.0
    iterations = test["iterations"] or max(1, min(_MOST_ITERATIONS, int(_REPETITION_MS / max(operation_ms, 1e-6))))
    times = [_time_ms(buffers, iterations) for _ in range(test["repetitions"])]
    buffers.fill()
    buffers.strategy.barrier()
    buffers.run()
    wrong = int(buffers.strategy.total(torch.tensor([buffers.wrong()], dtype=torch.float64))[0])
    same = {"count": buffers.count, "iterations": iterations, "wrong": wrong}
    return [{**same, "repetition": number, "time_us": 1e3 * time / iterations} for number, time in enumerate(times)]


def _time_ms(buffers: _Buffers, iterations: int) -> float:
    """Time of so many operations one after another, on the slowest rank; every rank gets the same number."""
    watch = stopwatch(buffers.strategy.device.type)
    buffers.strategy.barrier()
    watch.synchronize()
    begin = watch.mark()
    for _ in range(iterations):
        buffers.run()
    end = watch.mark()
    watch.synchronize()
    own = torch.tensor([watch.elapsed_ms(begin, end)], dtype=torch.float64)
    return float(buffers.strategy.maximum(own)[0])
