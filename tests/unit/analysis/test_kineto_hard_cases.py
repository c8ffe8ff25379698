import gzip
import json
import random
import time
import tracemalloc
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import shared_files
from support.examples import examples
from support.kineto_events import event, write
from support.mutate import count_from_environment
from support.refusals import refused
from support.shared_files import OWN

from analysis.diagnose import rules_time
from analysis.diagnose.rules_communication import no_communication
from analysis.readers import packed
from analysis.readers.kineto import stream as kineto_stream
from analysis.readers.kineto import tables as kineto_tables
from analysis.readers.kineto.reader import read, read_many, read_ranks, recognises
from analysis.readers.registry import Head
from analysis.spans import _callers_by_stack, nesting
from analysis.timeline import COLLECTIVE_COLUMNS, Timeline
from common.errors import Code, InputError

FUZZ_INPUTS = count_from_environment()
GPU = {"device": 0, "stream": 7}


def trace() -> bytes:
    """A small trace with every kind of event, as Kineto indents it."""
    kernel = {**GPU, "correlation": 3, "grid": [8, 1, 1], "block": [64, 1, 1], "blocks per SM": 0.5}
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
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    }
    return json.dumps(document, indent=2).encode()


def text_of(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_every_table_and_field_is_filled(tmp_path: Path) -> None:
    found = read(text_of(tmp_path / "a.json", trace()))
    base = 1_700_000_000_000_000_000
    assert (found.rank, found.world_size, found.process, found.problems) == (2, 4, 1, ())
    assert (found.devices, found.sm_counts) == ({0: "H100"}, {0: 132})
    assert len(found.operators) == 41 and len(found.steps) == 1 and list(found.ranges["name"]) == ["bertbench:forward"]
    assert found.api.to_dict("records") == [
        {
            "name": "cudaLaunchKernel",
            "thread": "1/1",
            "start": base + 110_000,
            "end": base + 115_000,
            "correlation_id": 3,
        }
    ]
    kernel, copy = found.kernels.to_dict("records")
    assert (kernel["start"], kernel["end"]) == (base + 120_125, base + 200_625)
    assert [kernel[name] for name in ("correlation_id", "grid_x", "block_x", "blocks_per_sm")] == [3, 8, 64, 0.5]
    assert (copy["kind"], copy["bytes"], copy["correlation_id"]) == ("memcpy", 4096, -1)
    (row,) = found.collectives.to_dict("records")
    assert row == {
        "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "collective": "all_reduce", "device": 0, "stream": 7,
        "start": base + 120_125, "end": base + 200_625, "bytes": 40, "dtype": "Float", "group": "0", "group_size": 2,
        "seq": -1, "correlation_id": 3,
    }  # fmt: skip
    work = read(tmp_path / "a.json").work
    assert work.start.tolist() == found.kernels["start"].tolist()
    assert [work.names[code] for code in work.name.tolist()] == list(found.kernels["name"])


@pytest.mark.parametrize("blocks", [64, 300, 1000, 10_000])
def test_where_blocks_are_cut_does_not_matter(tmp_path: Path, blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = text_of(tmp_path / "a.json.gz", gzip.compress(trace()))
    whole = read(path)
    monkeypatch.setitem(packed.unpacked_blocks.__kwdefaults__, "block_bytes", blocks)
    cut = read(path)
    for name in ("operators", "kernels", "api", "ranges", "steps", "collectives"):
        pd.testing.assert_frame_equal(getattr(whole, name), getattr(cut, name))
    assert cut.rank == 2 and cut.problems == ()


def test_lists_of_events_inside_arguments_and_braces_inside_names_are_not_cut_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = [{"ph": "X", "cat": "cpu_op", "name": "inner", "ts": 1, "dur": 1}] * 9
    events = [event('a"}, {"ph": "X"} \\', n, 1, args={"list": inner}) for n in range(30)]
    path = write(tmp_path / "a.json", events)
    monkeypatch.setitem(packed.unpacked_blocks.__kwdefaults__, "block_bytes", 1500)
    found = read(path)
    assert list(found.operators["name"]) == ['a"}, {"ph": "X"} \\'] * 30 and found.problems == ()


def test_absolute_times_with_fractions_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    choose = random.Random(1)
    starts = sorted(choose.randrange(17 * 10**17, 17 * 10**17 + 10**12) for _ in range(500))
    rows = ",".join(
        f'{{"ph":"X","cat":"kernel","name":"k","ts":{n // 1000}.{n % 1000:03},"dur":0.007}}' for n in starts
    )
    found = read(text_of(tmp_path / "a.json", f'{{"traceEvents":[{rows}]}}')).kernels
    assert found["start"].tolist() == starts and set(found["end"] - found["start"]) == {7}


def test_fractions_below_2_to_the_43_are_exact_too(tmp_path: Path) -> None:
    choose = random.Random(2)
    starts = sorted(choose.randrange(8 * 10**15, 2**43 * 1000) for _ in range(2000))
    rows = ",".join(f'{{"ph":"X","cat":"kernel","name":"k","ts":{n // 1000}.{n % 1000:03},"dur":1}}' for n in starts)
    assert read(text_of(tmp_path / "a.json", f'{{"traceEvents":[{rows}]}}')).kernels["start"].tolist() == starts


def test_a_cut_trace_is_read_up_to_the_cut(tmp_path: Path) -> None:
    content = trace()
    place = content.index(b"aten::op30")
    found = read(text_of(tmp_path / "a.json", content[:place]))
    assert len(found.operators) == 30 and "cut short" in found.problems[0]
    packed_ = gzip.compress(content)
    found = read(text_of(tmp_path / "b.json.gz", packed_[:-200]))
    assert 0 < len(found.operators) <= 41 and any("damaged" in problem for problem in found.problems)


def test_a_gpu_program_without_kernels_is_not_passed_off_as_a_cpu_run(tmp_path: Path) -> None:
    whole = trace()
    before_launch = whole[: whole.index(b'"record_param_comms"')]
    before_kernels = whole[: whole.index(b'"ncclDevKernel')]
    launches = json.dumps({"traceEvents": [event("aten::mm", 0, 9), event("cudaLaunchKernel", 1, 2, "cuda_runtime")]})
    for content, remedy in (
        (before_launch, "copy the whole file again"),
        (before_kernels, "copy the whole file again"),
        (launches, "ProfilerActivity.CUDA"),
    ):
        found = read(text_of(tmp_path / "a.json", content))
        said = next(problem for problem in found.problems if "has no kernels" in problem)
        assert remedy in said
        assert not [one for each in rules_time.findings([found]) for one in each.advice]
        assert said in no_communication([found])


def test_a_trace_of_a_cpu_run_on_a_machine_with_a_gpu_lacks_nothing(tmp_path: Path) -> None:
    document = {"deviceProperties": [{"id": 0, "name": "H100"}], "traceEvents": [event("aten::mm", 0, 9)]}
    found = read(text_of(tmp_path / "a.json", json.dumps(document)))
    assert found.problems == ()


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        (b'"dur": 0.5', b'"dur": NaN', 40),
        (b'"External id": 7,', b'"External id": -inf,', 0),
        (b"aten::op7", b"aten\xff\xfe\x01", 0),
        (b"aten::op7", b"aten\\ud800", 0),
        (b'"name": "aten::op7"', b'"name" "aten::op7"', 1),
        (b'"pid": 1,', b'"pid": true,', 0),
        (b"\n    },", b"\n    ] },", None),
    ],
)
def test_malformed_events_cost_only_themselves(tmp_path: Path, old: bytes, new: bytes, lost: int | None) -> None:
    content = trace()
    assert old in content
    content = content.replace(old, new) if lost != 1 else content.replace(old, new, 1)
    found = read(text_of(tmp_path / "a.json", content))
    if lost is not None:
        assert len(found.operators) == 41 - lost and bool(found.problems) == (lost > 0)
    assert found.rank == 2 or lost is None


