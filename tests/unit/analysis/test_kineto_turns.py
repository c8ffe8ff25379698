"""A trace that two processes read in turns: everything is as one process reads it."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import shared_files
from support.kineto_events import event, write
from support.mutate import count_from_environment, mutations
from test_kineto_reader import assert_same

from analysis.readers import packed
from analysis.readers.kineto import processes, turns
from analysis.readers.kineto.reader import read, read_many
from analysis.readers.kineto.stream import Elsewhere
from analysis.readers.kineto.tables import Tables
from analysis.timeline import Timeline
from common.errors import InputError

GPU = {"device": 0, "stream": 7}
TRACES = shared_files.TRACES / "kineto"


@pytest.fixture(autouse=True)
def may_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run beside other threads, and maybe on one core."""
    monkeypatch.setattr(processes, "may_fork", lambda: True)


@pytest.fixture
def appended(monkeypatch: pytest.MonkeyPatch) -> list[Tables]:
    """The tables that came from the second process."""
    found: list[Tables] = []
    append = Tables.append
    monkeypatch.setattr(Tables, "append", lambda self, other: (found.append(other), append(self, other))[1])
    return found


def result(path: Path) -> list[Any]:
    try:
        return [found for _, found in read_many([path])]
    except InputError as error:
        return [error]


