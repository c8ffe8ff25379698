"""A small machine that runs programs of several ranks on GPUs, and writes what it did as Kineto traces.

It is the oracle of what-if replays: the same program runs again with free communication, without a late rank or with a
host that takes no time, and the replay of the first run's trace has to come to the same time. Nothing here is taken
from `analysis`. Times are microseconds.

The machine, one GPU per rank:

- A host runs its program in order. A launch takes `CALL`, and the work starts no sooner than `LATENCY` after the call
  began. At most `QUEUE` pieces of work are launched and not started: a launch waits for a place.
- A stream runs its work in order, `GAP` apart. A collective is on stream 20 and starts after the computation launched
  before it; computation after a `join` starts after all collectives launched before, but the last few that it names.
- Work beside (stream 13) waits for nothing but its stream.
- A collective ends on all ranks its transfer time after the last rank has started it.
- A synchronising call returns `WAKE` after the end of what it waits for.
- Clocks of ranks differ by 1.5 ms from one to the next, and ranks leave a collective up to `LEAVE` apart.

Each of these times is drawn anew for every call, from 0.7 to 1.3 times what is said here, and the same in every run.
One launch in fifty takes `SLOW` longer to reach the GPU.
"""

import json
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CALL, LATENCY, GAP, WAKE, LEAVE, SLOW, QUEUE = 6.0, 5.0, 1.0, 8.0, 2.0, 30.0, 1024
CLOCK = 1500.0
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)"
GEMM = "ampere_sgemm_128x64_tn"
GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
COMPUTE, COMMUNICATION, BESIDE = 7, 20, 13

Op = tuple[str, float]
"""("step", 0), ("host", us), ("data", us), ("kernel", us), ("gelu", us), ("beside", us), ("all_reduce", us of
transfer), ("join", collectives that it does not wait for), ("item", 0), ("sync", 0), ("thread", number): a step
begins; Python; a DataLoader; launches; computation waits for communication; the host reads a number (a copy and a
cudaStreamSynchronize); cudaDeviceSynchronize; what follows is called by another thread. ("event", 0): the host waits
for the computation before the last such call, by cudaEventSynchronize: it runs ahead by what lies between two of them.
"""
Program = list[Op]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is different from the run that is traced."""

    transfer_factor: float = 1.0
    waits: bool = True
    host_factor: float = 1.0
    data_factor: float = 1.0
    gelu_factor: float = 1.0
    """On the length of "gelu" kernels; without length they are not launched."""


@dataclass
class Run:
    """What one rank did."""

    events: list[dict[str, Any]] = field(default_factory=list)
    marks: list[float] = field(default_factory=list)
    """When each step began and, last, when the program was through with the host."""
    gpu_end: float = 0.0
    """When its last work ended."""

    @property
    def window(self) -> float:
        """From the first step's begin to the end of the last one and of all work."""
        return max(self.marks[-1], self.gpu_end) - self.marks[0]

    def busy(self, stream: int) -> float:
        """Sum of the work's lengths on a stream."""
        return sum(e["dur"] for e in self.events if e["cat"] == "kernel" and e["args"]["stream"] == stream)


