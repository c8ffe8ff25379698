"""A small valid input of every registered reader."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import nsys_export as nsys
from support.timelines import event


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text)


NSYS: dict[str, list[dict[str, Any]]] = {
    "kernels": [nsys.kernel(100 * n, 100 * n + 50, n % 2, correlationId=n, gridX=4, blockX=128) for n in range(20)],
    "calls": [nsys.call(100 * n - 20, 100 * n - 10, 2, n) for n in range(20)],
    "nvtx": [nsys.nvtx(0, 1000, "iteration 3", domainId=0), nsys.nvtx(10, 400, "forward", domainId=0)],
}
NSYS_STRINGS = ("gemm", "ncclKernel_AllReduce", "launch")
PLACE = "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER"
NVVP: nsys.Tables = {
    "StringTable": ("_id_ INTEGER PRIMARY KEY, value TEXT", [(1, "_Z4gemmPf"), (2, "GeForce")]),
    "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL": (
        f"_id_ INTEGER PRIMARY KEY, {PLACE}, name INTEGER, gridX INTEGER, blockX INTEGER",
        [(number, number * 100, number * 100 + 50, 0, 7, number, 1, 4, 128) for number in range(1, 20)],
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "_id_ INTEGER PRIMARY KEY, start INTEGER, end INTEGER, cbid INTEGER, processId INTEGER, threadId INTEGER, "
        "correlationId INTEGER",
        [(number, number * 100 - 20, number * 100 - 10, 211, 40, 40, number) for number in range(1, 20)],
    ),
    "CUPTI_ACTIVITY_KIND_DEVICE": ("_id_ INTEGER PRIMARY KEY, id INTEGER, name INTEGER", [(1, 0, 2)]),
}


def kineto(name: str = "gemm") -> str:
    slices = [("ProfilerStep#3", 0, 900, "user_annotation"), ("aten::mm", 10, 50, "cpu_op")]
    slices += [(name, 20 + 10 * number, 8, "kernel") for number in range(20)]
    args = {"device": 0, "stream": 7, "correlation": 1, "grid": [4, 1, 1], "est. achieved occupancy %": 12}
    events = [event(*one, args=args) for one in slices]
    about = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H100"}], "distributedInfo": {"rank": 0}}
    return json.dumps({**about, "traceEvents": events})


NCU = "\n".join(
    ['"ID","Process ID","Kernel Name","Context","CC","Section Name","Metric Name","Metric Unit","Metric Value"']
    + [f'"{n}","7","gemm","1","9.0","s","gpu__time_duration.sum","usecond","1,{n:03d}.50"' for n in range(20)]
)
NSYS_CSV = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n" + "\n".join(
    f'{n}.5,{n * 1000},{n},1000.0,1000.0,900,1100,3.5,"void gemm<float, {n}>(int)"' for n in range(1, 20)
)
NCCL = "# nThread 1 nGpus 2 minBytes 8\n#  Rank  0 Pid 1 on n device  0 [0x00] A100\n" + "\n".join(
    f"{1000 * n} {250 * n} float sum -1 {n}.0 1.00 1.00 0 {n}.0 1.00 1.00 0" for n in range(1, 20)
)
SAMPLES: dict[str, Callable[[Path], object]] = {
    "nsys": lambda path: nsys.export(path, NSYS_STRINGS, **NSYS),
    "nvvp": lambda path: nsys.write_sqlite(path, NVVP),
    "nsys_csv": _text(NSYS_CSV),
    "kineto": _text(kineto()),
    "ncu": _text(NCU),
    "nccl": _text(NCCL),
}
"""Small valid input of every reader."""


def sample(reader: str, path: Path) -> Path:
    """Write the sample of a reader."""
    assert reader in SAMPLES, f"the reader {reader} has no sample: add one to SAMPLES, so that damaged ones are tried"
    SAMPLES[reader](path)
    return path
