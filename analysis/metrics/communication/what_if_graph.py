"""The dependency graph of a trace over all ranks: the order of events and the least time between them.

Nodes are the begins and ends of host calls and of pieces of work. An edge gives the least time from one to another.
A node may happen later than its dependencies require (Python between two calls, a slow launch): that extra time is
added to the edge that held it up, or, where it is too long, to each of its edges. Replaying the unchanged graph
therefore reproduces the trace, except for collectives, which end on all ranks one transfer time after the last begins.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.spans import Intervals, inside_ns

if TYPE_CHECKING:
    import pandas as pd

Spans = list[tuple[int, int]]
"""Starts and ends, ns."""
Nodes = list[tuple[int, int]]
"""Begin and end node of each of a list of spans."""
Candidates = list[tuple[int, float, int]]
"""Dependencies of a node: node, least time after it in ns, kind of edge."""
Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

HOST, COMPUTE, TRANSFER, GAP, LAUNCH = range(5)
EDGE_KINDS = ("host", "computation", "communication", "unexplained gap", "launch latency")
"""What an edge spends its time on."""

_LATENCY_NS = 20_000
"""Delay of work after its dependencies from which on the delay counts as unexplained."""
_SLOW_LAUNCH_NS = 100_000
_ROUNDED_NS = 1_000


@dataclass(slots=True)
class Graph:
    """The graph while it is built."""

    times: list[int] = field(default_factory=list)
    """Traced moment of each node, ns of the first rank's clock."""
    sources: list[int] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    transfers: list[float] = field(default_factory=list)
    """Part of an edge that is a collective's transfer, ns; 0 for other edges."""
    volumes: list[float] = field(default_factory=list)
    """Bytes of it times the collective's bus factor; NaN unknown."""
    members: list[int] = field(default_factory=list)
    """Ranks in the group of such a collective; 0 unknown and for other edges."""
    foreign: list[bool] = field(default_factory=list)
    """Whether an edge waits for all ranks."""
    labels: list[int] = field(default_factory=list)
    """What an edge is the own time of, by its number in `names`: a kernel or operator, the call that launches a kernel,
    a collective; -1 for other edges."""
    names: dict[str, int] = field(default_factory=dict)
    """Number of each name."""
    paced: list[bool] = field(default_factory=list)
    """Whether an edge is the host's own time in its rank's window; of the ranks that are complete."""
    loading: list[int] = field(default_factory=list)
    """What of that time the host loads data or waits for it, ns."""
    begins: list[int] = field(default_factory=list)
    """Node of each rank at which its window begins."""
    ends: list[list[int]] = field(default_factory=list)
    """Nodes of each rank of which the last ends its window."""
    contradicted: int = 0
    """Number of dependencies that contradict the trace and were left out."""

    def node(self, time: int) -> int:
        """Add a moment and return its number."""
        self.times.append(time)
        return len(self.times) - 1

    def label(self, name: str) -> int:
        """Return the number of a name."""
        return self.names.setdefault(name, len(self.names))

    def edge(self, source: int, target: int, weight: float, kind: int, label: int = -1) -> None:
        """Let `target` be at least `weight` ns after `source`, which may not be later in the trace."""
        self._add(source, target, weight, kind, label)

    def transfer(
        self, source: int, target: int, length: float, volume: float, foreign: bool, label: int, members: int
    ) -> None:
        """Let a collective end its transfer time after `source`: its own begin or, `foreign`, that of the last rank."""
        self._add(source, target, 0.0, TRANSFER, label, (length, volume, foreign, members))

    def rank_is_complete(self, loading: Intervals) -> None:
        """Find out which of the edges added since the last call are the host's own time in the rank's window.

        Args:
            loading: when the host loads data or waits for it, a set of spans on the first rank's clock.
        """
        begin = self.times[self.begins[-1]]
        new = range(len(self.paced), len(self.sources))
        self.paced += [self.kinds[edge] == HOST and self.times[self.targets[edge]] > begin for edge in new]
        starts = [self.times[self.sources[edge]] for edge in new]
        inside = inside_ns(loading, starts, [self.times[self.targets[edge]] for edge in new]).tolist()
        self.loading += [part if self.paced[edge] else 0 for edge, part in zip(new, inside, strict=True)]

    def follow(self, target: int, candidates: Sequence[tuple[int, float, int]], label: int = -1) -> None:
        """Let `target` come after all candidates (source, least distance, kind), as late as it is in the trace.

        `label` is that of the first candidate's edge.

        What it is later than all of them was caused by the last one (a launch that took longer than the least latency).
        Work that is much later waited for something that is not known: that is kept, whichever comes last in a replay.
        Launches alone are slow at times.
        """
        usable = [item for item in candidates if self.times[item[0]] <= self.times[target]]
        self.contradicted += len(candidates) - len(usable)
        if not usable:
            return
        # In whole ns: nanoseconds since 1970 have more digits than a float.
        reached = max(self.times[source] + int(weight) for source, weight, _ in usable)
        lag = self.times[target] - reached
        unexplained = lag > _LATENCY_NS
        last = {kind for source, weight, kind in usable if self.times[source] + int(weight) == reached}
        everywhere = unexplained and (lag > _SLOW_LAUNCH_NS or last != {LAUNCH})
        for source, weight, kind in usable:
            late = lag if everywhere or self.times[source] + int(weight) == reached else 0
            # The host's own pace is known; a kernel that starts long after all it waits for is not explained.
            of = label if source == candidates[0][0] else -1
            self.edge(source, target, int(weight) + late, GAP if kind != HOST and late > _LATENCY_NS else kind, of)

    def _add(
        self,
        source: int,
        target: int,
        weight: float,
        kind: int,
        label: int,
        transfer: tuple[float, float, bool, int] = (0.0, float("nan"), False, 0),
    ) -> None:
        if self.times[source] > self.times[target]:
            self.contradicted += 1
            return
        self.sources.append(source)
        self.targets.append(target)
        self.weights.append(weight)
        self.kinds.append(kind)
        self.labels.append(label)
        for column, value in zip((self.transfers, self.volumes, self.foreign, self.members), transfer, strict=True):
            column.append(value)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Dependencies:
    """A finished graph: arrays by edge, sorted by target, and the nodes in topological order."""

    times: Floats
    order: list[int]
    offsets: list[int]
    """Edges of node n are offsets[n] to offsets[n + 1]."""
    sources: list[int]
    weights: Floats
    kinds: Numbers
    transfers: Floats
    volumes: Floats
    members: Numbers
    foreign: npt.NDArray[np.bool_]
    labels: Numbers
    names: tuple[str, ...]
    paced: npt.NDArray[np.bool_]
    loading: Numbers
    begins: tuple[int, ...]
    ends: tuple[tuple[int, ...], ...]

    def replay(self, weights: Floats) -> tuple[list[float], list[int]]:
        """Return when every node happens, ns, and the edge that held it up last (-1 for none).

        Args:
            weights: one per edge, ns; -inf leaves an edge out.
        """
        moments: list[float] = self.times.tolist()
        held = [-1] * len(moments)
        offsets, sources, lengths = self.offsets, self.sources, weights.tolist()
        for node in self.order:
            first, last = offsets[node], offsets[node + 1]
            if first == last:
                continue
            latest, by = float("-inf"), -1
            for edge in range(first, last):
                moment = moments[sources[edge]] + lengths[edge]
                if moment > latest:
                    latest, by = moment, edge
            if by >= 0:
                moments[node], held[node] = latest, by
        return moments, held

    def critical_path(self, node: int, held: Sequence[int], weights: Floats) -> dict[str, float]:
        """Return the time along the chain that held up a node, ns by EDGE_KINDS."""
        spent = dict.fromkeys(EDGE_KINDS, 0.0)
        while held[node] >= 0:
            edge = held[node]
            spent[EDGE_KINDS[int(self.kinds[edge])]] += float(weights[edge])
            node = self.sources[edge]
        return spent