class _Machine:
    """One rank in one run: host, two streams, queue."""

    def __init__(self, rank: int, change: Change) -> None:
        self.run, self._change, self._draw = Run(), change, random.Random(rank)
        self._now, self._thread, self._number = 1000.0, 1, 0
        self._stream_end = {COMPUTE: 0.0, COMMUNICATION: 0.0, BESIDE: 0.0}
        self._talked = [0.0]
        self._event_end = 0.0
        self._starts: list[float] = []
        self._joined = 0.0

    def play(self, program: Program) -> Generator[tuple[float, float], float, None]:
        """Run the program; yields start and transfer time of each collective and is sent its end."""
        for what, amount in program:
            if what == "step":
                self.run.marks.append(self._now)
            elif what == "host":
                self._now += amount * self._change.host_factor
            elif what == "data":
                length = amount * self._change.host_factor * self._change.data_factor
                self._event(LOADER, "user_annotation", self._now, length, self._thread)
                self._now += length
            elif what == "thread":
                self._thread = int(amount)
            elif what == "kernel":
                self._work(COMPUTE, GEMM, self._launch("cudaLaunchKernel"), amount)
            elif what == "gelu" and self._change.gelu_factor:
                self._work(COMPUTE, GELU, self._launch("cudaLaunchKernel"), amount * self._change.gelu_factor)
            elif what == "gelu":
                for _ in range(4):  # what a launch draws: the others stay as they are
                    self._draw.random()
            elif what == "beside":
                start = self._begin(BESIDE, self._launch("cudaLaunchKernel"), 0.0)
                self._done(BESIDE, GEMM, start, start + amount)
            elif what == "all_reduce":
                self._call("cudaStreamWaitEvent", self._host(CALL) / 3)
                start = self._begin(COMMUNICATION, self._launch("cudaLaunchKernelExC"), self._stream_end[COMPUTE])
                end = yield start, amount * self._change.transfer_factor
                self._done(COMMUNICATION, NCCL, start, end + self._draw.uniform(0, LEAVE))
                self._talked.append(self._stream_end[COMMUNICATION])
            elif what == "join":
                self._call("cudaStreamWaitEvent", self._host(CALL) / 3)
                self._joined = self._talked[max(0, len(self._talked) - 1 - int(amount))]
            elif what == "item":
                self._work(COMPUTE, "Memcpy DtoH (Device -> Pinned)", self._launch("cudaMemcpyAsync"), 2.0)
                self._wait("cudaStreamSynchronize", self._stream_end[COMPUTE])
            elif what == "event":
                self._wait("cudaEventSynchronize", self._event_end)
                self._event_end = self._stream_end[COMPUTE]
            elif what == "sync":
                self._wait("cudaDeviceSynchronize", max(self._stream_end.values()))
            else:
                raise ValueError(what)
        self.run.marks.append(self._now)
        self.run.gpu_end = max(self._stream_end.values())

    def _jitter(self, mean: float) -> float:
        return mean * self._draw.uniform(0.7, 1.3)

    def _host(self, mean: float) -> float:
        return self._jitter(mean) * self._change.host_factor

    def _call(self, name: str, length: float, number: int = 0) -> float:
        self._event(name, "cuda_runtime", self._now, length, self._thread, correlation=number)
        begin, self._now = self._now, self._now + length
        return begin

    def _launch(self, name: str) -> float:
        """Return the soonest that the work can start."""
        self._number += 1
        length = self._host(CALL)
        if len(self._starts) >= QUEUE:  # work starts in the order of each stream; the one so far back has a place
            length += max(0.0, sorted(self._starts[-2 * QUEUE :])[-QUEUE] - self._now)
        late = SLOW if self._draw.random() < 0.02 else 0.0
        return self._call(name, length, self._number) + self._jitter(LATENCY) + late

    def _begin(self, stream: int, soonest: float, after: float) -> float:
        gap = self._jitter(GAP)
        start = max(soonest, self._stream_end[stream] + gap, after + gap)
        self._starts.append(start)
        return start

    def _work(self, stream: int, name: str, soonest: float, length: float) -> None:
        start = self._begin(stream, soonest, self._joined)
        self._done(stream, name, start, start + length)

    def _done(self, stream: int, name: str, start: float, end: float) -> None:
        self._stream_end[stream] = end
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        self._event(name, category, start, end - start, stream, device=0, stream=stream, correlation=self._number)

    def _wait(self, name: str, until: float) -> None:
        self._call(name, max(self._host(CALL), until - self._now + self._host(WAKE)))

    def _event(self, name: str, category: str, start: float, length: float, thread: int, **args: object) -> None:
        self.run.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 0 if "stream" in args else 1, "tid": thread,
             **_span(start, start + length), "args": args}
        )  # fmt: skip


def play(programs: Sequence[Program], change: Change | None = None) -> list[Run]:
    """Run one program per rank, all with the same collectives in the same order."""
    change = change or Change()
    machines = [_Machine(rank, change) for rank in range(len(programs))]
    ranks = [machine.play(program) for machine, program in zip(machines, programs, strict=True)]
    arrived = [next(rank, None) for rank in ranks]
    while all(item is not None for item in arrived):
        pairs = [item for item in arrived if item is not None]
        together = max(start for start, _ in pairs)
        ends = [(together if change.waits else start) + transfer for start, transfer in pairs]
        arrived = [_send(rank, end) for rank, end in zip(ranks, ends, strict=True)]
    assert all(item is None for item in arrived), "ranks have unequal numbers of collectives"
    return [machine.run for machine in machines]


def _send(rank: Generator[tuple[float, float], float, None], end: float) -> tuple[float, float] | None:
    try:
        return rank.send(end)
    except StopIteration:
        return None


def _span(start: float, end: float) -> dict[str, float]:
    """Whole nanoseconds: what ends together is written so."""
    return {"ts": round(start, 3), "dur": round(round(end, 3) - round(start, 3), 3)}


def slowest_ms(runs: Sequence[Run]) -> float:
    """Return the time of the slowest rank, ms."""
    return max(run.window for run in runs) / 1e3


