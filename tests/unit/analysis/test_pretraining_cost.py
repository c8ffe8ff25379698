"""Days and cost of the two phases of pretraining from measured rates, compared with the arithmetic of the paper."""

import csv
from pathlib import Path
from typing import Any

import pytest
from support.charts import report_page
from support.fake_run import write_sweep

from analysis.load import load_run
from analysis.metrics.scaling import pretraining_costs
from records.schema import OPTION_COLUMNS

STEPS, BATCH = 1_000_000, 256


def rate(samples_per_second: float, **fields: Any) -> dict[str, Any]:
    """Return the row of one configuration."""
    same = {"kind": "throughput", "task": "pretrain", "implementation": "bertbench", "preset": "large"}
    same |= {"precision": "bf16", "strategy": "ddp", "device": "cuda", "world_size": 8, "nodes": 1}
    same |= dict.fromkeys(OPTION_COLUMNS, "")
    same |= {"data": "synthetic", "data_fingerprint": "", "padding_efficiency": 0.9}
    return {**same, "seq_len": 128, "micro_batch_size": 64, "samples_per_second": samples_per_second, **fields}


def test_nine_tenths_of_the_sequences_are_of_128_tokens_and_the_rest_of_512() -> None:
    slower = rate(1000.0, micro_batch_size=32)
    (row,) = pretraining_costs([slower, rate(2000.0), rate(400.0, seq_len=512, micro_batch_size=16)], 10.0)
    first, second = 0.9 * STEPS * BATCH / 2000 / 86400, 0.1 * STEPS * BATCH / 400 / 86400
    assert (row["phase_1_batch"], row["phase_2_batch"]) == (64, 16)
    assert row["phase_1_days"] == pytest.approx(first) and row["phase_2_days"] == pytest.approx(second)
    assert row["days"] == pytest.approx(first + second)
    assert (
        row["cost"] == pytest.approx((first + second) * 240) == pytest.approx(row["phase_1_cost"] + row["phase_2_cost"])
    )


def test_what_was_not_measured_is_unknown() -> None:
    (row,) = pretraining_costs([rate(2000.0)])
    assert row["phase_1_days"] > 0
    assert all(row[name] is None for name in ("phase_2_days", "phase_2_cost", "days", "cost", "phase_1_cost"))


def test_of_several_data_those_with_the_fullest_sequences_count() -> None:
    half = {"data": "synthetic:mean64", "padding_efficiency": 0.5}
    rows = [rate(1000.0), rate(900.0, micro_batch_size=32, padding_efficiency=0.91), rate(1900.0, **half)]
    (row,) = pretraining_costs(rows)
    assert row["phase_1_samples_per_second"] == 1000.0, "the fastest batch, whatever its samples happened to be"
    assert row["phase_1_padding_efficiency"] == 0.9
    (alone,) = pretraining_costs(rows[2:])
    assert (alone["phase_1_samples_per_second"], alone["phase_1_padding_efficiency"]) == (1900.0, 0.5)


@pytest.mark.parametrize("name", ["implementation", "strategy", "nodes", "step"])
def test_configurations_are_kept_apart(name: str) -> None:
    assert (
        len(pretraining_costs([rate(2000.0), rate(400.0, seq_len=512, **{name: 2 if name == "nodes" else "x"})])) == 2
    )


def test_a_report_has_the_days_and_with_a_price_the_cost(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, implementations=("bertbench",), batches=(4, 8), worlds=(1,), seq_len=128)
    write_sweep(tmp_path, implementations=("bertbench",), batches=(4,), worlds=(1,), seq_len=512)
    assert "cost of phase 1" not in report_page(run).read_text(encoding="utf-8")
    assert "cost of phase 2" in report_page(run, price_per_hour=2.0).read_text(encoding="utf-8")
    with (run.report / "tables" / "pretraining.csv").open(encoding="utf-8") as file:
        (row, *_) = csv.DictReader(file)
    best = max(float(one.row["samples_per_second"]) for one in load_run(run) if one.row["seq_len"] == 128)
    assert float(row["phase_1_days"]) == pytest.approx(230.4e6 / best / 86400, rel=1e-6)
    assert float(row["cost"]) == pytest.approx(float(row["days"]) * 48, rel=1e-6)
