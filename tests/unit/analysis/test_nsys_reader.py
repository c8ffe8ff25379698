"""Exports of nsys, as its versions write them: ranges, steps, processes, and why there is no GPU work."""

from pathlib import Path
from typing import Any

import pytest
from support.nsys_export import export, kernel, nvtx, ours, tid, work

from analysis.metrics.time.temporal import compute_utilization
from analysis.readers.nsys import read
from analysis.timeline import Timeline, lost_kernels


def only(found: list[Timeline]) -> Timeline:
    (timeline,) = found
    return timeline


def names(timeline: Timeline) -> list[str]:
    return list(timeline.ranges["name"])


def steps(timeline: Timeline) -> list[tuple[int, int, int]]:
    return [(row.step, row.start, row.end) for row in timeline.steps.itertuples()]


def test_an_export_of_2022_with_domains_payloads_and_two_processes(tmp_path: Path) -> None:
    texts = ("bertbench:capture", "void gemm<float>(int)", "gemm")
    rows: list[dict[str, Any]] = []
    for process, rank, domain in ((41, 0, 2), (40, 1, 1)):
        rows += [
            ours(process, domain),
            nvtx(50, 900, None, process, eventType=60, textId=0, domainId=domain, int64Value=rank),
            nvtx(100, 200, "step 7", process, domainId=domain, int64Value=7),
            nvtx(110, 160, "all-reduce", process, domainId=domain),
        ]
    rows += [nvtx(120, 130, "aten::mm", globalTid=tid(40, 99), domainId=0), nvtx(140, 150, "no range", eventType=34)]
    path = export(
        tmp_path / "a.sqlite", texts, nvtx=rows, kernels=[kernel(130, 140, 1, shortName=2)],
        copies=[work(105, 115, bytes=4096, copyKind=1)], memsets=[work(116, 117, bytes=8)],
        EXPORT_META_DATA=[{"name": "EXPORT_PRODUCT_VERSION", "value": "2022.4.2.1"}],
        gpus=[{"id": 0, "cuDevice": 0, "name": "A100"}],
    )  # fmt: skip
    zero, one = read(path)
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
    gpus = [{"id": number, "cuDevice": number, "name": f"GPU {number}"} for number in (0, 1, 2)]
    mapping = [(40, 0, 2), (41, 0, 1), (41, 1, 0)]  # as CUDA_VISIBLE_DEVICES=2 and =1,0 do
    path = export(
        tmp_path / "a.sqlite", ["gemm"],
        META_DATA_EXPORT=[{"name": "EXPORT_PRODUCT_VERSION", "value": "2024.6.2.225"}],
        kernels=[kernel(1, 2, 0, 40), kernel(1, 2, 0, 41), kernel(5, 6, 0, 41, deviceId=1)], gpus=gpus,
        TARGET_INFO_CUDA_DEVICE=[{"pid": owner, "cudaId": device, "gpuId": gpu} for owner, device, gpu in mapping],
    )  # fmt: skip
    first, second = read(path)
    assert first.source == "nsys 2024.6.2.225"
    assert first.devices == {0: "GPU 2"} and second.devices == {0: "GPU 1", 1: "GPU 0"}


def test_an_export_of_2026_with_forty_kernel_columns_extended_payloads_and_graphs(tmp_path: Path) -> None:
    later = {f"later{number}": 1 for number in range(32)}
    graph = work(160, 190, graphId=9)
    message = '{"Message size [bytes]": 4, "Communicator": 8}'
    rows = [
        ours(),
        nvtx(1, 999, "bertbench:capture", eventType=60, domainId=1, jsonTextId=1),
        nvtx(100, 200, "step", domainId=1, jsonText="[12]"),
        nvtx(150, 160, "ncclAllReduce", domainId=0, jsonText=message),
    ]
    path = export(
        tmp_path / "a.sqlite", ["gemm", '{"rank": 6}'], nvtx=rows,
        kernels=[kernel(120, 130, 0, **later), kernel(140, 150, 0, graphNodeId=77)],
        graphs=[graph, {**graph, "start": 195, "end": 199}],
    )  # fmt: skip
    found = only(read(path))
    assert found.rank == 6 and steps(found) == [(12, 100, 200)]
    assert found.ranges["json"].iloc[1] == message and found.ranges["payload"].isna().iloc[1]
    assert list(found.kernels["kind"]) == ["kernel", "kernel", "graph", "graph"]
    assert found.kernels["name"].iloc[2] == "CUDA graph 9"
    assert any("2 launches of CUDA graphs" in problem for problem in found.problems)
    assert compute_utilization(found).busy_ms == pytest.approx(54e-6)  # 10 + 10 + 30 + 4 ns


def test_steps_cut_by_the_recording_s_end_are_left_out_and_said(tmp_path: Path) -> None:
    rows = [ours(), nvtx(50, 500, "bertbench:capture", eventType=60, domainId=1, int64Value=0)]
    rows += [nvtx(start, end, f"step {n}", domainId=1) for n, start, end in ((3, 100, 200), (4, 200, 300))]
    rows += [nvtx(300, 500, "step 5", domainId=1), nvtx(310, None, "forward", domainId=1)]
    details = [{"globalVid": 1, "duration": 500}]
    found = only(read(export(tmp_path / "a.sqlite", nvtx=rows, ANALYSIS_DETAILS=details)))
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
    rows = [nvtx(100 * number, 100 * number + 90, text) for number, text in enumerate(texts)]
    found = only(read(export(tmp_path / "a.sqlite", nvtx=rows)))
    assert [number for number, _, _ in steps(found)] == expected
    assert len(found.ranges) == 2 - len(expected)


def test_the_domain_is_known_by_the_capture_where_its_creation_was_not_recorded(tmp_path: Path) -> None:
    rows = [nvtx(50, 500, "bertbench:capture", eventType=60, domainId=4, int64Value=2)]
    rows += [nvtx(60, 70, "forward", domainId=4), nvtx(80, 90, "foreign", domainId=5)]
    found = only(read(export(tmp_path / "a.sqlite", nvtx=rows)))
    assert names(found) == ["bertbench:capture", "bertbench:forward", "foreign"] and found.rank == 2
    assert any("1 NVTX domains have no name" in problem for problem in found.problems)


def test_records_without_a_process_or_times(tmp_path: Path) -> None:
    ranges = [{"start": 1, "end": 9, "text": "a", "globalTid": tid(40)}]
    times = [(2, 4), (9, 5), (3, None), (5, 5)]
    rows = [{"start": start, "end": end, "demangledName": end and end - 4, "shortName": 0} for start, end in times]
    found = only(read(export(tmp_path / "a.sqlite", ["gemm"], nvtx=ranges, kernels=rows)))
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
    told = [{"timestamp": None, "severity": 3, "text": message}]
    gpus = [{"id": 0, "name": "A100"}] if gpu else []
    found = only(read(export(tmp_path / "a.sqlite", nvtx=[nvtx(1, 2, "a")], DIAGNOSTIC_EVENT=told, gpus=gpus)))
    assert [fact in problem for fact, problem in zip(facts, found.problems, strict=True)] == [True] * len(facts)
    assert bool(lost_kernels([found])) == bool(facts)
