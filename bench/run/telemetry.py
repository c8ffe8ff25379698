"""Sensors of the machine while a trial runs, read from outside the training processes so as not to disturb them.

GPUs are sampled about 20 times a second, all but PCIe throughput: NVML counts those bytes over 20 ms and blocks
meanwhile (NVML reference, nvmlDeviceGetPcieThroughput), 40 ms per GPU for both directions. A thread reads it once a
second; waiting in NVML it holds no interpreter lock, so that the quick sensors keep their rate.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.machine.nvml import nvml
from bench.run.recorder import RowWriter
from records.schema import TELEMETRY_COLUMNS

_RAPL = Path("/sys/class/powercap")

_SLOW_SECONDS = 1.0
_ALL_LINKS = 0xFFFFFFFF  # nvml.h: as scopeId it asks for the sum over all NVLinks

Reading = tuple[str, str, float]  # device, quantity, value
Answers = tuple[list[tuple[int, Reading]], dict[str, str]]  # readings with their time, reasons by sensor
Queries = Mapping[tuple[str, ...], Callable[[], tuple[float, ...]]]  # quantities that one call gives together


class Telemetry:
    """Samples CPU, memory and GPUs into telemetry-<node>.csv; what cannot be read is named in `unavailable`."""

    def __init__(self, gpu_uuids: list[str]) -> None:
        self.unavailable: dict[str, str] = {}
        self._nvml, self._handles = self._open_gpus(gpu_uuids)
        self._packages = sorted(_RAPL.glob("intel-rapl:[0-9]/energy_uj"))
        if not self._package_energy():
            self.unavailable["cpu energy_joules"] = "RAPL cannot be read here"
        self._cpu_seconds: tuple[float, float, float] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nvml") if self._handles else None
        self._slow: Future[Answers] | None = None
        self._next_slow = time.monotonic()

    def sample(self, writer: RowWriter, trial_pids: list[int]) -> None:
        """Write one row per sensor. `trial_pids` are the processes of the trial: all others are foreign.

        Slow sensors appear when they have answered, with the time at which they did.
        """
        now = time.time_ns()
        readings = [(now, reading) for reading in [*self._cpu(trial_pids), *self._gpus()]]
        for time_ns, (device, quantity, value) in [*readings, *self._answered()]:
            writer.write({"time_ns": time_ns, "device": device, "quantity": quantity, "value": value})

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
            library = nvml()
            return library, [library.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
        except Exception as error:  # NVML raises a class per code, and ImportError where it is absent
            self.unavailable["gpu"] = f"NVML: {error}"
            return None, []

    def _gpus(self) -> list[Reading]:
        readings: list[Reading] = []
        for index, handle in enumerate(self._handles):
            found, missing = _ask(f"gpu{index}", _quick_queries(self._nvml, handle))
            readings += found
            self._miss(missing)
        return readings

    def _answered(self) -> list[tuple[int, Reading]]:
        """Return what the slow sensors have answered since the last call, and ask them again once a second."""
        readings: list[tuple[int, Reading]] = []
        if self._slow is not None and self._slow.done():
            readings, missing = self._slow.result()
            self._miss(missing)
            self._slow = None
        if self._thread is not None and self._slow is None and time.monotonic() >= self._next_slow:
            self._next_slow = time.monotonic() + _SLOW_SECONDS
            self._slow = self._thread.submit(_ask_slowly, self._nvml, self._handles)
        return readings

    def _miss(self, reasons: Mapping[str, str]) -> None:
        for sensor, reason in reasons.items():
            self.unavailable.setdefault(sensor, reason)


def _ask_slowly(nvml: Any, handles: list[Any]) -> Answers:
    """Ask every GPU what takes long; runs in the thread, and touches nothing that others change."""
    readings: list[tuple[int, Reading]] = []
    reasons: dict[str, str] = {}
    for index, handle in enumerate(handles):
        found, missing = _ask(f"gpu{index}", _slow_queries(nvml, handle))
        now = time.time_ns()
        readings += [(now, reading) for reading in found]
        reasons.update(missing)
    return readings, reasons


def _ask(device: str, queries: Queries) -> tuple[list[Reading], dict[str, str]]:
    readings: list[Reading] = []
    reasons: dict[str, str] = {}
    for quantities, query in queries.items():
        try:
            readings += [(device, name, float(value)) for name, value in zip(quantities, query(), strict=True)]
        except Exception as error:  # not supported on this GPU, or lost: the rest is still read
            reasons.update({f"{device} {name}": str(error) for name in quantities})
    return readings, reasons


def _quick_queries(nvml: Any, handle: Any) -> Queries:
    def utilization() -> tuple[float, ...]:
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        return rates.gpu, rates.memory

    def links() -> tuple[float, ...]:
        names = (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)
        fields = nvml.nvmlDeviceGetFieldValues(handle, [(name, _ALL_LINKS) for name in names])
        return tuple(1024 * _field(nvml, field) for field in fields)

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


def _slow_queries(nvml: Any, handle: Any) -> Queries:
    """Return what takes NVML 20 ms each; it answers in KB/s."""

    def throughput(counter: int) -> tuple[float, ...]:
        return (1000 * nvml.nvmlDeviceGetPcieThroughput(handle, counter),)

    return {
        ("pcie_rx_bytes_per_second",): lambda: throughput(nvml.NVML_PCIE_UTIL_RX_BYTES),
        ("pcie_tx_bytes_per_second",): lambda: throughput(nvml.NVML_PCIE_UTIL_TX_BYTES),
    }


def _field(nvml: Any, field: Any) -> int:
    """Return the whole number in an NVML field value; raise NVML's error for one that it did not fill."""
    if field.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(field.nvmlReturn)
    members = {
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    if field.valueType not in members:
        raise ValueError(f"NVML returned a value of unknown type {field.valueType}")
    return int(getattr(field.value, members[field.valueType]))


def telemetry_writer(path: Path) -> RowWriter:
    """A writer of telemetry-<node>.csv."""
    return RowWriter(path, list(TELEMETRY_COLUMNS))
