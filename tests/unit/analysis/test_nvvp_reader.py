"""nvprof's SQLite files. No real one is at hand: these are generated, with the tables and columns of nvprof's."""

import gzip
import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

from analysis.metrics.time.temporal import compute_utilization
from analysis.readers.nvvp import read
from analysis.readers.registry import find_reader, read_head
from analysis.timeline import COLLECTIVE_COLUMNS

PLACE = "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT"
KERNEL = f"{PLACE}, gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT, gridId INT, name INT"
CALL = "cbid INT, start INT, end INT, processId INT, threadId INT, correlationId INT, returnValue INT"
TABLES = {
    "StringTable": "value TEXT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"copyKind INT, srcKind INT, dstKind INT, flags INT, bytes INT, {PLACE}",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"value INT, bytes INT, {PLACE}, memoryKind INT",
    "CUPTI_ACTIVITY_KIND_KERNEL": KERNEL,
    "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL": KERNEL,
    "CUPTI_ACTIVITY_KIND_RUNTIME": CALL,
    "CUPTI_ACTIVITY_KIND_DRIVER": CALL,
    "CUPTI_ACTIVITY_KIND_DEVICE": "flags INT, numMultiprocessors INT, id INT, uuid BLOB, name INT",
    "CUPTI_ACTIVITY_KIND_MARKER": "flags INT, timestamp INT, id INT, objectKind INT, objectId BLOB, name INT, domain",
    "CUPTI_ACTIVITY_KIND_MARKER_DATA": "flags INT, id INT, payloadKind INT, payload BLOB, color INT, category INT",
}
GEMM, NCCL = "_ZN6caffe24gemmIfEEvPKT_i", "_Z40ncclKernel_AllReduce_RING_LL_Sum_float11ncclDevComm"
THREAD = struct.pack("<III", 40, 41, 0)


class Nvvp:
    """Writes such a file."""

    def __init__(self, path: Path, *texts: str) -> None:
        self.path = path
        self._connection = sqlite3.connect(path)
        for name, columns in TABLES.items():
            self._connection.execute(f"CREATE TABLE {name} (_id_ INTEGER PRIMARY KEY AUTOINCREMENT, {columns})")
        for text in texts:
            self.add("StringTable", value=text)
        self._marker = 0

    def add(self, table: str, **values: Any) -> "Nvvp":
        marks = ", ".join("?" * len(values))
        self._connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", list(values.values()))
        return self

    def kernel(self, start: int, end: int, name: int, correlation: int = 5, stream: int = 7) -> "Nvvp":
        place = {"deviceId": 0, "streamId": stream, "correlationId": correlation, "gridX": 20, "blockX": 256}
        return self.add("CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", start=start, end=end, name=name, **place)

    def range(self, start: int, end: int | None, name: int, payload: int | None = None, domain: int = 0) -> "Nvvp":
        self._marker += 1
        own = {"id": self._marker, "objectKind": 2, "objectId": THREAD, "domain": domain}
        self.add("CUPTI_ACTIVITY_KIND_MARKER", flags=2, timestamp=start, name=name, **own)
        if end is not None:
            self.add("CUPTI_ACTIVITY_KIND_MARKER", flags=4, timestamp=end, name=0, **own)
        if payload is not None:
            value = struct.pack("<q", payload)
            self.add("CUPTI_ACTIVITY_KIND_MARKER_DATA", flags=0, id=self._marker, payloadKind=4, payload=value)
        return self

    def done(self) -> Path:
        self._connection.commit()
        self._connection.close()
        return self.path


def whole(path: Path) -> Path:
    """A step of 1,000 ns: computing [100, 400), [600, 800), all-reduce [300, 700), of which [400, 600) is exposed."""
    texts = (GEMM, NCCL, "Tesla P100", "bertbench:capture", "step 3", "forward", "bertbench")
    file = Nvvp(path, *texts).kernel(100, 400, 1, 11).kernel(600, 800, 1, 12).kernel(300, 700, 2, 13, stream=8)
    place = {"deviceId": 0, "streamId": 7}
    file.add("CUPTI_ACTIVITY_KIND_MEMCPY", copyKind=1, bytes=4096, start=20, end=50, correlationId=9, **place)
    file.add("CUPTI_ACTIVITY_KIND_MEMSET", bytes=64, start=60, end=70, correlationId=10, **place)
    for start, cbid, correlation in ((80, 211, 11), (90, 211, 12), (95, 211, 13), (900, 131, 14), (950, 999, 15)):
        own = {"processId": 40, "threadId": 41, "correlationId": correlation}
        file.add("CUPTI_ACTIVITY_KIND_RUNTIME", cbid=cbid, start=start, end=start + 4, **own)
    file.add("CUPTI_ACTIVITY_KIND_DRIVER", cbid=307, start=97, end=98, processId=40, threadId=41, correlationId=13)
    file.add("CUPTI_ACTIVITY_KIND_DEVICE", id=0, name=3, numMultiprocessors=56, flags=0, uuid=b"x")
    file.range(0, 2000, 4, payload=2).range(0, 1000, 5, payload=3, domain=7).range(50, 350, 6, domain=7)
    return file.done()


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
