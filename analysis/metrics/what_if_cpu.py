"""Reads the dependencies of one rank without a GPU out of its trace, into a graph (what_if_graph).

  - the outermost operators that compute are the host, in order of time over all threads
  - a span of communication after the operator in or after which it began, or, when it began within 200 us of the end
    of another one, after that (it was queued)
  - an operator that begins after the host was idle for more than 200 us until a span of communication ended waits for
    that

That communication takes cores from computation is not modelled: an operator keeps its length.
"""

from bisect import bisect_right

from analysis.metrics.kernel_tables import is_communication
from analysis.metrics.what_if_graph import COMPUTE, HOST, Before, Candidates, Graph, Nodes, Spans, marks
from analysis.timeline import Timeline

_QUEUED_NS = 200_000


def add_cpu_rank(graph: Graph, timeline: Timeline, offset_ns: int) -> dict[int, tuple[int, int]]:
    """Add one rank's moments and dependencies, all but what its collectives take.

    Returns:
        begin and end node of each row of `timeline.collectives`.
    """
    spans, talks = _computing(timeline), _talking(timeline)
    hosts, works = _nodes(graph, spans, offset_ns), _nodes(graph, talks, offset_ns)
    before, spoken = Before(spans), Before(talks)

    def waited(moment: int, idle_from: int) -> Candidates:
        """The communication whose end the host waited for."""
        last = spoken.of(moment, len(talks))
        if last is None:
            return []
        idle, after = talks[last][1] - idle_from, moment - talks[last][1]
        return [(works[last][1], 0.0, HOST)] if idle > _QUEUED_NS and after <= max(_QUEUED_NS, idle // 2) else []

    for number, (start, end) in enumerate(spans):
        previous = before.of(start, number)
        if previous is not None:
            others = waited(start, spans[previous][1])
            graph.follow(hosts[number][0], [(hosts[previous][1], 0.0, HOST), *others])
        graph.edge(hosts[number][0], hosts[number][1], end - start, COMPUTE)
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


def _computing(timeline: Timeline) -> Spans:
    operators = timeline.operators[timeline.operators["outermost"]]
    operators = operators[~is_communication(operators)] if len(operators) else operators
    return sorted(zip(operators["start"].tolist(), operators["end"].tolist(), strict=True))


def _talking(timeline: Timeline) -> Spans:
    return list(zip(timeline.collectives["start"].tolist(), timeline.collectives["end"].tolist(), strict=True))


def _nodes(graph: Graph, spans: Spans, offset: int) -> Nodes:
    return [(graph.node(start - offset), graph.node(end - offset)) for start, end in spans]
