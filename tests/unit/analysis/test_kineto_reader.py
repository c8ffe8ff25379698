"""Real traces with published facts; see shared/README.md beside the checkout."""

import csv
import dataclasses
import gzip
import itertools
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import shared_files
from support.kineto_events import event, write
from support.refusals import check_refusal, refused
from support.shared_files import OWN, samples
from test_kineto_hard_cases import GPU, trace

from analysis.counters import KernelCounters
from analysis.metrics.kernels.tables import kernel_rows, kernel_times
from analysis.metrics.time.temporal import temporal_breakdown
from analysis.readers.kineto.reader import read, read_many, read_ranks, recognises
from analysis.readers.registry import read_head
from analysis.sources import open_sources
from analysis.timeline import GpuWork, Timeline
from bench.cli.main import run
from common.errors import Code

TRACES = shared_files.TRACES / "kineto"


@pytest.mark.parametrize("name", ["trace-rank3.json", "trace-rank3.json.gz"])
def test_steps_operators_ranges_and_kernels_are_told_apart(tmp_path: Path, name: str) -> None:
    events = [
        event("ProfilerStep#4", 0, 1000, "user_annotation"),
        event("bertbench:forward", 10, 500, "user_annotation"),
        event("aten::mm", 20, 100),
        event("gemm", 60, 80, "kernel", args={"device": 0, "stream": 7}),
        event("Memcpy HtoD", 70, 5, "gpu_memcpy", args={"device": 0, "stream": 7}),
        {"ph": "i", "name": "instant", "ts": 5},
        "no event",
    ]
    found = read(write(tmp_path / name, events))
    assert found.rank == 3
    assert found.steps.to_dict("records") == [{"step": 4, "start": 0, "end": 1_000_000}]
    assert list(found.operators["name"]) == ["aten::mm"] and list(found.ranges["name"]) == ["bertbench:forward"]
    assert list(found.kernels["kind"]) == ["kernel", "memcpy"] and set(found.kernels["stream"]) == {7}


def test_self_time_is_less_what_was_called_on_the_same_thread(tmp_path: Path) -> None:
    events = [
        event("outer", 0, 100),
        event("first", 10, 30),
        event("inner", 15, 5),
        event("second", 50, 20),
        event("elsewhere", 0, 100, tid=2),
        event("after", 100, 10),
    ]
    found = read(write(tmp_path / "a.json", events)).operators.set_index("name")
    assert dict(found["self_ns"]) == {
        "outer": 50_000,
        "first": 25_000,
        "inner": 5_000,
        "second": 20_000,
        "elsewhere": 100_000,
        "after": 10_000,
    }
    assert set(found.index[found["outermost"]]) == {"outer", "elsewhere", "after"}


