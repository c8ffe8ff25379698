"""The sampler, with a stand-in for NVML."""

import itertools
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.run.telemetry import Telemetry, telemetry_writer
from records.run import TrialDirectory

KIB = 1024


class NVMLError(Exception):
    """What NVML raises."""


def fake_nvml(pcie_seconds: float = 0.0) -> Any:
    """A machine whose every GPU answers; `failing` names functions that do not."""
    nvml = types.ModuleType("pynvml")
    failing: set[str] = set()
    calls: list[tuple[str, float, str]] = []

    def answer(name: str, value: Callable[..., Any], seconds: float = 0.0) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            calls.append((name, time.monotonic(), threading.current_thread().name))
            time.sleep(seconds)
            if name in failing:
                raise NVMLError("Not Supported")
            return value(*arguments)

        return call

    def field_values(handle: str, fields: list[tuple[int, int]]) -> list[Any]:
        assert all(scope == 0xFFFFFFFF for _, scope in fields)
        status = 3 if "links" in failing else 0
        kib = {139: 10, 138: 20}
        return [
            SimpleNamespace(nvmlReturn=status, valueType=3, value=SimpleNamespace(ullVal=kib[field], uiVal=0))
            for field, _ in fields
        ]

    functions: dict[str, tuple[Callable[..., Any], float]] = {
        "nvmlInit": (lambda: None, 0),
        "nvmlDeviceGetHandleByUUID": (lambda uuid: uuid, 0),
        "nvmlDeviceGetUtilizationRates": (lambda handle: SimpleNamespace(gpu=97, memory=41), 0),
        "nvmlDeviceGetMemoryInfo": (lambda handle: SimpleNamespace(used=5 * KIB), 0),
        "nvmlDeviceGetPowerUsage": (lambda handle: 350_000, 0),
        "nvmlDeviceGetTotalEnergyConsumption": (lambda handle: 9_000, 0),
        "nvmlDeviceGetClockInfo": (lambda handle, kind: 1000 + kind, 0),
        "nvmlDeviceGetTemperature": (lambda handle, kind: 60, 0),
        "nvmlDeviceGetCurrentClocksThrottleReasons": (lambda handle: 4, 0),
        "nvmlDeviceGetFieldValues": (field_values, 0),
        "nvmlDeviceGetPcieThroughput": (lambda handle, counter: {1: 7, 0: 8}[counter], pcie_seconds),
    }
    for name, (value, seconds) in functions.items():
        setattr(nvml, name, answer(name, value, seconds))
    numbers = {
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_SUCCESS": 0,
        "NVML_PCIE_UTIL_TX_BYTES": 0,
        "NVML_PCIE_UTIL_RX_BYTES": 1,
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX": 138,
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX": 139,
        "NVML_VALUE_TYPE_UNSIGNED_INT": 1,
        "NVML_VALUE_TYPE_UNSIGNED_LONG": 2,
        "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG": 3,
        "NVML_VALUE_TYPE_SIGNED_LONG_LONG": 4,
    }
    for name, number in numbers.items():
        setattr(nvml, name, number)
    nvml.NVMLError = NVMLError  # type: ignore[attr-defined]
    nvml.failing, nvml.calls = failing, calls  # type: ignore[attr-defined]
    return nvml


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = fake_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def sampled(folder: Path, telemetry: Telemetry, samples: int, pause: float = 0.02) -> list[dict[str, Any]]:
    directory = TrialDirectory(folder)
    with telemetry_writer(directory.telemetry_csv(0)) as writer:
        for _ in range(samples):
            telemetry.sample(writer, [])
            time.sleep(pause)
    return directory.read_telemetry()


def values(rows: list[dict[str, Any]], device: str = "gpu0") -> dict[str, float]:
    return {row["quantity"]: row["value"] for row in rows if row["device"] == device}


def test_every_quantity_of_a_gpu_is_read_in_its_unit(nvml: Any, tmp_path: Path) -> None:
    telemetry = Telemetry(["GPU-1"])
    assert values(sampled(tmp_path, telemetry, 3)) == {
        "gpu_utilization_percent": 97,
        "gpu_memory_utilization_percent": 41,
        "gpu_memory_used_bytes": 5 * KIB,
        "power_watts": 350,
        "energy_joules": 9,
        "sm_clock_mhz": 1001,
        "memory_clock_mhz": 1002,
        "temperature_celsius": 60,
        "throttle_reasons": 4,
        "nvlink_rx_bytes": 10 * KIB,
        "nvlink_tx_bytes": 20 * KIB,
        "pcie_rx_bytes_per_second": 7000,
        "pcie_tx_bytes_per_second": 8000,
    }
    assert not any(sensor.startswith("gpu") for sensor in telemetry.unavailable)


def test_what_a_gpu_does_not_support_is_named_and_the_rest_is_read(nvml: Any, tmp_path: Path) -> None:
    nvml.failing.update({"links", "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetPowerUsage"})
    telemetry = Telemetry(["GPU-1"])
    found = values(sampled(tmp_path, telemetry, 3))
    missing = {
        "nvlink_rx_bytes",
        "nvlink_tx_bytes",
        "pcie_rx_bytes_per_second",
        "pcie_tx_bytes_per_second",
        "power_watts",
    }
    assert not missing & set(found) and found["temperature_celsius"] == 60
    assert {f"gpu0 {name}" for name in missing} <= set(telemetry.unavailable)
    assert telemetry.unavailable["gpu0 power_watts"] == "Not Supported"


def test_slow_sensors_are_asked_once_a_second_and_never_hold_up_the_quick_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml = fake_nvml(pcie_seconds=0.02)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    began = time.monotonic()
    rows = sampled(tmp_path, Telemetry([f"GPU-{number}" for number in range(8)]), 30, pause=0.05)
    seconds = time.monotonic() - began
    asked = [(when, thread) for name, when, thread in nvml.calls if name == "nvmlDeviceGetPcieThroughput"]
    assert {thread for _, thread in asked} == {"nvml_0"}
    assert 16 <= len(asked) <= 16 * (1 + int(seconds))
    power = sorted(row["time_ns"] for row in rows if row["quantity"] == "power_watts" and row["device"] == "gpu0")
    assert len(power) == 30
    # One round of PCIe queries blocks for 16 x 20 ms: in the sampler's own thread that would be a gap of 0.37 s.
    assert max(later - earlier for earlier, later in itertools.pairwise(power)) < 0.3e9


def test_a_slow_reading_has_the_time_at_which_it_was_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(pcie_seconds=0.05))
    began = time.time_ns()
    rows = sampled(tmp_path, Telemetry(["GPU-1"]), 3, pause=0.2)
    (made,) = [row["time_ns"] for row in rows if row["quantity"] == "pcie_tx_bytes_per_second"]
    assert 0.1e9 <= made - began < 0.2e9


def test_a_run_on_the_cpu_starts_no_thread_and_says_why_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[object] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread))
    telemetry = Telemetry([])
    rows = sampled(tmp_path, telemetry, 2)
    assert started == [] and telemetry.unavailable["gpu"] == "no GPU in this run"
    assert {"memory_used_bytes", "load_average", "cpu_percent"} <= set(values(rows, "cpu"))
