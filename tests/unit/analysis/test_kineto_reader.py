"""Traces of PyTorch's profiler: made ones by hand, real ones by their published facts."""

import gzip
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import shared_files
from support.refusals import refused
from support.shared_files import OWN
from support.timelines import event, write

from analysis.readers import registry
from analysis.readers.kineto import events as kineto_events
from analysis.readers.kineto.reader import read, recognises
from analysis.readers.registry import read_all, read_head
from analysis.timeline import COLLECTIVE_COLUMNS, Timeline, lost_kernels
from common.errors import Code, InputError

TRACES = shared_files.TRACES / "kineto"
GPU = {"device": 0, "stream": 7}
BASE = 1_700_000_000_000_000_000


def trace() -> bytes:
    """A small trace with every kind of event, as Kineto indents it."""
    kernel = {**GPU, "correlation": 3, "grid": [8, 1, 1], "blocks per SM": 0.5}
    sizes = {"In msg nelems": 10, "Out msg nelems": 10, "dtype": "Float", "Group size": 2, "Process Group Name": "0"}
    events = [
        event("ProfilerStep#4", 0, 1000, "user_annotation"),
        event("bertbench:forward", 10, 500, "user_annotation"),
        *(event(f"aten::op{n}", 20 + n, 0.5, args={"External id": n, "Input Dims": [[1, 2], []]}) for n in range(40)),
        event("record_param_comms", 100, 50, args=sizes),
        event("cudaLaunchKernel", 110, 5, "cuda_runtime", args={"correlation": 3}),
        {"ph": "s", "id": 3, "pid": 1, "tid": 1, "ts": 110, "cat": "ac2g", "name": "ac2g"},
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 120.125, 80.5, "kernel", args=kernel),
        event("Memcpy HtoD (Pageable -> Device)", 300, 5, "gpu_memcpy", args={**GPU, "bytes": 4096}),
        event("nccl:all_reduce", 120, 80, "gpu_user_annotation", args=GPU),
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "python"}},
    ]
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "H100", "numSms": 132, "computeMajor": 9, "computeMinor": 0}],
        "traceEvents": events,
        "distributedInfo": {"rank": 2, "world_size": 4, "pg_config": [{"pg_name": "0", "pg_size": 2}]},
        "baseTimeNanoseconds": BASE,
    }
    return json.dumps(document, indent=2).encode()


def of(folder: Path, content: bytes, name: str = "a.json") -> Timeline:
    (folder / name).write_bytes(content)
    return read(folder / name)


def of_events(folder: Path, *events: Any, **document: Any) -> Timeline:
    return read(write(folder / "a.json", list(events), **document))


def test_every_table_and_field_is_filled(tmp_path: Path) -> None:
    found = of(tmp_path, trace())
    assert (found.rank, found.world_size, found.problems) == (2, 4, ())
    assert (found.devices, found.sm_counts, found.truncated) == ({0: "H100"}, {0: 132}, False)
    assert found.steps.to_dict("records") == [{"step": 4, "start": BASE, "end": BASE + 1_000_000}]
    assert len(found.operators) == 41 and list(found.ranges["name"]) == ["bertbench:forward"]
    (call,) = found.api.to_dict("records")
    assert (call["name"], call["thread"], call["correlation_id"]) == ("cudaLaunchKernel", "1/1", 3)
    assert (call["start"], call["end"]) == (BASE + 110_000, BASE + 115_000)
    kernel, copy = found.kernels.to_dict("records")
    assert (kernel["start"], kernel["end"], kernel["kind"]) == (BASE + 120_125, BASE + 200_625, "kernel")
    assert [kernel[name] for name in ("correlation_id", "grid_x", "blocks_per_sm")] == [3, 8, 0.5]
    assert (copy["kind"], copy["bytes"], copy["correlation_id"], copy["stream"]) == ("memcpy", 4096, -1, 7)
    (row,) = found.collectives.to_dict("records")
    assert row == {
        "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "collective": "all_reduce", "device": 0, "stream": 7,
        "start": BASE + 120_125, "end": BASE + 200_625, "bytes": 40, "dtype": "Float", "group": "0", "group_size": 2,
        "seq": -1, "correlation_id": 3,
    }  # fmt: skip


@pytest.mark.parametrize("low", [17 * 10**17, 8 * 10**15])
def test_fractions_of_microseconds_are_exact_to_the_nanosecond(tmp_path: Path, low: int) -> None:
    choose = random.Random(low)
    starts = sorted(choose.randrange(low, low + 10**12) for _ in range(500))
    rows = (f'{{"ph":"X","cat":"kernel","name":"k","ts":{n // 1000}.{n % 1000:03},"dur":"0.007"}}' for n in starts)
    found = of(tmp_path, f'{{"traceEvents":[{",".join(rows)}]}}'.encode()).work
    assert found.start.tolist() == starts and set((found.end - found.start).tolist()) == {7}


