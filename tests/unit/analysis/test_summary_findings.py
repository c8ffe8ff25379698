"""What is said of tables: numbers worked by hand, and fits of times that were made from a known alpha and beta."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.counters import KernelCounters, Summary
from analysis.diagnose.explain import counter_endings
from analysis.diagnose.finding import Finding, distinct_names
from analysis.diagnose.summaries import communication_share, findings
from analysis.open import Source


def only(summary: Summary, name: str) -> Finding:
    return next(finding for finding in findings([summary]) if finding.name == name)


def totals(what: str, *rows: tuple[str, int, int]) -> Summary:
    return Summary(what, "A summary", pd.DataFrame(rows, columns=["name", "count", "total_ns"]))


def test_kernels_of_one_name_are_added_up_and_shares_are_of_all() -> None:
    summary = totals("kernels", ("sgemm", 2, 3_000_000), ("gelu_kernel", 4, 1_000_000), ("sgemm", 2, 4_000_000))
    gemm, gelu = only(summary, "kernel_totals").table.to_dict("records")
    assert gemm == {"name": "sgemm", "family": "GEMM", "count": 4, "total_ms": 7.0, "average_us": 1750.0,
                    "share": 0.875}  # fmt: skip
    assert (gelu["family"], gelu["share"]) == ("activation", 0.125)
    families = only(summary, "kernel_families").table
    assert list(families["family"]) == ["GEMM", "activation"] and list(families["count"]) == [4, 4]


def test_copies_are_in_order_of_their_size_and_totals_of_ranges_have_no_shares() -> None:
    """epoch holds every step: 60 of 100 ms of totals would be a share of time that was counted twice."""
    sizes = pd.DataFrame({"name": ["HtoD", "DtoH"], "count": [2, 1], "total_bytes": [1_000_000, 8_000_000]})
    assert list(only(Summary("copies", "t", sizes), "copy_totals").table["name"]) == ["DtoH", "HtoD"]
    found = only(totals("ranges", ("epoch", 1, 60_000_000), ("step", 4, 40_000_000)), "range_totals")
    assert list(found.table) == ["name", "count", "total_ms", "average_us"] and found.table["total_ms"].max() == 60


def test_the_share_of_communication_is_of_all_kernels() -> None:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    summaries = [totals("kernels", ("sgemm", 2, 3_000_000), (name, 1, 1_000_000)), totals("api", ("a", 1, 9))]
    (found,) = communication_share(summaries)
    assert dict(zip(found.table["family"], found.table["share"], strict=True)) == {"GEMM": 0.75, "communication": 0.25}
    assert "25.0 %" in found.sentence and communication_share(summaries[1:]) == []


@pytest.mark.parametrize("what", ["kernels", "copies", "api", "ranges"])
def test_tables_without_rows_or_without_times_say_so(what: str) -> None:
    empty = pd.DataFrame({"name": pd.Series(dtype=str), "count": pd.Series(dtype="int64")})
    for table in (empty, empty.assign(total_ns=pd.Series(dtype="int64"))):
        (found,) = findings([Summary(what, "t", table)])
        assert not len(found.table) and found.sentence


def collectives(busbw: dict[int, float], wrong: int = 0) -> Summary:
    rows = [
        {"collective": "all_reduce", "size_bytes": size, "count": size // 4, "dtype": "float", "redop": "sum",
         "root": -1, "placement": "out_of_place", "time_us": 10 + size / 1e5, "algbw_gb_s": value / 1.5,
         "busbw_gb_s": value, "wrong": wrong}
        for size, value in busbw.items()
    ]  # fmt: skip
    return Summary("collectives", "nccl-tests all_reduce", pd.DataFrame(rows), facts={"ranks": 4})


def test_the_peak_and_the_line_of_times_are_found() -> None:
    busbw = {1024: 1.0, 1 << 20: 49.0, 1 << 21: 51.0, 1 << 28: 99.0, 1 << 30: 100.0}
    (row,) = only(collectives(busbw), "collective_bandwidth").table.to_dict("records")
    assert row["peak_busbw_gb_s"] == 100.0
    # The times were made with 10 us and 1e5 bytes/us = 100 GB/s.
    assert row["latency_us"] == pytest.approx(10) and row["fitted_algbw_gb_s"] == pytest.approx(100)


def test_a_bandwidth_that_still_rises_is_not_that_of_the_links_and_wrong_results_come_first() -> None:
    assert "-e 1G" in only(collectives({1024: 1.0, 2048: 2.0}), "collective_bandwidth").sentence
    wrong = only(collectives({1024: 1.0}, wrong=3), "collective_bandwidth")
    assert "wrong results" in wrong.sentence and wrong.advice[0].cause == "machine"


def test_names_of_findings_are_distinct() -> None:
    names = [found.name for found in findings([totals("api", ("a", 1, 1)), totals("api", ("a", 1, 1))])]
    assert names == ["api_totals", "api_totals_2"]
    assert distinct_names(["a", "a_2", "a", "a"]) == ["a", "a_2", "a_3", "a_4"]
    files = tuple(Path(name) for name in ("a.csv", "b/a.csv", "a_2.csv", "ÄÖ.csv", f"{'x' * 250}.csv", "A b-c.csv"))
    nothing = KernelCounters(pd.DataFrame(), {}, None, None, ())
    endings = counter_endings(Source(path=Path(), counters=(nothing,) * len(files), counter_files=files))
    assert endings == ["_a", "_a_3", "_a_2", "_table", f"_{'x' * 60}", "_a_b_c"]
