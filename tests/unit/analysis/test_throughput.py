import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from support.fake_run import ENVIRONMENT, START_NS, rank_record, step_rows

from analysis.metrics.cautions import of_scaling
from analysis.metrics.throughput import combine, per_rank, summarize
from records.schema import MEASURED_COLUMNS
from records.trial import Trial

TRIAL = Trial(preset="mini", micro_batch_size=8, start_iteration=2, stop_iteration=7)
TIMES = [400.0, 200.0, 100.0, 110.0, 90.0, 120.0, 80.0]  # the median of the last five is 100 ms


def test_every_number_of_a_window_by_hand() -> None:
    result = summarize(TRIAL, {0: step_rows(TIMES, 8)}, {0: rank_record(peak=4e11)}, ENVIRONMENT)
    assert result["step_time_ms"] == 100
    assert result["samples_per_second"] == pytest.approx(8 / 0.1)
    assert result["tokens_per_second"] == pytest.approx(800 / 0.1)
    assert result["padded_tokens_per_second"] == pytest.approx(1024 / 0.1)
    assert result["padding_efficiency"] == pytest.approx(100 / 128)
    assert result["model_flops_per_second"] == pytest.approx(8e9 / 0.1)
    assert result["mfu"] == pytest.approx(8e10 / 4e11)
    assert result["step_time_ms_mean"] == pytest.approx(100)
    assert result["step_time_ms_std"] == pytest.approx(np.std([100, 110, 90, 120, 80], ddof=1))
    assert (result["steps_measured"], result["steps_warmup"]) == (5, 2)
    assert (result["window_start"], result["window_stop"], result["warmup_source"]) == (2, 7, "given")
    assert result["step_time_ms_low"] <= 100 <= result["step_time_ms_high"]


def test_rates_are_totals_of_the_window_over_its_time() -> None:
    """2 + 2 + 2 + 34 = 40 samples in 100 + 100 + 100 + 700 ms, all ranks; the median step would give 100 per second."""
    rows = step_rows([400.0, 100.0, 100.0, 100.0, 700.0], 2)
    rows[-1] |= step_rows([700.0], 34)[0] | {"step": 4, "start_ns": rows[-1]["start_ns"]}
    trial = dataclasses.replace(TRIAL, start_iteration=1, stop_iteration=5)
    result = summarize(trial, {0: rows}, {0: rank_record(peak=4e11)}, ENVIRONMENT, price_per_hour=3.6)
    assert (result["samples_per_step"], result["step_time_ms"]) == (10, 100)
    assert result["samples_per_second"] == pytest.approx(40)
    assert result["tokens_per_second"] == pytest.approx(4000)
    assert result["padded_tokens_per_second"] == pytest.approx(5120)
    assert result["mfu"] == pytest.approx(40e9 / 4e11)
    assert result["cost_per_million_samples"] == pytest.approx(3.6 / 3600 / 40 * 1e6)
    assert result["samples_per_second_low"] < 40 < result["samples_per_second_high"]


def test_a_step_is_as_long_as_its_slowest_rank_and_counts_are_summed() -> None:
    trial = dataclasses.replace(TRIAL, world_size=2)
    slow = [time + (30 if index % 2 else -10) for index, time in enumerate(TIMES)]
    steps = {0: step_rows(TIMES, 8), 1: step_rows(slow, 8)}
    result = summarize(trial, steps, {0: rank_record(), 1: rank_record()}, ENVIRONMENT)
    slowest = np.maximum(TIMES, slow)[2:]
    assert result["step_time_ms"] == pytest.approx(np.median(slowest))
    assert result["samples_per_second"] == pytest.approx(16 / np.mean(slowest) * 1000)
    assert result["measured_peak_flops"] == pytest.approx(8e11)


@pytest.mark.parametrize(
    ("strategy", "peak", "measured", "gemms", "mfu"),
    [
        # 8 sequences of 1e9 FLOPs in 0.1 s: 8e10 FLOP/s, of 8e11 a tenth.
        ("ddp", 8e11, "float8_e4m3fn", "float8_e4m3fn", 0.1),
        ("ddp", 4e11, "bfloat16", "float8_e4m3fn", None),
        ("ddp", 4e11, "bfloat16", None, None),
        # FP8 has no effect with fsdp, and the record says what the GEMMs ran in.
        ("fsdp", 4e11, "bfloat16", "bfloat16", 0.2),
    ],
)
def test_gemms_in_fp8_have_an_mfu_of_a_peak_in_fp8_alone(
    strategy: str, peak: float, measured: str, gemms: str | None, mfu: float | None
) -> None:
    trial = dataclasses.replace(TRIAL, precision="fp8", strategy=strategy)
    record = {"before": peak, "after": peak, "dtype": measured, "shape": [8192] * 3, "products": gemms}
    result = summarize(trial, {0: step_rows(TIMES, 8)}, {0: {**rank_record(), "measured_peak": record}}, ENVIRONMENT)
    assert result["mfu"] == (None if mfu is None else pytest.approx(mfu)) and result["samples_per_second"] == 80
    assert ("mfu" in result["unknown"]) == ("measured_peak_flops" in result["unknown"]) == (mfu is None)


