import math
from pathlib import Path

import pytest
from support import shared_files
from support.refusals import refused

from analysis.metrics.kernels.utilization import compute_utilization
from analysis.readers.nvprof import summary as nvprof
from analysis.readers.nvprof import trace as nvprof_trace
from analysis.readers.registry import find_reader, read_head

TRACES = shared_files.TRACES / "nvprof"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")

SUMMARY = """==2119== NVPROF is profiling process 2119, command: ./a
==2119== Profiling application: ./a
==2119== Profiling result:
"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"
,%,ms,,us,us,us,
"GPU activities",90.000000,1.800000,3,600.000000,500.000000,700.500000,"void gemm<int=32>(float*, int)"
"GPU activities",10.000000,0.200000,1,200.000000,200.000000,200.000000,"[CUDA memcpy HtoD]"
"API calls",100.000000,5.000000,2,2500.000000,1000.000000,4000.000000,"cudaLaunchKernel"
"""
SUMMARY_8 = """==7== Profiling result:
Time(%),Time,Calls,Avg,Min,Max,Name
%,us,,us,us,us,
100.000000,40.000000,4,10.000000,9.000000,11.000000,"gemm"

==7== API calls:
Time(%),Time,Calls,Avg,Min,Max,Name
%,ms,,us,us,us,
100.000000,1.000000,4,250.000000,9.000000,400.000000,"cudaLaunch"
"""
METRICS = """==9== NVPROF is profiling process 9, command: ./a
==9== Metric result:
"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"
"Tesla V100 (0)","gemm(float*, int)",3,"sm_efficiency","Multiprocessor Activity",98.500000%,99.500000%,99.000000%
"Tesla V100 (0)","gemm(float*, int)",3,"dram_read_throughput","Read",512.000000MB/s,2.000000GB/s,1.000000GB/s
"Tesla V100 (0)","gemm(float*, int)",3,"tensor_precision_fu_utilization","Tensor","Low (3)","High (9)","Mid (6)"
"Tesla V100 (0)","gemm(float*, int)",3,"ipc","Executed IPC",1.500000,2.500000,2.000000
"Tesla V100 (0)","gemm(float*, int)",3,"flop_count_sp","FLOPs",<OVERFLOW>,<OVERFLOW>,<OVERFLOW>

==9== Event result:
"Device","Kernel","Invocations","Event Name","Min","Max","Avg","Total"
"Tesla V100 (0)","gemm(float*, int)",3,"active_warps",10,30,20,60
"""
TRACE = """==12400== NVPROF is profiling process 12400, command: ./a
==12400== Profiling result:
"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Registers Per Thread","Static SMem",\
"Dynamic SMem","Size","Throughput","Device","Context","Stream","Name"
s,us,,,,,,,,KB,B,MB,GB/s,,,,
0.001000,100.000000,,,,,,,,,,1.500000,3.796700,"Tesla V100 (1)","1","7","[CUDA memcpy HtoD]"
0.001200,200.000000,20,10,1,32,32,1,27,8.000000,0,,,"Tesla V100 (1)","1","13","void gemm<int=32>(float*) [1073]"
0.001300,200.000000,20,10,1,32,32,1,27,8.000000,0,,,"Tesla V100 (1)","1","14","softmax [1075]"
"""
TEXT = """==5== NVPROF is profiling process 5, command: ./a
==5== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:  100.00%  22.944ms       301  76.225us  75.650us  77.602us  gemm
"""


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_summary_gives_kernels_copies_and_calls_in_nanoseconds(tmp_path: Path) -> None:
    kernels, copies, api = nvprof.read(file(tmp_path, SUMMARY))
    assert [item.what for item in (kernels, copies, api)] == ["kernels", "copies", "api"]
    (row,) = kernels.table.to_dict("records")
    assert row["name"] == "void gemm<int=32>(float*, int)" and (row["count"], row["total_ns"]) == (3, 1_800_000)
    assert (row["average_ns"], row["min_ns"], row["max_ns"]) == (600_000, 500_000, 700_500)
    assert list(copies.table["total_ns"]) == [200_000] and list(api.table["max_ns"]) == [4_000_000]
    assert kernels.facts == {"process": 2119} and kernels.problems == ()


def test_a_summary_of_cuda_8_has_a_table_for_calls(tmp_path: Path) -> None:
    kernels, api = nvprof.read(file(tmp_path, SUMMARY_8))
    assert (kernels.what, list(kernels.table["total_ns"])) == ("kernels", [40_000])
    assert (api.what, list(api.table["total_ns"])) == ("api", [1_000_000])