def test_nanoseconds_survive_beside_a_timestamp_of_1e15_microseconds(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents": [{"ph":"X","cat":"cpu_op","name":"a","ts":1700000000123456.789,"dur":0.003}]}')
    (row,) = read(path).operators.to_dict("records")
    assert (row["start"], row["end"]) == (1700000000123456789, 1700000000123456792)


def test_a_base_time_is_added(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [event("a", 1, 1)], baseTimeNanoseconds=5_000)
    assert read(path).operators["start"][0] == 6_000


def test_names_of_2021_and_odd_values_are_read(tmp_path: Path) -> None:
    events = [
        event("k", 1, 0, "Kernel"),
        event("bad start", None, 1),
        event("bad duration", 1, "soon"),
        event("backwards", 1, -5),
        event("triton", 1, 5, "cpu_op", args={"stream": 7}),
        event("big", 1, 5, "kernel", args={"stream": 10159970886766084423 % 2**31, "id": 10159970886766084423}),
    ]
    found = read(write(tmp_path / "a.json", events))
    assert set(found.kernels["name"]) == {"k", "big"} and list(found.operators["name"]) == ["triton"]


def test_a_trace_of_one_range_gives_empty_tables_with_their_columns(tmp_path: Path) -> None:
    found = read(write(tmp_path / "a.json", [event("work", 0, 10, "user_annotation")]))
    assert found.rank is None and "self_ns" in found.operators.columns and len(found.steps) == 0


def test_invalid_utf8_and_control_characters_in_names_are_survived(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{"traceEvents": [{"ph":"X","cat":"cpu_op","name":"a\xff\x01b","ts":1,"dur":2}]}')
    assert len(read(path).operators) == 1


@pytest.mark.parametrize(
    ("content", "code", "fact"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "file-format", "git lfs pull"),
        (b'{"traceEvents": [{"ph": "X"', "file-truncated", "JSON"),
        (b'{"traceEvents": [', "file-truncated", "JSON"),
        (b"", "file-damaged", "JSON"),
        (b"[1, 2]", "file-format", "PyTorch"),
        (b'{"schema": "1.0", "nodes": []}', "file-format", "export_chrome_trace"),
        (b'{"traceEvents": {}}', "file-format", "PyTorch"),
        (gzip.compress(b'{"traceEvents": []}', mtime=0)[:-9], "file-truncated", ""),
        (b"\x1f\x8bgarbage", "file-damaged", ""),
        (b"[" * 100_000, "file-damaged", "JSON"),
    ],
)
def test_a_damaged_or_foreign_file_is_named(tmp_path: Path, content: bytes, code: Code, fact: str) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with refused(code, path, fact):
        read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with refused("path-missing", "gone.json"):
        read(tmp_path / "gone.json")


@pytest.mark.public
def test_public_traces_give_the_published_step_times() -> None:
    base = read(TRACES / "hta" / "trace_compare__base__base.json.gz")
    steps = base.steps.set_index("step")
    assert steps.loc[1010, "end"] - steps.loc[1010, "start"] == 122_149_000
    assert base.rank == 1


HTA = TRACES / "hta"


@pytest.mark.public
@pytest.mark.parametrize("folder", ["dlrm-8-ranks", "megatron-8-ranks"])
def test_ranks_have_the_published_gpu_events(folder: str) -> None:
    ranks = read_ranks(sorted((TRACES / folder).glob("*.gz")))
    with (TRACES / folder / "expected.csv").open() as file:
        expected = list(csv.DictReader(file))
    assert [found.rank for found in ranks] == [int(row["rank"]) for row in expected]
    for found, row in zip(ranks, expected, strict=True):
        assert len(found.kernels) == int(row["gpu_events"])
        assert found.kernels["end"].max() - found.kernels["start"].min() == float(row["span_us"]) * 1000
        assert found.problems == () and found.world_size == 8
        # Some kernels were launched before the recording began.
        assert len(set(found.kernels["correlation_id"]) & set(found.api["correlation_id"])) > 200


@pytest.mark.public
def test_tensor_parallel_all_reduces_carry_their_number_and_size() -> None:
    ranks = [found.collectives for found in read_ranks(sorted((TRACES / "megatron-8-ranks").glob("*.gz")))]
    for found in ranks:
        assert len(found) == 84 and set(found["collective"]) == {"all_reduce"} and set(found["group_size"]) == {8}
        assert found["bytes"].iloc[0] == 4 * 2048 * 4096 * 2 and found["dtype"].iloc[0] == "c10::Half"
        assert found["seq"].tolist() == ranks[0]["seq"].tolist() and found["seq"].is_unique
        assert (found["bytes"] > 0).all()


@pytest.mark.public
def test_an_all_to_all_is_told_from_sends_by_the_host() -> None:
    found = read(next((TRACES / "dlrm-8-ranks").glob("worker0*"))).collectives
    assert found["collective"].tolist().count("all_to_all") == 5 and found["bytes"].iloc[0] == 6144 * 4
    assert found.loc[found["collective"] == "all_reduce", "bytes"].tolist()[0] == 394_241 * 4


@pytest.mark.public
def test_arguments_of_nccl_kernels_are_read() -> None:
    found = read(HTA / "nccl_parser_config__nccl_data.json.gz")
    assert len(found.collectives) == 21 and (found.rank, found.world_size) == (0, 2)
    first = found.collectives[found.collectives["collective"] == "all_reduce"].iloc[0]
    assert (first["bytes"], first["dtype"], first["group"], first["group_size"]) == (2_049_000 * 4, "Float", "0", 2)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_all_reduces_of_a_step_carry_every_gradient(rank: int) -> None:
    """Two buckets in each of three steps; BERT-tiny with its heads has 4,434,242 parameters in fp32."""
    found = read(OWN / f"kineto/gloo-2-ranks/rank{rank}.json.gz")
    assert (found.rank, found.world_size, len(found.kernels), len(found.steps)) == (rank, 2, 0, 3)
    assert set(found.collectives["collective"]) == {"all_reduce"} and set(found.collectives["device"]) == {-1}
    assert found.collectives["bytes"].tolist() == 3 * [1_049_352, 4 * 4_434_242 - 1_049_352]


@pytest.mark.public
def test_gloo_on_a_cpu_is_communication() -> None:
    found = read(HTA / "cpu_only__rank-34.old_b8cce2cd.json.gz")
    assert not len(found.kernels) and found.rank == 34 and found.world_size == 300
    assert len(found.collectives) == 10 and set(found.collectives["device"]) == {-1}
    first = found.collectives.iloc[0]
    assert (first["collective"], first["bytes"]) == ("all_reduce", 321_271 * 4)
    assert first["start"] == 1719853884000000000 + 1212075548353304 and first["end"] - first["start"] == 173_209_713


@pytest.mark.public
def test_steps_and_annotations_have_the_published_times() -> None:
    found = read(HTA / "trace_compare__test__test.json.gz")
    other = read(HTA / "trace_compare__base__base.json.gz")
    steps = other.steps.set_index("step")
    assert steps.loc[1010, "end"] - steps.loc[1010, "start"] == 122_149_000
    spans = [span for table in (found.ranges, other.ranges) for span in table.to_dict("records")]
    assert 67_000 in [span["end"] - span["start"] for span in spans if span["name"] == "nccl:all_reduce"]


@pytest.mark.public
@pytest.mark.parametrize(
    ("name", "rank"),
    [("rank_unavailable__rank_not_found", None), ("distributed_info_unavailable__distributed_info_not_found", None),
     ("large_integer_trace__rank-70.Mar_25_20_48_12.2861.pt.trace", 70)],
)  # fmt: skip
def test_what_is_missing_or_huge_is_survived(name: str, rank: int | None) -> None:
    found = read(HTA / f"{name}.json.gz")
    assert found.rank == rank and len(found.operators)


@pytest.mark.public
def test_triton_operators_with_a_stream_are_no_gpu_work() -> None:
    found = read(HTA / "triton_example__triton_example.json.gz")
    assert len(found.kernels) == 1 and len(found.operators) == 3 and found.api["name"].iloc[0] == "cuLaunchKernel"
    assert found.kernels["correlation_id"].tolist() == [35] and found.kernels["blocks_per_sm"].iloc[0] > 0


@pytest.mark.public
def test_counters_of_the_range_profiler_are_read() -> None:
    paths = [HTA / "cupti_profiler__benchmark_result_924719_1679055439_trace.json.gz",
             HTA / "trace_compare__test__test.json.gz"]  # fmt: skip
    (found,) = (content for _, content in read_many(paths) if isinstance(content, KernelCounters))
    assert len(found.kernels) == 77 and found.device_name == "NVIDIA A100-PG509-200"
    assert found.kernels["smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"].iloc[5] == 86_114_304
    assert found.compute_capability == (8, 0) and found.kernels["duration_ns"].isna().all()


@pytest.mark.parametrize("path", samples("kineto/*.json.gz", "kineto/*/*.json.gz"))
def test_every_trace_is_recognised(path: Path) -> None:
    assert recognises(read_head(path))
    assert not path.is_relative_to(OWN) or read(path).problems == ()


@pytest.mark.public
def test_public_traces_of_two_makers_are_read_whole() -> None:
    for kind, stream in (("h100", 7), ("mi300", 0)):
        found = read(next((TRACES / "tracelens").glob(f"{kind}*")))
        assert len(found.kernels) == 61 and stream in set(found.kernels["stream"]) and found.problems == ()


CALLED = {"device": 0, "stream": 7, "correlation": 5}


def host(*more: dict[str, Any]) -> list[dict[str, Any]]:
    """A step of 10 ms whose operators fill 9.89 of them: 98.9 % of a run on a CPU."""
    return [event("ProfilerStep#1", 0, 10_000, "user_annotation"), event("aten::mm", 0, 9_890), *more]


def times(category: str, count: int, **arguments: Any) -> list[dict[str, Any]]:
    return [event(f"{category} {n}", 10 * n, 8, category, pid=0, tid=3, args=arguments) for n in range(count)]


@pytest.mark.parametrize(
    ("events", "named"),
    [
        # libkineto/include/ActivityType.h: "MTIA ondevice CCP events", "host side MTIA runtime events".
        (
            [*times("mtia_ccp_events", 1234, stream=1, device=0), *times("mtia_runtime", 56)],
            ["MTIA activity", "mtia_ccp_events: 1,234 events", "mtia_runtime: 56 events"],
        ),
        (times("hpu_op", 3), ["HPU", "hpu_op: 3 events"]),
        (times("privateuse1_runtime", 2), ["PrivateUse1", "privateuse1_runtime: 2 events"]),
        (times("glow_runtime", 1), ["Glow", "glow_runtime: 1 event"]),
        (times("acme_kernel", 4), ["an unknown accelerator", "acme_kernel: 4 events"]),
        # Its name says nothing, its events are on a stream of a device.
        (times("acme", 4, stream=2), ["an unknown accelerator", "acme: 4 events"]),
    ],
)
def test_an_accelerator_that_is_not_understood_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], events: list[dict[str, Any]], named: list[str]
) -> None:
    path = write(tmp_path / "rank0.json", host(*events))
    for command in ("analyze", "allreduce", "perfetto"):
        given = [command, str(path), *(("-o", str(tmp_path / "out.json")) if command == "perfetto" else ())]
        assert run(given) == 2
        said = capsys.readouterr()
        # What is there, and what can be read instead; no share of a CPU run.
        check_refusal(said.err, "trace-unsupported", *named, "CUDA", "ROCm", "CPU")
        assert "98.9" not in said.out + said.err


