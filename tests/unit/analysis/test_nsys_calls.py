"""CUDA calls, communication and GPUs of an nsys export. NCCL's ranges are generated after NCCL's published payloads."""

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support.nsys_export import call, export, kernel, nvtx, tid
from support.shared_files import samples

from analysis.metrics.communication.exposure import communication_by_kind
from analysis.readers.nsys import read
from analysis.readers.registry import find_reader, read_head
from analysis.timeline import COLLECTIVE_COLUMNS, Timeline


def nccl(start: int, end: int, text: str, **payload: Any) -> dict[str, Any]:
    said = json.dumps({key.replace("_", " "): value for key, value in payload.items()})
    return nvtx(start, end, text, domainId=1, jsonText=said)


DOMAIN = nvtx(0, None, "NCCL", eventType=75, domainId=1)
SIZE, GROUP, RANKS = "Message size [bytes]", "NCCL communicator ID", "No. of ranks"


def only(path: Path) -> Timeline:
    (found,) = read(path)
    return found


def test_calls_have_names_without_versions_threads_and_correlation(tmp_path: Path) -> None:
    names = ("cudaLaunchKernel_v7000", "cuGetProcAddress_v2", "cudaStreamGetCaptureInfo_v2_v11030")
    runtime = [call(30, 40, 0, 5), call(10, 20, 2, 4), call(50, 45, 0, 6)]
    driver = [call(32, 38, 1, 5, tid(40, 99))]
    found = only(export(tmp_path / "a.sqlite", names, calls=runtime, driver=driver, nvtx=[nvtx(1, 2, "a")]))
    assert found.api[["name", "thread", "start", "end", "correlation_id"]].values.tolist() == [
        ["cudaStreamGetCaptureInfo_v2", "40/40", 10, 20, 4],
        ["cudaLaunchKernel", "40/40", 30, 40, 5],
        ["cuGetProcAddress_v2", "40/99", 32, 38, 5],
    ]
    assert "1 records of CUDA's calls without start or end were skipped" in found.problems


def test_an_nccl_kernel_takes_size_and_ranks_from_the_call_that_launched_it(tmp_path: Path) -> None:
    names = (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096>)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096>)",
        "gemm",
        "cudaLaunchKernelExC_v11060",
    )
    ranges = [DOMAIN, nccl(5, 9, "ncclCommInitRank", **{GROUP: 77, RANKS: 4, "Rank": 1, "CUDA device": 1})]
    ranges += [nccl(100, 140, "ncclAllReduce", **{GROUP: 77, SIZE: 4096, "Reduction operation": 0})]
    ranges += [nccl(200, 240, "ncclAllGather", **{GROUP: 77, SIZE: 1000})]
    calls = [call(110, 120, 3, 1), call(210, 220, 3, 2), call(300, 310, 3, 3), call(400, 410, 3, 4)]
    kernels = [
        kernel(150, 190, 0, correlationId=1, streamId=13),
        kernel(250, 270, 1, correlationId=2, streamId=13),
        kernel(320, 350, 0, correlationId=3, streamId=13),
        kernel(410, 450, 2, correlationId=4),
    ]
    found = only(export(tmp_path / "a.sqlite", names, nvtx=ranges, calls=calls, kernels=kernels))
    table = found.collectives
    assert table.dtypes.astype(str).to_dict() == COLLECTIVE_COLUMNS
    assert list(table["collective"]) == ["all_reduce", "all_gather", "all_reduce"]
    assert list(table["bytes"]) == [4096, 4000, -1]  # an all-gather's is what one rank receives; the last had no range
    assert list(table["group"]) == ["77", "77", ""] and list(table["group_size"]) == [4, 4, 4]
    assert list(table["dtype"]) == ["bf16", "", "bf16"] and list(table["stream"]) == [13, 13, 13]
    assert list(table["correlation_id"]) == [1, 2, 3] and list(table["seq"]) == [-1, -1, -1]
    assert list(zip(table["start"], table["end"], strict=True)) == [(150, 190), (250, 270), (320, 350)]
    assert len(found.kernels) == 4