def test_a_name_with_nan_in_it_keeps_it_beside_a_value_that_is_none(tmp_path: Path) -> None:
    rows = '{"ph":"X","cat":"cpu_op","name":"x\\": nan, inf","ts":1,"dur":1,"args":{"a":NaN}}'
    (name,) = read(text_of(tmp_path / "a.json", f'{{"traceEvents":[{rows}]}}')).operators["name"]
    assert name == 'x": nan, inf'


def test_gloo_spans_count_once_and_only_without_gpu_communication(tmp_path: Path) -> None:
    shape = {"Input Dims": [[4, 5], [6]], "Input type": ["c10::Half", "c10::Half"]}
    events = [
        event("gloo:all_reduce", 0, 100, "user_annotation", args=shape),
        event("gloo:all_reduce", 10, 50, args=shape),
        event("gloo:all_reduce", 100, 10, args=shape, tid=2),
        event("c10d::allreduce_", 0, 100),
        event("aten::add", 0, 5),
    ]
    found = read(write(tmp_path / "a.json", events)).collectives
    assert list(found["bytes"]) == [52, 52] and list(found["start"]) == [0, 100_000] and set(found["device"]) == {-1}
    events.append(event("ncclKernel_AllReduce_x", 0, 100, "kernel", args=GPU))
    assert list(read(write(tmp_path / "b.json", events)).collectives["device"]) == [0]