def test_a_folder_whose_ranks_are_all_refused_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        write(tmp_path / f"rank{rank}.json", host(*times("mtia_ccp_events", 7)))
    assert run(["analyze", str(tmp_path)]) == 2
    check_refusal(capsys.readouterr().err, "data-missing", "mtia_ccp_events: 7 events")


def test_of_several_traces_the_refused_one_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", host(*times("mtia_ccp_events", 7)))
    write(tmp_path / "rank1.json", host(*times("kernel", 3, **CALLED)))
    found = open_sources(tmp_path)
    assert len(found.timelines) == 1 and len(found.timelines[0].kernels) == 3
    assert any("rank0.json" in text and "MTIA" in text for text in found.problems)


def test_events_of_an_unknown_category_beside_kernels_are_left_out_and_said(tmp_path: Path) -> None:
    events = host(*times("kernel", 3, **CALLED), *times("acme_kernel", 12, **CALLED), *times("notes", 2))
    found = read(write(tmp_path / "rank0.json", events))
    assert len(found.kernels) == 3
    (said,) = (text for text in found.problems if "unknown categories" in text)
    assert "acme_kernel: 12 events" in said and "notes: 2 events" in said


def test_why_there_is_no_communication_is_not_the_unknown_category(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "rank0.json", host(*times("kernel", 3, **CALLED), *times("acme_kernel", 12)))
    assert run(["allreduce", str(path), "--json"]) == 0
    (reason,) = (text for text in json.loads(capsys.readouterr().out)["problems"] if "no communication" in text)
    assert "acme" not in reason and "NVSHMEM" in reason


