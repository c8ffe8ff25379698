import dataclasses
import json

import numpy as np
import pytest
from fake_run import ENVIRONMENT, SECOND, START_NS, rank_record, step_rows
from support.refusals import refused

from analysis.metrics.throughput import find_window, summarize
from records.schema import MEASURED_COLUMNS, RESULT_COLUMNS
from records.trial import Trial

TRIAL = Trial(preset="mini", micro_batch_size=8, start_iteration=2, stop_iteration=7)
TIMES = [400.0, 200.0, 100.0, 110.0, 90.0, 120.0, 80.0]  # the median of the last five is 100 ms


def test_every_rate_follows_from_the_median_step_by_hand() -> None:
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


def test_warmup_is_in_no_number_when_the_window_is_detected() -> None:
    times = [5000.0, 900.0, *[100.0] * 30]
    trial = Trial(preset="mini", micro_batch_size=8)
    result = summarize(trial, {0: step_rows(times, 8)}, {0: rank_record()}, ENVIRONMENT)
    assert result["warmup_source"] == "detected" and result["steps_warmup"] == 2
    assert result["step_time_ms_mean"] == pytest.approx(100) and result["step_time_ms_p95"] == pytest.approx(100)


def test_a_step_is_as_long_as_its_slowest_rank_and_counts_are_summed() -> None:
    trial = dataclasses.replace(TRIAL, world_size=2)
    slow = [time + (30 if index % 2 else -10) for index, time in enumerate(TIMES)]
    steps = {0: step_rows(TIMES, 8), 1: step_rows(slow, 8)}
    result = summarize(trial, steps, {0: rank_record(), 1: rank_record()}, ENVIRONMENT)
    slowest = np.maximum(TIMES, slow)[2:]
    assert result["step_time_ms"] == pytest.approx(np.median(slowest))
    assert result["samples_per_second"] == pytest.approx(16 / np.median(slowest) * 1000)
    assert result["measured_peak_flops"] == pytest.approx(8e11)


def test_the_phases_are_those_of_the_slowest_rank() -> None:
    trial = dataclasses.replace(TRIAL, world_size=2)
    steps = {0: step_rows([100.0] * 7, 8, data_wait=1.0), 1: step_rows([150.0] * 7, 8, data_wait=9.0)}
    result = summarize(trial, steps, {}, ENVIRONMENT)
    assert result["data_wait_ms"] == 9
    total = sum(result[name] or 0 for name in ("data_wait_ms", "forward_ms", "backward_ms", "optimizer_ms"))
    assert total == pytest.approx(150)


def test_steps_that_one_rank_did_not_finish_do_not_count() -> None:
    trial = dataclasses.replace(TRIAL, world_size=2)
    window = find_window(trial, {0: step_rows(TIMES, 8), 1: step_rows(TIMES[:5], 8)})
    assert [row["step"] for row in window.rows] == [2, 3, 4]


def test_varying_counts_give_the_mean_count_over_the_median_time() -> None:
    rows = step_rows(TIMES, 8)
    for row, tokens in zip(rows, (0, 0, 500, 600, 700, 800, 1400), strict=True):
        row["real_tokens"] = tokens
    result = summarize(TRIAL, {0: rows}, {}, ENVIRONMENT)
    assert result["tokens_per_second"] == pytest.approx(800 / 0.1), "the mean, not the median of 700"


def test_the_peak_is_the_better_of_before_and_after_per_rank_summed() -> None:
    trial = dataclasses.replace(TRIAL, world_size=2)
    steps = {rank: step_rows(TIMES, 8) for rank in (0, 1)}
    ranks = {0: rank_record(peak=1e11, after=2e11), 1: rank_record(peak=3e11, after=1e11)}
    result = summarize(trial, steps, ranks, ENVIRONMENT)
    assert result["measured_peak_flops"] == pytest.approx(5e11)
    assert result["measured_peak"]["drift"] == pytest.approx(2.0)


def in_fp8(peak: float, dtype: str, **more: str) -> dict[str, object]:
    return {
        **rank_record(),
        "measured_peak": {"before": peak, "after": peak, "dtype": dtype, "shape": [8192] * 3, **more},
    }


def test_products_in_fp8_are_held_against_a_peak_in_fp8_alone() -> None:
    fp8 = dataclasses.replace(TRIAL, levers="fp8+unpad", precision="bf16")
    steps = {0: step_rows(TIMES, 8)}
    # 8 sequences of 1e9 FLOPs in 0.1 s: 8e10 FLOP/s, of 8e11 a tenth.
    result = summarize(fp8, steps, {0: in_fp8(8e11, "float8_e4m3fn", products="float8_e4m3fn")}, ENVIRONMENT)
    assert result["mfu"] == pytest.approx(0.1) and result["measured_peak"]["dtype"] == "float8_e4m3fn"
    for record in (in_fp8(4e11, "bfloat16"), in_fp8(4e11, "bfloat16", products="float8_e4m3fn")):
        result = summarize(fp8, steps, {0: record}, ENVIRONMENT)
        assert result["mfu"] is None and result["measured_peak_flops"] is None and result["samples_per_second"] == 80
        for column in ("mfu", "measured_peak_flops"):
            assert "float8_e4m3fn" in result["unknown"][column] and "bfloat16" in result["unknown"][column]
    # The lever has no effect with fsdp, and the record says what the products ran in.
    fsdp = dataclasses.replace(fp8, strategy="fsdp")
    result = summarize(fsdp, steps, {0: in_fp8(4e11, "bfloat16", products="bfloat16")}, ENVIRONMENT)
    assert result["mfu"] == pytest.approx(0.2)


