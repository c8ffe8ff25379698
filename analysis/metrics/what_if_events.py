"""Reads the dependencies of one rank with a GPU out of its trace, into a graph (what_if_graph).

- the host: calls that launch work or wait for it, in order of time over all threads of the rank, each after the call
  that ended last before it; the time between them is kept (a step's threads take turns: main, autograd)
- work: after the work before it on its stream, and after its launch
- a synchronising call (cuda{Stream,Device,Event}Synchronize) ends after the work that ended last while it waited; one
  that did not wait, after the work that was launched last and had ended (cudaDeviceSynchronize: that ended last)
- a collective after the computation launched last before it (PyTorch lets its stream wait for that)
- the first work launched after a cudaStreamWaitEvent after the collectives launched before it, which had ended
- work that starts within 10 us of the end of work on another stream, and later than all above explains, after that
"""

import re
from bisect import bisect_right

import numpy as np

from analysis.metrics.communication import launch_times
from analysis.metrics.kernel_tables import is_communication
from analysis.metrics.what_if_graph import COMPUTE, HOST, Before, Graph, Nodes, Spans, marks
from analysis.timeline import Timeline

_SYNCHRONISES = re.compile(r"(?:Stream|Device|Event|Ctx)Synchronize")
_WAITS_FOR_ALL = re.compile(r"(?:Device|Ctx)Synchronize")
_WAITS = re.compile(r"StreamWaitEvent")
_LAUNCH, _SYNCHRONISE, _SYNCHRONISE_ALL, _WAIT = range(4)
_NEAR_NS = 10_000
_LOOK_BACK = 64


def add_gpu_rank(graph: Graph, timeline: Timeline, offset_ns: int) -> dict[int, tuple[int, int]]:
    """Add one rank's moments and dependencies, all but what its collectives take.

    Returns:
        begin and end node of each row of `timeline.collectives` that was found.
    """
    return _Gpu(graph, timeline, offset_ns).add()