def test_an_all_gather_counts_what_a_rank_receives(tmp_path: Path) -> None:
    said = {"In msg nelems": 10, "Out msg nelems": 40, "dtype": "BFloat16", "Group size": 4, "Seq": 5}
    events = [
        event("ncclDevKernel_AllGather_RING_LL", 0, 9, "kernel", args={**GPU, **said}),
        event("ncclDevKernel_ReduceScatter_Sum_f32", 10, 9, "kernel", args={**GPU, **said, "dtype": "Float"}),
    ]
    found = read(write(tmp_path / "a.json", events)).collectives
    assert list(found["bytes"]) == [80, 40] and list(found["seq"]) == [5, 5]
    assert dict(found.dtypes.astype(str)) == COLLECTIVE_COLUMNS


def test_a_bare_list_of_events_is_read(tmp_path: Path) -> None:
    path = text_of(tmp_path / "a.json", json.dumps([event("a", 1, 1), event("k", 1, 1, "Kernel", args=GPU)]))
    found = read(path)
    assert len(found.operators) == 1 and len(found.kernels) == 1
    assert recognises(Head(path, path.read_bytes()))


@pytest.mark.parametrize(
    ("content", "expected"),
    [(trace(), True), (b'{"schema": "1.0", "nodes": []}', True), (b"a,b\n1,2\n", False), (b'{"other": 1}', False)],
)
def test_traces_are_recognised_by_their_content(tmp_path: Path, content: bytes, expected: bool) -> None:
    assert recognises(Head(tmp_path / "x", content)) is expected


def test_limits_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_stream, "MOST_EVENT_BYTES", 10_000)
    monkeypatch.setitem(packed.unpacked_blocks.__kwdefaults__, "block_bytes", 4096)
    with refused("file-limit", "b.json", "event", "10,000 bytes"):
        read(write(tmp_path / "b.json", [event("a", 1, 1, args={"x": "y" * 50_000})]))


def test_ranks_are_read_in_order_and_a_damaged_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / f"{n}.json", [event("a", n, 1)], distributedInfo={"rank": 3 - n}) for n in range(3)]
    paths.append(text_of(tmp_path / "damaged.json", "{}"))
    for pays in (1 << 40, 0):
        monkeypatch.setattr("analysis.readers.kineto.processes.PAYS_FROM_BYTES", pays)
        problems: list[str] = []
        assert [found.rank for found in read_ranks(paths, problems)] == [1, 2, 3]
        assert len(problems) == 1 and "damaged.json" in problems[0]
        with refused("file-format", "damaged.json"):
            read_ranks(paths)
        assert [path for path, _ in read_many(paths)] == paths


