"""Triton kernels for the operations between GEMMs on a GPU, one pass forward and one backward. Imports no Triton.

Tile sizes and warps depend only on the width of a row. There is no autotuning, so results are reproducible and no
search falls into measured time. The number of rows is a run-time argument: each kernel is compiled once per width and
type, in the first warm-up step, and Triton caches it on disk.

All arithmetic is float32, whatever the types of the tensors. Sums over rows are partial sums, one per program, without
atomic additions, so they are reproducible.

Dropout stores no mask: the backward pass recomputes its random bits from their key. They come from Philox4x32-10
(Salmon et al. 2011), as in PyTorch's dropout on a GPU. One call returns 128 bits: 16 bits for each of 8 elements.
Probabilities are therefore rounded to multiples of 2^-16, as on a CPU. Element c of row r, in rows of width W, uses
bits 16 (c % 8) to 16 (c % 8) + 15 of the call with counter r ceil(W / 8) + c // 8. Attention has bits of its own
(bert.speed.kernels.attention).

Measured on an H100: docs/results/2026-11-26-h100.md. Without a GPU, the tests run every kernel in Triton's interpreter
and compile it for sm_80, sm_90 and sm_100.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bert.speed.native import triton_missing

# Device types that use kernels. Tests add "meta", for which nothing is launched, to count bytes.
DEVICES = {"cuda"}
TYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
_OLDEST = 8  # major compute capability; earlier GPUs have no bf16
_FEWEST_COLUMNS, _MOST_WARPS = 16, 8
LEVELS = 1 << 16


def usable(x: Tensor, *parameters: Tensor) -> bool:
    """Whether kernels support the device and type of `x` and the parameters.

    DeepSpeed's ZeRO stage 3 gathers a sharded parameter only while its own module runs, so kernels cannot read it.
    """
    return (
        x.device.type in DEVICES
        and x.dtype in TYPES
        and not any(hasattr(parameter, "ds_id") for parameter in parameters)
        and triton_missing() is None
        and processor(x.device).major >= _OLDEST
    )


class Processor(NamedTuple):
    """Properties of a device."""

    major: int
    """Major compute capability."""
    multiprocessors: int


@functools.cache
def processor(device: torch.device) -> Processor:
    """Return the properties of a GPU; those of an H100 for any other device."""
    if device.type != "cuda":
        return Processor(9, 132)
    found = torch.cuda.get_device_properties(device)
    return Processor(found.major, found.multi_processor_count)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int, **constants: Any) -> None:
    """Run a kernel on the device of its first argument, a tensor; do nothing for an empty grid or a meta tensor."""
    first: Tensor = arguments[0]
    if 0 in grid or first.is_meta:
        return
    with torch.cuda.device_of(first):
        kernel[grid](*arguments, num_warps=warps, **constants)


def random_key(like: Tensor, key: Tensor | None) -> Tensor:
    """Return a key of a dropout mask, int64 [1], or draw one from the device's generator where there is none."""
    return torch.empty(1, dtype=torch.int64, device=like.device).random_() if key is None else key


def columns_of(width: int) -> int:
    """Return the smallest power of 2 that a row fits in, at least 16."""
    return max(_FEWEST_COLUMNS, 1 << (width - 1).bit_length())


def warps_of(elements: int) -> int:
    """Return the warps for a tile: each thread takes 8 elements, 128 bits in a 16-bit type."""
    return max(1, min(_MOST_WARPS, elements // 256))


def programs(like: Tensor, tiles: int, each: int = 2) -> int:
    """Return how many programs, `each` per multiprocessor, process tiles of rows; each writes a partial sum."""
    return min(tiles, each * processor(like.device).multiprocessors)


def dropped_levels(probability: float, levels: int = LEVELS) -> int:
    """Return how many values of random bits drop an element."""
    return round(probability * levels)


def dropout_constants(probability: float) -> dict[str, int | float]:
    """Return what a kernel has to know of dropout: how many values drop an element, and the factor of the others."""
    dropped = dropped_levels(probability)
    return {"dropped": dropped, "scale": LEVELS / (LEVELS - dropped)}