# All that Kineto writes of a run on a CPU and around the work of a GPU; "ac2g" and "fwdbwd" are arrows.
ORDINARY = (
    "python_function", "overhead", "Trace", "ac2g", "fwdbwd", "gpu_user_annotation", "cuda_sync", "cuda_event",
    "cpu_instant_event", "external_correlation", "",
)  # fmt: skip


def test_a_run_on_a_cpu_is_still_read_without_a_note(tmp_path: Path) -> None:
    found = read(write(tmp_path / "rank0.json", host(*(event("x", 1, 1, name) for name in ORDINARY))))
    assert len(found.operators) == 1 and not found.problems


def test_a_category_that_says_nothing_of_a_device_does_not_refuse_a_run_on_a_cpu(tmp_path: Path) -> None:
    found = read(write(tmp_path / "rank0.json", host(*times("notes", 2, text="a"))))
    assert len(found.operators) == 1 and any("notes: 2 events" in text for text in found.problems)


def test_kernels_of_an_xpu_are_read_with_the_calls_that_launched_them(tmp_path: Path) -> None:
    events = host(
        event("urEnqueueKernelLaunch", 100, 4, "xpu_runtime", args={"correlation": 9}),
        event("gemm_kernel", 120, 50, "kernel", pid=0, tid=1, args={"device": 0, "correlation": 9}),
    )
    found = read(write(tmp_path / "rank0.json", events, deviceProperties=[{"id": 0, "name": "Data Center GPU Max"}]))
    assert list(found.kernels["correlation_id"]) == [9] and list(found.api["correlation_id"]) == [9]
    assert not found.problems


