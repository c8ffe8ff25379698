"""Recordings whose numbers are known by construction, without interval arithmetic, as profilers write them.

A GPU's time is a sequence of stretches. In each it computes, communicates, does both, copies, does so while it
computes ("load"), or is idle, so that times and shares are sums of the lengths of stretches. The CPU launches the work
of a stretch during the one before.
"""

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from support import nsys_export as nsys
from support.ncu_csv import raw_page

SGEMM, SOFTMAX = "ampere_sgemm_128x64_tn", "softmax_warp_forward<float, float, 9, false>"
ELEMENTWISE = "vectorized_elementwise_kernel<4, GeluFunctor<float>>"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
COPY = "Memcpy HtoD (Pinned -> Device)"
LOADING = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
BLOCKS, SMS = 33, 132
"""Blocks of each kernel and SMs of the GPU: one kernel that computes fills a quarter. A collective does as well."""
RANKS = 4
PIPES = ("fma", "fp16", "tensor", "xu")
_ALONE = ("compute", "talk", "copy")
_COMPUTE_STREAMS, _TALK_STREAM, _COPY_STREAM = (7, 13), 20, 25

Answers = dict[tuple[str, str], float]
"""Values by quantity and by what the quantity is of: a kernel's name, a rank, or "" for the whole recording."""


@dataclass(frozen=True, slots=True)
class Work:
    """A kernel or a copy on the GPU, and its launch call. Times are ns."""

    name: str
    stream: int
    start: int
    end: int
    call: int
    """Start of the launch call."""
    elements: int = 0
    """Of a collective: its float32 elements."""
    bytes: int = 0
    """Of a copy."""


