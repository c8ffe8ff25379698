"""Readings of the sensors held against the steps that were measured."""

from typing import Any

import pytest
from support.fake_run import SECOND, START_NS, step_rows

from analysis.metrics.telemetry import CLOCK_REASONS, energy, telemetry_in_window, throttle_reasons


def readings(device: str, quantity: str, values: dict[float, float]) -> list[dict]:
    return [
        {"time_ns": int(at * SECOND), "device": device, "quantity": quantity, "value": value}
        for at, value in values.items()
    ]


def test_power_is_integrated_over_the_window_only() -> None:
    ramp = readings("gpu0", "power_watts", {second: 10.0 * second for second in range(11)})
    found = energy(ramp, 2 * SECOND, 6 * SECOND, "cuda")
    assert found[0] == pytest.approx(10 * (36 - 4) / 2)
    assert energy(ramp, 6 * SECOND, 6 * SECOND, "cuda")[0] is None, "no time, no energy"


def test_devices_add_up_and_counters_win_over_power() -> None:
    rows = readings("gpu0", "energy_joules", {0: 0.0, 10: 1000.0}) + readings("gpu0", "power_watts", {0: 9.0, 10: 9.0})
    rows += readings("gpu1", "power_watts", {0: 50.0, 10: 50.0})
    found = energy(rows, 0, 10 * SECOND, "cuda")
    assert found == (pytest.approx(1000 + 500), "")


def test_a_counter_that_was_reset_falls_back_to_power_or_says_it_is_unknown() -> None:
    rows = readings("gpu0", "energy_joules", {0: 900.0, 5: 1000.0, 10: 3.0})
    assert energy(rows, 0, 10 * SECOND, "cuda")[0] is None
    rows += readings("gpu0", "power_watts", {0: 7.0, 10: 7.0})
    assert energy(rows, 0, 10 * SECOND, "cuda")[0] == pytest.approx(70)


def test_readings_that_miss_part_of_the_window_are_not_stretched_over_it() -> None:
    rows = readings("gpu0", "power_watts", {0: 100.0, 4: 100.0})
    found = energy(rows, 0, 10 * SECOND, "cuda")
    assert found[0] is None and "do not cover the window" in found[1]


@pytest.mark.parametrize("quantity", ["energy_joules", "power_watts"])
def test_the_mean_power_of_the_covered_part_stands_for_the_whole_window(quantity: str) -> None:
    first, last = (700.0, 700.0 + 95 * 100) if quantity == "energy_joules" else (100.0, 100.0)
    rows = readings("gpu0", quantity, {1005: first, 1100: last})
    assert energy(rows, 1000 * SECOND, 1100 * SECOND, "cuda")[0] == pytest.approx(100 * 100)


def test_a_hosts_energy_is_not_passed_off_as_a_gpus() -> None:
    rows = readings("cpu", "energy_joules", {0: 0.0, 10: 100.0})
    reasons = {"cpu energy_joules": "RAPL", "gpu0 power_watts": "Not Supported"}
    found = energy(rows, 0, 10 * SECOND, "cuda", reasons)
    assert found == (None, "Not Supported")
    assert energy(rows, 0, 10 * SECOND, "cpu")[0] == pytest.approx(100)


def test_nothing_read_gives_the_recorded_reason() -> None:
    assert energy([], 0, SECOND, "cpu", {"gpu": "no GPU", "cpu energy_joules": "RAPL cannot be read"})[1] == (
        "RAPL cannot be read"
    )
    assert energy([], 0, SECOND, "cpu")[1] == "no energy or power sensor was read"


def test_throttles_are_named_and_the_power_cap_is_apart() -> None:
    rows = readings("gpu0", "throttle_reasons", {1: 0x04, 2: 0x40 | 0x08, 30: 0x80})
    assert throttle_reasons(rows, 0, 10 * SECOND) == (("hardware slowdown", "hardware thermal slowdown"), True)
    idle = readings("gpu0", "throttle_reasons", {1: float(0x01 | 0x02)})
    assert throttle_reasons(idle, 0, 10 * SECOND) == ((), False)


@pytest.mark.parametrize("names", [("cpu",), ("cpu0", "cpu1")])
def test_the_energy_of_gpus_and_of_their_host_are_apart(names: tuple[str, ...]) -> None:
    rows = readings("gpu0", "power_watts", {0: 50.0, 10: 50.0})
    rows += [row for name in names for row in readings(name, "energy_joules", {0: 0.0, 10: 100.0})]
    assert energy(rows, 0, 10 * SECOND, "cuda") == (pytest.approx(500), "")
    assert energy(rows, 0, 10 * SECOND, "cpu") == (pytest.approx(100 * len(names)), "")


