"""Writes recordings in the formats of the PyTorch profiler, Nsight Systems and Nsight Compute."""

import csv
import gzip
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support import nsys_export as nsys
from support.recordings import BLOCKS, COPY, LOADING, PIPES, SMS, Counted, Trace, Work

GPU, THREADS = "NVIDIA H100 80GB HBM3", 128
_PID, _ANNOTATIONS = 40, 1_000_000


def write_kineto(trace: Trace, folder: Path) -> None:
    """Write a trace as the PyTorch profiler exports it, compressed; its times are microseconds."""
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": GPU, "computeMajor": 9, "computeMinor": 0, "numSms": SMS,
                              "maxThreadsPerMultiprocessor": 2048, "warpSize": 32}],
        "distributedInfo": {"backend": "nccl", "rank": trace.rank, "world_size": trace.world_size},
        "displayTimeUnit": "ms",
        "traceEvents": list(_kineto_events(trace)),
    }  # fmt: skip
    text = json.dumps(document, separators=(",", ": "))
    (folder / f"rank{trace.rank}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def _kineto_events(trace: Trace) -> Iterator[dict[str, Any]]:
    def event(category: str, name: str, start: int, end: int, args: dict[str, Any], gpu: int = -1) -> dict[str, Any]:
        place = {"pid": 0, "tid": gpu} if gpu >= 0 else {"pid": _PID, "tid": _PID}
        times = {"ts": start / 1000, "dur": (end - start) / 1000}
        return {"ph": "X", "cat": category, "name": name, **place, **times, "args": args}

    for number, (begin, end) in enumerate(trace.steps):
        yield event("user_annotation", f"ProfilerStep#{number}", begin, end, {"External id": number + 1})
    for begin, end in trace.loading:
        yield event("user_annotation", LOADING, begin, end, {})
    for number, one in enumerate(trace.work, start=len(trace.steps) + 1):
        called, ids = one.call + trace.unit, {"External id": number}
        copies, talk = one.name == COPY, _collective(trace, one) if one.elements else {}
        operator = "aten::copy_" if copies else "record_param_comms" if talk else "aten::op"
        yield event("cpu_op", operator, one.call, called, {**ids, **talk})
        if talk:
            own = {"External id": number + _ANNOTATIONS}
            yield event("user_annotation", "nccl:all_reduce", one.call, called, own)
            yield event("gpu_user_annotation", "nccl:all_reduce", one.start, one.end, own, one.stream)
        launch = "cudaMemcpyAsync" if copies else "cudaLaunchKernel"
        yield event("cuda_runtime", launch, one.call, called, {**ids, "correlation": number})
        flow = {"id": number, "cat": "ac2g", "name": "ac2g"}
        yield {"ph": "s", "pid": _PID, "tid": _PID, "ts": one.call / 1000, **flow}
        yield {"ph": "f", "pid": 0, "tid": one.stream, "ts": one.start / 1000, "bp": "e", **flow}
        args = {**ids, "device": 0, "context": 1, "stream": one.stream, "correlation": number}
        if copies:
            rate = {"bytes": one.bytes, "memory bandwidth (GB/s)": one.bytes / (one.end - one.start)}
            yield event("gpu_memcpy", one.name, one.start, one.end, {**args, **rate}, one.stream)
        else:
            warps = BLOCKS * THREADS / 32 / SMS
            size = {"grid": [BLOCKS, 1, 1], "block": [THREADS, 1, 1], "blocks per SM": BLOCKS / SMS,
                    "warps per SM": warps, "est. achieved occupancy %": round(100 * warps / 64)}  # fmt: skip
            yield event("kernel", one.name, one.start, one.end, {**args, **size, **talk}, one.stream)


def _collective(trace: Trace, work: Work) -> dict[str, Any]:
    group = {"Process Group Name": "0", "Process Group Description": "default_pg",
             "Process Group Ranks": str(list(range(trace.world_size)))}  # fmt: skip
    size = {"In msg nelems": work.elements, "Out msg nelems": work.elements, "Group size": trace.world_size}
    return {"Collective name": "allreduce", "dtype": "Float", **size, **group}


def write_nsys(trace: Trace, folder: Path) -> None:
    """Write a trace as Nsight Systems exports it to SQLite; its times are nanoseconds."""
    launches = ("cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020")
    texts = list(dict.fromkeys([*(one.name for one in trace.work), *launches]))
    names = {name: number for number, name in enumerate(texts)}
    size = {"gridX": BLOCKS, "gridY": 1, "gridZ": 1, "blockX": THREADS, "blockY": 1, "blockZ": 1}
    calls, kernels, copies = [], [], []
    for number, one in enumerate(trace.work, start=1):
        copies_data = one.name == COPY
        calls.append(nsys.call(one.call, one.call + trace.unit, names[launches[copies_data]], number))
        place = {"streamId": one.stream, "correlationId": number}
        if copies_data:  # host to device, pinned
            copies.append(nsys.work(one.start, one.end, **place, bytes=one.bytes, copyKind=1, srcKind=0, dstKind=2))
        else:
            kernels.append(nsys.kernel(one.start, one.end, names[one.name], **place, **size))
    marks = [nsys.nvtx(begin, end, f"step {number}", domainId=0) for number, (begin, end) in enumerate(trace.steps)]
    marks += [nsys.nvtx(begin, end, LOADING, domainId=0) for begin, end in trace.loading]
    gpu = {"id": 0, "name": GPU, "smCount": SMS, "chipName": "GH100", "computeMajor": 9, "computeMinor": 0,
           "threadsPerWarp": 32, "maxWarpsPerSm": 64}  # fmt: skip
    nsys.export(
        folder / f"rank{trace.rank}.sqlite", texts, calls=calls, kernels=kernels, copies=copies,
        nvtx=sorted(marks, key=lambda row: int(row["start"])), gpus=[gpu],
    )  # fmt: skip


def write_ncu(kernels: Sequence[Counted], folder: Path) -> None:
    """Write counters as `ncu --csv --page raw` prints them."""
    metrics = [f"sm__inst_executed_pipe_{pipe}.avg.pct_of_peak_sustained_elapsed" for pipe in PIPES]
    text = io.StringIO()
    rows = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    rows.writerow(["ID", "Process ID", "Kernel Name", "gpc__cycles_elapsed.max", "gpu__time_duration.sum", *metrics])
    rows.writerow(["", "", "", "cycle", "ns", *["%"] * len(metrics)])
    for number, one in enumerate(kernels):
        percents = [f"{value:.2f}" for value in one.percents]
        rows.writerow([number, _PID, one.name, f"{one.cycles:,}", f"{one.ns:,}", *percents])
    (folder / "raw.csv").write_text(text.getvalue(), encoding="utf-8")
