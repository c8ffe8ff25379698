import csv
import math
from pathlib import Path

import pytest
from support import shared_files
from support.refusals import refused

from analysis.counters import Summary
from analysis.metrics.kernels.utilization import compute_utilization
from analysis.readers.nsys import summary_csv as nsys_csv
from analysis.readers.nsys import trace_csv as nsys_trace_csv
from analysis.readers.nvprof import summary_csv as nvprof
from analysis.readers.nvprof import trace_csv as nvprof_trace
from analysis.readers.packed import UNENDED
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


def as_columns(text: str) -> str:
    """Print the tables of CSV output as `nsys stats` does without --format csv: each over a rule, names cut to 100."""
    lines: list[str] = []
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith(("Time", "Total", "Start")) or (rows and line):
            rows.append(next(csv.reader([line])))
            continue
        if rows:
            rows[1:] = [[with_commas(cell) for cell in row] for row in rows[1:]]
            cut = [[cell if len(cell) <= 100 else cell[:99] + "\u2026" for cell in row] for row in rows]
            widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
            header = [cell.center(width) for cell, width in zip(cut[0], widths, strict=True)]
            body = [
                [
                    cell.ljust(width) if at == len(row) - 1 else cell.rjust(width)
                    for at, (cell, width) in enumerate(zip(row, widths, strict=True))
                ]
                for row in cut[1:]
            ]
            lines += [" " + "  ".join(row) for row in (header, ["-" * width for width in widths], *body)]
        rows = []
        lines.append(line)
        if line.startswith("Processing"):
            name = line.rpartition("/")[2].partition(".py")[0]
            lines += ["", f" ** A Summary ({name}):", ""]
    return "\n".join(lines)


def with_commas(cell: str) -> str:
    return f"{int(cell):,}" if cell.isdigit() else cell


def file(tmp_path: Path, text: str, name: str = "a.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def only(found: list[Summary]) -> Summary:
    (summary,) = found
    return summary


def test_a_kernel_summary_in_nanoseconds(tmp_path: Path) -> None:
    found = only(nsys_csv.read(file(tmp_path, KERNELS_2024)))
    assert (found.what, found.title, found.problems) == ("kernels", "CUDA GPU Kernel Summary", ())
    first, second = found.table.to_dict("records")
    assert first["name"] == "void gemm<(int)4, float>(float *, int)" and second["name"] == "softmax"
    assert (first["count"], first["total_ns"], first["average_ns"], first["median_ns"]) == (3, 300, 100, 90)
    assert (first["min_ns"], first["max_ns"], first["stddev_ns"]) == (80, 130, 21.6)


def test_the_old_header_has_its_unit_in_one_column_alone(tmp_path: Path) -> None:
    (row,) = only(nsys_csv.read(file(tmp_path, KERNELS_2020))).table.to_dict("records")
    assert row == {"name": "gemm", "count": 3, "total_ns": 300, "average_ns": 100, "min_ns": 80, "max_ns": 130}


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1), ("us", 1e3), ("ms", 1e6), ("s", 1e9), ("usec", 1e3)])
def test_times_are_taken_in_the_header_s_unit(tmp_path: Path, unit: str, factor: float) -> None:
    text = KERNELS_2024.replace("(ns)", f"({unit})")
    table = only(nsys_csv.read(file(tmp_path, text))).table
    assert list(table["total_ns"]) == [300 * factor, 100 * factor] and table["max_ns"].iloc[0] == 130 * factor


def test_a_unit_that_is_not_known_gives_no_numbers(tmp_path: Path) -> None:
    found = only(nsys_csv.read(file(tmp_path, KERNELS_2024.replace("(ns)", "(fortnights)"))))
    assert len(found.table) == 0 and "fortnights" in found.problems[0]