def test_calls_of_mpi_and_gloo_are_communication_where_no_gpu_s_is(tmp_path: Path) -> None:
    ranges = [nvtx(10, 20, "MPI_Allreduce"), nvtx(30, 45, "gloo:all_reduce"), nvtx(50, 60, "nccl:all_reduce")]
    ranges += [nvtx(70, 80, "MPI_Init")]
    found = only(export(tmp_path / "a.sqlite", nvtx=ranges)).collectives
    assert list(found["name"]) == ["MPI_Allreduce", "gloo:all_reduce"] and set(found["device"]) == {-1}
    assert list(found["collective"]) == ["all_reduce", "all_reduce"] and list(found["end"]) == [20, 45]
    names = ["ncclDevKernel_AllReduce_Sum_f32_RING_LL"]
    path = export(tmp_path / "b.sqlite", names, nvtx=ranges, kernels=[kernel(1, 5, 0)])
    assert list(only(path).collectives["device"]) == [0]


@pytest.mark.parametrize("path", samples("nsys/*.sqlite.gz"))
def test_instances_and_total_time_of_every_kernel_and_call_are_sqlite_s_own(tmp_path: Path, path: Path) -> None:
    plain = tmp_path / "a.sqlite"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    assert find_reader(read_head(path)) == "nsys"
    timelines = read(path)
    connection = sqlite3.connect(plain)
    for table, name, kind in (("KERNEL", "demangledName", "kernel"), ("RUNTIME", "nameId", None)):
        if not connection.execute(f"SELECT 1 FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_{table}'").fetchone():
            continue
        query = f"""SELECT s.value, count(*), sum("end" - start) FROM CUPTI_ACTIVITY_KIND_{table}
                    JOIN StringIds s ON s.id = {name} GROUP BY s.id"""
        expected = sorted((instances, length) for _, instances, length in connection.execute(query))
        sums = []
        for timeline in timelines:
            rows = timeline.api if kind is None else timeline.kernels[timeline.kernels["kind"] == kind]
            lengths = (rows["end"] - rows["start"]).groupby(rows["name"], observed=True).agg(["count", "sum"])
            sums += [(int(row["count"]), int(row["sum"])) for _, row in lengths.iterrows()]
        assert sum(count for count, _ in sums) == sum(count for count, _ in expected)
        assert sum(length for _, length in sums) == sum(length for _, length in expected)
        if kind:
            assert sorted(sums) == expected
    connection.close()


def test_an_all_to_all_of_sends_is_that_of_its_call_and_communicators_are_groups(tmp_path: Path) -> None:
    send = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)"
    names = (send, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "cudaLaunchKernelExC_v11060")
    ranges = [DOMAIN]
    ranges += [nccl(5 + number, 9, "ncclCommInitRank", **{GROUP: 77 + number, RANKS: 4}) for number in range(2)]
    ranges += [nccl(100, 140, "ncclAlltoAll", **{GROUP: 77, SIZE: 1000})]
    ranges += [nccl(200, 240, "ncclAllReduce", **{GROUP: 78, SIZE: 500})]
    calls = [call(110, 120, 2, 1), call(210, 220, 2, 2)]
    kernels = [kernel(150, 190, 0, correlationId=1, streamId=13), kernel(250, 270, 1, correlationId=2, streamId=13)]
    found = only(export(tmp_path / "a.sqlite", names, nvtx=ranges, calls=calls, kernels=kernels))
    assert list(found.collectives["collective"]) == ["all_to_all", "all_reduce"]
    # NCCL's size of an all-to-all is what goes to each of the 4 ranks.
    assert list(found.collectives["bytes"]) == [4000, 500]
    groups = communication_by_kind([found]).set_index("group")
    assert dict(groups["total_ms"]) == {"77": 40e-6, "78": 20e-6} and set(groups["group_size"]) == {4}
    # 4000 bytes in 40 ns are 100 GB/s, x 3/4; 500 in 20 are 25, x 2 x 3/4.
    assert dict(groups["busbw_gb_s"]) == pytest.approx({"77": 75.0, "78": 37.5})
