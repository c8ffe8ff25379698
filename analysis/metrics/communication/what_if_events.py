"""Reads the dependencies of one rank out of its trace, into a graph (what_if_graph). With a GPU:

- the host: calls that launch work or wait for it, in order of time over all threads of the rank, each after the call
  that ended last before it and the one before it on its thread; the time since the later one is kept (a step's threads
  take turns: main, autograd)
- work: after the work before it on its stream, and a launch latency after the begin of its call. That latency is what
  work takes that is launched onto an idle GPU, never what it takes in a queue: where computation or communication
  becomes faster, work that is queued begins sooner
- a launch that had to wait for a place in the queue ends after the begin of the work so far ahead of it
- a synchronizing call (cuda{Stream,Event}Synchronize) ends after the work that its thread launched last, or after that
  which ended last while it waited; cudaDeviceSynchronize and cudaFree after the last work of every stream
- a collective after the computation launched last before it (PyTorch lets its stream wait for that)
- the first work launched after a cudaStreamWaitEvent (not one that is a collective's own) after the last collective
  launched before it that had ended
- work that starts within 10 us of the end of work on another stream, and later than all above explains, after that
"""

import re
from bisect import bisect_right
from itertools import pairwise

import numpy as np

from analysis.metrics.communication.exposure import launch_times
from analysis.metrics.communication.what_if_graph import (
    COMPUTE,
    HOST,
    LAUNCH,
    Before,
    Candidates,
    Graph,
    Nodes,
    Spans,
    marks,
)
from analysis.timeline import Timeline, is_communication

_SYNCHRONISES = re.compile(r"(?:Stream|Device|Event|Ctx)Synchronize")
_WAITS_FOR_ALL = re.compile(r"(?:Device|Ctx)Synchronize|^(?:cuda|hip)Free(?:Host)?(?:_v\d+)?$")
_WAITS = re.compile(r"StreamWaitEvent")
_LAUNCH, _SYNCHRONISE, _SYNCHRONISE_ALL, _WAIT = range(4)
_NEAR_NS = 10_000
_LOOK_BACK = 64
MOST_LATENCY_NS = 10_000
"""The longest that a launch onto an idle GPU is taken to need: 4 to 8 us are usual, more under a profiler."""
DEFAULT_LATENCY_NS, DEFAULT_GAP_NS = 5_000, 1_000
"""Launch latency, and time between two pieces of work of one stream, of a trace that does not show them."""
_FEWEST = 5
_AHEAD_NS = 20_000
_BLOCKED_NS = 50_000
_DEEP = 500
Call = tuple[int, int, int, int, str]
"""Start, end, what it does, correlation id, thread."""


def add_gpu_rank(graph: Graph, timeline: Timeline, offset_ns: int) -> dict[int, tuple[int, int]]:
    """Add one rank's moments and dependencies, all but what its collectives take.

    Returns:
        begin and end node of each row of `timeline.collectives` that was found.
    """
    return _Gpu(graph, timeline, offset_ns).add()


def at_once(timeline: Timeline) -> float:
    """Return the share of launching calls that begin while another thread's still runs."""
    calls = sorted(zip(*(timeline.api[name].tolist() for name in ("start", "end", "correlation_id")), strict=True))
    known = set(timeline.kernels["correlation_id"].tolist()) if "correlation_id" in timeline.kernels else set()
    spans = [(start, end) for start, end, number in calls if number in known]
    over = sum(1 for (_, end), (start, _) in pairwise(spans) if start < end)
    return over / max(1, len(spans))


