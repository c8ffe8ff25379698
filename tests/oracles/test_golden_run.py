"""Numbers of the recorded run: its rows and ratios in `report`, and its comparison with a slower one.

golden-run/ holds raw steps of `throughput pretrain` on a CPU: one and two ranks, three rounds. It names no machine.
"""

import shutil
from pathlib import Path

import pytest
from frozen import check
from golden import GOLDEN, with_step_times
from support.commands import document

# Numbers of a row of the report: those that were measured, and what follows from them.
MEASURED = (
    "steps_measured", "steps_warmup", "samples_per_step", "samples_per_second", "tokens_per_second",
    "padded_tokens_per_second", "padding_efficiency", "step_time_ms", "step_time_ms_low", "step_time_ms_high",
    "step_time_ms_p5", "step_time_ms_p95", "step_time_ms_mean", "step_time_ms_std", "median_half_width",
    "data_wait_ms", "forward_ms", "backward_ms", "communication_ms", "optimizer_ms", "model_flops_per_second",
    "measured_peak_flops", "mfu", "rank_skew", "peak_memory_bytes", "parameters",
)  # fmt: skip
COMPARED = (
    "world_size", "rounds_a", "rounds_b", "step_time_ms_a", "step_time_ms_b", "time_ratio", "time_ratio_low",
    "time_ratio_high", "time_saved", "throughput_ratio", "verdict",
)  # fmt: skip


def test_rows_of_the_report(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(GOLDEN, run)
    reported = document("report", run)
    rows = {
        f"{row['world_size']} ranks, round {row['round']}": {name: row.get(name) for name in MEASURED}
        for row in reported["rows"]
    }
    assert len(rows) == 6
    check("golden_run", "report", rows)
    assert "<html" in Path(reported["report"]).read_text(encoding="utf-8")


@pytest.mark.parametrize("factor", [1.25, 4.0])
def test_comparison_with_a_slower_run(factor: float, tmp_path: Path) -> None:
    slower = with_step_times(tmp_path / "slower", factor)
    rows = document("compare", GOLDEN, slower)["rows"]
    compared = [{name: row.get(name) for name in COMPARED} for row in rows]
    check("golden_run", f"compare with {factor:g} times the step times", compared)