def test_several_reports_in_one_file_between_lines_of_other_kinds(tmp_path: Path) -> None:
    kernels, sizes, api, ranges = nsys_csv.read(file(tmp_path, SEVERAL))
    assert [item.what for item in (kernels, sizes, api, ranges)] == ["kernels", "copies", "api", "ranges"]
    assert [item.facts["report"] for item in (kernels, sizes)] == ["cuda_gpu_kern_sum", "cuda_gpu_mem_size_sum"]
    (row,) = sizes.table.to_dict("records")
    assert (row["name"], row["count"], row["total_bytes"]) == ("[CUDA memcpy Host-to-Device]", 2, 2_500_000)
    assert row["average_bytes"] == 1_250_000 and "total_ns" not in sizes.table
    assert list(api.table["name"]) == ["cudaLaunchKernel"] and list(ranges.table["name"]) == ["bertbench:forward"]
    assert all(not item.problems for item in (kernels, sizes, api, ranges))


@pytest.mark.parametrize(
    "text", [KERNELS_2024, KERNELS_2020, SEVERAL, SEVERAL.replace(",300,3,100.0", ",300000,3,100000")]
)
def test_columns_of_text_are_read_like_csv(tmp_path: Path, text: str) -> None:
    expected, path = nsys_csv.read(file(tmp_path, text)), file(tmp_path, as_columns(text), "a.txt")
    assert "---" in path.read_text() and (reader := find_reader(read_head(path))) and reader.name == "nsys_csv"
    found = nsys_csv.read(path)
    assert [(item.what, item.problems) for item in found] == [(item.what, item.problems) for item in expected]
    for item, other in zip(found, expected, strict=True):
        assert item.table.to_dict("records") == other.table.to_dict("records")
    if text is SEVERAL:
        assert found[0].facts["report"] == "A Summary (cuda_gpu_kern_sum)"


# Printed by nsys 2021 (OpenMP offloading) and 2025 (an inference server); numbers and layout as they were printed.
OLD_COLUMNS = """Collecting data...
CUDA Kernel Statistics:

 Time(%)  Total Time (ns)  Instances   Average   Minimum  Maximum                  Name
 -------  ---------------  ---------  ---------  -------  -------  -------------------------------------
   100.0          222,080          1  222,080.0  222,080  222,080  __omp_offloading_30_736b0b47_main_l20



CUDA Memory Operation Statistics (by size in KiB):

   Total     Operations  Average  Minimum  Maximum      Operation
 ----------  ----------  -------  -------  -------  ------------------
      2.500           4     .625     .500     .750  [CUDA memcpy HtoD]
"""
NEW_COLUMNS = """Processing [n.sqlite] with [/opt/nsight-systems-2025.3.2/host-linux-x64/reports/nvtx_sum.py]...

 ** NVTX Range Summary (nvtx_sum):

 Time (%)  Total Time (ns)  Instances    Avg (ns)      Med (ns)     Min (ns)    Max (ns)   StdDev (ns)   Style   Range
 --------  ---------------  ---------  ------------  ------------  ----------  ----------  -----------  -------  -----
     51.8       23,518,204          1  23,518,204.0  23,518,204.0  23,518,204  23,518,204          0.0  PushPop  :a  b
     48.2       21,848,142          1  21,848,142.0  21,848,142.0  21,848,142  21,848,142          0.0  PushPop  :c

Processing [n.sqlite] with [/opt/nsight-systems-2025.3.2/host-linux-x64/reports/osrt_sum.py]...
SKIPPED: n.sqlite does not contain OS Runtime trace data.

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances  Avg (ns)  Med (ns)      GridXYZ       Name
 --------  ---------------  ---------  --------  --------  ----------------  -----------
    100.0           82,112         45   1,824.7   1,824.0  125000    1    1  void at::n\u2026
    99 torn
"""


