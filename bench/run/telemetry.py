"""Sensors of the machine while a trial runs, read from outside the training processes so as not to disturb them."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.machine.nvml import nvml
from bench.run.recorder import RowWriter
from records.schema import TELEMETRY_COLUMNS

_RAPL = Path("/sys/class/powercap")
_NO_RAPL = "RAPL cannot be read here"
_ALL_LINKS = 0xFFFFFFFF  # nvml.h: as scopeId it asks for the sum over all NVLinks

Reading = tuple[str, str, float]  # device, quantity, value
Queries = Mapping[tuple[str, ...], Callable[[], tuple[float, ...]]]  # quantities that one call gives together


class Telemetry:
    """Samples CPU, memory and GPUs into telemetry-<node>.csv; what cannot be read is named in `unavailable`."""

    def __init__(self, gpu_uuids: list[str]) -> None:
        self.unavailable: dict[str, str] = {}
        self._nvml: Any = None
        self._gpus: list[Any] = []
        self._open_gpus(gpu_uuids)
        self._packages = sorted(_RAPL.glob("intel-rapl:[0-9]/energy_uj"))
        if not self._package_energy():
            self.unavailable["cpu energy_joules"] = _NO_RAPL
        self._cpu_seconds: tuple[float, float, float] | None = None

    def sample(self, writer: RowWriter, trial_pids: list[int]) -> None:
        """Write one row per sensor. `trial_pids` are the processes of the trial: all others are foreign."""
        now_ns = time.time_ns()
        for device, quantity, value in [*self._cpu(trial_pids), *self._gpu()]:
            writer.write({"time_ns": now_ns, "device": device, "quantity": quantity, "value": value})

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
                self.unavailable["cpu energy_joules"] = f"{_NO_RAPL} ({type(error).__name__})"
        return readings

    def _open_gpus(self, uuids: list[str]) -> None:
        if not uuids:
            self.unavailable["gpu"] = "no GPU in this run"
            return
        try:
            self._nvml = nvml()
            self._gpus = [self._nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        except Exception as error:  # NVML raises a class per code, and ImportError where it is absent
            self.unavailable["gpu"] = f"NVML: {error}"

    def _gpu(self) -> list[Reading]:
        readings: list[Reading] = []
        for index, handle in enumerate(self._gpus):
            for quantities, query in _queries(self._nvml, handle).items():
                try:
                    values = zip(quantities, query(), strict=True)
                    readings += [(f"gpu{index}", name, float(value)) for name, value in values]
                except Exception as error:  # not supported on this GPU, or lost: the rest is still read
                    for name in quantities:
                        self.unavailable.setdefault(f"gpu{index} {name}", str(error))
        return readings


def _queries(nvml: Any, handle: Any) -> Queries:
    def utilization() -> tuple[float, ...]:
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        return rates.gpu, rates.memory

    def links() -> tuple[float, ...]:
        names = (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)
        fields = nvml.nvmlDeviceGetFieldValues(handle, [(name, _ALL_LINKS) for name in names])
        for field in fields:
            if field.nvmlReturn != nvml.NVML_SUCCESS:
                raise nvml.NVMLError(field.nvmlReturn)
            if field.valueType != nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG:
                raise ValueError(f"NVML returned a value of type {field.valueType}")
        return tuple(1024 * field.value.ullVal for field in fields)

    return {
        ("gpu_utilization_percent", "gpu_memory_utilization_percent"): utilization,
        ("gpu_memory_used_bytes",): lambda: (nvml.nvmlDeviceGetMemoryInfo(handle).used,),
        ("power_watts",): lambda: (nvml.nvmlDeviceGetPowerUsage(handle) / 1000,),
        ("energy_joules",): lambda: (nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,),
        ("sm_clock_mhz",): lambda: (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),),
        ("memory_clock_mhz",): lambda: (nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),),
        ("temperature_celsius",): lambda: (nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),),
        ("throttle_reasons",): lambda: (nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),),
        ("nvlink_rx_bytes", "nvlink_tx_bytes"): links,
    }


def telemetry_writer(path: Path) -> RowWriter:
    """A writer of telemetry-<node>.csv."""
    return RowWriter(path, list(TELEMETRY_COLUMNS))
