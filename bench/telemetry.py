"""Sensors of the machine while a trial runs, read from outside the training processes so as not to disturb them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from analysis.records import TELEMETRY_COLUMNS
from bench.recorder import RowWriter

_RAPL = Path("/sys/class/powercap")

Reading = tuple[str, str, float]  # device, quantity, value


class Telemetry:
    """Samples CPU, memory and GPUs into telemetry-<node>.csv; what cannot be read is named in `unavailable`."""

    def __init__(self, gpu_uuids: list[str]) -> None:
        self.unavailable: dict[str, str] = {}
        self._nvml, self._handles = self._open_gpus(gpu_uuids)
        self._packages = sorted(_RAPL.glob("intel-rapl:[0-9]/energy_uj"))
        if not self._package_energy():
            self.unavailable["cpu energy_joules"] = "RAPL cannot be read here"
        self._cpu_seconds: tuple[float, float, float] | None = None

    def sample(self, writer: RowWriter, trial_pids: list[int]) -> None:
        """Write one row per sensor. `trial_pids` are the processes of the trial: all others are foreign."""
        now = time.time_ns()
        for device, quantity, value in [*self._cpu(trial_pids), *self._gpus()]:
            writer.write({"time_ns": now, "device": device, "quantity": quantity, "value": value})

    def _cpu(self, trial_pids: list[int]) -> list[Reading]:
        import psutil

        readings: list[Reading] = [
            ("cpu", "memory_used_bytes", float(psutil.virtual_memory().used)),
            ("cpu", "load_average", float(psutil.getloadavg()[0])),
        ]
        times = psutil.cpu_times()
        busy = sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
        own = 0.0
        for pid in trial_pids:
            try:
                spent = psutil.Process(pid).cpu_times()
                own += spent.user + spent.system
            except psutil.Error:
                continue
        now = time.monotonic()
        if self._cpu_seconds is not None:
            before, busy_before, own_before = self._cpu_seconds
            available = (now - before) * (psutil.cpu_count() or 1)
            if available > 0 and own >= own_before:
                used = 100 * (busy - busy_before) / available
                foreign = max(0.0, used - 100 * (own - own_before) / available)
                readings += [("cpu", "cpu_percent", used), ("cpu", "foreign_cpu_percent", foreign)]
        self._cpu_seconds = (now, busy, own)
        return readings + self._package_energy()

    def _package_energy(self) -> list[Reading]:
        """Energy counter of each CPU package that may be read."""
        readings: list[Reading] = []
        for number, path in enumerate(self._packages):
            try:
                readings.append((f"cpu{number}", "energy_joules", float(path.read_text()) / 1e6))
            except (OSError, ValueError) as error:
                self.unavailable["cpu energy_joules"] = f"RAPL cannot be read here ({type(error).__name__})"
        return readings

    def _open_gpus(self, uuids: list[str]) -> tuple[Any, list[Any]]:
        if not uuids:
            self.unavailable["gpu"] = "no GPU in this run"
            return None, []
        try:
            import pynvml

            pynvml.nvmlInit()
            return pynvml, [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        except Exception as error:  # NVML raises a class per code, and ImportError where it is absent
            self.unavailable["gpu"] = f"NVML: {error}"
            return None, []

    def _gpus(self) -> list[Reading]:
        readings: list[Reading] = []
        for index, handle in enumerate(self._handles):
            device = f"gpu{index}"
            for quantity, value in _gpu_quantities(self._nvml, handle).items():
                if isinstance(value, str):
                    self.unavailable.setdefault(f"{device} {quantity}", value)
                else:
                    readings.append((device, quantity, value))
        return readings


def _gpu_quantities(nvml: Any, handle: Any) -> dict[str, float | str]:
    """Return every quantity of one GPU, or the reason it cannot be read."""
    queries: dict[str, Callable[[], float]] = {
        "gpu_utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "gpu_memory_used_bytes": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "energy_joules": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
    }
    readings: dict[str, float | str] = {}
    for quantity, query in queries.items():
        try:
            readings[quantity] = float(query())
        except Exception as error:  # not supported on this GPU, or lost: the rest is still read
            readings[quantity] = str(error)
    return readings


def telemetry_writer(path: Path) -> RowWriter:
    """A writer of telemetry-<node>.csv."""
    return RowWriter(path, list(TELEMETRY_COLUMNS))