def test_metrics_are_numbers_in_base_units(tmp_path: Path) -> None:
    metrics, events = nvprof.read(file(tmp_path, METRICS))
    rows = {row["metric"]: row for row in metrics.table.to_dict("records")}
    assert (rows["sm_efficiency"]["average"], rows["sm_efficiency"]["unit"]) == (99.0, "%")
    read = rows["dram_read_throughput"]
    assert (read["min"], read["max"], read["unit"]) == (512 * 2**20, 2 * 2**30, "B/s")
    level = rows["tensor_precision_fu_utilization"]
    assert (level["min"], level["max"], level["average"], level["unit"]) == (3, 9, 6, nvprof.LEVEL)
    assert (rows["ipc"]["average"], rows["ipc"]["unit"], rows["ipc"]["invocations"]) == (2.0, "", 3)
    assert math.isnan(rows["flop_count_sp"]["average"]) and "1 metrics have no number" in metrics.problems[0]
    assert rows["ipc"]["device"] == "Tesla V100 (0)" and rows["ipc"]["kernel"] == "gemm(float*, int)"
    (event,) = events.table.to_dict("records")
    assert (event["metric"], event["average"], event["total"], event["description"]) == ("active_warps", 20, 60, "")


def test_a_gpu_trace_is_a_timeline_in_the_units_of_its_own_row(tmp_path: Path) -> None:
    found = nvprof_trace.read(file(tmp_path, TRACE))
    copy, gemm, softmax = found.kernels.to_dict("records")
    assert (copy["kind"], copy["start"], copy["end"], copy["bytes"]) == ("memcpy", 1_000_000, 1_100_000, 1_572_864)
    assert (gemm["name"], gemm["correlation_id"], gemm["stream"]) == ("void gemm<int=32>(float*)", 1073, 13)
    assert (gemm["grid_x"], gemm["grid_y"], gemm["block_x"], gemm["device"]) == (20, 10, 32, 1)
    assert (softmax["start"], softmax["end"]) == (1_300_000, 1_500_000)
    assert (found.process, found.devices, found.problems) == (12400, {1: "Tesla V100"}, ())
    # Both kernels together run from 1.2 to 1.5 ms.
    assert compute_utilization(found).busy_ms == pytest.approx(0.3)


def test_calls_in_a_trace_are_calls_not_gpu_work(tmp_path: Path) -> None:
    text = '"Start","Duration","Name"\nms,us,\n1.5,20.0,"cudaMemcpy [113]"\n1.0,5.0,"cudaMalloc"\n'
    found = nvprof_trace.read(file(tmp_path, text))
    columns = ["name", "start", "end", "correlation_id"]
    assert found.api[columns].values.tolist() == [
        ["cudaMalloc", 10**6, 1005000, -1],
        ["cudaMemcpy", 1500000, 1520000, 113],
    ]
    assert len(found.kernels) == 0


def test_rows_without_times_are_counted(tmp_path: Path) -> None:
    found = nvprof_trace.read(file(tmp_path, TRACE.replace("0.001300,200.000000", "n/a,200.000000")))
    assert len(found.kernels) == 2 and found.problems == (
        "1 rows of GPU work have no start or no duration and were left out",
    )


def test_nvprof_s_text_is_refused_naming_csv(tmp_path: Path) -> None:
    path = file(tmp_path, TEXT)
    reader = find_reader(read_head(path))
    assert reader is not None and reader.name == "nvprof"
    with refused("file-format", path, "nvprof --csv"):
        nvprof.read(path)


@pytest.mark.parametrize(
    ("text", "name"), [(SUMMARY, "nvprof"), (SUMMARY_8, "nvprof"), (METRICS, "nvprof"), (TRACE, "nvprof_trace")]
)
def test_the_kind_of_an_nvprof_file_is_found_from_its_content(tmp_path: Path, text: str, name: str) -> None:
    reader = find_reader(read_head(file(tmp_path, text)))
    assert reader is not None and reader.name == name


@needs_traces
def test_a_public_gpu_trace_gives_its_own_numbers() -> None:
    (path,) = TRACES.glob("*_trace.csv")
    found = nvprof_trace.read(path)
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "matrixMulCUDA" in line and "," in line]
    expected = round(sum(float(line.split(",")[1]) * 1e6 for line in lines))
    kernels = found.kernels[found.kernels["kind"] == "kernel"]
    assert len(kernels) == len(lines) == 301
    assert int((kernels["end"] - kernels["start"]).sum()) == pytest.approx(expected, abs=1)
    assert found.devices == {0: "GeForce GTX 1080 Ti"} and found.process == 12400 and found.problems == ()
    # 400 KB of 1,024 bytes: a matrix of 320 x 320 floats.
    assert found.kernels["bytes"].iloc[0] == 320 * 320 * 4


@needs_traces
def test_public_metrics_are_all_read() -> None:
    (path,) = TRACES.glob("*_metrics.csv")
    (found,) = nvprof.read(path)
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith('"GeForce')]
    assert len(found.table) == len(lines) and found.problems == () and found.facts["process"] == 16702
    rows = {row["metric"]: row for row in found.table.to_dict("records")}
    assert rows["branch_efficiency"]["average"] == 100 and rows["branch_efficiency"]["unit"] == "%"
    assert rows["dram_utilization"]["average"] == 1 and rows["dram_utilization"]["unit"] == nvprof.LEVEL