def by_stack(rows: list[tuple[int, int, int]]) -> list[tuple[int, bool]]:
    """Self time and outermost, one span after another."""
    order = sorted(range(len(rows)), key=lambda place: (rows[place][0], rows[place][1], -rows[place][2]))
    found: dict[int, list[Any]] = {}
    stack: list[int] = []
    for place in order:
        thread, start, end = rows[place]
        while stack and (rows[stack[-1]][0] != thread or rows[stack[-1]][2] <= start):
            stack.pop()
        found[place] = [end - start, not stack]
        if stack:
            above = found[stack[-1]]
            above[0] = max(0, above[0] - (min(end, rows[stack[-1]][2]) - start))
        stack.append(place)
    return [(found[place][0], found[place][1]) for place in range(len(rows))]


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 25)), max_size=40))
def test_self_time_equals_that_of_a_stack(rows: list[tuple[int, int, int]]) -> None:
    spans = [(thread, start, start + length) for thread, start, length in rows]
    table = np.array(spans, dtype=np.int64).reshape(-1, 3)
    self_ns, outermost = nesting(table[:, 0], table[:, 1], table[:, 2])
    assert list(zip(self_ns.tolist(), outermost.tolist(), strict=True)) == by_stack(spans)


def test_deep_nesting_is_right_and_fast() -> None:
    depth = 20_000
    start = np.concatenate([np.arange(depth), np.arange(depth) + 2 * depth])
    end = np.concatenate([5 * depth - np.arange(depth), np.arange(depth) + 2 * depth + 1])
    begun = time.process_time()
    self_ns, outermost = nesting(np.zeros(2 * depth, dtype=np.int64), start, end)
    assert time.process_time() - begun < 5 and outermost.sum() == 1
    assert self_ns[depth - 1] == end[depth - 1] - start[depth - 1] - depth
    assert _callers_by_stack(np.zeros(3, dtype=np.int64), np.array([0, 1, 5]), np.array([9, 4, 6])).tolist() == [
        -1,
        0,
        0,
    ]


