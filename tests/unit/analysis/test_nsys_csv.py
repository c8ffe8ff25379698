"""CSVs of `nsys stats`: summaries of old and new versions, several in one file."""

import csv
from pathlib import Path
from typing import Any

import pytest
from support import shared_files
from support.refusals import refused

from analysis.counters import Summary
from analysis.readers.nsys_csv import read
from analysis.readers.registry import find_reader, read_head

TRACES = shared_files.TRACES / "nsys"

KERNELS_2024 = """Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
75.0,300,3,100.0,90.0,80,130,21.6,"void gemm<(int)4, float>(float *, int)"
25.0,100,1,100.0,100.0,100,100,0.0,softmax
"""
KERNELS_2020 = """Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name
75.0,300,3,100.0,80,130,gemm
"""
# As `nsys stats --format csv --report a,b,c FILE` prints them.
SEVERAL = f"""Generating SQLite file run.sqlite from run.nsys-rep
Processing [run.sqlite] with [/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports/cuda_gpu_kern_sum.py]...
{KERNELS_2024}
Processing [run.sqlite] with [/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports/cuda_gpu_mem_time_sum.py]...
SKIPPED: run.sqlite does not contain GPU memory data.

Processing [run.sqlite] with [/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports/cuda_gpu_mem_size_sum.py]...
Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation
2.5,2,1.25,1.25,1.0,1.5,0.354,[CUDA memcpy Host-to-Device]

Processing [run.sqlite] with [/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports/cuda_api_sum.py]...
Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
100.0,4000,4,1000.0,1000.0,900,1100,81.6,cudaLaunchKernel

Processing [run.sqlite] with [/opt/nvidia/nsight-systems/2024.6.2/host-linux-x64/reports/nvtx_pushpop_sum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Range
100.0,50,1,50.0,50.0,50,50,0.0,bertbench:forward
"""


def tables(tmp_path: Path, text: str) -> list[Any]:
    path = tmp_path / "renamed.txt"
    path.write_text(text, encoding="utf-8")
    assert find_reader(read_head(path)) == "nsys_csv"
    return read(path)


def test_a_kernel_summary_in_nanoseconds(tmp_path: Path) -> None:
    (found,) = tables(tmp_path, KERNELS_2024)
    assert (found.what, found.problems) == ("kernels", ())
    first, second = found.table.to_dict("records")
    assert first["name"] == "void gemm<(int)4, float>(float *, int)" and second["name"] == "softmax"
    assert (first["count"], first["total_ns"]) == (3, 300)
    (old,) = tables(tmp_path, KERNELS_2020)  # with the unit in one column alone
    (row,) = old.table.to_dict("records")
    assert row == {"name": "gemm", "count": 3, "total_ns": 300}


@pytest.mark.parametrize(("unit", "factor"), [("us", 1e3), ("s", 1e9), ("usec", 1e3)])
def test_times_are_taken_in_the_header_s_unit(tmp_path: Path, unit: str, factor: float) -> None:
    (found,) = tables(tmp_path, KERNELS_2024.replace("(ns)", f"({unit})"))
    assert list(found.table["total_ns"]) == [300 * factor, 100 * factor] and found.problems == ()


def test_several_reports_in_one_file_between_lines_of_other_kinds(tmp_path: Path) -> None:
    kernels, sizes, api, ranges = tables(tmp_path, SEVERAL)
    assert [item.what for item in (kernels, sizes, api, ranges)] == ["kernels", "copies", "api", "ranges"]
    assert [item.title for item in (kernels, sizes)] == ["cuda_gpu_kern_sum", "cuda_gpu_mem_size_sum"]
    (row,) = sizes.table.to_dict("records")
    assert (row["name"], row["count"], row["total_bytes"]) == ("[CUDA memcpy Host-to-Device]", 2, 2_500_000)
    assert "total_ns" not in sizes.table
    assert list(api.table["name"]) == ["cudaLaunchKernel"] and list(ranges.table["name"]) == ["bertbench:forward"]
    assert all(not item.problems for item in (kernels, sizes, api, ranges))


def test_categories_of_a_mixed_summary_become_tables_of_their_own(tmp_path: Path) -> None:
    text = """Time (%),Total Time (ns),Instances,Avg (ns),Category,Operation
90.0,900,9,100.0,CUDA_KERNEL,gemm
10.0,100,1,100.0,MEMORY_OPER,[CUDA memcpy Host-to-Device]
"""
    kernels, copies = tables(tmp_path, text)
    assert (kernels.what, list(kernels.table["name"])) == ("kernels", ["gemm"])
    assert (copies.what, list(copies.table["total_ns"])) == ("copies", [100])


@pytest.mark.public
def test_a_public_table_gives_its_own_numbers() -> None:
    path = TRACES / "all-stage__summary_cuda_gpu_kern_sum.csv"
    (found,) = read(path)
    with path.open(encoding="utf-8", newline="") as opened:
        expected = [(row["Name"], int(row["Instances"]), int(row["Total Time (ns)"])) for row in csv.DictReader(opened)]
    assert isinstance(found, Summary) and found.problems == ()
    assert list(found.table[["name", "count", "total_ns"]].itertuples(index=False, name=None)) == expected
    with refused("trace-without-work", "SQLite"):
        read(TRACES / "nbody-nvtx__trace.csv")