def test_a_file_of_thousands_of_categories_names_a_few(tmp_path: Path) -> None:
    events = host(*(event("x", 1, 1, f"device {n} " + "y" * 500) for n in range(3000)))
    # 16 have a name of their own, 2,984 are counted together.
    with refused("trace-unsupported", "2,984 events") as caught:
        read(write(tmp_path / "rank0.json", events))
    assert len(str(caught.value)) < 1000


ROOT = Path(__file__).resolve().parents[3]
TABLES = ("steps", "operators", "kernels", "ranges", "api", "host", "collectives")


def sample(folder: Path) -> Path:
    """Two steps on a GPU, with communication, copies, kernels out of order and a name that is no text."""
    kernels = [
        event("gemm", 130, 60, "kernel", args={**GPU, "correlation": 4}),
        event("gemm", 20, 40, "kernel", args={**GPU, "correlation": 2}),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 100, "kernel", args={**GPU, "stream": 9}),
        event(7, 200, 5, "kernel", args=GPU),  # type: ignore[arg-type]
        event("7", 210, 5, "kernel", args=GPU),
        event("Memcpy HtoD", 300, 10, "gpu_memcpy", args=GPU),
        event("Memset (Device)", 305, 10, "gpu_memset", args=GPU),
    ]
    calls = [event("cudaLaunchKernel", 10 * n, 1, "cuda_runtime", args={"correlation": n}) for n in (2, 4)]
    steps = [event(f"ProfilerStep#{n}", 100 * n, 100, "user_annotation") for n in range(2)]
    operators = [event("aten::mm", 0, 30), event("aten::inner", 5, 5), event("record_param_comms", 45, 3)]
    return write(folder / "rank0.json", [*steps, *operators, *calls, *kernels])


def eager(timeline: Timeline) -> Timeline:
    """The same with its tables given to the constructor."""
    return Timeline(
        **{field.name: getattr(timeline, field.name) for field in dataclasses.fields(Timeline) if field.init}
    )


def assert_same(one: Timeline, other: Timeline) -> None:
    for field in filter(lambda field: field.init, dataclasses.fields(Timeline)):
        if field.name in TABLES:
            pd.testing.assert_frame_equal(getattr(one, field.name), getattr(other, field.name))
        else:
            assert getattr(one, field.name) == getattr(other, field.name)


def test_tables_do_not_depend_on_which_is_asked_for_first(tmp_path: Path) -> None:
    path = sample(tmp_path)
    whole = eager(read(path))
    assert type(whole) is Timeline and len(whole.steps) == 2 and len(whole.kernels) == 7
    for order in itertools.permutations(("steps", "kernels", "api", "collectives")):
        found = read(path)
        for name in order:
            pd.testing.assert_frame_equal(getattr(found, name), getattr(whole, name))
        assert_same(found, whole)


def test_a_table_is_made_once_and_nothing_else_is_added_to_it(tmp_path: Path) -> None:
    found = read(sample(tmp_path))
    assert found.kernels is found.kernels and found.operators is found.operators
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        found.nothing_of_this_name  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.rank = 3  # type: ignore[misc]


