"""rocprofv3's JSON and its CSV of kernels, in the form of ROCm/rocprofiler-sdk's own writer, and ROCm's Kineto traces.

Every expected number is worked out in the comments.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from support import rocprof, shared_files
from support.refusals import check_refusal, refused
from support.rocprof import two_steps

from analysis.diagnose.explain import explain
from analysis.readers.kineto.reader import read as read_kineto
from analysis.readers.registry import find_reader, read_head
from analysis.readers.rocprof import reader, trace_csv
from analysis.sources import open_sources
from bench.cli.main import run

MS = rocprof.MS


def written(path: Path, document: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document, indent=1))  # as rocprofv3 does
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path / "4242_results.json", two_steps())


def test_work_calls_and_ranges_are_read_with_their_names(path: Path) -> None:
    found_reader = find_reader(read_head(path))
    assert found_reader is not None and found_reader.name == "rocprofv3"
    (found,) = reader.read(path)
    assert found.process == 4242 and found.rank is None and not found.problems
    assert found.devices == {0: "AMD Instinct MI300X", 1: "AMD Instinct MI300X"} and found.sm_counts == {0: 304, 1: 304}
    first = found.kernels.iloc[:3]
    assert first["name"].tolist() == [
        "Memcpy HtoD", "Cijk_Alik_Bljk_BBS_BH_MT128x128", "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    ]  # fmt: skip
    assert first["kind"].tolist() == ["memcpy", "kernel", "kernel"] and set(found.kernels["device"]) == {1}
    assert first["stream"].tolist() == [3, 3, 4] and first["bytes"].tolist() == [4 << 20, 0, 0]
    # 4000 threads in blocks of 256 are 16 blocks, 8 in blocks of 2 are 4.
    sizes = ["grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z"]
    assert first[sizes].iloc[1].tolist() == [16, 4, 1, 256, 2, 1]
    assert found.steps[["step", "start", "end"]].to_numpy().tolist() == [[0, 0, 100 * MS], [1, 100 * MS, 200 * MS]]
    assert found.api["name"].tolist()[:4] == [
        "hipMemcpyAsync",
        "hipLaunchKernel",
        "hipLaunchKernel",
        "hipStreamSynchronize",
    ]
    assert found.kernels["correlation_id"].tolist()[:3] == found.api["correlation_id"].tolist()[:3] == [1, 2, 3]


def test_rccl_has_the_operation_of_its_call(path: Path) -> None:
    (found,) = reader.read(path)
    assert found.collectives["collective"].tolist() == ["all_reduce"] * 2
    # rocprofv3 does not write the arguments of calls: sizes and groups are unknown, never 0.
    assert set(found.collectives["bytes"]) == {-1} and set(found.collectives["group"]) == {""}


def test_analyses_say_of_it_what_they_say_of_any_gpu(path: Path) -> None:
    found = {one.name: one for one in explain(open_sources(path))}
    (row,) = found["temporal_breakdown"].table.to_dict("records")
    # Of 2 x 100 ms: GEMM 60 each, all-reduce 30 each of which 10 under the GEMM; the copy 2; idle 100 - 60 - 20 - 2.
    assert row["compute_ms"] == pytest.approx(120) and row["communication_ms"] == pytest.approx(60)
    assert row["exposed_communication_ms"] == pytest.approx(40) and row["idle_ms"] == pytest.approx(36)
    families = found["kernel_families"].table.set_index("family")
    assert families.loc["GEMM", "mean_ms"] == pytest.approx(120) and families.loc["communication", "calls"] == 2


def test_several_processes_are_a_timeline_each(tmp_path: Path) -> None:
    document = two_steps()
    other = copy.deepcopy(document["rocprofiler-sdk-tool"][0])
    other["metadata"]["pid"] = 4343
    document["rocprofiler-sdk-tool"].append(other)
    found = reader.read(written(tmp_path / "out.json", document))
    assert [one.process for one in found] == [4242, 4343] and all(len(one.kernels) == 6 for one in found)


def test_older_files_without_streams_have_the_queues(tmp_path: Path) -> None:
    document = two_steps()
    for one in document["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"]:
        del one["stream_id"]
    (found,) = reader.read(written(tmp_path / "rank_3.json", document))
    assert set(found.kernels["stream"][found.kernels["kind"] == "kernel"]) == {1} and found.rank == 3


def test_records_without_times_are_left_out_and_said(tmp_path: Path) -> None:
    document = two_steps()
    broken = document["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"]
    broken[0]["end_timestamp"] = 0
    del broken[1]["start_timestamp"]
    (found,) = reader.read(written(tmp_path / "out.json", document))
    assert len(found.kernels) == 4 and any("2 pieces of GPU work" in text for text in found.problems)


def test_what_is_no_trace_is_refused_with_its_code(tmp_path: Path) -> None:
    with refused("trace-without-work", "rocprofv3"):
        reader.read(written(tmp_path / "empty.json", {"rocprofiler-sdk-tool": [{"metadata": {"pid": 1}}]}))
    other = two_steps()
    other["rocprofiler-sdk-tool"][0]["agents"] = {"a": 1}
    with refused("trace-unsupported", "rocprofv3"):
        reader.read(written(tmp_path / "other.json", other))
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps(two_steps())[:3000])
    with refused("file-damaged", "cut.json"):
        reader.read(cut)


def test_numbers_beyond_64_bits_are_unknown(tmp_path: Path) -> None:
    document = two_steps()
    first = document["rocprofiler-sdk-tool"][0]["buffer_records"]["kernel_dispatch"][0]
    first["stream_id"]["handle"] = 2**64 - 1
    (found,) = reader.read(written(tmp_path / "out.json", document))
    assert found.kernels["stream"].tolist() == [3, -1, 4, 3, 3, 4]


NEW = '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",' \
      '"Start_Timestamp","End_Timestamp","LDS_Block_Size","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z",' \
      '"Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'  # fmt: skip
OLD = '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp"\n'


def test_the_csv_of_kernels_is_read_in_both_forms(tmp_path: Path) -> None:
    name = "void vectorized_elementwise_kernel<4, AddFunctor<float> >(int, AddFunctor<float>)"
    path = tmp_path / "9_kernel_trace.csv"
    path.write_text(
        NEW + f'"KERNEL_DISPATCH","Agent 4",1,2,99,7,3,"{name}",5,3000000,4500000,0,256,1,1,1024,1,1\n'
        + '"KERNEL_DISPATCH","Agent 5",1,2,99,6,3,"Cijk_a.kd",4,1000000,2000000,0,64,1,1,65,1,1\n'
        + "torn line\n"
    )  # fmt: skip
    found_reader = find_reader(read_head(path))
    assert found_reader is not None and found_reader.name == "rocprofv3_csv"
    found = trace_csv.read(path)
    assert found.kernels["name"].tolist() == ["Cijk_a", name] and found.kernels["device"].tolist() == [5, 4]
    assert found.kernels["end"].tolist() == [2 * MS, 4_500_000] and found.kernels["stream"].tolist() == [2, 2]
    # 65 threads in blocks of 64 are 2 blocks.
    assert found.kernels["grid_x"].tolist() == [2, 4] and any("1 lines" in text for text in found.problems)
    path.write_text(OLD + f'"KERNEL_DISPATCH",4,17,3,"{name}",5,1000000,1500000\n')
    found = trace_csv.read(path)
    assert found.kernels["stream"].tolist() == [17] and found.kernels["grid_x"].tolist() == [0]
    path.write_text(OLD)
    with refused("trace-without-work", "rocprofv3"):
        trace_csv.read(path)


@pytest.mark.skipif(not shared_files.TRACES.is_dir(), reason="needs the public traces of ../shared")
def test_a_public_kineto_trace_of_rocm_has_hips_calls_and_kernels() -> None:
    found = read_kineto(shared_files.TRACES / "kineto/tracelens/mi300__gaunernst_bert-small-uncased__1016001.json.gz")
    assert "MI300X" in found.devices[0] and not found.problems
    # The file has 60 kernels and one copy; every kernel was launched by a call of HIP in it.
    assert found.kernels["kind"].value_counts().to_dict() == {"kernel": 60, "memcpy": 1}
    launched = found.api.set_index("correlation_id")["name"].reindex(found.kernels["correlation_id"])
    assert launched.notna().all() and launched.astype(str).str.startswith("hip").all()


def no_category(process: str, *, form: str = "args last", arguments: dict[str, Any] | None = None) -> list[Any]:
    """Events as other tools write them: their process says whose they are, they have no category."""
    named: dict[str, Any] = {"ph": "M", "pid": 5, "tid": 0, "name": "process_name", "args": {"name": process}}
    if form == "args first":
        named = {"args": {"name": process}, "ph": "M", "pid": 5, "name": "process_name"}
    work = {"ph": "X", "name": "MatMul", "pid": 5, "tid": 1, "ts": "100.5", "dur": 7, "args": arguments or {}}
    return [named, work, {**work, "ts": "200.5"}]


HOST = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 90, "dur": 40}


@pytest.mark.parametrize(
    ("events", "named"),
    [
        # torch_npu's trace_view.json: operators of PyTorch with a category, the device's without.
        (
            [HOST, *no_category("Ascend Hardware", arguments={"Task Type": "AI_CORE", "Physic Stream Id": 2})],
            "Ascend NPU",
        ),
        ([HOST, *no_category("CANN")], "Ascend NPU"),
        (no_category("/device:TPU:0"), "TPU"),
        (no_category("/device:GPU:0", arguments={"hlo_op": "dot.1"}), "XLA"),
        (no_category("1 GPU0", form="args first", arguments={"BeginNs": "1"}), "rocprof before version 3"),
        ([HOST, *no_category("acme", arguments={"Task Type": "CORE"})], "unknown accelerator"),
    ],
)
@pytest.mark.parametrize("bare", [False, True])
def test_devices_without_categories_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], events: list[Any], named: str, bare: bool
) -> None:
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps(events if bare else {"traceEvents": events}))
    assert run(["analyze", str(path)]) == 2
    check_refusal(capsys.readouterr().err, "trace-unsupported", named, "2 events without a category", "ROCm", "CPU")


def test_events_without_a_category_of_no_device_leave_a_run_on_a_cpu_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [HOST, *no_category("python3")]}))
    found = read_kineto(path)
    assert len(found.operators) == 1 and not found.problems
