"""The slow sensors of GPUs beside the quick ones, with a stand-in for NVML (test_nvml.py has its real binding)."""

import itertools
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.run.telemetry import Telemetry, telemetry_writer
from records.run import TrialDirectory


def fake_nvml(pcie_seconds: float) -> tuple[Any, list[str]]:
    """GPUs that answer two questions, one of them after a while; and the threads that asked that one."""
    threads: list[str] = []

    def pcie(handle: str, counter: int) -> int:
        threads.append(threading.current_thread().name)
        time.sleep(pcie_seconds)
        return counter

    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetPowerUsage=lambda handle: 350_000,
        nvmlDeviceGetPcieThroughput=pcie,
        NVML_PCIE_UTIL_RX_BYTES=7,
        NVML_PCIE_UTIL_TX_BYTES=8,
    )
    return nvml, threads


def sampled(folder: Path, telemetry: Telemetry, samples: int, pause: float) -> list[dict[str, Any]]:
    directory = TrialDirectory(folder)
    with telemetry_writer(directory.telemetry_csv(0)) as writer:
        for _ in range(samples):
            telemetry.sample(writer, [])
            time.sleep(pause)
    return directory.read_telemetry()


def test_slow_sensors_are_asked_once_a_second_and_never_hold_up_the_quick_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nvml, threads = fake_nvml(pcie_seconds=0.02)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    began = time.monotonic()
    rows = sampled(tmp_path, Telemetry([f"GPU-{number}" for number in range(8)]), 30, pause=0.05)
    seconds = time.monotonic() - began
    assert set(threads) == {"nvml_0"} and 16 <= len(threads) <= 16 * (1 + int(seconds))
    power = sorted(row["time_ns"] for row in rows if row["quantity"] == "power_watts" and row["device"] == "gpu0")
    assert len(power) == 30
    # One round of PCIe queries blocks for 16 x 20 ms: in the sampler's own thread that would be a gap of 0.37 s.
    assert max(later - earlier for earlier, later in itertools.pairwise(power)) < 0.3e9


def test_a_slow_reading_has_the_time_at_which_it_was_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(pcie_seconds=0.05)[0])
    began = time.time_ns()
    rows = sampled(tmp_path, Telemetry(["GPU-1"]), 3, pause=0.2)
    ((made, value),) = [(row["time_ns"], row["value"]) for row in rows if row["quantity"] == "pcie_tx_bytes_per_second"]
    assert 0.1e9 <= made - began < 0.2e9 and value == 8000


def test_a_run_on_the_cpu_starts_no_thread_and_says_why_there_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[object] = []
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread))
    telemetry = Telemetry([])
    rows = sampled(tmp_path, telemetry, 2, pause=0.02)
    assert started == [] and telemetry.unavailable["gpu"] == "no GPU in this run"
    assert {"memory_used_bytes", "load_average", "cpu_percent"} <= {row["quantity"] for row in rows}