class _Gpu:
    """One rank with a GPU. Work and calls are numbered in order of start."""

    def __init__(self, graph: Graph, timeline: Timeline, offset_ns: int) -> None:
        self._graph, self._timeline, self._offset = graph, timeline, offset_ns
        kernels = timeline.kernels
        self._starts, self._ends = kernels["start"].tolist(), kernels["end"].tolist()
        self._streams = list(zip(kernels["device"].tolist(), kernels["stream"].tolist(), strict=True))
        self._communicates = is_communication(kernels).tolist()
        self._by_end = sorted(range(len(kernels)), key=self._ends.__getitem__)
        self._sorted_ends = [self._ends[work] for work in self._by_end]
        known = "correlation_id" in kernels.columns
        ids = kernels["correlation_id"].to_numpy(dtype=np.int64) if known else np.full(len(kernels), -1)
        self._launched = launch_times(timeline, ids).tolist()
        self._ids: dict[int, list[int]] = {}
        for work, number in enumerate(ids.tolist()):
            if number >= 0:
                self._ids.setdefault(number, []).append(work)
        self._calls = self._selected()

    def add(self) -> dict[int, tuple[int, int]]:
        graph, offset = self._graph, self._offset
        calls = [call for call in self._calls if call[2] != _WAIT]
        self._hosts: Nodes = [(graph.node(s - offset), graph.node(e - offset)) for s, e, _, _ in calls]
        self._works = [
            (graph.node(s - offset), graph.node(e - offset)) for s, e in zip(self._starts, self._ends, strict=True)
        ]
        spans = [(start, end) for start, end, _, _ in calls]
        before = Before(spans)
        for number, (start, _) in enumerate(spans):
            previous = before.of(start, number)
            if previous is not None:
                graph.follow(self._hosts[number][0], [(self._hosts[previous][1], 0.0, HOST)])
        self._order(calls)
        self._end_calls(calls)
        self._window(spans)
        return self._collectives()

    def _selected(self) -> list[tuple[int, int, int, int]]:
        """Calls that matter: start, end, what it does, correlation id."""
        api = self._timeline.api
        if not len(api):
            return []
        names = {name: str(name) for name in api["name"].unique()}
        does = {name: _SYNCHRONISE for name, text in names.items() if _SYNCHRONISES.search(text)}
        does |= {name: _SYNCHRONISE_ALL for name, text in names.items() if _WAITS_FOR_ALL.search(text)}
        does |= {name: _WAIT for name, text in names.items() if _WAITS.search(text)}
        columns = (api[name].tolist() for name in ("name", "start", "end", "correlation_id"))
        found = []
        for name, start, end, number in zip(*columns, strict=True):
            action = does.get(name, _LAUNCH if number in self._ids else None)
            if action is not None:
                found.append((start, end, action, number))
        return sorted(found)

    def _order(self, calls: list[tuple[int, int, int, int]]) -> None:
        """What each piece of work comes after."""
        candidates: list[list[tuple[int, float, int]]] = [[] for _ in self._works]
        last: dict[tuple[int, int], int] = {}
        for work, stream in enumerate(self._streams):
            if stream in last and self._ends[last[stream]] <= self._starts[work]:
                candidates[work].append((self._works[last[stream]][1], 0.0, COMPUTE))
            if stream not in last or self._ends[work] >= self._ends[last[stream]]:
                last[stream] = work
        latency = self._latency()
        for number, (_, _, action, correlation) in enumerate(calls):
            for work in self._ids.get(correlation, ()) if action == _LAUNCH else ():
                most = min(latency, max(0, self._starts[work] - self._launched[work]))
                candidates[work].append((self._hosts[number][0], most, HOST))
        for source, target in self._inferred():
            candidates[target].append((self._works[source][1], 0.0, COMPUTE))
        for work, (begin, end) in enumerate(self._works):
            self._nearby(work, candidates[work])
            self._graph.follow(begin, candidates[work])
            if not self._communicates[work]:
                self._graph.edge(begin, end, self._ends[work] - self._starts[work], COMPUTE)

    def _latency(self) -> float:
        """Least time from a launching call to its work, as far as the trace shows it: the 5th percentile."""
        pairs = zip(self._starts, self._launched, strict=True)
        found = [start - launched for start, launched in pairs if launched >= 0 and start >= launched]
        return float(np.percentile(found, 5, method="lower")) if found else 0.0

    def _inferred(self) -> list[tuple[int, int]]:
        """Dependencies between streams, by the order of launches and cudaStreamWaitEvent."""
        found: list[tuple[int, int]] = []
        computed: int | None = None
        pending: dict[tuple[int, int], int] = {}
        waits = False
        for _, _, action, correlation in self._calls:
            if action == _WAIT:
                waits = True
            for work in self._ids.get(correlation, ()) if action == _LAUNCH else ():
                begin = self._starts[work]
                if self._communicates[work]:
                    if computed is not None and self._ends[computed] <= begin:
                        found.append((computed, work))
                    pending[self._streams[work]] = work
                else:
                    for stream, other in list(pending.items()) if waits else ():
                        if stream != self._streams[work] and self._ends[other] <= begin:
                            found.append((other, work))
                            del pending[stream]
                    computed = work
                waits = False
        return found

    def _nearby(self, work: int, candidates: list[tuple[int, float, int]]) -> None:
        begin = self._starts[work]
        times = self._graph.times
        explained = max((times[source] + weight + self._offset for source, weight, _ in candidates), default=None)
        if explained is not None and begin - explained <= _NEAR_NS:
            return
        place = bisect_right(self._sorted_ends, begin) - 1
        if place < 0:
            return
        other = self._by_end[place]
        if other != work and begin - self._ends[other] <= _NEAR_NS and self._starts[other] < begin:
            candidates.append((self._works[other][1], 0.0, COMPUTE))

    def _end_calls(self, calls: list[tuple[int, int, int, int]]) -> None:
        """When calls return: at once, or after the work that they wait for."""
        in_order = sorted((moment, work) for work, moment in enumerate(self._launched) if moment >= 0)
        moments = [moment for moment, _ in in_order]
        for (begin, end), (start, stop, action, number) in zip(self._hosts, calls, strict=True):
            if action == _LAUNCH:  # a copy may keep the host until it is done
                released = next((work for work in self._ids.get(number, ()) if self._ends[work] <= stop), None)
            else:
                released = self._last_ended(stop, start)
                waited = released is not None and self._ends[released] >= start
                if not waited and action == _SYNCHRONISE:
                    place = bisect_right(moments, start)
                    launched = (in_order[p][1] for p in range(place - 1, max(-1, place - _LOOK_BACK), -1))
                    released = next((work for work in launched if self._ends[work] <= stop), None)
            candidates = [(begin, 0.0, HOST)]
            if released is not None:
                candidates.append((self._works[released][1], 0.0, HOST))
            self._graph.follow(end, candidates)

    def _last_ended(self, stop: int, launched_by: int) -> int | None:
        """The work that ended last before `stop`, of what was launched before the call."""
        place = bisect_right(self._sorted_ends, stop) - 1
        for position in range(place, max(-1, place - _LOOK_BACK), -1):
            work = self._by_end[position]
            if 0 <= self._launched[work] <= launched_by:
                return work
        return None

    def _window(self, calls: Spans) -> None:
        marked = marks(self._graph, self._timeline.steps, calls, self._hosts, self._offset)
        if marked is None:
            everything = [*self._works, *self._hosts]
            first = min(everything, key=lambda nodes: self._graph.times[nodes[0]])
            self._graph.begins.append(first[0])
            self._graph.ends.append([node for _, node in everything])
            return
        begin, end = marked
        limit = self._graph.times[end] + self._offset
        launched = zip(self._works, self._starts, self._launched, strict=True)
        own = [nodes[1] for nodes, start, moment in launched if (moment if moment >= 0 else start) < limit]
        self._graph.begins.append(begin)
        self._graph.ends.append([end, *own])

    def _collectives(self) -> dict[int, tuple[int, int]]:
        places = {
            (stream, start, end): self._works[work]
            for work, (stream, start, end) in enumerate(zip(self._streams, self._starts, self._ends, strict=True))
            if self._communicates[work]
        }
        found: dict[int, tuple[int, int]] = {}
        taken: set[tuple[int, int]] = set()
        names = ("device", "stream", "start", "end")
        for row, values in enumerate(zip(*(self._timeline.collectives[name].tolist() for name in names), strict=True)):
            nodes = places.get((values[:2], values[2], values[3]))
            if nodes is not None and nodes not in taken:
                found[row] = nodes
                taken.add(nodes)
        for (begin, end), start, stop, talks in zip(
            self._works, self._starts, self._ends, self._communicates, strict=True
        ):
            if talks and (begin, end) not in taken:  # of no known collective: nothing is scaled
                self._graph.edge(begin, end, stop - start, COMPUTE)
        return found