def finished(graph: Graph) -> Dependencies:
    """Return the graph ready to be replayed. Edges that close a cycle (all at one moment) are left out."""
    count = len(graph.times)
    later = len(graph.sources) - len(graph.paced)  # collectives
    targets, sources = np.array(graph.targets, dtype=np.int64), np.array(graph.sources, dtype=np.int64)
    order, kept = _order(count, sources, targets)
    chosen = np.flatnonzero(kept)
    chosen = chosen[np.argsort(targets[chosen], kind="stable")]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(targets[chosen], minlength=count))])
    return Dependencies(
        times=_from_the_first(graph.times),
        order=order,
        offsets=offsets.tolist(),
        sources=sources[chosen].tolist(),
        weights=np.array(graph.weights, dtype=np.float64)[chosen],
        kinds=np.array(graph.kinds, dtype=np.int64)[chosen],
        transfers=np.array(graph.transfers, dtype=np.float64)[chosen],
        volumes=np.array(graph.volumes, dtype=np.float64)[chosen],
        members=np.array(graph.members, dtype=np.int64)[chosen],
        foreign=np.array(graph.foreign, dtype=bool)[chosen],
        labels=np.array(graph.labels, dtype=np.int64)[chosen],
        names=tuple(graph.names),
        paced=np.array(graph.paced + [False] * later, dtype=bool)[chosen],
        loading=np.array(graph.loading + [0] * later, dtype=np.int64)[chosen],
        begins=tuple(graph.begins),
        ends=tuple(map(tuple, graph.ends)),
    )