def test_categories_of_every_year_and_vendor_and_unknown_ones(tmp_path: Path) -> None:
    work = {"Kernel": "kernel", "kernel": "kernel", "Memcpy": "memcpy", "gpu_memcpy": "memcpy", "Memset": "memset"}
    calls = ("Runtime", "cuda_runtime", "hip_runtime", "xpu_runtime", "cuda_driver")
    # Arrows, and what Kineto writes around the work of a CPU or a GPU.
    others = ("python_function", "overhead", "Trace", "ac2g", "fwdbwd", "gpu_user_annotation", "cuda_sync", "")
    named = [*work, *calls, *others, "Operator", *7 * ["mtia_ccp_events"]]
    found = of_events(tmp_path, *(event(name, 10 * place, 1, name) for place, name in enumerate(named)))
    assert found.kernels["kind"].tolist() == list(work.values()) and found.api["name"].tolist() == [*calls]
    assert found.operators["name"].tolist() == ["Operator"] and set(found.kernels["stream"]) == {1}
    assert any("mtia_ccp_events: 7" in problem for problem in found.problems)


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        (b'"dur": 0.5', b'"dur": NaN', 40),
        (b'"dur": 0.5', b'"dur": "soon"', 40),
        (b'"External id": 7,', b'"External id": -inf,', 0),
        (b'"device": 0', b'"device": "0"', 0),
        (b'"Process Group Name"', b'"Process Group Description": , "Process Group Name"', 0),
        (b"aten::op7", b"aten\xff\xfe\x01", 0),
    ],
)
def test_values_that_pytorch_writes_although_they_are_no_json(
    tmp_path: Path, old: bytes, new: bytes, lost: int
) -> None:
    content = trace()
    assert old in content
    found = of(tmp_path, content.replace(old, new))
    assert len(found.operators) == 41 - lost and bool(found.problems) == (lost > 0)
    assert found.rank == 2 and set(found.kernels["device"]) == {0} and found.collectives["bytes"].tolist() == [40]


def test_a_cut_trace_is_read_up_to_its_last_whole_event(tmp_path: Path) -> None:
    content = trace()
    place = content.index(b"aten::op30")
    for cut in (content[:place], content[: place - 40], content[: content.index(b'"Input Dims"', place)]):
        found = of(tmp_path, cut)
        assert len(found.operators) == 30 and found.truncated and lost_kernels([found])
    assert len(of(tmp_path, content[: content.index(b'"world_size"')]).kernels) == 2
    found = of(tmp_path, gzip.compress(content)[:-200], "b.json.gz")
    assert 0 < len(found.operators) <= 41 and found.truncated


def test_the_step_that_a_cut_trace_ends_inside_is_left_out(tmp_path: Path) -> None:
    steps = [event(f"ProfilerStep#{n}", 100 * n, 100, "user_annotation") for n in range(3)]
    work = [event("k", 100 * n + 50, 60, "kernel", args=GPU) for n in range(3)]
    (tmp_path / "a.json").write_text(json.dumps({"traceEvents": [*steps, *work]}))
    assert read(tmp_path / "a.json").steps["step"].tolist() == [0, 1, 2]
    found = of(tmp_path, json.dumps({"traceEvents": [*steps, *work]}).encode()[:-20])
    assert found.truncated and found.steps["step"].tolist() == [0, 1] and len(found.problems) == 3


@pytest.mark.parametrize(
    ("content", "code", "fact"),
    [
        (b'{"traceEvents": [{"ph": "X"', "file-damaged", "export_chrome_trace"),
        (b"[1, 2]", "file-format", "export_chrome_trace"),
        (b'{"schema": "1.0", "nodes": []}', "file-format", "export_chrome_trace"),
        (b'{"traceEvents": {}}', "file-format", "traceEvents"),
        (trace().replace(b'"name": "aten::op7"', b'"name" "aten::op7"'), "file-damaged", "byte"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "file-truncated", ""),
        (b"\x1f\x8bgarbage", "file-damaged", ""),
    ],
)
def test_a_damaged_or_foreign_file_is_one_error(tmp_path: Path, content: bytes, code: Code, fact: str) -> None:
    with refused(code, tmp_path / "a.json", fact):
        of(tmp_path, content)


def test_a_file_above_its_share_of_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("path-missing", "gone.json"):
        read(tmp_path / "gone.json")
    size = len(trace())
    monkeypatch.setattr(kineto_events, "CHECKED_FROM_BYTES", 0)
    monkeypatch.setattr(kineto_events, "available_bytes", lambda: kineto_events.MEMORY_SHARE * size)
    assert len(of(tmp_path, trace()).operators)
    monkeypatch.setattr(kineto_events, "available_bytes", lambda: kineto_events.MEMORY_SHARE * size - 1)
    with refused("file-limit", "a.json.gz", "record fewer steps"):
        of(tmp_path, gzip.compress(trace()), "a.json.gz")


def test_a_gpu_program_without_kernels_is_not_passed_off_as_a_cpu_run(tmp_path: Path) -> None:
    step, device = event("aten::mm", 0, 9), [{"id": 0, "name": "H100"}]
    assert lost_kernels([of_events(tmp_path, step, event("cudaLaunchKernel", 1, 2, "cuda_runtime"))])
    assert lost_kernels([of_events(tmp_path, step, event("nccl:all_reduce", 1, 2))])
    assert of_events(tmp_path, step, deviceProperties=device).problems == ()