def test_columns_of_text_of_old_and_new_versions(tmp_path: Path) -> None:
    kernels, copies = nsys_csv.read(file(tmp_path, OLD_COLUMNS, "a.txt"))
    assert (kernels.what, kernels.title, kernels.problems) == ("kernels", "CUDA Kernel Statistics", ())
    assert kernels.table.to_dict("records") == [
        {"name": "__omp_offloading_30_736b0b47_main_l20", "count": 1, "total_ns": 222080, "average_ns": 222080.0,
         "min_ns": 222080.0, "max_ns": 222080.0}
    ]  # fmt: skip
    assert copies.what == "copies" and copies.table["total_bytes"].tolist() == [2560]
    ranges, kernels = nsys_csv.read(file(tmp_path, NEW_COLUMNS, "a.txt"))
    assert (ranges.what, ranges.facts["report"]) == ("ranges", "NVTX Range Summary (nvtx_sum)")
    assert ranges.table["name"].tolist() == [":a  b", ":c"] and ranges.table["style"].tolist() == ["PushPop"] * 2
    assert ranges.table["total_ns"].tolist() == [23_518_204, 21_848_142] and not ranges.problems
    (row,) = kernels.table.to_dict("records")
    assert (row["count"], row["total_ns"], row["grid"].split()) == (45, 82112, ["125000", "1", "1"])
    assert len(kernels.problems) == 2 and "--format csv" in kernels.problems[1]


def test_a_trace_in_columns_of_text_is_read_like_csv(tmp_path: Path) -> None:
    text = GPU_TRACE + "\n" + API_TRACE
    (expected,), path = nsys_trace_csv.read(file(tmp_path, text)), file(tmp_path, as_columns(text), "a.txt")
    assert (reader := find_reader(read_head(path))) and reader.name == "nsys_trace_csv"
    (found,) = nsys_trace_csv.read(path)
    assert found.kernels.to_dict("records") == expected.kernels.to_dict("records") and len(found.kernels) == 2
    assert found.api.to_dict("records") == expected.api.to_dict("records") and found.devices == expected.devices


def test_kernels_by_name_grid_and_block_keep_both(tmp_path: Path) -> None:
    text = KERNELS_2024.replace(",Name", ",GridXYZ,BlockXYZ,Name").replace(
        "21.6,", '21.6,"  40    1    1"," 128    1    1",'
    )
    text = text.replace(",0.0,softmax", ',0.0,"1 1 1","32 1 1",softmax')
    found = only(nsys_csv.read(file(tmp_path, text)))
    assert found.what == "kernels" and [cell.split() for cell in found.table["grid"]] == [
        ["40", "1", "1"],
        ["1", "1", "1"],
    ]
    assert [cell.split()[0] for cell in found.table["block"]] == ["128", "32"]


def test_categories_of_a_mixed_summary_become_tables_of_their_own(tmp_path: Path) -> None:
    text = """Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Category,Operation
90.0,900,9,100.0,100,100,100,0,CUDA_KERNEL,gemm
10.0,100,1,100.0,100,100,100,0,MEMORY_OPER,[CUDA memcpy Host-to-Device]
"""
    kernels, copies = nsys_csv.read(file(tmp_path, text))
    assert (kernels.what, list(kernels.table["name"])) == ("kernels", ["gemm"])
    assert (copies.what, list(copies.table["total_ns"])) == ("copies", [100])


def test_a_total_that_is_not_count_times_average_is_said(tmp_path: Path) -> None:
    found = only(nsys_csv.read(file(tmp_path, KERNELS_2024.replace("300,3", "900,3"))))
    assert "1 rows have a total other than count times average" in found.problems[0]


def test_rows_without_numbers_and_torn_lines_are_counted(tmp_path: Path) -> None:
    text = KERNELS_2024 + "1.0,n/a,1,1,1,1,1,1,broken\n1.0,7\n1,nan,1,1,1,1,1,1,odd\n1,1e400,1,1,1,1,1,1,huge\n"
    found = only(nsys_csv.read(file(tmp_path, text)))
    assert len(found.table) == 2
    assert found.problems[:2] == (
        "1 lines are not rows of the table and were skipped",
        "3 rows without count or total were skipped",
    )


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", KERNELS_2024.splitlines()[0] + "\n"])
def test_a_file_without_a_summary_is_refused_with_what_to_give(tmp_path: Path, text: str) -> None:
    with refused("trace-without-work", "cuda_gpu_kern_sum"):
        nsys_csv.read(file(tmp_path, text))


