"""Timelines as files for Perfetto: valid Trace Event Format, nothing lost on the way back, times by hand."""

import dataclasses
import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.commands import result
from support.refusals import refused
from support.shared_files import samples
from support.timelines import timeline

from analysis.readers.kineto import reader as kineto
from analysis.render.perfetto import write_perfetto
from analysis.timeline import Timeline

BASE = 1_700_000_000_123_456_789
HOSTILE = '<script>alert(1)</script>", "ph": "M\\\u2028\x00\n'


def example(rank: int | None = 0, at: int = BASE, name: str = "gemm") -> Timeline:
    """Computation [100, 400) and [600, 700), communication [300, 550): 150 ns exposed; step [0, 1000)."""
    made = timeline(
        rank,
        steps=[(7, at, at + 1000)],
        operators=[("aten::mm", at + 20, at + 90, "1/2")],
        kernels=[
            (name, 7, at + 100, at + 400, 11),
            ("ncclDevKernel_AllReduce_Sum_f32", 20, at + 300, at + 550, 12),
            ("gemm", 7, at + 600, at + 700, 13),
            ("Memcpy HtoD", 7, at + 710, at + 760, 14, "memcpy"),
        ],
        ranges=[("bertbench:forward", at + 10, at + 95, "1/2")],
        api=[("cudaLaunchKernel", at + 30, at + 35, 11, "1/2")],
    )
    return dataclasses.replace(made, devices={0: "NVIDIA H100"})


def events_of(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return document, document["traceEvents"]


def tracks_of(events: list[dict[str, Any]]) -> dict[tuple[str, str], list[tuple[str, float, float]]]:
    """(process name, thread name) -> (name, ts, dur) in ns after the base."""
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            place = processes[event["pid"]], threads[event["pid"], event["tid"]]
            found[place].append((event["name"], round(event["ts"] * 1000), round(event["dur"] * 1000)))
    return dict(found)


def test_tracks_hold_what_was_worked_out_by_hand(tmp_path: Path) -> None:
    write_perfetto([example(3)], tmp_path / "a.json")
    document, events = events_of(tmp_path / "a.json")
    assert document["baseTimeNanoseconds"] == BASE and document["distributedInfo"] == {"rank": 3}
    assert tracks_of(events) == {
        ("rank 3: analysis", "steps"): [("ProfilerStep#7", 0, 1000)],
        ("rank 3: analysis", "phases"): [("forward", 10, 85)],
        ("rank 3: analysis", "computation"): [("computation", 100, 300), ("computation", 600, 100)],
        ("rank 3: analysis", "communication"): [("communication", 300, 250)],
        ("rank 3: analysis", "exposed communication"): [("exposed communication", 400, 150)],
        ("rank 3: analysis", "copies"): [("copies", 710, 50)],
        ("rank 3: analysis", "idle"): [("idle", 0, 100), ("idle", 550, 50), ("idle", 700, 10), ("idle", 760, 240)],
        ("rank 3: host", "thread 1/2"): [
            ("bertbench:forward", 10, 85),
            ("aten::mm", 20, 70),
            ("cudaLaunchKernel", 30, 5),
        ],
        ("rank 3: GPU 0 NVIDIA H100", "stream 7"): [("gemm", 100, 300), ("gemm", 600, 100), ("Memcpy HtoD", 710, 50)],
        ("rank 3: GPU 0 NVIDIA H100", "stream 20"): [("ncclDevKernel_AllReduce_Sum_f32", 300, 250)],
    }


@pytest.mark.parametrize(
    "path", [None, *samples("kineto/*.json.gz", "kineto/resnet/*", "kineto/hta/nccl_parser*")], ids=str
)
def test_reading_a_trace_back_gives_the_same(tmp_path: Path, path: Path | None) -> None:
    before = kineto.read(path) if path else example(5, name=HOSTILE)
    write_perfetto([before], tmp_path / "a.json.gz")
    after = kineto.read(tmp_path / "a.json.gz")
    assert after.rank == before.rank
    for table, columns in (
        ("steps", ["step", "start", "end"]),
        ("operators", ["name", "start", "end"]),
        ("ranges", ["name", "start", "end"]),
        ("kernels", ["name", "kind", "device", "stream", "start", "end"]),
    ):
        rows = [sorted(getattr(one, table)[columns].itertuples(index=False, name=None)) for one in (before, after)]
        assert rows[0] == rows[1], table


def test_nanoseconds_are_exact_beside_large_times(tmp_path: Path) -> None:
    write_perfetto([example(0), example(1, BASE + 10**15 + 1)], tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    assert '"ts": 1000000000000.001,' in text and '"ts": 1000000000000.101,' in text


def test_analyze_writes_the_file_beside_its_answer_and_never_into_the_input(tmp_path: Path) -> None:
    trace = tmp_path / "in" / "rank0.json"
    trace.parent.mkdir()
    write_perfetto([example()], trace)
    before = trace.read_bytes()
    done = result("analyze", trace.parent, "--perfetto", tmp_path / "b.json")
    assert done.written == [tmp_path / "b.json"] and done.document["findings"]
    assert events_of(tmp_path / "b.json")[0]["baseTimeNanoseconds"] == BASE
    (tmp_path / "link.json").symlink_to(trace)
    for path, output in ((trace, trace), (trace, tmp_path / "link.json"), (trace.parent, trace.parent / "b.json")):
        with refused("option-conflict", f"--perfetto {output}"):
            result("analyze", path, "--perfetto", output)
    assert trace.read_bytes() == before