class _Gpu:
    """One rank with a GPU. Work and calls are numbered in order of start."""

    def __init__(self, graph: Graph, timeline: Timeline, offset_ns: int) -> None:
        self._graph, self._timeline, self._offset = graph, timeline, offset_ns
        kernels = timeline.kernels
        self._starts, self._ends = kernels["start"].tolist(), kernels["end"].tolist()
        self._streams = list(zip(kernels["device"].tolist(), kernels["stream"].tolist(), strict=True))
        self._communicates = is_communication(kernels).tolist()
        self._copies = (kernels["kind"] == "memcpy").tolist()
        self._labels = [graph.label(str(name)) for name in kernels["name"].tolist()]
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
        self._latency, self._gap = self._least_times()

    def add(self) -> dict[int, tuple[int, int]]:
        graph, offset = self._graph, self._offset
        calls = [call for call in self._calls if call[2] != _WAIT]
        self._hosts: Nodes = [(graph.node(s - offset), graph.node(e - offset)) for s, e, *_ in calls]
        self._works = [
            (graph.node(s - offset), graph.node(e - offset)) for s, e in zip(self._starts, self._ends, strict=True)
        ]
        spans = [(start, end) for start, end, *_ in calls]
        self._marked = marks(graph, self._timeline.steps, spans, self._hosts, offset)
        before = Before(spans)
        own: dict[str, int] = {}
        opening = None if self._marked is None else self._marked[0]
        for number, (start, _, _, _, thread) in enumerate(calls):
            earlier = {before.of(start, number), own.get(thread)}
            follows = [self._hosts[call][1] for call in earlier if call is not None]
            if opening is not None and graph.times[opening] <= start - offset:  # the first call of the window
                follows, opening = [*follows, opening], None
            graph.follow(self._hosts[number][0], [(node, 0, HOST) for node in follows])
            own[thread] = number
        self._order(calls)
        self._end_calls(calls)
        self._window()
        return self._collectives()

    def _selected(self) -> list[Call]:
        """Calls that matter, in order of start."""
        api = self._timeline.api
        if not len(api):
            return []
        names = {name: str(name) for name in api["name"].unique()}
        does = {name: _SYNCHRONISE for name, text in names.items() if _SYNCHRONISES.search(text)}
        does |= {name: _SYNCHRONISE_ALL for name, text in names.items() if _WAITS_FOR_ALL.search(text)}
        does |= {name: _WAIT for name, text in names.items() if _WAITS.search(text)}
        columns = (api[name].tolist() for name in ("name", "start", "end", "correlation_id", "thread"))
        found = []
        for name, start, end, number, thread in zip(*columns, strict=True):
            action = does.get(name, _LAUNCH if number in self._ids else None)
            if action is not None:
                found.append((start, end, action, number, str(thread)))
        return sorted(found)

    def _order(self, calls: list[Call]) -> None:
        """What each piece of work comes after."""
        candidates: list[Candidates] = [[] for _ in self._works]
        last: dict[tuple[int, int], int] = {}
        for work, stream in enumerate(self._streams):
            if stream in last and self._ends[last[stream]] <= self._starts[work]:
                candidates[work].append(self._after(last[stream], work))
            if stream not in last or self._ends[work] >= self._ends[last[stream]]:
                last[stream] = work
        for number, (_, _, action, correlation, _) in enumerate(calls):
            for work in self._ids.get(correlation, ()) if action == _LAUNCH else ():
                least = min(self._latency, max(0, self._starts[work] - self._launched[work]))
                candidates[work].append((self._hosts[number][0], least, LAUNCH))
        for source, target in self._inferred():
            candidates[target].append(self._after(source, target))
        for work, (begin, end) in enumerate(self._works):
            self._nearby(work, candidates[work])
            self._graph.follow(begin, candidates[work])
            if not self._communicates[work]:
                self._graph.edge(begin, end, self._ends[work] - self._starts[work], COMPUTE, self._labels[work])

    def _after(self, source: int, target: int) -> tuple[int, float, int]:
        """One piece of work after another, which ended before it."""
        return self._works[source][1], min(self._gap, self._starts[target] - self._ends[source]), COMPUTE

    def _least_times(self) -> tuple[int, int]:
        """Launch latency and time between two pieces of work of one stream, ns: medians of where nothing else delays.

        For the first, work that was launched when the whole GPU was idle; for the second, work that was launched long
        before the one in front of it ended. The defaults, where the trace has fewer than 5 such pieces of work.
        """
        latencies, gaps = [], []
        busy_until, stream_ends = -1, dict.fromkeys(self._streams, -1)
        for stream, start, end, launched in zip(self._streams, self._starts, self._ends, self._launched, strict=True):
            before = stream_ends[stream]
            if busy_until <= launched <= start and launched >= 0:
                latencies.append(start - launched)
            if 0 <= launched <= before - _AHEAD_NS and 0 <= start - before <= _NEAR_NS:
                gaps.append(start - before)
            busy_until, stream_ends[stream] = max(busy_until, end), max(before, end)
        latency = int(np.median(latencies)) if len(latencies) >= _FEWEST else DEFAULT_LATENCY_NS
        gap = int(np.median(gaps)) if len(gaps) >= _FEWEST else DEFAULT_GAP_NS
        return min(latency, MOST_LATENCY_NS), gap

    def _inferred(self) -> list[tuple[int, int]]:
        """Dependencies between streams, by the order of launches and cudaStreamWaitEvent."""
        found: list[tuple[int, int]] = []
        computed: int | None = None
        pending: dict[tuple[int, int], list[tuple[int, int]]] = {}
        waits: list[int] = []
        talked, own = 0, self._own_waits()
        for _, _, action, correlation, _ in self._calls:
            if action == _WAIT:
                waits.append(talked)  # it can be for collectives that are launched already
            for work in self._ids.get(correlation, ()) if action == _LAUNCH else ():
                begin = self._starts[work]
                if self._communicates[work]:
                    if computed is not None and self._ends[computed] <= begin:
                        found.append((computed, work))
                    pending.setdefault(self._streams[work], []).append((talked, work))
                    talked += 1
                    del waits[max(0, len(waits) - own) :]
                    continue
                for stream, others in pending.items() if waits and talked else ():
                    # Of several that it can have waited for, the last; later ones are fetched ahead.
                    over = (
                        n for n, (count, other) in enumerate(others) if count >= waits[-1] or self._ends[other] > begin
                    )
                    ended = next(over, len(others))
                    if stream != self._streams[work] and ended:
                        found.append((others[ended - 1][1], work))
                        del others[:ended]
                computed = work
                waits.clear()
        return found

    def _own_waits(self) -> int:
        """How often a stream is made to wait before the launch of a collective, for that one: the median."""
        counts, waits = [0], 0
        for _, _, action, correlation, _ in self._calls:
            waits += action == _WAIT
            if action == _LAUNCH:
                counts += [waits] if any(self._communicates[work] for work in self._ids[correlation]) else []
                waits = 0
        return sorted(counts)[len(counts) // 2]

    def _nearby(self, work: int, candidates: Candidates) -> None:
        begin = self._starts[work]
        times = self._graph.times
        explained = max((times[source] + int(weight) + self._offset for source, weight, _ in candidates), default=None)
        if explained is not None and begin - explained <= _NEAR_NS:
            return
        place = bisect_right(self._sorted_ends, begin) - 1
        if place < 0:
            return
        other = self._by_end[place]
        if other != work and begin - self._ends[other] <= _NEAR_NS and self._starts[other] < begin:
            candidates.append((self._works[other][1], 0.0, COMPUTE))

    def _end_calls(self, calls: list[Call]) -> None:
        """When calls return: at once, or after the work that they wait for."""
        usual, deepest = self._usual_launch(calls)
        newest: dict[str, int] = {}
        latest: dict[tuple[int, int], int] = {}
        count = 0
        for (begin, end), (start, stop, action, number, thread) in zip(self._hosts, calls, strict=True):
            if action == _LAUNCH:
                works = self._ids.get(number, [])
                candidates: Candidates = [(begin, min(usual, stop - start), HOST)]
                # A copy may keep the host until it is done; a kernel never does, however soon it has ended.
                if stop - start > 2 * usual:
                    ended = (work for work in works if self._copies[work] and self._ends[work] <= stop)
                    candidates += [(self._works[work][1], 0, HOST) for work in ended]
                if deepest and count > deepest:
                    candidates.append((self._works[count - deepest - 1][0], 0, HOST))
                count += len(works)
                for work in works:
                    newest[thread] = latest[self._streams[work]] = work
            else:
                waited = list(latest.values())
                if action == _SYNCHRONISE:
                    waited = self._waited_for(start, stop, newest.get(thread))
                ended = (work for work in waited if self._ends[work] <= stop)
                candidates = [(begin, 0, HOST), *((self._works[work][1], 0, HOST) for work in ended)]
            launched = {self._labels[work] for work in self._ids.get(number, ())} if action == _LAUNCH else set()
            self._graph.follow(end, candidates, launched.pop() if len(launched) == 1 else -1)

    def _usual_launch(self, calls: list[Call]) -> tuple[int, int]:
        """The median length of a launching call, ns, and how much work the queue holds; 0 where it never was full.

        It was full where many pieces of work were waiting, and a launch took long and ended as one of them began.
        """
        lengths, depths, count = [0], [0], 0
        for start, stop, action, number, _ in calls:
            if action == _LAUNCH:
                lengths.append(stop - start)
                started = bisect_right(self._starts, stop)
                full = count - started >= _DEEP and started and stop - self._starts[started - 1] <= _BLOCKED_NS
                if full and stop - start > _BLOCKED_NS:
                    depths.append(count - started)
                count += len(self._ids.get(number, ()))
        return int(np.median(lengths)), max(depths)

    def _waited_for(self, start: int, stop: int, mine: int | None) -> list[int]:
        """The work that a call waits for which waits for one stream or event.

        Args:
            start: of the call.
            stop: when it returned.
            mine: the work that its thread launched last.
        """
        last = self._last_ended(stop, start)
        if mine is not None and self._ends[mine] <= stop:
            caused = start <= self._ends[mine] and stop - self._ends[mine] <= _AHEAD_NS
            if caused or last is None or self._ends[last] < start:
                return [mine]
        return [] if last is None else [last]

    def _last_ended(self, stop: int, launched_by: int) -> int | None:
        """The work that ended last before `stop`, of what was launched before the call."""
        place = bisect_right(self._sorted_ends, stop) - 1
        for position in range(place, max(-1, place - _LOOK_BACK), -1):
            work = self._by_end[position]
            if 0 <= self._launched[work] <= launched_by:
                return work
        return None

    def _window(self) -> None:
        if self._marked is None:
            everything = [*self._works, *self._hosts]
            first = min(everything, key=lambda nodes: self._graph.times[nodes[0]])
            self._graph.begins.append(first[0])
            self._graph.ends.append([node for _, node in everything])
            return
        begin, end = self._marked
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


_QUEUED_NS = 200_000


def add_cpu_rank(graph: Graph, timeline: Timeline, offset_ns: int) -> dict[int, tuple[int, int]]:
    """Add one rank's moments and dependencies, all but what its collectives take.

    Returns:
        begin and end node of each row of `timeline.collectives`.
    """
    named, talks = _computing(timeline), _talking(timeline)
    spans = [(start, end) for start, end, _ in named]
    hosts, works = _nodes(graph, spans, offset_ns), _nodes(graph, talks, offset_ns)
    before, spoken = Before(spans), Before(talks)

    def waited(moment: int, idle_from: int) -> Candidates:
        """The communication whose end the host waited for."""
        last = spoken.of(moment, len(talks))
        if last is None:
            return []
        idle, after = talks[last][1] - idle_from, moment - talks[last][1]
        return [(works[last][1], 0.0, HOST)] if idle > _QUEUED_NS and after <= max(_QUEUED_NS, idle // 2) else []

    for number, (start, end, name) in enumerate(named):
        previous = before.of(start, number)
        if previous is not None:
            others = waited(start, spans[previous][1])
            graph.follow(hosts[number][0], [(hosts[previous][1], 0.0, HOST), *others])
        graph.edge(hosts[number][0], hosts[number][1], end - start, COMPUTE, graph.label(name))
    moments = sorted([(span[side], nodes[side]) for span, nodes in zip(spans, hosts, strict=True) for side in (0, 1)])
    keys = [moment for moment, _ in moments]
    for number, (start, _) in enumerate(talks):
        previous = spoken.of(start, number)
        place = bisect_right(keys, start)
        if previous is not None and start - talks[previous][1] <= _QUEUED_NS:
            graph.follow(works[number][0], [(works[previous][1], 0.0, HOST)])
        elif place:
            graph.follow(works[number][0], [(moments[place - 1][1], 0.0, HOST)])
    marked = marks(graph, timeline.steps, spans, hosts, offset_ns, waited)
    if marked is not None:
        graph.begins.append(marked[0])
        graph.ends.append([marked[1]])
        return dict(enumerate(works))
    everything = [*hosts, *works] or [(graph.node(0), graph.node(0))]
    graph.begins.append(min((nodes[0] for nodes in everything), key=graph.times.__getitem__))
    graph.ends.append([end for _, end in everything])
    return dict(enumerate(works))


def _computing(timeline: Timeline) -> list[tuple[int, int, str]]:
    operators = timeline.operators[timeline.operators["outermost"]]
    operators = operators[~is_communication(operators)] if len(operators) else operators
    names = map(str, operators["name"].tolist())
    return sorted(zip(operators["start"].tolist(), operators["end"].tolist(), names, strict=True))


def _talking(timeline: Timeline) -> Spans:
    return list(zip(timeline.collectives["start"].tolist(), timeline.collectives["end"].tolist(), strict=True))


def _nodes(graph: Graph, spans: Spans, offset: int) -> Nodes:
    return [(graph.node(start - offset), graph.node(end - offset)) for start, end in spans]