GPU_TRACE = """Processing [run.sqlite] with [/opt/nsys/reports/cuda_gpu_trace.py]...
Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput \
(MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
1000,500,123,,,,,,,,,,4.194,6337.593,Pinned,Device,NVIDIA RTX 5000 Ada (0),1,,13,[CUDA memcpy Host-to-Device]
900,50,122,4096,2,1,256,1,1,16,0.000,0.000,,,,,NVIDIA RTX 5000 Ada (0),1,,7,"saxpy(float, int)"
"""
API_TRACE = """Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name
880,10,cudaLaunchKernel,0,122,53,54,20,python
"""
PUSH_POP = """Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild (ns),Name,PID,TID,Lvl,NumChild,RangeId,\
ParentId,RangeStack,NameTree
100,900,800,300,500,:step 3,53,54,0,1,1,,:1,:step 3
200,500,300,0,300,:MPI_Allreduce,53,54,1,0,2,1,:1:2,--:MPI_Allreduce
"""


def test_a_gpu_trace_gives_kernels_and_copies(tmp_path: Path) -> None:
    (found,) = nsys_trace_csv.read(file(tmp_path, GPU_TRACE))
    first, second = found.kernels.to_dict("records")
    assert (first["name"], first["kind"], first["start"], first["end"]) == ("saxpy(float, int)", "kernel", 900, 950)
    assert (first["grid_x"], first["grid_y"], first["block_x"], first["stream"]) == (4096, 2, 256, 7)
    assert (second["kind"], second["bytes"], second["end"], second["correlation_id"]) == (
        "memcpy",
        4_194_000,
        1500,
        123,
    )
    assert found.devices == {0: "NVIDIA RTX 5000 Ada"} and found.process is None and found.problems == ()


def test_a_range_trace_gives_steps_ranges_and_communication(tmp_path: Path) -> None:
    (found,) = nsys_trace_csv.read(file(tmp_path, PUSH_POP))
    assert found.process == 53 and found.steps[["step", "start", "end"]].values.tolist() == [[3, 100, 900]]
    assert found.ranges[["name", "thread", "start", "end"]].values.tolist() == [["MPI_Allreduce", "53/54", 200, 500]]
    assert list(found.collectives["collective"]) == ["all_reduce"]


def test_traces_of_one_process_in_one_file_are_one_timeline(tmp_path: Path) -> None:
    (found,) = nsys_trace_csv.read(file(tmp_path, f"{GPU_TRACE}\n{PUSH_POP}\n{API_TRACE}"))
    assert (found.process, len(found.kernels), len(found.steps)) == (53, 2, 1)
    assert found.api.values.tolist() == [["cudaLaunchKernel", "53/54", 880, 890, 122]]


def test_times_of_a_trace_are_taken_in_the_header_s_unit(tmp_path: Path) -> None:
    text = GPU_TRACE.replace("Start (ns)", "Start (us)").replace("Duration (ns)", "Duration (ms)")
    (found,) = nsys_trace_csv.read(file(tmp_path, text))
    assert list(found.kernels["start"]) == [900_000, 1_000_000] and found.kernels["end"].iloc[0] == 900_000 + 50_000_000


def test_a_trace_without_rows_is_refused(tmp_path: Path) -> None:
    with refused("trace-without-work", "cuda_gpu_trace"):
        nsys_trace_csv.read(file(tmp_path, GPU_TRACE.rpartition("1000,500")[0]))