def mutated(content: bytes, choose: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(choose.choice((1, 1, 2, 5, 20))):
        place = choose.randrange(len(data))
        kind = choose.randrange(6)
        if kind == 0:
            data[place] = choose.randrange(256)
        elif kind == 1:
            del data[place : place + choose.randrange(1, 40)]
        elif kind == 2:
            data[place:place] = bytes(choose.choices(b'{}[],:"\\x\x00\xff9-eE.', k=choose.randrange(1, 6)))
        elif kind == 3:
            data[place:place] = data[place : place + choose.randrange(1, 400)]
        elif kind == 4:
            data[place:place] = choose.choice(
                (b"[" * 3000, b'{"a":' * 3000, b"9" * 5000, b"1e999999999", b"null", b"NaN")
            )
        elif len(data) > 200:
            del data[place:]
        if not data:
            break
    return bytes(data)


def test_mutated_traces_give_a_timeline_or_a_clean_error(tmp_path: Path) -> None:
    content, path = trace(), tmp_path / "mutated.json"
    choose = random.Random(20261121)
    read_count = 0
    for number in range(FUZZ_INPUTS):
        data = mutated(content if number % 4 else gzip.compress(content), choose)
        path.write_bytes(data)
        begun = time.process_time()
        try:
            found = read(path)
            assert isinstance(found, Timeline) and len(found.work) == len(found.kernels)
            read_count += 1
        except InputError as error:
            assert "mutated.json" in str(error)
        assert time.process_time() - begun < 2, number
    assert read_count > FUZZ_INPUTS / 3


def test_events_without_phase_and_empty_ones_do_not_hide_the_end(tmp_path: Path) -> None:
    events = [event("a", 1, 1), {"name": "no phase"}, {}, event("b", 2, 1), {}]
    found = read(write(tmp_path / "a.json", events, distributedInfo={"rank": 9}))
    assert list(found.operators["name"]) == ["a", "b"] and (found.rank, found.problems) == (9, ())


@pytest.mark.parametrize(
    ("events", "code"), [([], "file-empty"), ([{"ph": "X", "name": "a", "ts": 1, "dur": "x"}], "file-damaged")]
)
def test_a_trace_of_damaged_events_is_not_an_empty_one(tmp_path: Path, events: list[Any], code: Code) -> None:
    path = write(tmp_path / "trace.json", events)
    with refused(code, path):
        read(path)


def test_a_trace_malformed_everywhere_is_refused_in_time(tmp_path: Path) -> None:
    path = text_of(tmp_path / "a.json", b'{"traceEvents":[' + b'{"ph":x},' * 200_000 + b"{}]}")
    begun = time.process_time()
    with refused("file-damaged", "a.json", "100,000"):
        read(path)
    assert time.process_time() - begun < 20


def test_a_name_of_megabytes_costs_a_few_times_its_size(tmp_path: Path) -> None:
    path = tmp_path / "long.json"
    path.write_text(json.dumps({"traceEvents": [event("a" * (12 << 20), 0, 10, "kernel")]}), encoding="utf-8")
    tracemalloc.start()
    try:
        assert len(read(path).kernels) == 1
        assert tracemalloc.get_traced_memory()[1] < 20 * (12 << 20)
    finally:
        tracemalloc.stop()


TRACES = shared_files.TRACES / "kineto"


def lengths(found: Timeline) -> list[int]:
    return sorted((found.kernels["end"] - found.kernels["start"]).tolist())


def test_whole_and_fractional_times_of_one_trace_are_of_one_clock(tmp_path: Path) -> None:
    whole, least = 1_700_000_000_000_000, 0.001
    events = [event("a", whole, 1, "kernel"), event("b", whole + 1, least, "kernel")]
    text = write(tmp_path / "a.json", events).read_text().replace(f'"ts": {whole + 1}', f'"ts": {whole + 1}.002')
    (tmp_path / "a.json").write_text(text)
    kernels = read(tmp_path / "a.json").kernels
    assert kernels["start"].tolist() == [whole * 1000, (whole + 1) * 1000 + 2]
    assert kernels["end"].tolist() == [whole * 1000 + 1000, (whole + 1) * 1000 + 3]


def test_gpu_work_of_2021_is_that_of_today(tmp_path: Path) -> None:
    old = [event("gemm", 1, 2, "Kernel"), event("Memcpy HtoD", 4, 1, "Memcpy"), event("Memset", 6, 1, "Memset")]
    new = [{**one, "cat": cat} for one, cat in zip(old, ("kernel", "gpu_memcpy", "gpu_memset"), strict=True)]
    tables = [
        read(write(tmp_path / f"{name}.json", events)).kernels[["name", "kind", "start", "end"]].astype(str)
        for name, events in (("old", old), ("new", new))
    ]
    assert tables[0].equals(tables[1]) and tables[0]["kind"].tolist() == ["kernel", "memcpy", "memset"]


def test_gpu_events_of_no_length_are_kept_and_take_no_time(tmp_path: Path) -> None:
    found = read(write(tmp_path / "a.json", [event("a", 1, 0, "kernel"), event("b", 2, 3, "kernel")]))
    assert lengths(found) == [0, 3000]


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
        assert lengths(read(path)) == sorted(expected), path.name
        seen += len(expected)
    assert seen >= least


def test_the_first_sequence_number_of_an_event_counts_and_no_other_events() -> None:
    arguments = [
        b'{"a": 1}',
        b'{"Sequence number": 7, "x": {"Sequence number": 8}}',
        b"null",
        b'{"Sequence number": "9"}',
    ]
    assert kineto_tables._sequence_numbers([]).tolist() == []
    assert kineto_tables._sequence_numbers(arguments).tolist() == [-1, 7, -1, -1]