def test_a_missing_peak_gives_no_mfu_and_says_which_rank() -> None:
    trial = dataclasses.replace(TRIAL, world_size=2)
    steps = {rank: step_rows(TIMES, 8) for rank in (0, 1)}
    result = summarize(trial, steps, {0: rank_record()}, ENVIRONMENT)
    assert result["mfu"] is None and result["measured_peak_flops"] is None
    assert result["unknown"]["mfu"] == result["unknown"]["measured_peak_flops"] == "rank 1 measured no peak"
    trial = dataclasses.replace(TRIAL, world_size=4)
    result = summarize(trial, {rank: step_rows(TIMES, 8) for rank in range(4)}, {0: rank_record()}, ENVIRONMENT)
    assert result["unknown"]["mfu"] == "rank 1 measured no peak (nor 2 others)"
    result = summarize(
        trial, {rank: step_rows(TIMES, 8) for rank in range(4)}, {0: rank_record(), 1: rank_record()}, ENVIRONMENT
    )
    assert result["unknown"]["mfu"] == "rank 2 measured no peak (nor 1 other)"


def test_peak_memory_is_that_of_the_neediest_rank() -> None:
    trial = dataclasses.replace(TRIAL, world_size=2)
    ranks = {0: rank_record(memory=5), 1: rank_record(memory=9)}
    result = summarize(trial, {0: step_rows(TIMES, 8), 1: step_rows(TIMES, 8)}, ranks, ENVIRONMENT)
    assert result["peak_memory_bytes"] == 9 and result["peak_memory_kind"] == "resident set"


def test_cost_by_hand_and_a_price_of_nothing_is_refused() -> None:
    steps = {0: step_rows(TIMES, 8)}
    result = summarize(TRIAL, steps, {}, ENVIRONMENT, price_per_hour=3.6)
    assert result["cost_per_million_samples"] == pytest.approx(3.6 / 3600 / 80 * 1e6)
    assert summarize(TRIAL, steps, {}, ENVIRONMENT)["cost_per_million_samples"] is None
    for price in (0.0, -1.0, float("nan")):
        with refused("option-value", f"--price-per-hour {price}"):
            summarize(TRIAL, steps, {}, ENVIRONMENT, price_per_hour=price)


def test_energy_of_the_window_by_hand() -> None:
    trial = dataclasses.replace(TRIAL, start_iteration=0, stop_iteration=10, device="cuda")
    telemetry = [
        {
            "time_ns": START_NS + second * SECOND // 4,
            "device": "gpu0",
            "quantity": "energy_joules",
            "value": 50.0 * second,
        }
        for second in range(-4, 12)
    ]
    result = summarize(trial, {0: step_rows([100.0] * 10, 8)}, {}, ENVIRONMENT, telemetry)
    assert result["energy_joules"] == pytest.approx(200.0)  # 200 W for 1 s
    assert result["joules_per_sample"] == pytest.approx(200.0 / 80)
    assert result["energy_devices"] == ["gpu0"]


def test_energy_is_unknown_where_the_steps_have_no_times_of_day() -> None:
    steps = {0: step_rows(TIMES, 8, start_ns=None)}
    result = summarize(TRIAL, steps, {}, ENVIRONMENT)
    assert result["energy_joules"] is None and result["joules_per_sample"] is None
    assert result["unknown"]["energy_joules"] == "the step records hold no times of day"
    assert result["samples_per_second"] == pytest.approx(80)


def test_no_finished_step_gives_none_with_a_reason_everywhere() -> None:
    result = summarize(TRIAL, {}, {}, {})
    for name in MEASURED_COLUMNS:
        if name not in ("steps_measured", "steps_warmup"):
            assert result[name] is None and result["unknown"][name]
    short = summarize(TRIAL, {0: step_rows(TIMES[:2], 8)}, {}, {})
    assert "only 2 steps" in short["unknown"]["samples_per_second"]


def test_one_step_has_no_spread_and_the_result_is_plain_json() -> None:
    trial = dataclasses.replace(TRIAL, start_iteration=0, stop_iteration=1)
    result = summarize(trial, {0: step_rows([100.0], 8)}, {0: rank_record()}, {})
    assert result["step_time_ms"] == 100 and result["step_time_ms_low"] is None and result["step_time_ms_std"] is None
    assert "one measured step" in result["unknown"]["step_time_ms_low"]
    json.dumps(result, allow_nan=False)


def test_empty_fields_and_times_that_are_no_numbers_are_survived() -> None:
    rows = step_rows([100.0] * 12, 8)
    rows[3]["step_time_ms"] = None
    rows[4]["step_time_ms"] = float("nan")
    for row in rows:
        row["model_flops"] = row["communication_ms"] = None
    trial = dataclasses.replace(TRIAL, start_iteration=0, stop_iteration=12)
    result = summarize(trial, {0: rows}, {0: rank_record()}, {})
    assert result["steps_measured"] == 10 and result["mfu"] is None and "model_flops" in result["unknown"]["mfu"]
    json.dumps(result, allow_nan=False)


def test_every_measured_column_of_the_schema_is_filled_here() -> None:
    trial_fields = {field.name for field in dataclasses.fields(Trial)} | {"trial_id", "status", "reason"}
    assert set(MEASURED_COLUMNS) == set(RESULT_COLUMNS) - trial_fields


def test_no_key_of_a_result_hides_a_field_of_the_trial() -> None:
    result = summarize(TRIAL, {0: step_rows(TIMES, 8)}, {0: rank_record()}, ENVIRONMENT)
    assert not set(result) & {field.name for field in dataclasses.fields(Trial)}
