"""What is asked of NVML, through its real binding for Python, of a small library of two GPUs (tests/support/nvml.c)."""

import ctypes
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from support.refusals import refused

from bench.launch.layout import _load
from bench.machine.devices import driver_version, find_devices, first_gpu_capability
from bench.run.telemetry import Telemetry
from records.run import TrialDirectory

SOURCE = Path(__file__).parents[2] / "support/nvml.c"
GIB = 2**30
NOT_SUPPORTED, NO_PERMISSION, NOT_LOADED, LOST = 3, 4, 9, 15
SENSORS = {
    "gpu_utilization_percent": 97, "gpu_memory_utilization_percent": 41, "gpu_memory_used_bytes": GIB,
    "power_watts": 350, "energy_joules": 9e9, "sm_clock_mhz": 1001, "memory_clock_mhz": 1002,
    "temperature_celsius": 60, "throttle_reasons": 4,
}  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler (cc, gcc or clang), which is not on PATH")
    made = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", made, SOURCE], check=True)
    return made


@pytest.fixture
def nvml(library: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Have the binding use the library; FAKE_NVML says what it does."""
    pynvml = pytest.importorskip("pynvml")
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr("bench.machine.devices.installed_version", lambda name: "2.13.0+cu130")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("FAKE_NVML", raising=False)
    return monkeypatch


def fails(nvml: pytest.MonkeyPatch, **codes: int) -> None:
    nvml.setenv("FAKE_NVML", " ".join(f"{name}={code}" for name, code in codes.items()))


def chosen(nvml: pytest.MonkeyPatch, wanted: str | None = None) -> list[tuple[str, str, int | None]]:
    if wanted is not None:
        nvml.setenv("CUDA_VISIBLE_DEVICES", wanted)
    return [(gpu.visible_as, gpu.uuid, gpu.memory_bytes) for gpu in find_devices("cuda").gpus]


def test_whole_gpus_are_numbered_in_the_order_of_the_bus(nvml: pytest.MonkeyPatch) -> None:
    devices = find_devices()
    assert [gpu.name for gpu in devices.gpus] == ["NVIDIA H100"] * 2 and devices.note == ""
    assert chosen(nvml) == [("0", "GPU-00000000-0000", 80 * GIB), ("1", "GPU-00000001-0000", 80 * GIB)]
    assert chosen(nvml, "GPU-00000001") == [("GPU-00000001", "GPU-00000001-0000", 80 * GIB)]
    assert first_gpu_capability() == (9, 0) and driver_version() == "580.95.05"


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_a_gpu_without_memory_of_its_own_is_a_gpu(code: int, nvml: pytest.MonkeyPatch) -> None:
    fails(nvml, nvmlDeviceGetMemoryInfo=code)
    assert [memory for _, _, memory in chosen(nvml)] == [None, None]
    assert _load(find_devices().gpus[0]) == (1, 97), "after every GPU whose memory is known"


@pytest.mark.parametrize(
    ("codes", "facts"),
    [
        ({"nvmlInitWithFlags": NOT_LOADED}, ("Driver Not Loaded",)),
        ({"nvmlInitWithFlags": NO_PERMISSION}, ("Insufficient Permissions",)),
        ({"nvmlDeviceGetHandleByIndex_v2": LOST}, ("NVML",)),
        ({"nvmlDeviceGetCount_v2": NO_PERMISSION}, ("Insufficient Permissions",)),
    ],
)
def test_without_a_driver_or_permission_the_reason_is_told(
    codes: dict[str, int], facts: tuple[str, ...], nvml: pytest.MonkeyPatch
) -> None:
    fails(nvml, **codes)
    devices = find_devices()
    assert devices.kind == "cpu" and all(fact in devices.note for fact in facts)
    with refused("device-missing", "--device cuda", *facts):
        find_devices("cuda")
    assert isinstance(first_gpu_capability(), str)


def sampled(uuid: str, folder: Path) -> tuple[dict[str, float], dict[str, str]]:
    directory = TrialDirectory(folder)
    with Telemetry(directory.telemetry_csv(0), [uuid], 1.0) as telemetry:
        telemetry.sample(os.getpid())
    found = {row["quantity"]: row["value"] for row in directory.read_telemetry() if row["device"] == "gpu0"}
    return found, {name: why for name, why in telemetry.unavailable.items() if name.startswith("gpu")}


def test_without_a_gpu_the_sensors_of_the_machine_are_read(tmp_path: Path) -> None:
    directory = TrialDirectory(tmp_path)
    with Telemetry(directory.telemetry_csv(0), [], 0.0) as telemetry:
        telemetry.sample(os.getpid())
        time.sleep(1.1)
        for _ in range(2):
            telemetry.sample(os.getpid())
    assert telemetry.unavailable["gpu"] == "no GPU in this run"
    quantities = {row["quantity"] for row in directory.read_telemetry()}
    assert {"memory_used_bytes", "load_average", "cpu_percent", "foreign_cpu_percent"} <= quantities


def test_every_sensor_is_read_in_its_unit(nvml: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert sampled("GPU-00000001-0000", tmp_path) == (SENSORS, {})


def test_a_slice_has_the_sensors_that_a_slice_has(nvml: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fails(nvml, mig=1)
    found, missing = sampled("MIG-00000001-0000", tmp_path)
    assert set(found) == {"gpu_memory_used_bytes", "temperature_celsius"}
    assert set(missing) == {f"gpu0 {name}" for name in SENSORS.keys() - found.keys()} and all(missing.values())


def test_one_sensor_that_fails_takes_no_other_with_it(nvml: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fails(nvml, nvmlDeviceGetPowerUsage=NOT_SUPPORTED)
    found, missing = sampled("GPU-00000000-0000", tmp_path)
    assert found == {name: value for name, value in SENSORS.items() if name != "power_watts"}
    assert set(missing) == {"gpu0 power_watts"} and len(missing["gpu0 power_watts"]) > 5


def test_a_gpu_that_is_gone_leaves_the_sensors_of_the_machine(nvml: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found, missing = sampled("GPU-00000009-0000", tmp_path)
    assert found == {} and set(missing) == {"gpu"} and "NVML" in missing["gpu"]