@pytest.mark.parametrize(
    ("text", "name"), [(SEVERAL, "nsys_csv"), (GPU_TRACE, "nsys_trace_csv"), (PUSH_POP, "nsys_trace_csv")]
)
def test_the_kind_is_found_from_the_content(tmp_path: Path, text: str, name: str) -> None:
    reader = find_reader(read_head(file(tmp_path, text, "renamed.txt")))
    assert reader is not None and reader.name == name


@pytest.mark.public
def test_a_public_summary_gives_its_own_numbers() -> None:
    path = TRACES / "all-stage__summary_cuda_gpu_kern_sum.csv"
    found = only(nsys_csv.read(path))
    with path.open(encoding="utf-8", newline="") as opened:
        expected = [(row["Name"], int(row["Instances"]), int(row["Total Time (ns)"])) for row in csv.DictReader(opened)]
    table = found.table
    assert list(zip(table["name"], table["count"], table["total_ns"], strict=True)) == expected
    assert expected[0][1:] == (329035, 1231822285) and found.problems == ()


@pytest.mark.public
def test_a_public_range_trace_gives_its_own_numbers() -> None:
    path = TRACES / "nbody-nvtx__trace.csv"
    (found,) = nsys_trace_csv.read(path)
    with path.open(encoding="utf-8", newline="") as opened:
        rows = [(int(row["Start (ns)"]), int(row["End (ns)"]), row["Name"]) for row in csv.DictReader(opened)]
    ranges = found.ranges
    assert sorted(zip(ranges["start"], ranges["end"], ranges["name"], strict=True)) == sorted(rows)
    assert found.process == 3086332 and found.problems == ()


NVPROF_TRACES = shared_files.TRACES / "nvprof"

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


def nvprof_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_summary_gives_kernels_copies_and_calls_in_nanoseconds(tmp_path: Path) -> None:
    kernels, copies, api = nvprof.read(nvprof_file(tmp_path, SUMMARY))
    assert [item.what for item in (kernels, copies, api)] == ["kernels", "copies", "api"]
    (row,) = kernels.table.to_dict("records")
    assert row["name"] == "void gemm<int=32>(float*, int)" and (row["count"], row["total_ns"]) == (3, 1_800_000)
    assert (row["average_ns"], row["min_ns"], row["max_ns"]) == (600_000, 500_000, 700_500)
    assert list(copies.table["total_ns"]) == [200_000] and list(api.table["max_ns"]) == [4_000_000]
    assert kernels.facts == {"process": 2119} and kernels.problems == ()


def test_a_summary_of_cuda_8_has_a_table_for_calls(tmp_path: Path) -> None:
    kernels, api = nvprof.read(nvprof_file(tmp_path, SUMMARY_8))
    assert (kernels.what, list(kernels.table["total_ns"])) == ("kernels", [40_000])
    assert (api.what, list(api.table["total_ns"])) == ("api", [1_000_000])


def test_metrics_are_numbers_in_base_units(tmp_path: Path) -> None:
    metrics, events = nvprof.read(nvprof_file(tmp_path, METRICS))
    rows = {row["metric"]: row for row in metrics.table.to_dict("records")}
    assert (rows["sm_efficiency"]["average"], rows["sm_efficiency"]["unit"]) == (99.0, "%")
    read = rows["dram_read_throughput"]
    assert (read["min"], read["max"], read["unit"]) == (512 * 2**20, 2 * 2**30, "B/s")
    level = rows["tensor_precision_fu_utilization"]
    assert (level["min"], level["max"], level["average"], level["unit"]) == (3, 9, 6, nvprof.LEVEL)
    assert (rows["ipc"]["average"], rows["ipc"]["unit"], rows["ipc"]["invocations"]) == (2.0, "", 3)
    assert math.isnan(rows["flop_count_sp"]["average"]) and "1 metrics are not numbers" in metrics.problems[0]
    assert rows["ipc"]["device"] == "Tesla V100 (0)" and rows["ipc"]["kernel"] == "gemm(float*, int)"
    (event,) = events.table.to_dict("records")
    assert (event["metric"], event["average"], event["total"], event["description"]) == ("active_warps", 20, 60, "")


