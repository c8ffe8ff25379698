"""The choice of the least busy GPUs, and of the CPUs near them, with a made-up NVML."""

import sys
import types
from types import SimpleNamespace
from typing import Any

import pytest
from support.refusals import refused

from bench.cluster.node import cpus_of_ranks
from bench.machine.devices import Devices, Gpu
from bench.machine.gpu_load import least_busy, near_cpus

GIB = 2**30
# Free memory in bytes, percent busy; None where NVML fails.
LOADS: dict[str, tuple[int, int] | None] = {
    "GPU-0": (79 * GIB + 5, 90),
    "GPU-1": (10 * GIB, 0),
    "GPU-2": (79 * GIB, 0),
    "GPU-3": None,
    "GPU-4": (79 * GIB + 700, 90),
}


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    nvml = types.ModuleType("pynvml")

    def ask(handle: str) -> tuple[int, int]:
        load = LOADS[handle]
        if load is None:
            raise RuntimeError("GPU is lost")
        return load

    words = {"GPU-0": [0b0011, 0], "GPU-2": [0b1100, 1]}
    functions: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(free=ask(handle)[0]),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=ask(handle)[1]),
        "nvmlDeviceGetCpuAffinity": lambda handle, count: words[handle],
    }
    for name, function in functions.items():
        monkeypatch.setattr(nvml, name, function, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    gpus = tuple(Gpu("H200", str(number), f"GPU-{number}", 80 * GIB) for number in range(5))
    return Devices("cuda", gpus, 8)


@pytest.mark.parametrize(
    ("count", "chosen"),
    [(1, ["2"]), (2, ["0", "2"]), (3, ["0", "2", "4"]), (4, ["0", "1", "2", "4"]), (5, ["0", "1", "2", "3", "4"])],
)
def test_free_memory_decides_then_utilization_then_the_number(devices: Devices, count: int, chosen: list[str]) -> None:
    found, loads = least_busy(devices, count)
    assert [gpu.visible_as for gpu in found.gpus] == chosen
    assert len(loads) == count
    assert found.environment(count)["CUDA_VISIBLE_DEVICES"] == ",".join(chosen)


def test_loads_are_said_in_words(devices: Devices) -> None:
    _, loads = least_busy(devices, 5)
    assert loads[1].in_words() == "10.0 GiB free, 0 % busy"
    assert loads[3].in_words() == "memory unknown"


def test_more_gpus_than_there_are_is_an_error_with_the_number(devices: Devices) -> None:
    with refused("device-missing", 6, "--here-gpus 5"):
        least_busy(devices, 6)


def test_ranks_run_near_their_gpus_and_anywhere_where_nothing_is_known(
    devices: Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.cluster.node.core_groups", lambda: [[0, 4], [1, 5], [2, 6], [3, 7], [64]])
    assert near_cpus(devices.gpus[2]) == [2, 3, 64]
    assert cpus_of_ranks(devices, 4) == [[0, 1], [], [2, 3, 64], []]


def test_without_gpus_ranks_share_the_cores_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.machine.devices.core_groups", lambda: [[0, 4], [1, 5], [2, 6], [3, 7], [8]])
    devices = Devices("cpu", (), 5)
    assert cpus_of_ranks(devices, 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert cpus_of_ranks(devices, 6) == [[]] * 6
