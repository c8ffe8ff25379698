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


@pytest.mark.parametrize("content", [ncu_csv.details(), ncu_csv.raw()])
def test_one_file_gives_four_lines_and_its_kernels_on_one_screen(tmp_path: Path, content: str) -> None:
    found = result("core-util", page(tmp_path, content=content))
    shown = text(found.blocks)
    assert shown.startswith(FOUR_LINES) and "sm90_gemm" in shown and len(shown.splitlines()) <= 45
    assert "fp16: 1 of 4 kernels have no value and are skipped" in found.problems


def test_the_window_adds_the_share_with_idle_time(tmp_path: Path) -> None:
    assert text(result("core-util", page(tmp_path), "--window-ms", "0.01").blocks).splitlines()[:4] == [
        "fma 10.50 % (5.75 % of the window)",
        "fp16 1.68 %",
        "tensor 31.50 % (14.50 % of the window)",
        "sfu 31.00 % (16.00 % of the window)",
    ]


def test_files_of_one_run_are_a_block_each_and_one_of_all(tmp_path: Path) -> None:
    first, second = page(tmp_path, "rank0.csv"), page(tmp_path, "rank1.csv")
    blocks = text(result("core-util", first, second).blocks).split("\n\n")
    assert blocks[0] == f"{first}\n{FOUR_LINES}" and blocks[1].startswith(second)
    assert blocks[2].startswith(f"all 2 files\n{FOUR_LINES}")  # twice the same kernels: the same shares


def test_batch_sizes_come_from_names(tmp_path: Path) -> None:
    files = [page(tmp_path, "batch_16.csv"), page(tmp_path, "batch_4.csv.old")]
    table = document("core-util", *files, "--by", "batch")["findings"]["core_utilization_by_batch"]["rows"]
    assert [(row["micro_batch_size"], row["tensor_percent"]) for row in table] == [(4, 31.5), (16, 31.5)]
    with refused("option-missing", "--by batch", "batch_<size>.csv"):
        result("core-util", page(tmp_path, "x.csv"), "--by", "batch")


def test_json_holds_every_pipe_and_every_table(tmp_path: Path) -> None:
    shown = document("core-util", page(tmp_path), "--window-ms", "0.01")["findings"]
    pipes = {row["pipe"]: row for row in shown["core_utilization"]["rows"]}
    assert (pipes["tensor"]["utilization"], pipes["tensor"]["in_window_utilization"]) == pytest.approx((0.315, 0.145))
    assert pipes["fma"]["metric"] == "sm__inst_executed_pipe_fma"
    assert {"core_utilization_by_family", "kernels", "roofline"} <= set(shown)
    assert all(finding["sentence"] for finding in shown.values())


def test_a_file_that_ncu_did_not_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("hello\n")
    with refused("file-format", "bad.csv", "ncu"):
        result("core-util", tmp_path / "bad.csv")


def test_a_file_without_any_pipe_is_refused_with_the_metrics_to_collect(tmp_path: Path) -> None:
    lines = [line for line in ncu_csv.details().splitlines() if "_pipe_" not in line]
    with refused("columns-missing", "gpu__time_duration.sum", "sm__inst_executed_pipe_fma.avg.pct"):
        result("core-util", page(tmp_path, content="\n".join(lines)))