def test_what_operators_say_of_their_inputs_and_of_autograd(tmp_path: Path) -> None:
    inputs = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["c10::BFloat16", "c10::BFloat16"], "Sequence number": 7}
    backward = "autograd::engine::evaluate_function: MmBackward0"
    found = of_events(
        tmp_path,
        event("aten::mm", 0, 9, args=inputs),
        event("aten::add", 10, 9),
        event(backward, 20, 9, args={"Sequence number": 7, "Fwd thread id": 1}),
    ).operators.set_index("name")
    assert list(found["precision"]) == ["bf16", "", ""] and list(found["sequence"]) == [7, -1, 7]
    assert list(found["forward_thread"]) == [-1, -1, 1]
    assert json.loads(found.loc["aten::mm", "inputs"])[0] == [[2, 3], [3, 4]] and found.loc["aten::add", "inputs"] == ""


def test_gloo_spans_count_once_and_only_without_gpu_communication(tmp_path: Path) -> None:
    shape = {"Input Dims": [[4, 5], [6]], "Input type": ["c10::Half", "c10::Half"]}
    events = [
        event("gloo:all_reduce", 0, 100, "user_annotation", args=shape),
        event("gloo:all_reduce", 10, 50, args=shape),
        event("gloo:all_reduce", 100, 10, args=shape, tid=2),
        event("c10d::allreduce_", 0, 100),
    ]
    found = of_events(tmp_path, *events).collectives
    assert list(found["bytes"]) == [52, 52] and list(found["start"]) == [0, 100_000] and set(found["device"]) == {-1}
    found = of_events(tmp_path, *events, event("ncclKernel_AllReduce_x", 0, 100, "kernel", args=GPU)).collectives
    assert list(found["device"]) == [0]


def test_an_all_gather_counts_what_a_rank_receives(tmp_path: Path) -> None:
    said = {"In msg nelems": 10, "Out msg nelems": 40, "dtype": "BFloat16", "Group size": 4, "Seq": 5}
    found = of_events(
        tmp_path,
        event("ncclDevKernel_AllGather_RING_LL", 0, 9, "kernel", args={**GPU, **said}),
        event("ncclDevKernel_ReduceScatter_Sum_f32", 10, 9, "kernel", args={**GPU, **said, "dtype": "Float"}),
    ).collectives
    assert list(found["bytes"]) == [80, 40] and list(found["seq"]) == [5, 5]
    assert dict(found.dtypes.astype(str)) == COLLECTIVE_COLUMNS


@pytest.mark.parametrize("pays", [1 << 40, 0])
def test_ranks_are_read_in_order_and_a_damaged_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pays: int
) -> None:
    monkeypatch.setattr(registry, "PAYS_FROM_BYTES", pays)
    paths = [write(tmp_path / f"{n}.json", [event("a", n, 1)], distributedInfo={"rank": 3 - n}) for n in range(3)]
    (tmp_path / "damaged.json").write_text("{}")
    *ranks, (damaged, error) = read_all("kineto", [*paths, tmp_path / "damaged.json"])
    assert [(path, found.rank, found.operators["start"][0]) for path, found in ranks] == [
        (path, 3 - n, 1000 * n) for n, path in enumerate(paths)
    ]
    assert damaged.name == "damaged.json" and isinstance(error, InputError) and error.code == "file-format"


@pytest.mark.parametrize(
    ("folder", "patterns", "least"),
    [
        (OWN / "kineto", ["*.json.gz", "*/*.json.gz"], 250),
        pytest.param(TRACES, ["hta/*.json.gz", "resnet/*.json.gz"], 1000, marks=[pytest.mark.public, pytest.mark.slow]),
    ],
    ids=["own", "public"],
)
def test_every_trace_has_the_work_that_its_own_json_has(folder: Path, patterns: list[str], least: int) -> None:
    """Python's own JSON, fractions as decimals, event by event; the eight ranks have their own expected values."""
    seen = 0
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str, strict=False)
        kinds = ("kernel", "gpu_memcpy", "gpu_memset")
        expected = [
            round(Decimal(one["dur"]) * 1000)
            for one in document["traceEvents"]
            if one.get("ph") == "X" and str(one.get("cat")).lower() in kinds
        ]
        found = read(path)
        work = found.work
        assert recognises(read_head(path)) and (folder == TRACES or found.problems == ())
        assert np.sort(work.end - work.start).tolist() == sorted(expected), path.name
        seen += len(expected)
    assert seen >= least


def test_the_all_reduces_of_a_step_carry_every_gradient() -> None:
    """Two buckets in each of three steps; BERT-tiny with its heads has 4,434,242 parameters in fp32."""
    found = read(OWN / "kineto/gloo-2-ranks/rank1.json.gz")
    assert (found.rank, found.world_size, len(found.kernels), len(found.steps)) == (1, 2, 0, 3)
    assert set(found.collectives["collective"]) == {"all_reduce"} and set(found.collectives["device"]) == {-1}
    assert found.collectives["bytes"].tolist() == 3 * [1_049_352, 4 * 4_434_242 - 1_049_352]
