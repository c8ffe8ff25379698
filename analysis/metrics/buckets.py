"""DistributedDataParallel's buckets, and how much of their all-reduces a backward pass hides. Needs numpy only.

Gradients are reduced in buckets while the backward pass goes on (Li et al. 2020, "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training", VLDB 13(12)). Buckets are filled in the order in which gradients are ready, the
last parameters first, and closed once they hold their cap or more: 1 MiB for the first one, so that communication
begins early, 25 MiB for the others. Where a cap is asked for (bucket_cap_mb), it is that of the first one too
(torch.nn.parallel.distributed, BucketCapacityConfig). They are reduced in that order, one after another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import SchemaError

FloatArray = npt.NDArray[np.float64]

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclass(frozen=True, slots=True)
class Backward:
    """What one backward pass hands over, and when."""

    bucket_bytes: FloatArray
    """Size of each bucket, in the order in which they are reduced."""
    ready_ms: FloatArray
    """When the last gradient of each is there, since the pass began."""
    backward_ms: float
    """The whole pass."""

    def scaled(self, backward_ms: float) -> "Backward":
        """Return the same pass at another speed."""
        factor = backward_ms / self.backward_ms
        return Backward(self.bucket_bytes, self.ready_ms * factor, backward_ms)


def backward_pass(record: Mapping[str, Any], bucket_mib: int | None = None) -> Backward:
    """Return the buckets of a measured pass.

    Args:
        record: what bench.run.backward wrote: bytes and ready_ms of each gradient in the order of the buckets, and
            backward_ms.
        bucket_mib: cap of every bucket in MiB, where one was asked for.

    Raises:
        SchemaError: the record is not of that form.
    """
    try:
        sizes, ready = [int(value) for value in record["bytes"]], [float(value) for value in record["ready_ms"]]
        whole = float(record["backward_ms"])
        if not sizes or min(sizes) < 0 or len(sizes) != len(ready) or not whole > 0 or not np.isfinite(ready).all():
            raise ValueError("sizes and times do not fit each other")
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError(
            "file-damaged", f"the record of the backward pass is damaged: {error}; measure that trial again (--again)"
        ) from error
    first, others = (FIRST_BUCKET_BYTES, BUCKET_BYTES) if bucket_mib is None else (bucket_mib << 20, bucket_mib << 20)
    bounds = bucket_ends(sizes, first, others)
    parts = [slice(begin, end) for begin, end in zip([0, *bounds], bounds, strict=False)]
    return Backward(
        np.array([float(sum(sizes[part])) for part in parts]),
        np.array([max(ready[part]) for part in parts]),
        whole,
    )


def bucket_ends(sizes: Sequence[int], first_bytes: int, bucket_bytes: int) -> list[int]:
    """Return one past the last gradient of each bucket; a gradient is never divided, so buckets may exceed the cap."""
    ends: list[int] = []
    filled = 0
    for place, size in enumerate(sizes, start=1):
        filled += size
        if filled >= (bucket_bytes if ends else first_bytes):
            ends.append(place)
            filled = 0
    if not ends or ends[-1] != len(sizes):
        ends.append(len(sizes))
    return ends


def exposed_ms(ready_ms: FloatArray, reduce_ms: FloatArray, backward_ms: FloatArray | float) -> FloatArray:
    """Return how long after the backward pass the last bucket has been reduced.

    A bucket's all-reduce begins when it is ready and the one before has ended; it does not slow the computation down.

    Args:
        ready_ms: [..., buckets].
        reduce_ms: [..., buckets], of each all-reduce.
        backward_ms: [...], the whole pass.
    """
    ready, durations = np.broadcast_arrays(ready_ms, reduce_ms)
    free = np.zeros(ready.shape[:-1])
    for bucket in range(ready.shape[-1]):
        free = np.maximum(free, ready[..., bucket]) + durations[..., bucket]
    return np.asarray(np.maximum(free - backward_ms, 0.0), dtype=np.float64)
