"""What each rank does in a trial of kind comm: a collective, size by size, timed on the device and checked."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist

from bench.run.comm import COLLECTIVES, sizes_of
from bench.run.stopwatch import stopwatch
from bert.parallel.base import Strategy
from records.files import RowWriter
from records.run import TrialDirectory
from records.schema import COLLECTIVE_COLUMNS
from records.trial import Trial

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_WARMUP, _REPETITIONS, _MOST_ITERATIONS = 3, 5, 100
# Long enough for clocks and wake-ups of processes not to count, short enough for many sizes.
_REPETITION_MS = 20.0
# The largest values that are sent to be added up, and to be copied.
_MOST_ADDED, _MOST_COPIED = 6, 250
# Values after which they repeat: a prime, so that parts in the wrong place differ.
_BLOCK = 65521


def measure_collectives(directory: TrialDirectory, trial: Trial, strategy: Strategy) -> dict[str, Any] | None:
    """Measure every size and placement of the trial; return the record of rank 0, which alone writes the rows.

    Raises StorageError.
    """
    test = dict(trial.collective)
    with nullcontext() if strategy.rank else RowWriter(directory.collectives_csv, COLLECTIVE_COLUMNS) as writer:
        for size in sizes_of(test, strategy.world_size):
            for placement in COLLECTIVES[test["name"]]:
                rows = _measure_size(_Buffers(test["name"], placement, size, trial.precision, strategy))
                if writer is not None:
                    for row in rows:
                        writer.write({"size_bytes": size, "placement": placement, **row})
    return None if strategy.rank else {"backend": dist.get_backend()}


class _Buffers:
    """The tensors of one size and placement on one rank. In place, a rank's part is a view of the whole, as in NCCL."""

    def __init__(self, name: str, placement: str, size: int, precision: str, strategy: Strategy) -> None:
        dtype = _DTYPES[precision]
        self.name, self.strategy = name, strategy
        self.source = self.target = whole = torch.empty(size // dtype.itemsize, dtype=dtype, device=strategy.device)
        if name in ("all_gather", "reduce_scatter"):
            part = whole.chunk(strategy.world_size)[strategy.rank]
            part = torch.empty_like(part) if placement == "out_of_place" else part
            self.source, self.target = (part, whole) if name == "all_gather" else (whole, part)
        self.count = min(self.source.numel(), self.target.numel())

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
        self.source.copy_(self._sent(self.strategy.rank))

    def wrong(self) -> int:
        """Return how many elements of this rank's target are not what the collective must give."""
        ranks, resolution, tolerance = self.strategy.world_size, torch.finfo(self.target.dtype).eps, 0.0
        if self.name == "broadcast":
            expected = self._sent(0).float()
        elif self.name == "all_gather":
            expected = torch.cat([self._sent(rank) for rank in range(ranks)]).float()
        else:
            expected = torch.zeros_like(self.source, dtype=torch.float32)
            for rank in range(ranks):
                expected += self._sent(rank)
            if self.name == "reduce_scatter":
                expected = expected.chunk(ranks)[self.strategy.rank]
            # Sums of small whole numbers are exact, in whatever order; where there are too many ranks for that they
            # are rounded once per addition at most.
            tolerance = 0.0 if _MOST_ADDED * ranks <= 2 / resolution else ranks * resolution
        allowed = tolerance * expected
        return int((~(expected.sub_(self.target).abs_() <= allowed)).sum())  # NaN is wrong too

    def _sent(self, rank: int) -> torch.Tensor:
        """Values of a rank's source: random whole numbers above 0, exact in every dtype, the same on every device."""
        most = _MOST_ADDED if "reduce" in self.name else _MOST_COPIED
        block = torch.randint(1, most + 1, (_BLOCK,), generator=torch.Generator().manual_seed(rank)).to(self.source)
        count = self.source.numel()
        return block.repeat(-(-count // _BLOCK))[:count]


def _measure_size(buffers: _Buffers) -> list[dict[str, Any]]:
    """Warm up, choose the iterations, time the repetitions, check once. Every rank gets the same rows."""
    buffers.clear()  # zeros stay zeros, however often they are added up
    for _ in range(_WARMUP):
        buffers.run()
    iterations = max(1, min(_MOST_ITERATIONS, int(_REPETITION_MS / max(_time_ms(buffers, 2) / 2, 1e-6))))
    times = [_time_ms(buffers, iterations) for _ in range(_REPETITIONS)]
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