def assert_read_alike(path: Path, block_bytes: int) -> None:
    """Read a file in blocks of that size by one process and by two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(packed.unpacked_blocks.__kwdefaults__, "block_bytes", block_bytes)
        alone = result(path)
        patch.setattr(turns, "PAYS_FROM_BYTES", 0)
        shared = result(path)
    assert len(alone) == len(shared)
    for one, other in zip(alone, shared, strict=True):
        assert type(one) is type(other)
        if isinstance(one, Timeline):
            assert_same(one, other)
        elif isinstance(one, InputError):
            assert (one.code, str(one)) == (other.code, str(other))
        else:
            assert one.kernels.equals(other.kernels) and (one.units, one.problems) == (other.units, other.problems)


def events(count: int = 300) -> Iterator[dict[str, Any]]:
    """Events of all kinds, with names and threads that come late or are no texts, among them unknown categories."""
    choose = random.Random(1)
    says = {"In msg nelems": 10, "Out msg nelems": 10, "dtype": "Float", "Group size": 2, "Process Group Name": "0"}
    for number in range(count):
        begin = 100 * number
        inputs = {"Input Dims": [[number % 7, 8], [8, 9]], "Input type": ["float", "float"], "Sequence number": number}
        yield event("aten::mm", begin, 50, tid=number // 50, args=inputs)
        yield event(f"aten::op{choose.randrange(count)}", begin, 9.5, tid=choose.randrange(9))
        yield event("cudaLaunchKernel", begin + 2, 5, "cuda_runtime", args={"correlation": number})
        yield event(choose.choice(("gemm", 7, None)), begin + 9, 40, "kernel", args={**GPU, "correlation": number})  # type: ignore[arg-type]
        yield event("Memcpy HtoD", begin + 60, 5, "gpu_memcpy", args={**GPU, "bytes": number})
        yield event(f"nn.Module: L_{number}", begin, 70, "python_function")
        yield event("lazy function loading", begin, 70, "overhead")
        yield event("of no known kind", begin, 1, f"unknown_{number % 3}")
        yield event("record_param_comms", begin + 70, 9, args=says)
        yield event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + 70, 9, "kernel", args={**GPU, **says})
        if number % 30 == 0:
            yield event(f"ProfilerStep#{number // 30}", begin, 3000, "user_annotation")
            yield event("without a time", begin, 1) | {"ts": None}
            yield event("counted", begin, 1, "cuda_profiler_range", args={"smsp__x.sum": number})


@pytest.mark.parametrize("block_bytes", [700, 5_000, 40_000])
def test_two_processes_read_what_one_reads(tmp_path: Path, block_bytes: int, appended: list[Tables]) -> None:
    path = write(tmp_path / "a.json", list(events()), baseTimeNanoseconds=10**18, distributedInfo={"rank": 3})
    assert_read_alike(path, block_bytes)
    pieces = path.stat().st_size // block_bytes
    assert pieces // 2 - 2 < len(appended) <= pieces // 2 + 1


@pytest.mark.public
@pytest.mark.parametrize(
    "name",
    [
        "hta/cupti_profiler__benchmark_result_924719_1679055439_trace.json.gz",
        "hta/timeline_analysis__sampled_rank-0.json.gz",
        "megatron-8-ranks/megatron_tp8_rank0.json.gz",
    ],
)
def test_public_traces_are_read_alike(name: str, appended: list[Tables]) -> None:
    assert_read_alike(TRACES / name, 50_000)
    assert len(appended) > 5


def test_damaged_traces_are_read_alike(tmp_path: Path, appended: list[Tables]) -> None:
    path = write(tmp_path / "a.json", list(events(20)))
    for number, damaged in enumerate(mutations(path.read_bytes(), max(60, count_from_environment() // 5), seed=7)):
        path.write_bytes(damaged)
        try:
            assert_read_alike(path, (500, 1700, 6000)[number % 3])
        except AssertionError as error:
            error.add_note(f"damaged input {number}")
            raise
    assert appended


@pytest.mark.parametrize(
    ("old", "new", "goes_on"),
    [
        (b'"dur": 9.5', b'"dur": NaN', True),
        (b'"name": "cudaLaunchKernel"', b'"name" "cudaLaunchKernel"', True),
        (b"nn.Module: L_", b"nn.Module: \xff\x01", True),
        (b'"unknown_1"', b'"unknown_%d"', True),
        (b'"name": "aten::mm"', b'"args": [{"a": 1}, {"id": 2}], "name": "aten::mm"', False),
        (b'"Memcpy HtoD"', b'"Memcpy HtoD"}]', False),
    ],
)
def test_damage_is_counted_once(tmp_path: Path, old: bytes, new: bytes, goes_on: bool, appended: list[Tables]) -> None:
    """In every event of a kind; what is malformed within a piece does not end the turns."""
    path = write(tmp_path / "a.json", list(events(60)))
    parts = path.read_bytes().split(old)
    text = b"".join(part + (new.replace(b"%d", b"%d" % number)) for number, part in enumerate(parts[:-1])) + parts[-1]
    assert len(parts) > 10
    path.write_bytes(text)
    assert_read_alike(path, 3000)
    assert not goes_on or len(appended) > len(text) // 3000 // 2 - 2


def test_many_unknown_categories_in_one_piece_are_counted_by_one_process(tmp_path: Path) -> None:
    rows = [event("x", n, 1, f"unknown_{n % 40}", args={"stream": 7} if n > 200 else {}) for n in range(400)]
    path = write(tmp_path / "a.json", [event("aten::mm", 0, 1), event("k", 1, 1, "kernel", args=GPU), *rows])
    assert_read_alike(path, 6000)


@pytest.mark.parametrize("given", [0, 1, 5])
def test_what_a_process_that_died_did_not_send_is_read_here(
    tmp_path: Path, given: int, appended: list[Tables], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = turns._every_second

    def dies(path: Path) -> Iterator[Elsewhere[Tables]]:
        for number, part in enumerate(work(path)):
            if number == given:
                os._exit(1)
            yield part

    monkeypatch.setattr(turns, "_every_second", dies)
    assert_read_alike(write(tmp_path / "a.json", list(events(60))), 2000)
    assert len(appended) == given


def test_no_process_outlives_a_reading_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PAYS_FROM_BYTES", 0)
    monkeypatch.setitem(packed.unpacked_blocks.__kwdefaults__, "block_bytes", 2000)
    monkeypatch.setattr("analysis.readers.kineto.stream.MOST_LOST", 20)
    text = json.dumps({"traceEvents": list(events(60))}).replace('"name": "aten::mm"', '"name" "aten::mm"')
    path = tmp_path / "a.json"
    path.write_text(text)
    started: list[int] = []
    fork = os.fork
    monkeypatch.setattr(os, "fork", lambda: (pid := fork(), started.append(pid))[0])
    with pytest.raises(InputError, match="malformed in more than 20 places"):
        read(path)
    assert len(started) == 1
    with pytest.raises(ChildProcessError):
        os.waitpid(started[0], 0)


def test_a_process_that_reads_one_of_several_files_starts_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "PAYS_FROM_BYTES", 0)
    monkeypatch.setattr(turns, "_Turns", None)  # a call would end the reading
    paths = [write(tmp_path / f"{number}.json", list(events(9))) for number in range(2)]
    assert sum(isinstance(found, Timeline) for _, found in read_many(paths)) == 2
    with pytest.raises(TypeError):
        read(paths[0])