def write(runs: Sequence[Run], folder: Path) -> Path:
    """Write one Kineto trace per rank into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, run in enumerate(runs):
        steps = [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1,
             **_span(begin + rank * CLOCK, end + rank * CLOCK)}
            for number, (begin, end) in enumerate(zip(run.marks, run.marks[1:], strict=False))
        ]  # fmt: skip
        about = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "numSms": 132}]}
        job = {"backend": "nccl", "rank": rank, "world_size": len(runs)}
        events = [{**event, "ts": round(event["ts"] + rank * CLOCK, 3)} for event in run.events]
        text = json.dumps({**about, "distributedInfo": job, "traceEvents": steps + events})
        (folder / f"rank{rank}.json").write_text(text)
    return folder


@dataclass(frozen=True, kw_only=True)
class Training:
    """Data-parallel steps: forward, backward with an all-reduce every few kernels, a join, an optimizer."""

    steps: int = 4
    layers: int = 16
    forward: float = 400.0
    """Length of each forward kernel; backward has two such kernels per layer."""
    python: float = 10.0
    """Of the host before each launch."""
    data: float = 0.0
    """Of the host before each step."""
    transfer: float = 1500.0
    """Of each all-reduce."""
    every: int = 4
    """Layers between all-reduces."""
    gelu: float = 0.0
    """Length of a second kernel of each layer's forward pass."""
    backlog: float = 0.0
    """Length of a kernel launched before the first step: the GPU is that far behind the CPU from the beginning."""
    paced: bool = False
    """Whether the host waits at the end of each step for the end of the step before."""
    item: bool = False
    """Whether each step ends with the host reading the loss."""
    slower: Callable[[int, int], float] = lambda rank, step: 1.0
    """Factor on the kernels of a rank in a step."""
    pause: Callable[[int, int], float] = lambda rank, step: 0.0
    """What the host of a rank stands still in the middle of a step's forward pass."""

    prefetch: bool = False
    """Whether each layer of the forward pass waits for a collective of its own, launched one layer ahead (FSDP)."""

    def programs(self, ranks: int) -> list[Program]:
        """Return the program of each rank."""
        return [self._program(rank) for rank in range(ranks)]

    def _program(self, rank: int) -> Program:
        program: Program = [("kernel", self.backlog)] if self.backlog else []
        for step in range(self.steps):
            length = self.forward * self.slower(rank, step)
            launch = [("host", self.python), ("kernel", length)]
            program += [("step", 0), ("data", self.data)]
            program += [("all_reduce", self.transfer)] if self.prefetch else []
            for layer in range(self.layers):
                program += [("host", self.pause(rank, step))] if layer == self.layers // 2 else []
                program += [("all_reduce", self.transfer), ("join", 1)] if self.prefetch else []
                program += launch
                program += [("host", self.python), ("gelu", self.gelu)] if self.gelu else []
            program.append(("thread", 2))
            for layer in range(self.layers):
                program += [*launch, *launch]
                program += [("host", self.python), ("all_reduce", self.transfer)] if layer % self.every == 0 else []
            program += [("thread", 1), ("join", 0), *launch]
            program += [("item", 0)] if self.item else []
            program += [("event", 0)] if self.paced else []
        return [*program, ("sync", 0)]


def scattered(seed: int, ranks: int) -> list[Program]:
    """Return programs of ranks in which launches, collectives, waits and pauses come in any order.

    The kinds of calls are the same on all ranks, what the host takes is not, and some ranks may be slower.
    """
    draw = random.Random(seed)
    python, kernel, transfer = (draw.choice(sizes) for sizes in ((3, 10, 30, 100), (5, 30, 200, 1000), (50, 500, 5000)))
    talks, joins, items = draw.uniform(0.02, 0.2), draw.uniform(0.3, 1), draw.choice([0.0, 0.0, 0.01, 0.05])
    late, pauses = draw.choice([0.0, 0.0, 0.3, 1.0]), draw.choice([0.0, 0.0, 0.01])
    beside = draw.choice([1.0, 0.9])
    slower = [1 + late * draw.random() for _ in range(ranks)]
    programs: list[Program] = [[] for _ in range(ranks)]
    for _ in range(draw.randint(2, 5)):
        for program in programs:
            program.append(("step", 0))
        for _ in range(draw.randint(40, 200)):
            kind, length, behind = draw.random(), draw.lognormvariate(0, 1), draw.choice([0, 0, 1, 2])
            for rank, program in enumerate(programs):
                pause = draw.uniform(1e3, 2e4) if draw.random() < pauses else 0
                program.append(("host", draw.lognormvariate(0, 0.7) * python + pause))
                if kind < talks:
                    program.append(("all_reduce", length * transfer))
                elif kind < talks * (1 + joins):
                    program.append(("join", behind))
                elif kind < talks * (1 + joins) + items:
                    program.append(("item", 0))
                elif kind > beside:
                    program.append(("beside", length * kernel * slower[rank]))
                else:
                    program.append(("kernel", length * kernel * slower[rank]))
    return [[*program, ("sync", 0)] for program in programs]