def test_a_gpu_trace_is_a_timeline_in_the_units_of_its_own_row(tmp_path: Path) -> None:
    found = nvprof_trace.read(nvprof_file(tmp_path, TRACE))
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
    found = nvprof_trace.read(nvprof_file(tmp_path, text))
    columns = ["name", "start", "end", "correlation_id"]
    assert found.api[columns].values.tolist() == [
        ["cudaMalloc", 10**6, 1005000, -1],
        ["cudaMemcpy", 1500000, 1520000, 113],
    ]
    assert len(found.kernels) == 0


def test_rows_without_times_are_counted(tmp_path: Path) -> None:
    found = nvprof_trace.read(nvprof_file(tmp_path, TRACE.replace("0.001300,200.000000", "n/a,200.000000")))
    assert len(found.kernels) == 2 and found.problems == ("1 rows of GPU work without start or duration were skipped",)


def test_nvprof_s_text_is_refused_naming_csv(tmp_path: Path) -> None:
    path = nvprof_file(tmp_path, TEXT)
    reader = find_reader(read_head(path))
    assert reader is not None and reader.name == "nvprof"
    with refused("file-format", path, "nvprof --csv"):
        nvprof.read(path)


@pytest.mark.parametrize(
    ("text", "name"), [(SUMMARY, "nvprof"), (SUMMARY_8, "nvprof"), (METRICS, "nvprof"), (TRACE, "nvprof_trace")]
)
def test_the_kind_of_an_nvprof_file_is_found_from_its_content(tmp_path: Path, text: str, name: str) -> None:
    reader = find_reader(read_head(nvprof_file(tmp_path, text)))
    assert reader is not None and reader.name == name


@pytest.mark.public
def test_a_public_gpu_trace_gives_its_own_numbers() -> None:
    (path,) = NVPROF_TRACES.glob("*_trace.csv")
    found = nvprof_trace.read(path)
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if "matrixMulCUDA" in line and "," in line]
    expected = round(sum(float(line.split(",")[1]) * 1e6 for line in lines))
    kernels = found.kernels[found.kernels["kind"] == "kernel"]
    assert len(kernels) == len(lines) == 301
    assert int((kernels["end"] - kernels["start"]).sum()) == pytest.approx(expected, abs=1)
    assert found.devices == {0: "GeForce GTX 1080 Ti"} and found.process == 12400 and found.problems == ()
    # 400 KB of 1,024 bytes: a matrix of 320 x 320 floats.
    assert found.kernels["bytes"].iloc[0] == 320 * 320 * 4


@pytest.mark.public
def test_public_metrics_are_all_read() -> None:
    (path,) = NVPROF_TRACES.glob("*_metrics.csv")
    (found,) = nvprof.read(path)
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith('"GeForce')]
    assert len(found.table) == len(lines) and found.problems == () and found.facts["process"] == 16702
    rows = {row["metric"]: row for row in found.table.to_dict("records")}
    assert rows["branch_efficiency"]["average"] == 100 and rows["branch_efficiency"]["unit"] == "%"
    assert rows["dram_utilization"]["average"] == 1 and rows["dram_utilization"]["unit"] == nvprof.LEVEL


@pytest.mark.public
def test_a_table_that_is_cut_short_says_so_and_has_no_cut_row(tmp_path: Path) -> None:
    data = (TRACES / "nbody-nvtx__trace.csv").read_bytes()
    (whole,) = nsys_trace_csv.read(TRACES / "nbody-nvtx__trace.csv")
    known = set(whole.ranges["name"])
    cut = tmp_path / "nbody-nvtx__trace.csv"
    for size in range(3000, len(data), 997):
        cut.write_bytes(data[:size])
        (found,) = nsys_trace_csv.read(cut)
        ends = data[:size].endswith(b"\n")
        assert ends or any(UNENDED in problem for problem in found.problems)
        assert ends or len(set(found.ranges["name"]) - known) <= 1