@pytest.mark.parametrize("asked", [(), ("kernels",), ("steps",), TABLES])
def test_a_timeline_is_the_same_on_the_other_side_of_a_pipe(tmp_path: Path, asked: tuple[str, ...]) -> None:
    path = sample(tmp_path)
    found = read(path)
    for name in asked:
        getattr(found, name)
    assert_same(pickle.loads(pickle.dumps(found)), eager(read(path)))


def test_replacing_a_field_keeps_the_tables(tmp_path: Path) -> None:
    path = sample(tmp_path)
    found = dataclasses.replace(read(path), rank=5)
    assert found.rank == 5
    assert_same(dataclasses.replace(found, rank=read(path).rank), read(path))


def test_arrays_hold_what_the_table_holds(tmp_path: Path) -> None:
    path = sample(tmp_path)
    for work in (read(path).work, eager(read(path)).work):
        kernels = read(path).kernels
        assert len(work) == len(kernels) and len(set(work.names)) == len(work.names)
        assert [work.names[code] for code in work.name.tolist()] == kernels["name"].tolist()
        assert [work.kinds[code] for code in work.kind.tolist()] == kernels["kind"].tolist()
        for column in ("device", "stream", "start", "end"):
            np.testing.assert_array_equal(getattr(work, column), kernels[column])
        assert work.is_kind("memcpy", "memset").tolist() == kernels["kind"].isin(["memcpy", "memset"]).tolist()


def test_sums_on_arrays_are_those_on_tables(tmp_path: Path) -> None:
    path = sample(tmp_path)
    for window in ("steps", "kernels"):
        one, other = temporal_breakdown(read(path), window), temporal_breakdown(eager(read(path)), window)
        assert one == other and one is not None
    assert (one.compute_ns, one.communication_ns, one.overlapped_communication_ns) == (110_000, 100_000, 30_000)
    assert (one.memory_ns, one.span_ns) == (15_000, 295_000)
    times = kernel_times(read(path), window="kernels")
    assert dict(zip(times.names, times.total_ns.tolist(), strict=True)) == {
        "gemm": 100_000, "ncclDevKernel_AllReduce_Sum_f32_RING_LL": 100_000, "7": 10_000, "Memcpy HtoD": 10_000,
        "Memset (Device)": 10_000,
    }  # fmt: skip
    longest = dict(zip(times.names, times.longest_ns.tolist(), strict=True))
    shortest = dict(zip(times.names, times.shortest_ns.tolist(), strict=True))
    assert (longest["gemm"], shortest["gemm"], times.window_ns) == (60_000, 40_000, 295_000)
    assert "Memcpy HtoD" not in kernel_times(read(path), copies=False, window="kernels").names
    pd.testing.assert_frame_equal(kernel_rows(read(path)), kernel_rows(eager(read(path))))


def test_sums_of_gpu_work_do_not_import_pandas(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from analysis.metrics.kernels.tables import kernel_times\n"
        "from analysis.metrics.time.temporal import temporal_breakdown\n"
        "from analysis.readers.kineto.reader import read_ranks\n"
        "(found,) = read_ranks([Path(sys.argv[1])])\n"
        "assert temporal_breakdown(found, 'kernels') and kernel_times(found, window='kernels').names\n"
        "assert 'pandas' not in sys.modules, 'pandas is imported'\n"
        "assert len(found.kernels) == 7 and 'pandas' in sys.modules\n"
    )
    path = sample(tmp_path)
    done = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_table_without_rows_has_no_work() -> None:
    assert len(GpuWork.of_frame(pd.DataFrame())) == 0


def test_events_without_a_phase_are_passed_over_fast(tmp_path: Path) -> None:
    content = json.loads(trace())
    events = [{key: value for key, value in event("a", n, 1).items() if key != "ph"} for n in range(20_000)]
    content["traceEvents"] += [*events, event("last", 1, 1), {**event("b", 1, 1), "ph": "?"}]
    (tmp_path / "a.json").write_text(json.dumps(content))
    found = read(tmp_path / "a.json")
    assert len(found.operators) == 42 and found.problems == () and found.rank == 2
