"""Energy and throttling in a window, by hand."""

from typing import Any

import pytest
from support.fake_run import SECOND

from analysis.metrics.telemetry import SLOWDOWNS, energy, throttle_reasons

END = 10 * SECOND
Readings = list[dict[str, Any]]


def readings(device: str, quantity: str, values: dict[float, float]) -> Readings:
    return [
        {"time_ns": int(at * SECOND), "device": device, "quantity": quantity, "value": value}
        for at, value in values.items()
    ]


RAMP = readings("gpu0", "power_watts", {second: 10.0 * second for second in range(11)})
RESET = readings("gpu0", "energy_joules", {0: 900.0, 5: 1000.0, 10: 3.0})
COUNTER = readings("gpu0", "energy_joules", {0: 0.0, 10: 1000.0})
HOST = readings("cpu0", "energy_joules", {0: 0.0, 10: 100.0}) + readings("cpu1", "energy_joules", {0: 0.0, 10: 100.0})


@pytest.mark.parametrize(
    ("rows", "begin", "end", "device", "joules"),
    [
        (RAMP, 2 * SECOND, 6 * SECOND, "cuda", 10 * (36 - 4) / 2),
        (COUNTER + readings("gpu0", "power_watts", {0: 9.0, 10: 9.0}), 0, END, "cuda", 1000),
        (COUNTER + readings("gpu1", "power_watts", {0: 50.0, 10: 50.0}), 0, END, "cuda", 1000 + 500),
        (RESET + readings("gpu0", "power_watts", {0: 7.0, 10: 7.0}), 0, END, "cuda", 70),
        # The mean power of the covered 95 % stands for the whole window.
        (readings("gpu0", "energy_joules", {5: 700.0, 100: 700.0 + 95 * 100}), 0, 10 * END, "cuda", 100 * 100),
        (readings("gpu0", "power_watts", {5: 100.0, 100: 100.0}), 0, 10 * END, "cuda", 100 * 100),
        # The energy of GPUs and of their host are apart.
        (COUNTER + HOST, 0, END, "cuda", 1000),
        (COUNTER + HOST, 0, END, "cpu", 200),
        # A GPU's counter needs half a second, a CPU's is renewed each ms.
        (COUNTER, SECOND, SECOND + 500 * 10**6, "cuda", 50),
        (HOST, SECOND, SECOND + 100 * 10**6, "cpu", 2),
    ],
)
def test_energy_by_hand(rows: Readings, begin: int, end: int, device: str, joules: float) -> None:
    assert energy(rows, begin, end, device) == (pytest.approx(joules), "")


@pytest.mark.parametrize(
    ("rows", "end", "device", "unavailable", "why"),
    [
        (RAMP, 0, "cuda", {}, "0 ms"),
        (RESET, END, "cuda", {}, "gpu0"),
        (readings("gpu0", "power_watts", {0: 100.0, 4: 100.0}), END, "cuda", {}, "gpu0"),
        (COUNTER, 499 * 10**6, "cuda", {}, "499 ms"),
        (HOST, END, "cuda", {"cpu energy_joules": "RAPL", "gpu0 power_watts": "Not Supported"}, "Not Supported"),
        ([], SECOND, "cpu", {"gpu": "no GPU", "cpu energy_joules": "no RAPL"}, "no RAPL"),
        ([], SECOND, "cpu", {}, "no energy or power sensor"),
    ],
)
def test_unknown_energy_has_its_reason(
    rows: Readings, end: int, device: str, unavailable: dict[str, str], why: str
) -> None:
    joules, reason = energy(rows, 0, end, device, unavailable)
    assert joules is None and why in reason


def test_throttles_in_the_window_are_named_and_the_power_cap_is_none() -> None:
    rows = readings("gpu0", "throttle_reasons", {1: 0x04, 2: 0x40 | 0x08, 30: 0x80})
    assert throttle_reasons(rows, 0, END) == ("hardware slowdown", "hardware thermal slowdown")
    assert throttle_reasons(readings("gpu0", "throttle_reasons", {1: float(0x01 | 0x02 | 0x04)}), 0, END) == ()


def test_every_bit_has_its_name_in_nvml() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert list(SLOWDOWNS) == sorted(getattr(pynvml, f"nvmlClocksThrottleReason{name}") for name in names)
