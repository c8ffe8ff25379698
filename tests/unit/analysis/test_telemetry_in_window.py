"""Readings of the sensors held against the steps that were measured."""

from typing import Any

import pytest
from fake_run import SECOND, START_NS, step_rows

from analysis.metrics.telemetry import CLOCK_REASONS, reason_names, telemetry_in_window


def readings(quantity: str, values: dict[float, float], device: str = "gpu0", node: int = 0) -> list[dict[str, Any]]:
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
    rows = readings("power_watts", {0.1: 50.0, 0.2: 300.0, 0.4: 360.0, 0.6: 330.0, 0.61: 900.0})
    row = only(telemetry_in_window(rows, STEPS, 2, 6))
    assert (row["samples"], row["mean"], row["min"], row["max"]) == (3, 330.0, 300.0, 360.0)
    assert row["device"] == "gpu0" and row["quantity"] == "power_watts" and row["increase"] is None


@pytest.mark.parametrize(("hertz", "seconds"), [(20, 1.0), (1, 5.0)])
def test_the_rate_is_the_one_that_was_reached(hertz: int, seconds: float) -> None:
    steps = {0: step_rows([100.0] * int(10 * seconds), 8)}
    rows = readings("power_watts", {(n + 0.5) / hertz: 1.0 for n in range(int(hertz * (seconds + 3)))})
    assert only(telemetry_in_window(rows, steps, 0, 1000))["rate_hz"] == pytest.approx(hertz)


def test_a_gap_in_the_readings_lowers_the_rate() -> None:
    steps = {0: step_rows([100.0] * 10, 8)}
    rows = readings("power_watts", {n / 20 + 0.01: 1.0 for n in range(5)})
    assert only(telemetry_in_window(rows, steps, 0, 10))["rate_hz"] == pytest.approx(5.0)


def test_the_window_spans_the_ranks() -> None:
    late = [{**row, "start_ns": row["start_ns"] + SECOND} for row in STEPS[0]]
    rows = readings("power_watts", {0.1: 1.0, 0.3: 2.0, 1.5: 4.0, 1.7: 8.0})
    assert only(telemetry_in_window(rows, {0: STEPS[0], 1: late}, 2, 6))["samples"] == 2


def test_of_a_counter_its_increase_is_told() -> None:
    rows = readings("nvlink_tx_bytes", {0.1: 5.0, 0.25: 1000.0, 0.55: 4000.0, 0.7: 9000.0})
    row = only(telemetry_in_window(rows, STEPS, 2, 6))
    assert row["increase"] == 3000.0 and row["mean"] is None and row["samples"] == 2


@pytest.mark.parametrize("values", [{0.3: 7.0}, {0.3: 7.0, 0.4: 2.0, 0.5: 9.0}])
def test_a_counter_read_once_or_reset_has_no_increase(values: dict[float, float]) -> None:
    assert only(telemetry_in_window(readings("energy_joules", values), STEPS, 2, 6))["increase"] is None


def test_throttle_reasons_are_named_with_their_share_of_the_samples() -> None:
    rows = readings("throttle_reasons", {0.1: 0x40, 0.3: 0x04, 0.4: 0x24, 0.5: 0.0, 0.55: 0x04})
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


def test_a_bit_without_a_name_is_shown_as_a_number() -> None:
    assert reason_names(0x8 | 0x80000) == ("hardware slowdown", "bit 0x80000") and reason_names(0) == ()


def test_devices_and_quantities_stand_apart_and_in_order() -> None:
    rows = [
        *readings("power_watts", {0.3: 2.0}, "gpu1"),
        *readings("power_watts", {0.3: 1.0}, "gpu0"),
        *readings("power_watts", {0.3: 3.0}, "gpu0", node=1),
        *readings("cpu_percent", {0.3: 50.0}, "cpu"),
    ]
    table = telemetry_in_window(rows, STEPS, 2, 6)
    assert [(row["device"], row["mean"]) for row in table] == [
        ("cpu", 50.0),
        ("gpu0", 1.0),
        ("gpu1", 2.0),
        ("node 1/gpu0", 3.0),
    ]


def test_a_sensor_that_was_not_read_in_the_window_says_so() -> None:
    row = only(telemetry_in_window(readings("pcie_rx_bytes_per_second", {0.9: 5.0}), STEPS, 2, 6))
    assert row["samples"] == 0 and row["rate_hz"] == 0.0 and row["mean"] is None


def test_without_the_steps_there_is_no_window() -> None:
    assert telemetry_in_window(readings("power_watts", {0.3: 1.0}), STEPS, 20, 30) == []
    assert telemetry_in_window(readings("power_watts", {0.3: 1.0}), {}, 0, 3) == []
