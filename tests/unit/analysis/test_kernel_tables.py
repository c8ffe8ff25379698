"""Tables of kernels, copies, operators and ranges, worked by hand."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest
from support.timelines import event, timeline, write

from analysis.metrics.kernels.tables import (
    copy_rows,
    kernel_rows,
    operators_over_ranks,
    over_ranks,
)
from analysis.readers.kineto.reader import read
from analysis.timeline import is_communication, name_codes


def sample(rank: int = 0, extra: int = 0):
    return timeline(
        rank,
        steps=[(0, 0, 1000), (1, 1000, 2000)],
        kernels=[
            ("sgemm", 7, 100, 400, 1),
            ("sgemm", 7, 1100, 1200 + extra, 2),
            ("ncclDevKernel_AllReduce", 9, 300, 500),
            ("Memcpy HtoD", 7, 600, 650, 3, "memcpy"),
            ("sgemm", 7, 2100, 2400, 4),  # launched in the last step, runs after it
            ("sgemm", 7, 1900, 1950, 5),  # launched before the first step
            ("warm-up", 7, -50, 20),
        ],
        api=[
            ("cudaLaunchKernel", start, start + 5, index + 1) for index, start in enumerate([50, 1050, 590, 1990, -10])
        ],
    )


def test_kernels_count_in_the_steps_that_launched_them() -> None:
    rows = kernel_rows(sample())
    assert rows["name"].tolist() == ["sgemm", "ncclDevKernel_AllReduce", "Memcpy HtoD"]
    gemm = rows.iloc[0]
    assert (gemm["rank"], gemm["family"], gemm["calls"], gemm["total_ms"]) == (0, "GEMM", 3, pytest.approx(700e-6))
    assert gemm["mean_us"] == pytest.approx(0.7 / 3)
    assert gemm["kernel_time_share"] == pytest.approx(700 / 950) and gemm["window_share"] == pytest.approx(0.35)
    assert "Memcpy HtoD" not in kernel_rows(sample(), copies=False)["name"].tolist()


def test_over_ranks_a_rank_without_the_kernel_counts_as_zero() -> None:
    lone = timeline(2, kernels=[("sgemm", 7, 0, 100)])
    table = over_ranks([kernel_rows(sample(0)), kernel_rows(sample(1, extra=300)), kernel_rows(lone)]).set_index("name")
    assert table.loc["sgemm", ["ranks", "calls"]].tolist() == [3, 7]
    assert table.loc["sgemm", ["mean_ms", "min_ms", "max_ms"]].tolist() == pytest.approx([600e-6, 100e-6, 1000e-6])
    assert table.loc["Memcpy HtoD", ["ranks", "mean_ms", "min_ms"]].tolist() == pytest.approx([2, 100e-6 / 3, 0])
    families = over_ranks([kernel_rows(sample(), copies=False), kernel_rows(lone)], by="family")
    assert families["family"].tolist()[0] == "GEMM" and families["kernel_time_share"].sum() == pytest.approx(1.0)
    assert len(over_ranks([])) == 0


def test_categories_and_missing_names_are_read() -> None:
    names = pd.Series(["a", None, "ncclX", "a"], dtype="category")
    codes, found = name_codes(names)
    assert [found[code] for code in codes] == ["a", "", "ncclX", "a"]
    assert is_communication(pd.DataFrame({"name": names})).tolist() == [False, False, True, False]


def copied(sizes: list[int]):
    trace = timeline(
        2,
        kernels=[
            ("Memcpy HtoD (Pageable -> Device)", 7, 0, 100, -1, "memcpy"),
            ("Memcpy HtoD (Pageable -> Device)", 7, 200, 500, -1, "memcpy"),
            ("Memcpy DtoH (Device -> Pinned)", 7, 600, 650, -1, "memcpy"),
            ("Memset (Device)", 7, 700, 710, -1, "memset"),
            ("sgemm", 8, 50, 250, -1),
        ],
    )
    order = trace.kernels.assign(bytes=sizes) if sizes else trace.kernels
    return dataclasses.replace(trace, kernels=order)


def test_bytes_bandwidth_and_overlap_by_hand() -> None:
    # in order of start: HtoD, sgemm, HtoD, DtoH, Memset
    rows = copy_rows(copied([1000, 0, 3000, 500, 10])).set_index("direction")
    assert list(rows.index) == ["HtoD", "DtoH", "memset"]
    row = rows.loc["HtoD"]
    assert (row["rank"], row["host_memory"], row["count"], row["bytes"]) == (2, "pageable", 2, 4000)
    assert row["total_ms"] == pytest.approx(400e-6)
    assert row["bandwidth_gb_s"] == pytest.approx(10.0), "4,000 bytes in 400 ns"
    assert row["overlapped_share"] == pytest.approx(100 / 400), "50..100 and 200..250"
    assert rows.loc["DtoH", "overlapped_share"] == 0 and rows["host_memory"].tolist() == ["pageable", "pinned", ""]


def test_own_time_adds_up_inside_the_steps_alone(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", 0, 1000, "user_annotation"),
        event("aten::linear", 0, 300),
        event("aten::addmm", 50, 200),
        event("aten::mm", 400, 400, tid=2),
        event("aten::mm", 1500, 900),  # after the last step
    ]
    found = operators_over_ranks([read(write(tmp_path / "trace-rank0.json", events))])
    assert list(zip(found["name"], found["calls"], found["self_ms"], strict=True)) == [
        ("aten::mm", 1, 0.4),
        ("aten::addmm", 1, 0.2),
        ("aten::linear", 1, pytest.approx(0.1)),
    ]
    assert found["self_time_share"].tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    families = operators_over_ranks([read(tmp_path / "trace-rank0.json")], "family")
    assert families[["family", "calls"]].to_numpy().tolist() == [["GEMM", 3]]
