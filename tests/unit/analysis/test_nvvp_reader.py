"""nvprof's SQLite files. No real one is at hand: these are generated, with the tables and columns of nvprof's."""

import gzip
import struct
from pathlib import Path

import pytest
from support.nsys_export import write_sqlite

from analysis.metrics.time.temporal import compute_utilization
from analysis.readers.nvvp import read
from analysis.readers.registry import find_reader, read_head
from analysis.timeline import COLLECTIVE_COLUMNS

KIND = "CUPTI_ACTIVITY_KIND_"
GEMM, NCCL = "_ZN6caffe24gemmIfEEvPKT_i", "_Z40ncclKernel_AllReduce_RING_LL_Sum_float11ncclDevComm"
TEXTS = (GEMM, NCCL, "Tesla P100", "bertbench:capture", "step 3", "forward", "bertbench")
CALL = "cbid, start, end, processId, threadId, correlationId"
THREAD = struct.pack("<III", 40, 41, 0)


def whole(path: Path) -> Path:
    """A step of 1,000 ns: computing [100, 400), [600, 800), all-reduce [300, 700), of which [400, 600) is exposed."""
    calls = ((80, 211, 11), (90, 211, 12), (95, 211, 13), (900, 131, 14), (950, 999, 15))
    ranges = ((0, 2000, 4, 0), (0, 1000, 5, 7), (50, 350, 6, 7))  # start, end, name, domain
    markers = [
        (flags, time, number, 2, THREAD, name, domain)
        for number, (start, end, name, domain) in enumerate(ranges, 1)
        for flags, time in ((2, start), (4, end))
    ]
    tables = {
        "StringTable": ("_id_ INTEGER PRIMARY KEY, value TEXT", [*enumerate(TEXTS, 1)]),
        f"{KIND}MEMCPY": (
            "copyKind, bytes, start, end, deviceId, streamId, correlationId",
            [(1, 4096, 20, 50, 0, 7, 9)],
        ),
        f"{KIND}MEMSET": ("bytes, start, end, deviceId, streamId, correlationId", [(64, 60, 70, 0, 7, 10)]),
        f"{KIND}CONCURRENT_KERNEL": (
            "start, end, deviceId, streamId, correlationId, gridX, name",
            [(100, 400, 0, 7, 11, 20, 1), (600, 800, 0, 7, 12, 20, 1), (300, 700, 0, 8, 13, 20, 2)],
        ),
        f"{KIND}RUNTIME": (CALL, [(cbid, start, start + 4, 40, 41, number) for start, cbid, number in calls]),
        f"{KIND}DRIVER": (CALL, [(307, 97, 98, 40, 41, 13)]),
        f"{KIND}DEVICE": ("numMultiprocessors, id, name", [(56, 0, 3)]),
        f"{KIND}MARKER": ("flags, timestamp, id, objectKind, objectId, name, domain", markers),
        f"{KIND}MARKER_DATA": ("id, payloadKind, payload", [(n, 4, struct.pack("<q", n + 1)) for n in (1, 2)]),
    }
    write_sqlite(path, tables)
    return path


def test_a_generated_file_gives_what_was_written(tmp_path: Path) -> None:
    (found,) = read(whole(tmp_path / "a.nvvp"))
    assert (found.source, found.process, found.rank, found.problems) == ("nvprof", 40, 2, ())
    assert found.devices == {0: "Tesla P100"} and found.sm_counts == {0: 56}
    assert list(found.kernels["kind"]) == ["memcpy", "memset", "kernel", "kernel", "kernel"]
    assert list(found.kernels["name"]) == ["Memcpy HtoD", "Memset", GEMM, NCCL, GEMM]
    assert list(found.kernels["bytes"])[:2] == [4096, 64]
    row = found.kernels.iloc[2]
    assert (row["start"], row["end"], row["stream"], row["grid_x"]) == (100, 400, 7, 20)
    names = ["cudaLaunchKernel"] * 3 + ["cuLaunchKernel", "cudaStreamSynchronize", "runtime call 999"]
    assert list(found.api["name"]) == names and set(found.api["thread"]) == {"40/41"}
    assert list(found.api["correlation_id"]) == [11, 12, 13, 13, 14, 15]
    assert found.steps[["step", "start", "end", "thread"]].values.tolist() == [[3, 0, 1000, "40/41"]]
    assert found.ranges[["name", "start", "end"]].values.tolist() == [
        ["bertbench:capture", 0, 2000],
        ["bertbench:forward", 50, 350],
    ]
    busy = compute_utilization(found)
    assert busy.compute_utilization == pytest.approx(0.7)  # [100, 800) of 1,000
    assert busy.compute_utilization_without_communication == pytest.approx(0.5)
    (row,) = found.collectives.to_dict("records")
    assert found.collectives.dtypes.astype(str).to_dict() == COLLECTIVE_COLUMNS
    assert (row["collective"], row["start"], row["end"], row["stream"]) == ("all_reduce", 300, 700, 8)
    assert (row["bytes"], row["group_size"], row["correlation_id"]) == (-1, -1, 13)


def test_a_packed_file_is_recognised_and_read(tmp_path: Path) -> None:
    packed = tmp_path / "b"
    packed.write_bytes(gzip.compress(whole(tmp_path / "c").read_bytes()))
    assert find_reader(read_head(packed)) == "nvvp" and len(read(packed)[0].kernels) == 5
