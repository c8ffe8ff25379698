"""`bertbench core-util`: what it prints, writes and refuses."""

from pathlib import Path

import pytest
from support import ncu_csv
from support.commands import document, result, text
from support.refusals import refused

FOUR_LINES = "fma 10.50 %\nfp16 1.68 %\ntensor 31.50 %\nsfu 31.00 %"


def page(tmp_path: Path, name: str = "a.csv", content: str | None = None) -> str:
    path = tmp_path / name
    path.write_text(ncu_csv.raw() if content is None else content)
    return str(path)


def test_files_of_one_run_are_a_block_each_and_one_of_all(tmp_path: Path) -> None:
    first, second = page(tmp_path, "rank0.csv"), page(tmp_path, "rank1.csv", ncu_csv.details())
    found = result("core-util", first, second)
    blocks = text(found.blocks).split("\n\n")
    assert blocks[0] == f"{first}\n{FOUR_LINES}" and blocks[1].startswith(second)
    assert blocks[2].startswith(f"all 2 files\n{FOUR_LINES}")  # twice the same kernels: the same shares
    assert any("1 of 4 kernels have no value and are skipped" in one for one in found.problems)


def test_the_window_adds_the_share_with_idle_time_and_json_has_every_pipe(tmp_path: Path) -> None:
    words = ("core-util", page(tmp_path), "--window-ms", "0.01")
    assert text(result(*words).blocks).startswith("fma 10.50 % (5.75 % of the window)\nfp16 1.68 %\ntensor 31.50 %")
    shown = document(*words)["findings"]
    pipes = {row["pipe"]: row for row in shown["core_utilization"]["rows"]}
    assert (pipes["tensor"]["utilization"], pipes["tensor"]["in_window_utilization"]) == pytest.approx((0.315, 0.145))
    assert {"core_utilization_by_family", "kernels", "roofline"} <= set(shown)


def test_batch_sizes_come_from_names(tmp_path: Path) -> None:
    files = [page(tmp_path, "batch_16.csv"), page(tmp_path, "batch_4.csv.old")]
    table = document("core-util", *files, "--by", "batch")["findings"]["core_utilization_by_batch"]["rows"]
    assert [(row["micro_batch_size"], row["tensor_percent"]) for row in table] == [(4, 31.5), (16, 31.5)]
    with refused("option-missing", "--by batch", "batch_<size>.csv"):
        result("core-util", page(tmp_path, "x.csv"), "--by", "batch")


def test_a_file_without_any_pipe_is_refused_with_the_metrics_to_collect(tmp_path: Path) -> None:
    lines = [line for line in ncu_csv.details().splitlines() if "_pipe_" not in line]
    with refused("columns-missing", "gpu__time_duration.sum", "sm__inst_executed_pipe_fma.avg.pct"):
        result("core-util", page(tmp_path, content="\n".join(lines)))
