"""Kernels of our own for a GPU, in Triton: what lies between the GEMMs, one pass each way. This file imports no Triton.

Tile sizes and warps follow from a row's width alone: nothing is tried out, so a run computes what the run before it
did, and no search falls into measured time. Numbers of rows are arguments that nothing is compiled for: each width and
type is compiled once, in the first warm-up step, and kept in Triton's cache on disk.

A kernel adds in float32 whatever types its tensors have. Sums over rows are made of one partial sum for each program,
never by atomic additions, so they are the same on every run.

Not measured on a GPU. Without one the tests compute every kernel in Triton's interpreter, and compile it for sm_80,
sm_90 and sm_100.
"""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bert.speed.native import triton_missing

# Types of devices that kernels are launched on. "meta" launches none: tests read the bytes of a step off it.
DEVICES = {"cuda"}
TYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})
# Programs that share the rows of a sum over rows, of each multiprocessor.
_PROGRAMS_EACH = 2
_OLDEST = 8  # compute capability: those before have no bf16
_FEWEST_COLUMNS, _MOST_WARPS = 16, 8


def usable(x: Tensor, *parameters: Tensor) -> bool:
    """Whether kernels can compute with `x` and parameters: by its device and type, outside of torch.compile.

    Parameters that DeepSpeed's ZeRO stage 3 has cut up are whole only while their own module computes.
    """
    return (
        not torch.compiler.is_compiling()
        and x.device.type in DEVICES
        and x.dtype in TYPES
        and not any(hasattr(parameter, "ds_id") for parameter in parameters)
        and triton_missing() is None
        and processor(x.device).major >= _OLDEST
    )


class Processor(NamedTuple):
    """What kernels have to know of a device."""

    major: int
    """Of its compute capability."""
    multiprocessors: int


@functools.cache
def processor(device: torch.device) -> Processor:
    """Return what a device is; an H100 for one that is none."""
    if device.type != "cuda":
        return Processor(9, 132)
    found = torch.cuda.get_device_properties(device)
    return Processor(found.major, found.multi_processor_count)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, warps: int, **constants: Any) -> None:
    """Run a kernel on the device of its first argument, a tensor; nothing at all for an empty grid."""
    first: Tensor = arguments[0]
    if 0 in grid or first.is_meta:
        return
    with torch.cuda.device_of(first):
        kernel[grid](*arguments, num_warps=warps, **constants)


def random_key(like: Tensor) -> Tensor:
    """Draw the key of one dropout, int64 [1], from the generator of a device, without waiting for it.

    As any number of that generator it is the same again in a resumed run and in a recomputed layer, and another one
    with every replay of a CUDA graph.
    """
    return torch.empty(1, dtype=torch.int64, device=like.device).random_()


def columns_of(width: int) -> int:
    """Return the power of 2 that a row of a width fits in."""
    return max(_FEWEST_COLUMNS, 1 << (width - 1).bit_length())


def warps_of(elements: int) -> int:
    """Return the warps for a tile: 8 elements, 128 bits of a 16-bit type, for each thread."""
    return max(1, min(_MOST_WARPS, elements // 256))


def programs(like: Tensor, tiles: int) -> int:
    """Return how many programs share so many tiles of rows; each leaves a partial sum."""
    return min(tiles, _PROGRAMS_EACH * processor(like.device).multiprocessors)
