import numpy as np
import pytest
from fake_run import SECOND

from analysis.metrics.telemetry import energy, throttle_reasons


def readings(device: str, quantity: str, values: dict[float, float]) -> list[dict]:
    return [
        {"time_ns": int(at * SECOND), "device": device, "quantity": quantity, "value": value}
        for at, value in values.items()
    ]


def test_power_is_integrated_over_the_window_only() -> None:
    ramp = readings("gpu0", "power_watts", {second: 10.0 * second for second in range(11)})
    found = energy(ramp, 2 * SECOND, 6 * SECOND, "cuda")
    assert found.joules == pytest.approx(10 * (36 - 4) / 2)
    assert energy(ramp, 6 * SECOND, 6 * SECOND, "cuda").joules is None, "no time, no energy"


def test_devices_add_up_and_counters_win_over_power() -> None:
    rows = readings("gpu0", "energy_joules", {0: 0.0, 10: 1000.0}) + readings("gpu0", "power_watts", {0: 9.0, 10: 9.0})
    rows += readings("gpu1", "power_watts", {0: 50.0, 10: 50.0})
    found = energy(rows, 0, 10 * SECOND, "cuda")
    assert found.joules == pytest.approx(1000 + 500) and found.devices == ("gpu0", "gpu1")


def test_a_counter_that_was_reset_falls_back_to_power_or_says_it_is_unknown() -> None:
    rows = readings("gpu0", "energy_joules", {0: 900.0, 5: 1000.0, 10: 3.0})
    assert energy(rows, 0, 10 * SECOND, "cuda").joules is None
    rows += readings("gpu0", "power_watts", {0: 7.0, 10: 7.0})
    assert energy(rows, 0, 10 * SECOND, "cuda").joules == pytest.approx(70)


def test_readings_that_miss_part_of_the_window_are_not_stretched_over_it() -> None:
    rows = readings("gpu0", "power_watts", {0: 100.0, 4: 100.0})
    found = energy(rows, 0, 10 * SECOND, "cuda")
    assert found.joules is None and "do not cover the window" in (found.reason or "")


@pytest.mark.parametrize("quantity", ["energy_joules", "power_watts"])
def test_the_mean_power_of_the_covered_part_stands_for_the_whole_window(quantity: str) -> None:
    first, last = (700.0, 700.0 + 95 * 100) if quantity == "energy_joules" else (100.0, 100.0)
    rows = readings("gpu0", quantity, {1005: first, 1100: last})
    assert energy(rows, 1000 * SECOND, 1100 * SECOND, "cuda").joules == pytest.approx(100 * 100)


def test_a_hosts_energy_is_not_passed_off_as_a_gpus() -> None:
    rows = readings("cpu", "energy_joules", {0: 0.0, 10: 100.0})
    reasons = {"cpu energy_joules": "RAPL", "gpu0 power_watts": "Not Supported"}
    found = energy(rows, 0, 10 * SECOND, "cuda", reasons)
    assert found.joules is None and found.reason == "Not Supported"
    assert energy(rows, 0, 10 * SECOND, "cpu").joules == pytest.approx(100)


def test_nothing_read_gives_the_recorded_reason() -> None:
    assert energy([], 0, SECOND, "cpu", {"gpu": "no GPU", "cpu energy_joules": "RAPL cannot be read"}).reason == (
        "RAPL cannot be read"
    )
    assert energy([], 0, SECOND, "cpu").reason == "no energy or power sensor was read"


def test_throttles_are_named_and_the_power_cap_is_apart() -> None:
    rows = readings("gpu0", "throttle_reasons", {1: 0x04, 2: 0x40 | 0x08, 30: 0x80})
    assert throttle_reasons(rows, 0, 10 * SECOND) == (("hardware slowdown", "hardware thermal slowdown"), True)
    idle = readings("gpu0", "throttle_reasons", {1: float(0x01 | 0x02)})
    assert throttle_reasons(idle, 0, 10 * SECOND) == ((), False)
    assert np.isfinite(rows[0]["value"])


@pytest.mark.parametrize("names", [("cpu",), ("cpu0", "cpu1")])
def test_a_gpus_energy_does_not_depend_on_whether_the_hosts_can_be_read(names: tuple[str, ...]) -> None:
    gpu = readings("gpu0", "power_watts", {0: 50.0, 10: 50.0})
    host = [row for name in names for row in readings(name, "energy_joules", {0: 0.0, 10: 100.0})]
    alone, both = energy(gpu, 0, 10 * SECOND, "cuda"), energy(gpu + host, 0, 10 * SECOND, "cuda")
    assert alone.joules == both.joules == pytest.approx(500) and both.devices == ("gpu0",)
    assert alone.host_joules is None and both.host_joules == pytest.approx(100 * len(names))
    cpu = energy(gpu + host, 0, 10 * SECOND, "cpu")
    assert cpu.joules == pytest.approx(100 * len(names)) and cpu.devices == names and cpu.host_joules is None


def test_a_host_that_was_read_too_short_does_not_cost_the_gpus_energy() -> None:
    rows = readings("gpu0", "power_watts", {0: 50.0, 10: 50.0}) + readings("cpu0", "energy_joules", {0: 0.0, 2: 1.0})
    found = energy(rows, 0, 10 * SECOND, "cuda")
    assert found.joules == pytest.approx(500) and found.host_joules is None


def test_a_window_shorter_than_what_a_gpu_s_counter_tells_has_no_energy() -> None:
    gpu = readings("gpu0", "energy_joules", {0: 0.0, 10: 1000.0})
    package = readings("cpu0", "energy_joules", {0: 0.0, 10: 500.0})
    begin = int(gpu[0]["time_ns"]) + 10**9
    short, long = (energy(gpu, begin, begin + length * 10**6, "cuda") for length in (499, 500))
    assert short.joules is None and short.reason == (
        "the window of 499 ms is too short for a GPU's counter: measure 500 ms or longer"
    )
    assert long.joules == pytest.approx(50)
    assert energy(package, begin, begin + 10**8, "cpu").joules == pytest.approx(5), "a CPU's is renewed each ms"
