import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support import shared_files
from support.refusals import refused

from analysis.readers.kineto.reader import read
from common.errors import Code

TRACES = shared_files.TRACES / "kineto"


def event(name: str, start: Any, duration: Any, category: str = "cpu_op", **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "pid": 1, "tid": 1, **more}


def write(path: Path, events: list[Any], **document: Any) -> Path:
    text = json.dumps({"traceEvents": events, **document})
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


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


@pytest.mark.skipif(not TRACES.is_dir(), reason="the shared traces are not beside this checkout")
def test_public_traces_give_the_published_step_times() -> None:
    base = read(TRACES / "hta" / "trace_compare__base__base.json.gz")
    steps = base.steps.set_index("step")
    assert steps.loc[1010, "end"] - steps.loc[1010, "start"] == 122_149_000
    assert base.rank == 1