def test_what_is_missing_is_unknown_and_says_why() -> None:
    steps = {0: step_rows(TIMES, 8)}
    two = dataclasses.replace(TRIAL, world_size=2)
    result = summarize(two, {**steps, 1: steps[0]}, {0: rank_record()}, ENVIRONMENT)
    assert result["unknown"]["mfu"] == result["unknown"]["measured_peak_flops"] == "rank 1 measured no peak"
    assert summarize(TRIAL, steps, {}, ENVIRONMENT)["cost_per_million_samples"] is None
    nothing = summarize(TRIAL, {}, {}, {})
    for name in {*MEASURED_COLUMNS} - {"steps_measured", "steps_warmup"}:
        assert nothing[name] is None and nothing["unknown"][name]
    short = summarize(TRIAL, {0: step_rows(TIMES[:2], 8)}, {}, {})
    assert "only 2 steps" in short["unknown"]["samples_per_second"]
    one = summarize(dataclasses.replace(TRIAL, stop_iteration=3), {0: step_rows(TIMES[:3], 8)}, {0: rank_record()}, {})
    assert one["step_time_ms"] == 100 and one["step_time_ms_low"] is None and one["step_time_ms_std"] is None
    assert "one measured step" in one["unknown"]["step_time_ms_low"]
    json.dumps(one, allow_nan=False)


def test_own_work_shows_the_straggler_that_equal_step_times_hide() -> None:
    steps = {
        0: step_rows([100.0] * 10, 8, communication=20.0, data_wait=0.0),
        1: step_rows([100.0] * 10, 8, communication=2.0, data_wait=0.0),
        2: step_rows([100.0] * 10, 8, communication=20.0, data_wait=0.0),
    }
    records = {rank: rank_record() for rank in steps}
    result = summarize(dataclasses.replace(TRIAL, world_size=3, stop_iteration=10), steps, records, ENVIRONMENT)
    assert "straggler" in {one["code"] for one in result["cautions"]}
    table = per_rank(steps, records, 0, 10)
    assert [row["straggler"] for row in table] == [False, True, False]
    assert table[1]["work_ms"] == pytest.approx(98) and table[1]["skew"] == pytest.approx(98 / 80 - 1)
    assert table[0]["skew"] == 0


def test_a_count_that_one_rank_lacks_is_unknown_not_partial() -> None:
    lacking = step_rows([100.0], 8)
    lacking[0]["model_flops"] = None
    (row,) = combine({0: step_rows([100.0], 8), 1: lacking})
    assert row["model_flops"] is None and row["samples"] == 16


QUIET = [300.0, *(100 + np.random.default_rng(0).normal(0, 0.5, 60))]
SHARDS = {**rank_record(), "shards_read": {"samples": 10, "seconds": 1.0}}
MINI = Trial(preset="mini", micro_batch_size=8, precision="fp32")


def codes(
    times: list[float] = QUIET,
    trial: Trial = MINI,
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
    ("code", "arguments"),
    [
        ("warmup_long", {"times": [float(200 - step) for step in range(60)]}),
        ("too_few_steps", {"times": [100.0] * 4}),
        ("noisy", {"times": list(100 + 40 * np.random.default_rng(1).random(60))}),
        ("interval_wide", {"times": list(100 + 40 * np.random.default_rng(1).random(60))}),
        ("loaded", {"telemetry": reading("foreign_cpu_percent", 35.0)}),
        ("loaded", {"environment": {**ENVIRONMENT, "load_average": [12.0, 1.0, 1.0]}}),
        ("throttled", {"telemetry": reading("throttle_reasons", float(0x40))}),
        (
            "bf16_emulated",
            {
                "trial": dataclasses.replace(MINI, precision="bf16"),
                "environment": {**ENVIRONMENT, "native_bf16": False},
            },
        ),
        ("tf32_on_cpu", {"trial": dataclasses.replace(MINI, precision="tf32")}),
        ("data_wait", {"data_wait": 9.0}),
        ("mfu_above_one", {"ranks": {0: rank_record(peak=1e9)}}),
        ("peak_changed", {"ranks": {0: rank_record(peak=4e11, after=5e11)}}),
        ("reading", {"trial": dataclasses.replace(MINI, kind="input"), "ranks": {0: SHARDS}}),
    ],
)
def test_each_doubt_is_raised_by_its_cause_alone(code: str, arguments: dict[str, Any]) -> None:
    found = codes(**arguments)
    assert code in found
    assert found <= {code, "noisy", "interval_wide", "warmup_long"}


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
        assert f"hf to 2 ranks at micro batch 4 is {100 * efficiency:.0f} %" in found[0].message