def test_a_window_shorter_than_what_a_gpu_s_counter_tells_has_no_energy() -> None:
    gpu = readings("gpu0", "energy_joules", {0: 0.0, 10: 1000.0})
    package = readings("cpu0", "energy_joules", {0: 0.0, 10: 500.0})
    begin = int(gpu[0]["time_ns"]) + 10**9
    short, long = (energy(gpu, begin, begin + length * 10**6, "cuda") for length in (499, 500))
    assert short[0] is None and "499 ms" in short[1]
    assert long[0] == pytest.approx(50)
    assert energy(package, begin, begin + 10**8, "cpu")[0] == pytest.approx(5), "a CPU's is renewed each ms"


def sensor_readings(
    quantity: str, values: dict[float, float], device: str = "gpu0", node: int = 0
) -> list[dict[str, Any]]:
    """One row per {second after the start of the run: value}."""
    return [
        {"time_ns": START_NS + int(at * SECOND), "device": device, "quantity": quantity, "value": value, "node": node}
        for at, value in values.items()
    ]


def only(table: list[dict[str, Any]]) -> dict[str, Any]:
    (row,) = table
    return row


# Ten steps of 100 ms: the steps [2, 6) run from 0.2 s to 0.6 s.
STEPS = {0: step_rows([100.0] * 10, 8)}


def test_only_readings_of_the_measured_steps_count_and_their_ends_do() -> None:
    rows = sensor_readings("power_watts", {0.1: 50.0, 0.2: 300.0, 0.4: 360.0, 0.6: 330.0, 0.61: 900.0})
    row = only(telemetry_in_window(rows, STEPS, 2, 6))
    assert (row["samples"], row["mean"], row["min"], row["max"]) == (3, 330.0, 300.0, 360.0)
    assert row["device"] == "gpu0" and row["quantity"] == "power_watts" and row["increase"] is None


@pytest.mark.parametrize(("hertz", "seconds"), [(20, 1.0), (1, 5.0)])
def test_the_rate_is_the_one_that_was_reached(hertz: int, seconds: float) -> None:
    steps = {0: step_rows([100.0] * int(10 * seconds), 8)}
    rows = sensor_readings("power_watts", {(n + 0.5) / hertz: 1.0 for n in range(int(hertz * (seconds + 3)))})
    assert only(telemetry_in_window(rows, steps, 0, 1000))["rate_hz"] == pytest.approx(hertz)


def test_of_a_counter_its_increase_is_told() -> None:
    rows = sensor_readings("nvlink_tx_bytes", {0.1: 5.0, 0.25: 1000.0, 0.55: 4000.0, 0.7: 9000.0})
    row = only(telemetry_in_window(rows, STEPS, 2, 6))
    assert row["increase"] == 3000.0 and row["mean"] is None and row["samples"] == 2


@pytest.mark.parametrize("values", [{0.3: 7.0}, {0.3: 7.0, 0.4: 2.0, 0.5: 9.0}])
def test_a_counter_read_once_or_reset_has_no_increase(values: dict[float, float]) -> None:
    assert only(telemetry_in_window(sensor_readings("energy_joules", values), STEPS, 2, 6))["increase"] is None


def test_throttle_reasons_are_named_with_their_share_of_the_samples() -> None:
    rows = sensor_readings("throttle_reasons", {0.1: 0x40, 0.3: 0x04, 0.4: 0x24, 0.5: 0.0, 0.55: 0x04})
    row = only(telemetry_in_window(rows, STEPS, 2, 6))
    assert row["reasons"] == {"software power cap": 0.75, "software thermal slowdown": 0.25}
    assert row["mean"] is None and row["max"] is None


def test_every_bit_has_its_name_in_nvml() -> None:
    pynvml = pytest.importorskip("pynvml")
    bits = {
        "idle": pynvml.nvmlClocksThrottleReasonGpuIdle,
        "clocks set by the user": pynvml.nvmlClocksThrottleReasonUserDefinedClocks,
        "software power cap": pynvml.nvmlClocksThrottleReasonSwPowerCap,
        "hardware slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
        "sync boost": pynvml.nvmlClocksThrottleReasonSyncBoost,
        "software thermal slowdown": pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        "hardware thermal slowdown": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        "power brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
        "display clock": pynvml.nvmlClocksThrottleReasonDisplayClockSetting,
    }
    assert {name: bit for bit, name in CLOCK_REASONS.items() if bit <= 0x100} == bits