@dataclass(kw_only=True, slots=True)
class Trace:
    """The work of one GPU."""

    unit: int
    """Length of a launch call, ns; every time is a multiple of it."""
    rank: int = 0
    world_size: int
    work: list[Work] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Start and end of each step, ns."""
    loading: list[tuple[int, int]] = field(default_factory=list)
    """Start and end of each wait of the CPU for data, ns."""


class Counted(NamedTuple):
    """A kernel with counters: name, cycles, ns, percent of peak by pipe."""

    name: str
    cycles: int
    ns: int
    percents: tuple[float, ...]


def one_gpu(seed: int, *, unit: int = 1000, steps: int = 20, stretches: int = 40) -> tuple[list[Trace], Answers]:
    """Return the trace of one GPU with so many steps of so many stretches of 20 to 400 units, and its answers."""
    choose, trace, now = random.Random(seed), Trace(unit=unit, world_size=2), 1_000_000 * unit
    sums = dict.fromkeys(("compute", "both", "talk", "copy", "load", "idle"), 0)
    causes = dict.fromkeys(("launch", "data", "queued"), 0)
    previous = launch = now - 20 * unit  # start of the stretch before; when the next work is launched
    kind, lead = "", 0
    for _ in range(steps):
        begin = now
        for place in range(stretches):
            # No two alike in a row; idle first and not last in a step; after idle, one kernel or copy starts first.
            # Next to the ends of a step none copies alone: whether a span begins with a copy is a matter of definition.
            names = [name for name in sums if name != kind and (kind != "idle" or name in _ALONE)]
            if place in (1, stretches - 1):
                names = [name for name in names if name != "copy"]
            if place == stretches - 1:
                names = [name for name in names if name != "idle"]
            kind = "idle" if place == 0 else choose.choice(names)
            length = unit * choose.randint(20, 400)
            sums[kind] += length
            if kind == "idle":
                launch = _rest(choose, trace, causes, now, length, previous, place == 0)
                if not lead:
                    lead, causes = length, dict.fromkeys(causes, 0)  # nothing ran before: no gap between work
            else:
                work = list(_busy(choose, kind, now, length, unit))
                trace.work += [replace(one, call=launch + unit * number) for number, one in enumerate(work)]
                launch = now
            previous, now = now, now + length
        trace.steps.append((begin, now))
    return [trace], _answers(trace, sums, causes, lead)


def ranks(seed: int, *, steps: int = 12, clocks: bool = False) -> tuple[list[Trace], Answers]:
    """Return the traces of four ranks with an all-reduce a step, which ends together and has a late rank; its answers.

    Every rank is idle, computes, and joins the all-reduce; while it transfers, each computes something else too.
    With `clocks`, the clocks of ranks 1 to 3 are ahead of that of rank 0 or behind it.
    """
    choose, unit, now = random.Random(seed), 1000, 1_000_000_000
    traces = [Trace(unit=unit, rank=rank, world_size=RANKS) for rank in range(RANKS)]
    late, elements = choose.randrange(RANKS), 25_000_000
    found: Answers = {("last_rank", ""): float(late)}
    for number in range(steps):
        begin = now
        own = [unit * choose.randint(500, 900) for _ in range(RANKS)]
        last = late if number % 4 else (late + 1) % RANKS
        own[last] = unit * choose.randint(1000, 1400)
        idle, transfer = unit * choose.randint(20, 60), unit * choose.randint(600, 900)
        arrived = begin + idle + max(own)
        now = arrived + transfer
        for trace, length in zip(traces, own, strict=True):
            overlapped, start = unit * choose.randint(100, 500), begin + idle
            trace.work += [
                Work(SGEMM, 7, start, start + length, begin + unit),
                Work(ALL_REDUCE, _TALK_STREAM, start + length, now, begin + 2 * unit, elements=elements),
                Work(ELEMENTWISE, 7, arrived, arrived + overlapped, begin + 3 * unit),
            ]
            trace.steps.append((begin, now))
            for name, added in (
                ("wait_ms", max(own) - length),
                ("transfer_ms", transfer),
                ("communication_ms", max(own) - length + transfer),
                ("overlapped_ms", overlapped),
                ("exposed_ms", max(own) - length + transfer - overlapped),
                ("compute_ms", length + overlapped),
            ):
                key = name, f"rank {trace.rank}"
                found[key] = found.get(key, 0.0) + added / 1e6
    for trace in traces[1:] if clocks else ():
        ahead = unit * choose.choice((-1, 1)) * choose.randint(2_000, 90_000)
        found["clock_offset_us", f"rank {trace.rank}"] = ahead / 1e3
        trace.steps = [(begin + ahead, end + ahead) for begin, end in trace.steps]
        trace.work = [
            replace(one, start=one.start + ahead, end=one.end + ahead, call=one.call + ahead) for one in trace.work
        ]
    moved = 2 * (RANKS - 1) / RANKS * 4 * elements * steps
    found["bus_bandwidth_gb_s", ""] = moved / 1e6 / found["transfer_ms", "rank 0"]
    return traces, found


def deep_queue(seed: int, *, steps: int = 20, kernels: int = 30) -> tuple[list[Trace], Answers]:
    """Return the trace of a CPU that runs ahead and its answers: the GPU works without a pause long after the steps."""
    choose, unit, now = random.Random(seed), 1000, 1_000_000_000
    trace, begin = Trace(unit=unit, world_size=1), now
    first = free = begin + unit * choose.randint(20, 50)
    for _ in range(steps):
        start = now
        for _ in range(kernels):
            end = free + unit * choose.randint(10, 90)
            trace.work.append(Work(SGEMM, 7, free, end, now))
            free, now = end, now + 2 * unit
        trace.steps.append((start, now))
    said = {
        "window_ms": now - begin,
        "work_span_ms": free - first,
        "compute_ms": now - first,
        "launched_compute_ms": free - first,
        "idle_ms": first - begin,
    }
    return [trace], {("steps", ""): float(steps)} | {(name, ""): value / 1e6 for name, value in said.items()}


def counters(seed: int, *, kernels: int = 60) -> tuple[list[list[Counted]], Answers]:
    """Return kernels with their counters and the answers: percentages are weighted by cycles."""
    choose = random.Random(seed)
    found: list[Counted] = []
    for _ in range(kernels):
        cycles = choose.randint(2_000, 900_000)
        percents = tuple(choose.randint(0, 9_900) / 100 for _ in PIPES)
        found.append(Counted(choose.choice((SGEMM, SOFTMAX, ELEMENTWISE)), cycles, 2 * cycles // 3 + 7, percents))
    total = sum(one.cycles for one in found)
    said: Answers = {("counted_time_ms", ""): sum(one.ns for one in found) / 1e6}
    for place, pipe in enumerate(PIPES):
        said["pipe_utilization", pipe] = sum(one.cycles * one.percents[place] for one in found) / total / 100
    return [found], said


def _rest(
    choose: random.Random, trace: Trace, causes: dict[str, int], begin: int, length: int, before: int, own: bool
) -> int:
    """Add an idle stretch's causes; return when the CPU launches the work after it: `before` means ahead of it.

    In the first stretch of a step (`own`) the CPU launches late, so that all work of a step is launched in it.
    """
    unit = trace.unit
    cause = choose.choice([name for name in causes if name != "queued" or not own])
    if cause == "queued":
        causes[cause] += length
        return before
    late = unit * choose.randint(8, length // unit - 8)  # ends the first launch call, counted from `begin`
    if cause == "data":
        waited = unit * choose.randint(2, late // unit - 4)
        trace.loading.append((begin + unit, begin + unit + waited))
        causes[cause] += waited
        causes["launch"] += late - waited
    else:
        causes[cause] += late
    causes["queued"] += length - late
    return begin + late - unit


def _busy(choose: random.Random, kind: str, begin: int, length: int, unit: int) -> Iterator[Work]:
    """Yield the work of a stretch: what computes are two kernels in a row and a third over both on another stream."""
    end = begin + length
    if kind in ("compute", "both", "load"):
        middle = begin + unit * choose.randint(3, length // unit - 3)
        first, last = (unit * choose.randint(1, (room // unit) - 1) for room in (middle - begin, end - middle))
        yield Work(SGEMM, _COMPUTE_STREAMS[0], begin, middle, 0)
        yield Work(ELEMENTWISE, _COMPUTE_STREAMS[1], begin + first, middle + last, 0)
        yield Work(SOFTMAX, _COMPUTE_STREAMS[0], middle, end, 0)
    if kind in ("talk", "both"):
        yield Work(ALL_REDUCE, _TALK_STREAM, begin, end, 0, elements=choose.randint(1_000, 100_000))
    if kind in ("copy", "load"):
        yield Work(COPY, _COPY_STREAM, begin, end, 0, bytes=length * choose.randint(8, 24))


def _answers(trace: Trace, sums: dict[str, int], causes: dict[str, int], lead: int) -> Answers:
    window = sum(sums.values())
    computing = sums["compute"] + sums["both"] + sums["load"]
    busy, idle = computing + sums["talk"], sums["idle"]
    talking = sums["talk"] + sums["both"]
    steps = [end - begin for begin, end in trace.steps]
    kernels = [one for one in trace.work if one.name != COPY]
    filled = BLOCKS / SMS * sum(one.end - one.start for one in kernels)
    said = {
        "window_ms": window / 1e6,
        "steps": len(steps),
        "step_time_median_ms": median(steps) / 1e6,
        "work_span_ms": (window - lead) / 1e6,
        "compute_ms": computing / 1e6,
        "idle_ms": idle / 1e6,
        "idle_in_work_span_ms": (idle - lead) / 1e6,
        "kernel_busy_ms": busy / 1e6,
        "kernel_utilization": busy / window,
        "sm_weighted_utilization": filled / window,
        "communication_ms": talking / 1e6,
        "overlapped_ms": sums["both"] / 1e6,
        "exposed_ms": sums["talk"] / 1e6,
        "overlap_share": sums["both"] / talking,
        "copy_ms": (sums["copy"] + sums["load"]) / 1e6,
        "exposed_copy_ms": sums["copy"] / 1e6,
        "copied_bytes": sum(one.bytes for one in trace.work),
        "idle_launch_ms": causes["launch"] / 1e6,
        "idle_data_ms": causes["data"] / 1e6,
        "idle_queued_ms": causes["queued"] / 1e6,
    }
    found: Answers = {(name, ""): float(value) for name, value in said.items()}
    for name in (SGEMM, SOFTMAX, ELEMENTWISE, ALL_REDUCE):
        own = [one.end - one.start for one in kernels if one.name == name]
        found["kernel_calls", name], found["kernel_total_ms", name] = float(len(own)), sum(own) / 1e6
    return found


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
    units = {"gpc__cycles_elapsed.max": "cycle", "gpu__time_duration.sum": "ns", **dict.fromkeys(metrics, "%")}
    rows: list[dict[str, object]] = []
    for number, one in enumerate(kernels):
        counted = {"gpc__cycles_elapsed.max": f"{one.cycles:,}", "gpu__time_duration.sum": f"{one.ns:,}"}
        percents = {name: f"{value:.2f}" for name, value in zip(metrics, one.percents, strict=True)}
        rows.append({"ID": number, "Process ID": _PID, "Kernel Name": one.name, **counted, **percents})
    (folder / "raw.csv").write_text(raw_page(rows, units), encoding="utf-8")
