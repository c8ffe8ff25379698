"""How busy the GPUs of this node are, and which CPUs lie near them (NVML): the choice of a launch."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.machine.devices import Devices, Gpu
from common.errors import UsageError

# Idle GPUs differ by a few MiB that the driver keeps: less than this is no difference.
_SAME_FREE_BYTES = 2**30
_CPUS_PER_WORD = 64


@dataclass(frozen=True, slots=True)
class Load:
    """What one GPU is doing."""

    free_bytes: int | None
    """Memory that nobody uses; None where NVML does not say."""
    utilization: int | None
    """Percent of the last second or so in which a kernel ran; None where NVML does not say."""

    def in_words(self) -> str:
        """Return '79.2 GiB free, 0 % busy'."""
        free = "memory unknown" if self.free_bytes is None else f"{self.free_bytes / 2**30:.1f} GiB free"
        return free if self.utilization is None else f"{free}, {self.utilization} % busy"


def least_busy(devices: Devices, count: int) -> tuple[Devices, list[Load]]:
    """Return the devices with only the `count` least busy GPUs, in the order they had, and what these are doing.

    Those with the most free memory come first, in whole GiB; among equals those of the lower utilisation, then of the
    lower number. GPUs that NVML says nothing about come last.

    Raises:
        UsageError: there are fewer GPUs.
    """
    if count > len(devices.gpus):
        raise UsageError(
            "device-missing",
            f"{count} GPUs were asked for, this node offers {len(devices.gpus)}: give --here-gpus {len(devices.gpus)} "
            "or fewer, and the same number on the other nodes",
        )
    loads = [_load(gpu) for gpu in devices.gpus]

    def place(number: int) -> tuple[int, int, int]:
        free, used = loads[number].free_bytes, loads[number].utilization
        return (0 if free is None else -(free // _SAME_FREE_BYTES) - 1, 101 if used is None else used, number)

    chosen = sorted(sorted(range(len(loads)), key=place)[:count])
    gpus = tuple(devices.gpus[number] for number in chosen)
    return dataclasses.replace(devices, gpus=gpus), [loads[number] for number in chosen]


def near_cpus(gpu: Gpu) -> list[int]:
    """Return the logical CPUs on the NUMA node of a GPU; none where NVML does not say."""

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
    """Return NVML's answer about a GPU, None where there is none: a GPU may be lost, a MIG slice knows less."""
    if not gpu.uuid:
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        return question(pynvml, pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid))
    except Exception:  # NVML raises a class per code, and ImportError where it is absent
        return None
