"""Load of the GPUs of this node and the CPUs near them (NVML); a launch chooses its GPUs by it."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.machine.devices import Devices, Gpu
from common.errors import UsageError

# The driver keeps a few MiB on idle GPUs; smaller differences are ignored.
_SAME_FREE_BYTES = 2**30
_CPUS_PER_WORD = 64


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one GPU."""

    free_bytes: int | None
    """Free memory; None if unknown."""
    utilization: int | None
    """Percent of about the last second in which a kernel ran; None if unknown."""

    def in_words(self) -> str:
        """Return '79.2 GiB free, 0 % busy'."""
        free = "memory unknown" if self.free_bytes is None else f"{self.free_bytes / 2**30:.1f} GiB free"
        return free if self.utilization is None else f"{free}, {self.utilization} % busy"


def least_busy(devices: Devices, count: int) -> tuple[Devices, list[Load]]:
    """Return the devices with only the `count` least busy GPUs, in their original order, and the load of each.

    GPUs are ranked by free memory in whole GiB, then by lower utilization, then by lower number. GPUs with unknown load
    come last.
    """
    if count > len(devices.gpus):
        raise UsageError(
            "device-missing",
            f"{count} GPUs were requested, but this node has {len(devices.gpus)}: give --here-gpus {len(devices.gpus)} "
            "or fewer, and update this number on the other nodes",
        )
    loads = [_load(gpu) for gpu in devices.gpus]

    def place(number: int) -> tuple[int, int, int]:
        free, used = loads[number].free_bytes, loads[number].utilization
        return (0 if free is None else -(free // _SAME_FREE_BYTES) - 1, 101 if used is None else used, number)

    chosen = sorted(sorted(range(len(loads)), key=place)[:count])
    gpus = tuple(devices.gpus[number] for number in chosen)
    return dataclasses.replace(devices, gpus=gpus), [loads[number] for number in chosen]


def near_cpus(gpu: Gpu) -> list[int]:
    """Return the logical CPUs on the NUMA node of a GPU; none if unknown."""

    def ask(nvml: Any, handle: Any) -> list[int]:
        from os import cpu_count

        words = nvml.nvmlDeviceGetCpuAffinity(handle, -(-(cpu_count() or 1) // _CPUS_PER_WORD))
        bits = [(place, int(word)) for place, word in enumerate(words)]
        return [
            place * _CPUS_PER_WORD + bit for place, word in bits for bit in range(_CPUS_PER_WORD) if word >> bit & 1
        ]

    return _ask(gpu, ask) or []


def _load(gpu: Gpu) -> Load:
    free = _ask(gpu, lambda nvml, handle: int(nvml.nvmlDeviceGetMemoryInfo(handle).free))
    return Load(free, _ask(gpu, lambda nvml, handle: int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)))


def _ask(gpu: Gpu, question: Callable[[Any, Any], Any]) -> Any:
    """Return the result of an NVML query, or None if it fails (lost GPU, query not supported for a MIG slice)."""
    if not gpu.uuid:
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        return question(pynvml, pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
    except Exception:  # NVML raises a class per error code; ImportError without NVML
        return None