def _from_the_first(times: list[int]) -> Floats:
    """Nanoseconds since 1970 have more digits than a float64."""
    first = min(times, default=0)
    return np.array([time - first for time in times], dtype=np.float64)


def _order(count: int, sources: Numbers, targets: Numbers) -> tuple[list[int], npt.NDArray[np.bool_]]:
    """Kahn's algorithm; linear in nodes and edges."""
    waiting = np.bincount(targets, minlength=count).tolist()
    by_source = np.argsort(sources, kind="stable")
    offsets = np.concatenate([[0], np.cumsum(np.bincount(sources, minlength=count))]).tolist()
    following = targets[by_source].tolist()
    order = [node for node in range(count) if not waiting[node]]
    for node in order:  # grows while it is walked
        for place in range(offsets[node], offsets[node + 1]):
            target = following[place]
            waiting[target] -= 1
            if not waiting[target]:
                order.append(target)
    kept = np.ones(len(targets), dtype=bool)
    if len(order) < count:
        seen = np.zeros(count, dtype=bool)
        seen[order] = True
        circled = np.flatnonzero(~seen)
        kept = seen[sources] | ~np.isin(targets, circled)
        order += circled.tolist()
    return order, kept


class Before:
    """Which of the spans, sorted by start, ended last before a moment."""

    def __init__(self, spans: Spans) -> None:
        self._order = sorted(range(len(spans)), key=lambda number: spans[number][1])
        self._ends = [spans[number][1] for number in self._order]

    def of(self, moment: int, below: int) -> int | None:
        """Return the number, lower than `below`, of that span; None for none."""
        place = bisect_right(self._ends, moment) - 1
        while place >= 0 and self._order[place] >= below:
            place -= 1
        return self._order[place] if place >= 0 else None


def marks(
    graph: Graph,
    steps: "pd.DataFrame",
    calls: Spans,
    nodes: Nodes,
    offset: int,
    waited: Callable[[int, int], Candidates] | None = None,
) -> tuple[int, int] | None:
    """Add the first step's start and the last one's end as moments of the host; None where no step is marked.

    Args:
        graph: what they are added to.
        steps: the marked steps of a timeline.
        calls: what the host did, sorted by start.
        nodes: its moments in the graph.
        offset: what the rank's clock is ahead, ns.
        waited: what else the host waited for before a moment, idle since another one.
    """
    if not len(steps):
        return None
    before = Before(calls)
    found = []
    for moment in (int(steps["start"].min()), int(steps["end"].max())):
        # A step whose times are rounded may end just before the last call in it.
        late = before.of(moment + _ROUNDED_NS, len(calls))
        moment = moment if late is None or calls[late][0] >= moment else max(moment, calls[late][1])
        node = graph.node(moment - offset)
        previous = before.of(moment, len(calls))
        if previous is not None:
            others = waited(moment, calls[previous][1]) if waited else []
            graph.follow(node, [(nodes[previous][1], 0.0, HOST), *others])
        found.append(node)
    return found[0], found[1]
