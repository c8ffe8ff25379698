"""Exports of nsys, as its versions write them: ranges, steps, processes, and why there is no GPU work."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.nsys_export import (
    COPY,
    GRAPH,
    KERNEL_2022,
    KERNEL_2026,
    NVTX_2022,
    NVTX_2026,
    PLACE,
    Export,
    kernel,
    kernel_place,
    nvtx,
    ours,
    tid,
)

from analysis.metrics.time.temporal import compute_utilization
from analysis.readers.nsys import read
from analysis.timeline import Timeline, lost_kernels


def only(found: list[Timeline]) -> Timeline:
    (timeline,) = found
    return timeline


def marked(folder: Path, rows: Sequence[dict[str, Any]]) -> list[Timeline]:
    return read(Export(folder / "a.sqlite").table("NVTX_EVENTS", NVTX_2022, rows).done())


def names(timeline: Timeline) -> list[str]:
    return list(timeline.ranges["name"])


def steps(timeline: Timeline) -> list[tuple[int, int, int]]:
    return [(row.step, row.start, row.end) for row in timeline.steps.itertuples()]


def test_an_export_of_2022_with_domains_payloads_and_two_processes(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite").strings(i1="bertbench:capture", i2="void gemm<float>(int)", i3="gemm")
    export.table("EXPORT_META_DATA", "name value", [{"name": "EXPORT_PRODUCT_VERSION", "value": "2022.4.2.1"}])
    rows: list[dict[str, Any]] = []
    for process, rank, domain in ((41, 0, 2), (40, 1, 1)):
        rows += [
            ours(process, domain),
            nvtx(50, 900, process, eventType=60, textId=1, domainId=domain, int64Value=rank),
        ]
        rows += [nvtx(100, 200, process, text="step 7", domainId=domain, int64Value=7)]
        rows += [nvtx(110, 160, process, text="all-reduce", domainId=domain)]
    rows += [nvtx(120, 130, 40, 99, text="aten::mm", domainId=0), nvtx(140, 150, 40, text="not a range", eventType=34)]
    export.table("NVTX_EVENTS", NVTX_2022, rows)
    export.table("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL_2022, [kernel(130, 140, 2, 40, shortName=3)])
    export.table("CUPTI_ACTIVITY_KIND_MEMCPY", COPY, [{**kernel_place(105, 115), "bytes": 4096, "copyKind": 1}])
    export.table("CUPTI_ACTIVITY_KIND_MEMSET", f"{PLACE} bytes", [{**kernel_place(116, 117), "bytes": 8}])
    export.table("TARGET_INFO_GPU", "id cuDevice name", [{"id": 0, "cuDevice": 0, "name": "A100"}])
    zero, one = read(export.done())
    assert [(item.rank, item.process) for item in (zero, one)] == [(0, 41), (1, 40)]
    assert one.source == "nsys 2022.4.2.1" and one.devices == {0: "A100"}
    assert names(zero) == ["bertbench:capture", "bertbench:all-reduce"] and len(zero.kernels) == 0
    assert names(one) == ["bertbench:capture", "bertbench:all-reduce", "aten::mm"]
    assert list(one.ranges["domain"]) == ["bertbench", "bertbench", ""]
    assert list(one.ranges["thread"]) == ["40/40", "40/40", "40/99"] and steps(one) == [(7, 100, 200)]
    assert list(one.kernels["kind"]) == ["memcpy", "memset", "kernel"]
    assert list(one.kernels["name"]) == ["Memcpy HtoD", "Memset", "void gemm<float>(int)"]
    assert list(one.kernels["bytes"]) == [4096, 8, 0]


def test_an_export_of_2024_names_gpus_process_by_process(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite").strings(i3="gemm")
    export.table("META_DATA_EXPORT", "name value", [{"name": "EXPORT_PRODUCT_VERSION", "value": "2024.6.2.225"}])
    rows = [kernel(1, 2, 3, 40), kernel(1, 2, 3, 41), kernel(5, 6, 3, 41, deviceId=1)]
    export.table("CUPTI_ACTIVITY_KIND_KERNEL", f"{KERNEL_2022} greenContextId", rows)
    gpus = [{"id": number, "cuDevice": number, "name": f"GPU {number}"} for number in (0, 1, 2)]
    export.table("TARGET_INFO_GPU", "id cuDevice name", gpus)
    mapping = [(40, 0, 2), (41, 0, 1), (41, 1, 0)]  # as CUDA_VISIBLE_DEVICES=2 and =1,0 do
    rows = [{"pid": owner, "cudaId": device, "gpuId": gpu} for owner, device, gpu in mapping]
    export.table("TARGET_INFO_CUDA_DEVICE", "gpuId cudaId pid", rows)
    first, second = read(export.done())
    assert first.source == "nsys 2024.6.2.225"
    assert first.devices == {0: "GPU 2"} and second.devices == {0: "GPU 1", 1: "GPU 0"}


def test_an_export_of_2026_with_forty_kernel_columns_extended_payloads_and_graphs(tmp_path: Path) -> None:
    assert len(KERNEL_2026.split()) >= 40
    export = Export(tmp_path / "a.sqlite").strings(i3="gemm", i4='{"rank": 6}')
    rows = [kernel(120, 130, 3), kernel(140, 150, 3, graphNodeId=77)]
    export.table("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL_2026, rows)
    graph = {**kernel_place(160, 190), "graphId": 9}
    export.table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", GRAPH, [graph, {**graph, "start": 195, "end": 199}])
    message = '{"Message size [bytes]": 4, "Communicator": 8}'
    rows = [
        ours(),
        nvtx(1, 999, eventType=60, text="bertbench:capture", domainId=1, jsonTextId=4),
        nvtx(100, 200, text="step", domainId=1, jsonText="[12]"),
        nvtx(150, 160, text="ncclAllReduce", domainId=0, jsonText=message),
    ]
    export.table("NVTX_EVENTS", NVTX_2026, rows)
    found = only(read(export.done()))
    assert found.rank == 6 and steps(found) == [(12, 100, 200)]
    assert found.ranges["json"].iloc[1] == message and found.ranges["payload"].isna().iloc[1]
    assert list(found.kernels["kind"]) == ["kernel", "kernel", "graph", "graph"]
    assert found.kernels["name"].iloc[2] == "CUDA graph 9"
    assert any("2 launches of CUDA graphs" in problem for problem in found.problems)
    assert compute_utilization(found).busy_ms == pytest.approx(54e-6)  # 10 + 10 + 30 + 4 ns


def test_steps_cut_by_the_recording_s_end_are_left_out_and_said(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.table("ANALYSIS_DETAILS", "globalVid duration", [{"globalVid": 1, "duration": 500}])
    rows = [ours(), nvtx(50, 500, eventType=60, text="bertbench:capture", domainId=1, int64Value=0)]
    rows += [nvtx(start, end, text=f"step {n}", domainId=1) for n, start, end in ((3, 100, 200), (4, 200, 300))]
    rows += [nvtx(300, 500, text="step 5", domainId=1), nvtx(310, None, text="forward", domainId=1)]
    export.table("NVTX_EVENTS", NVTX_2022, rows)
    found = only(read(export.done()))
    assert steps(found) == [(3, 100, 200), (4, 200, 300)]
    cut = found.ranges.set_index("name")["cut"].to_dict()
    assert cut == {"bertbench:capture": False, "bertbench:step 5": True, "bertbench:forward": True}
    assert found.ranges["end"].iloc[-1] == 500
    assert any("skipped: 5" in problem for problem in found.problems)
    assert any("1 ranges have no end" in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("step 3", "step 4"), [3, 4]),
        (("ProfilerStep#3", "ProfilerStep#4"), [3, 4]),
        (("iter_3", "iter_4"), [3, 4]),
        (("Train step 3", "Train step 4"), [3, 4]),
        (("Step 10 to 20", "Step 20 to 30"), []),
        (("stepwise 3", "my step 4"), []),
        (("step", "step"), []),  # no number anywhere
    ],
)
def test_iterations_of_others_are_known_by_their_names(tmp_path: Path, texts: tuple[str, str], expected: Any) -> None:
    rows = [nvtx(100 * number, 100 * number + 90, text=text) for number, text in enumerate(texts)]
    found = only(marked(tmp_path, rows))
    assert [number for number, _, _ in steps(found)] == expected
    assert len(found.ranges) == 2 - len(expected)


def test_the_domain_is_known_by_the_capture_where_its_creation_was_not_recorded(tmp_path: Path) -> None:
    rows = [nvtx(50, 500, eventType=60, text="bertbench:capture", domainId=4, int64Value=2)]
    rows += [nvtx(60, 70, text="forward", domainId=4), nvtx(80, 90, text="foreign", domainId=5)]
    found = only(marked(tmp_path, rows))
    assert names(found) == ["bertbench:capture", "bertbench:forward", "foreign"] and found.rank == 2
    assert any("1 NVTX domains have no name" in problem for problem in found.problems)


def test_records_without_a_process_or_times(tmp_path: Path) -> None:
    export = Export(tmp_path / "a.sqlite").strings(i3="gemm")
    export.table("NVTX_EVENTS", "start end text globalTid", [{"start": 1, "end": 9, "text": "a", "globalTid": tid(40)}])
    times = [(2, 4), (9, 5), (3, None), (5, 5)]
    rows = [{"start": start, "end": end, "demangledName": end and end - 1, "shortName": 3} for start, end in times]
    export.table("CUPTI_ACTIVITY_KIND_KERNEL", "start end demangledName shortName", rows)
    found = only(read(export.done()))
    assert (found.process, names(found)) == (40, ["a"])
    assert found.kernels[["start", "end"]].values.tolist() == [[2, 4], [5, 5]]
    assert found.kernels["name"].tolist() == ["gemm", "gemm"]  # the second by its short name
    assert [problem.split()[0] for problem in found.problems if "without start or end" in problem] == ["2"]


@pytest.mark.parametrize(
    ("message", "gpu", "facts"),
    [
        ("CUDA process launched with --password hush", True, ["was CUDA traced"]),
        ("Unable to configure the collection of CPU IP/backtrace samples.", False, []),
        ("No CUDA events collected. Does the process use CUDA?", False, ["No CUDA events", "was CUDA traced"]),
        ("Not all NVTX events might have been collected.", True, ["Not all NVTX events", "was CUDA traced"]),
    ],
)
def test_why_there_is_no_gpu_work_is_said(tmp_path: Path, message: str, gpu: bool, facts: list[str]) -> None:
    export = Export(tmp_path / "a.sqlite")
    export.table("DIAGNOSTIC_EVENT", "timestamp source severity text globalPid", [{"severity": 3, "text": message}])
    export.table("NVTX_EVENTS", NVTX_2022, [nvtx(1, 2, text="a")])
    export.table("TARGET_INFO_GPU", "id name", [{"id": 0, "name": "A100"}] if gpu else [])
    found = only(read(export.done()))
    assert [fact in problem for fact, problem in zip(facts, found.problems, strict=True)] == [True] * len(facts)
    assert bool(lost_kernels([found])) == bool(facts)
