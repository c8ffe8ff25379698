"""Sensors of the machine while a trial runs, read from outside the training processes so as not to disturb them."""

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.machine.devices import nvml
from records.files import RowWriter
from records.schema import TELEMETRY_COLUMNS

_RAPL = Path("/sys/class/powercap")
# Reading them means to look for the processes of the trial among all.
_CPU_SECONDS = 1.0

Reading = tuple[str, str, float]  # device, quantity, value


class Telemetry(RowWriter):
    """Samples CPU, memory and GPUs into telemetry-<node>.csv; `unavailable` names what cannot be read, and why."""

    def __init__(self, path: Path, gpu_uuids: Sequence[str], interval_seconds: float) -> None:
        super().__init__(path, TELEMETRY_COLUMNS)
        self.unavailable: dict[str, str] = {} if gpu_uuids else {"gpu": "no GPU in this run"}
        self._interval = interval_seconds
        self._next = self._next_cpu = 0.0  # time.monotonic()
        self._before: tuple[float, float] | None = None  # time.monotonic(), CPU time of the trial
        self._packages = sorted(_RAPL.glob("intel-rapl:[0-9]/energy_uj"))
        if not self._package_energy():
            self.unavailable["cpu energy_joules"] = "RAPL cannot be read here"
        self._gpus: list[Any] = []
        try:
            self._gpus = [nvml().nvmlDeviceGetHandleByUUID(uuid) for uuid in gpu_uuids]
        except Exception as error:  # NVML raises a class per code, and ImportError where it is absent
            self.unavailable["gpu"] = f"NVML: {error}"

    def sample(self, pid: int) -> None:
        """Write one row per sensor, unless the interval has not passed yet; processes not below `pid` are foreign."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next, time_ns = now + self._interval, time.time_ns()
        readings = self._gpu()
        if now >= self._next_cpu:
            self._next_cpu = now + _CPU_SECONDS
            readings = [*self._cpu(pid), *readings]
        for device, quantity, value in readings:
            self.write({"time_ns": time_ns, "device": device, "quantity": quantity, "value": value})

    def _cpu(self, pid: int) -> list[Reading]:
        own = 0.0
        with contextlib.suppress(psutil.Error):
            above = psutil.Process(pid)
            for process in [above, *above.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    own += sum(process.cpu_times()[:2])  # in user and in kernel mode
        now, used = time.monotonic(), psutil.cpu_percent()
        readings: list[Reading] = [
            ("cpu", "memory_used_bytes", float(psutil.virtual_memory().used)),
            ("cpu", "load_average", psutil.getloadavg()[0]),
        ]
        if self._before is not None and own >= self._before[1]:
            available = (now - self._before[0]) * (psutil.cpu_count() or 1)
            foreign = max(0.0, used - 100 * (own - self._before[1]) / available)
            readings += [("cpu", "cpu_percent", used), ("cpu", "foreign_cpu_percent", foreign)]
        self._before = now, own
        return readings + self._package_energy()

    def _package_energy(self) -> list[Reading]:
        """Energy counter of each CPU package; none where they may not be read."""
        with contextlib.suppress(OSError):
            counters = [float(path.read_text()) for path in self._packages]
            return [(f"cpu{number}", "energy_joules", counter / 1e6) for number, counter in enumerate(counters)]
        return []

    def _gpu(self) -> list[Reading]:
        readings: list[Reading] = []
        for index, handle in enumerate(self._gpus):
            for name, query in _queries(handle).items():
                try:
                    readings.append((f"gpu{index}", name, float(query())))
                except Exception as error:  # not supported on this GPU, or lost: the rest is still read
                    self.unavailable[f"gpu{index} {name}"] = str(error)
        return readings


def _queries(handle: Any) -> dict[str, Callable[[], float]]:
    """Return the queries of a GPU by quantity."""
    import pynvml as nvml

    return {
        "gpu_utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "gpu_memory_utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory,
        "gpu_memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "energy_joules": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    }
