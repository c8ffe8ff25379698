import dataclasses
from typing import Any

import numpy as np
import pytest
from fake_run import ENVIRONMENT, START_NS, rank_record, step_rows

from analysis.metrics.cautions import of_records, of_run, of_scaling, one_round
from analysis.metrics.throughput import summarize
from records.trial import Trial

QUIET = [300.0, *(100 + np.random.default_rng(0).normal(0, 0.5, 60))]
TRIAL = Trial(preset="mini", micro_batch_size=8, precision="fp32")


def codes(
    times: list[float] = QUIET,
    trial: Trial = TRIAL,
    ranks: dict[int, dict[str, Any]] | None = None,
    environment: dict[str, Any] = ENVIRONMENT,
    telemetry: list[dict[str, Any]] | None = None,
    **columns: Any,
) -> set[str]:
    steps = {rank: step_rows(times, 8, **columns) for rank in range(trial.world_size)}
    result = summarize(trial, steps, ranks or {0: rank_record()}, environment, telemetry or [])
    for caution in result["cautions"]:
        assert caution["message"] and caution["remedy"]
    return {caution["code"] for caution in result["cautions"]}


def reading(quantity: str, value: float) -> list[dict[str, Any]]:
    return [
        {"time_ns": START_NS + second * 10**9, "device": "x", "quantity": quantity, "value": value}
        for second in range(8)
    ]


@pytest.mark.parametrize(
    ("fields", "helps", "not_"),
    [
        ({"start_iteration": 1, "stop_iteration": 5}, "--stop", "--max-"),
        ({"max_seconds": 1.0}, "--max-seconds", "--stop"),
        ({"max_steps": 4}, "--max-steps", "--stop"),  # all that were allowed were made: more time makes no more
    ],
)
def test_too_few_steps_name_the_option_that_makes_more(fields: dict[str, Any], helps: str, not_: str) -> None:
    trial = dataclasses.replace(TRIAL, **fields)
    result = summarize(trial, {0: step_rows([100.0] * 4, 8)}, {0: rank_record()}, ENVIRONMENT, [])
    (remedy,) = [one["remedy"] for one in result["cautions"] if one["code"] == "too_few_steps"]
    assert helps in remedy and not_ not in remedy


def test_a_quiet_trial_has_none() -> None:
    assert codes() == set()


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("warmup_long", {"times": [float(200 - step) for step in range(60)]}),
        ("too_few_steps", {"times": [100.0] * 4}),
        ("noisy", {"times": list(100 + 40 * np.random.default_rng(1).random(60))}),
        ("interval_wide", {"times": list(100 + 40 * np.random.default_rng(1).random(60))}),
        ("loaded", {"telemetry": reading("foreign_cpu_percent", 35.0)}),
        ("loaded", {"environment": {**ENVIRONMENT, "load_average": [12.0, 1.0, 1.0]}}),
        ("throttled", {"telemetry": reading("throttle_reasons", float(0x40))}),
        ("power_capped", {"telemetry": reading("throttle_reasons", float(0x04))}),
        (
            "bf16_emulated",
            {
                "trial": dataclasses.replace(TRIAL, precision="bf16"),
                "environment": {**ENVIRONMENT, "native_bf16": False},
            },
        ),
        ("tf32_on_cpu", {"trial": dataclasses.replace(TRIAL, precision="tf32")}),
        ("data_wait", {"data_wait": 9.0}),
        ("mfu_above_one", {"ranks": {0: rank_record(peak=1e9)}}),
        ("peak_changed", {"ranks": {0: rank_record(peak=4e11, after=5e11)}}),
    ],
)
def test_each_doubt_is_raised_by_its_cause_alone(code: str, arguments: dict[str, Any]) -> None:
    found = codes(**arguments)
    assert code in found
    assert found <= {code, "noisy", "interval_wide", "warmup_long"}


def test_a_low_foreign_load_a_native_bf16_and_an_idle_gpu_raise_nothing() -> None:
    trial = dataclasses.replace(TRIAL, precision="bf16")
    telemetry = reading("foreign_cpu_percent", 3.0) + reading("throttle_reasons", float(0x01))
    assert codes(trial=trial, telemetry=telemetry) == set()


def test_a_straggler_is_named() -> None:
    trial = dataclasses.replace(TRIAL, world_size=2)
    steps = {0: step_rows(QUIET, 8, communication=20.0), 1: step_rows(QUIET, 8, communication=1.0)}
    result = summarize(trial, steps, {0: rank_record(), 1: rank_record()}, ENVIRONMENT)
    (caution,) = [caution for caution in result["cautions"] if caution["code"] == "straggler"]
    assert "rank 1" in caution["message"]


def test_the_few_steps_of_a_profile_are_no_doubt() -> None:
    trial = Trial(
        preset="mini", kind="profile", profiler="torch", start_iteration=3, stop_iteration=6, precision="fp32"
    )
    assert "too_few_steps" not in codes(times=[100.0] * 6, trial=trial)


def test_one_round_says_what_to_do() -> None:
    assert one_round(1).code == "one_round" and one_round(2).code == "few_rounds"
    assert "--rounds 3" in one_round(1).remedy


def test_trials_of_several_machines_or_versions_are_named_with_their_values() -> None:
    one = {"device_name": "H200", "libraries": {"torch": "2.13.0", "numpy": "1"}, "git_commit": "abc"}
    assert of_run([one, {}, {**one, "libraries": {"torch": "2.13.0", "numpy": "2"}}, {"git_commit": None}]) == []
    other = {"device_name": "A100", "libraries": {"torch": "2.14.0", "transformers": "5"}, "git_commit": "abc-dirty"}
    (found,) = of_run([one, other, one])
    for text in ("device (H200, A100)", "torch (2.13.0, 2.14.0)", "commit of this suite (abc, abc-dirty)"):
        assert text in found.message
    assert "transformers" not in found.message and "new --out" in found.remedy and "--again" in found.remedy


def test_a_step_record_that_was_cut_is_a_caution() -> None:
    rows = [{"step": number} for number in range(3)]
    (found,) = of_records({0: rows, 1: rows}, {0: {"steps": 3}, 1: {"steps": 7}})
    assert found["code"] == "records_lost" and "rank 1 made 7 steps, its record holds 3" in found["message"]
    assert of_records({0: rows}, {0: {}}) == [], "older records do not say how many steps were made"


@pytest.mark.parametrize(
    ("basis", "efficiency", "low", "doubtful"),
    [
        ("per device", 1.05, 1.02, False),
        ("per device", 1.2, 1.15, True),
        ("per device", 1.2, 0.9, False),  # the noise explains it
        ("per device", 1.2, None, True),
        ("same cores per rank", 1.2, 1.15, True),
        ("equal shares of the cores", 1.3, 1.2, False),
        ("same total cores", 1.3, 1.2, False),  # two processes may use two cores better than one
        ("same total cores", 2.1, 1.9, True),
    ],
)
def test_scaling_beyond_what_devices_can_add_is_doubted(
    basis: str, efficiency: float, low: float | None, doubtful: bool
) -> None:
    row = {
        "scaling": "weak", "implementation": "hf", "world_size": 2, "base_world_size": 1, "micro_batch_size": 4,
        "basis": basis, "efficiency": efficiency, "efficiency_low": low,
    }  # fmt: skip
    found = of_scaling([{**row, "efficiency": 0.9, "efficiency_low": 0.8}, row])
    assert [caution.code for caution in found] == ["scaling_above_one"] * doubtful
    if doubtful:
        assert f"hf to 2 ranks at micro batch 4 is {efficiency:.0%}" in found[0].message
