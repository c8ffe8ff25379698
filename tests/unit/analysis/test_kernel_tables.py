"""Tables of kernels: hand-worked, and against TraceLens' published sums."""

import csv

import pandas as pd
import pytest
from support import shared_files
from support.timelines import timeline

from analysis.metrics.kernels.tables import FAMILY_ROW_COLUMNS, KERNEL_ROW_COLUMNS, family_rows, kernel_rows, over_ranks
from analysis.readers.kineto.reader import read
from analysis.timeline import is_communication, name_codes

TRACES = shared_files.TRACES / "kineto"


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
    assert list(rows.columns) == list(KERNEL_ROW_COLUMNS)
    assert rows["name"].tolist() == ["sgemm", "ncclDevKernel_AllReduce", "Memcpy HtoD"]
    gemm = rows.iloc[0]
    assert (gemm["rank"], gemm["family"], gemm["calls"], gemm["total_ms"]) == (0, "GEMM", 3, pytest.approx(700e-6))
    assert gemm[["mean_us", "min_us", "max_us"]].tolist() == pytest.approx([0.7 / 3, 0.1, 0.3])
    assert gemm["kernel_time_share"] == pytest.approx(700 / 950) and gemm["window_share"] == pytest.approx(0.35)
    assert "Memcpy HtoD" not in kernel_rows(sample(), copies=False)["name"].tolist()


def test_families_add_up_the_kernels() -> None:
    rows = family_rows(sample()).set_index("family")
    assert rows["total_ms"].to_dict() == pytest.approx({"GEMM": 700e-6, "communication": 200e-6})
    assert rows["kernel_time_share"].sum() == pytest.approx(1.0) and rows["calls"].to_dict()["GEMM"] == 3


def test_over_ranks_a_rank_without_the_kernel_counts_as_zero() -> None:
    lone = timeline(2, kernels=[("sgemm", 7, 0, 100)])
    table = over_ranks([kernel_rows(sample(0)), kernel_rows(sample(1, extra=300)), kernel_rows(lone)]).set_index("name")
    assert table.loc["sgemm", ["ranks", "calls"]].tolist() == [3, 7]
    assert table.loc["sgemm", ["mean_ms", "min_ms", "max_ms"]].tolist() == pytest.approx([600e-6, 100e-6, 1000e-6])
    assert table.loc["Memcpy HtoD", ["ranks", "mean_ms", "min_ms"]].tolist() == pytest.approx([2, 100e-6 / 3, 0])
    families = over_ranks([family_rows(sample()), family_rows(lone)], by="family")
    assert families["family"].tolist()[0] == "GEMM" and families["kernel_time_share"].sum() == pytest.approx(1.0)
    assert len(over_ranks([])) == 0


def test_categories_and_missing_names_are_read() -> None:
    names = pd.Series(["a", None, "ncclX", "a"], dtype="category")
    codes, found = name_codes(names)
    assert [found[code] for code in codes] == ["a", "", "ncclX", "a"]
    assert is_communication(pd.DataFrame({"name": names})).tolist() == [False, False, True, False]


def test_no_kernels_give_tables_without_rows() -> None:
    assert list(kernel_rows(timeline()).columns) == list(KERNEL_ROW_COLUMNS) and len(kernel_rows(timeline())) == 0
    assert list(family_rows(timeline()).columns) == list(FAMILY_ROW_COLUMNS)
    late = timeline(steps=[(0, 0, 10)], kernels=[("gemm", 7, 50, 60)])
    assert len(kernel_rows(late)) == 0


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")
def test_sums_and_counts_by_kernel_agree_with_tracelens() -> None:
    (expected,) = (TRACES / "tracelens").glob("expected__h100*kernel_summary.csv")
    sums: dict[str, list[float]] = {}
    for row in csv.DictReader(expected.open(encoding="utf-8")):
        entry = sums.setdefault(row["Kernel name"], [0.0, 0.0])
        entry[0] += float(row["Kernel duration (µs)_sum"])
        entry[1] += float(row["Kernel duration (µs)_count"])
    (path,) = (TRACES / "tracelens").glob("h100__*.json.gz")
    rows = kernel_rows(read(path)).set_index("name")
    missing = set(sums) - set(rows.index)
    assert not missing
    for name, (total_us, count) in sums.items():
        assert rows.loc[name, "calls"] == count, name
        assert rows.loc[name, "total_ms"] * 1e3 == pytest.approx(total_us, abs=1e-6), name
