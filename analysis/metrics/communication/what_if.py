"""What if communication were free, slower or faster: the trace replayed with other transfer times.

Scaling durations answers another question: a wait for a straggler does not vanish with the transfer, communication that
computation hides costs nothing, and without it the host may be what is slow. So the dependencies are read out of the
traces (what_if_events), every collective begins when its last rank arrives and ends on all ranks its
transfer time later, and all times are recomputed with that time changed.

The replay without a change is compared with the trace. That shows whether the collectives are understood, and nothing
about a scenario: how far those are off is measured on generated traces, whose program runs again with the change
(tests/unit/analysis/test_what_if.py).

The method is Daydream's (Zhu et al., USENIX ATC 2020, "Daydream: Accurately Estimating the Efficacy of Optimizations
for DNN Training").
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.metrics.communication.matching import Matching
from analysis.metrics.communication.what_if_events import add_cpu_rank, add_gpu_rank, at_once
from analysis.metrics.communication.what_if_graph import (
    COMPUTE,
    HOST,
    TRANSFER,
    Dependencies,
    Floats,
    Graph,
    finished,
)
from analysis.metrics.time.idle import data_spans
from analysis.names import bus_factor, is_like
from analysis.timeline import Timeline, empty, typed
from analysis.wording import percent
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


LARGEST_ERROR = 0.05
"""Error of the unchanged replay from which on it says that it is not to be relied on."""
SCENARIO_ERROR, WORST_ERROR = 0.01, 0.1
"""Largest error of 95 %, and of all, replays of generated traces whose true time is known."""
MOST_SLOWER = 2.0
"""Slowest transfers, relative to the trace's, for which these errors were measured."""
_SELDOM = 0.05
_NAME = 120
MOST_WORK = 200_000
"""Most kernels and operators of all ranks that are replayed."""

WHAT_IF_COLUMNS = {
    "scenario": "str",
    "rank": "Int64",
    "window_ms": "float64",
    "replayed_ms": "float64",
    "saved_ms": "float64",
    "saved_share": "float64",
    "speedup": "float64",
    "expected_error_share": "float64",
    "critical_path": "str",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """A change that is replayed."""

    name: str
    transfer_factor: float = 1.0
    """Transfer times are multiplied with it: 0 free, 2 half as fast."""
    busbw_gb_s: float | None = None
    """Bus bandwidth at which collectives of known size and group run instead; None keeps their times."""
    waits: bool = True
    """Whether ranks wait for each other; without, each replays alone, as if all arrived at once."""
    host: bool = True
    """Whether the host takes time: launches, Python, loading of data. It waits for the GPU in any case."""
    data: bool = True
    """Whether the host takes time to load data or wait for it."""
    kernels: str | None = None
    """Kernels (of a CPU trace, operators) whose name contains this, whatever its case, take `kernel_factor` times as
    long, and their launches no time where that is 0; * stands for any text."""
    kernel_factor: float = 1.0
    ranks: int | None = None
    """Number of ranks; each does the work that it does in the trace, and collectives of all ranks have the bus
    bandwidth that they have there."""

    @property
    def of_communication(self) -> bool:
        """Whether it changes nothing but communication."""
        return self.host and self.data and self.kernels is None


AS_TRACED = Scenario(name="as traced")
NO_HOST = Scenario(name="no host time", host=False)
NO_DATA = Scenario(name="no data loading", data=False)
SCENARIOS = (
    AS_TRACED,
    Scenario(name="free", transfer_factor=0.0),
    Scenario(name="half as fast", transfer_factor=2.0),
    Scenario(name="twice as fast", transfer_factor=0.5),
    Scenario(name="no waiting for other ranks", waits=False),
    Scenario(name="free, and no waiting", transfer_factor=0.0, waits=False),
    NO_HOST,
)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The results of the replays."""

    table: "pd.DataFrame"
    """WHAT_IF_COLUMNS, one row per scenario and rank. window_ms is the traced time from the first marked step's start
    to the end of the last one and of the work launched in it; saved_ms = replayed_ms of "as traced" - replayed_ms;
    expected_error_share is SCENARIO_ERROR for traces and changes like those that it was measured with, NaN for others;
    critical_path names what most of the chain that holds up the rank is spent with."""
    error: float | None
    """|replayed - traced| / traced of the unchanged replay, the largest over ranks; None without a replay."""
    problems: tuple[str, ...] = ()
    """Limits of the results, one sentence each."""
    outside: str = ""
    """Why SCENARIO_ERROR says nothing about this trace: it is unlike the generated ones; "" where it is like them."""
    limits: dict[str, float] = field(default_factory=dict)
    """Share of the slowest rank's time that is saved at most, by what takes no time then: "communication" (transfer),
    "host", and with several ranks "waiting" (for ranks that are late)."""
    paths_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    """Critical path of the slowest rank by scenario: ms by what_if_graph.EDGE_KINDS."""

    def slowest(self) -> "pd.DataFrame":
        """Return the row of the slowest rank of each scenario: a step takes as long as its slowest rank.

        What is saved is against the slowest rank as traced, which may be another one.
        """
        order = self.table.groupby("scenario", sort=False)["replayed_ms"].idxmax()
        rows = self.table.loc[order].reset_index(drop=True)
        unchanged = rows["replayed_ms"].where(rows["scenario"] == AS_TRACED.name).max()
        rows["saved_ms"] = unchanged - rows["replayed_ms"]
        rows["saved_share"] = rows["saved_ms"] / unchanged
        rows["speedup"] = unchanged / rows["replayed_ms"]
        return rows


def parse_scenario(text: str) -> Scenario:
    """Return the scenario that a word names.

    Args:
        text: "free", "half", "twice", "3x" (transfers times as fast), "100GB/s" (bus bandwidth), "nowait", "none"
            (free, and no waiting), "nohost" (the host takes no time), "nodata" (loading data takes none),
            "without:NAME" (kernels with this in their name are gone, and their launches), "kernel:NAME=2x" (they are so
            many times as fast), "ranks:4" (more ranks with the same work each).

    Raises:
        InputError: it names none.
    """
    words = {"free": 1, "half": 2, "twice": 3, "nowait": 4, "none": 5, "nohost": 6}
    given = text.strip()
    plain = given.lower()
    if plain in words:
        return SCENARIOS[words[plain]]
    if plain == "nodata":
        return NO_DATA
    kind, _, rest = given.partition(":")
    if kind.lower() == "ranks" and re.fullmatch(r"[1-9]\d{0,6}", rest):
        return Scenario(name=f"{int(rest)} rank{'s'[: int(rest) != 1]}", ranks=int(rest))
    if kind.lower() in ("kernel", "without") and rest:
        pattern, _, speed = (rest, "", "") if kind.lower() == "without" else rest.rpartition("=")
        times = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)\s*x", speed.strip().lower())
        if pattern.strip("* ") and (kind.lower() == "without" or (times and float(times[1]) > 0)):
            factor = 1 / float(times[1]) if times else 0.0
            name = f"{pattern} {1 / factor:g} times as fast" if times else f"without {pattern}"
            return Scenario(name=name, kernels=pattern, kernel_factor=factor)
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)\s*(x|gb/s)", plain)
    value = float(match[1]) if match else 0.0
    if match is None or value <= 0:
        raise InputError(
            "option-value",
            f"--what-if {text[:60]!r} is not a scenario: give free, half, twice, nowait, none, nohost, nodata, a "
            "speedup such as 3x, a bus bandwidth such as 100GB/s, kernels by a part of their name, such as "
            "without:gelu or kernel:gemm*bf16=2x, or ranks:N",
        )
    if match[2] == "x":
        return Scenario(name=f"{value:g} times as fast", transfer_factor=1 / value)
    return Scenario(name=f"bus bandwidth {value:g} GB/s", busbw_gb_s=value)


def what_if(
    timelines: Sequence[Timeline],
    matching: Matching,
    offsets_ns: Sequence[int],
    scenarios: Sequence[Scenario] = SCENARIOS,
) -> WhatIf:
    """Replay the traces of a run's ranks under each scenario.

    Args:
        timelines: what readers returned, one per rank.
        matching: of `match_collectives`.
        offsets_ns: what each clock is ahead of the first one's, of `clock_offsets`.
        scenarios: what to change; "as traced" is replayed in any case.

    Raises:
        InputError: a scenario changes kernels that are not in the traces, or the number of ranks of a trace of one.
    """
    refused = _refused(timelines)
    if refused:
        return WhatIf(empty(WHAT_IF_COLUMNS), None, (refused,))
    dependencies, problems = _dependencies(timelines, matching, offsets_ns)
    chosen = [AS_TRACED, *(scenario for scenario in scenarios if scenario.name != AS_TRACED.name)]
    if len(timelines) == 1:  # what it waited for is in the traces of the others
        chosen = [scenario for scenario in chosen if scenario.waits]
    traced = _windows(dependencies, dependencies.times.tolist())
    rows = []
    paths: dict[str, dict[str, float]] = {}
    base: list[float] = []
    outside = _outside(timelines, bool(problems))
    world = _world_size(timelines)
    for scenario in chosen:
        weights = _weights(dependencies, scenario, world)
        known = not outside and _is_validated(dependencies, scenario, world)
        moments, held = dependencies.replay(weights)
        windows = _windows(dependencies, moments)
        base = base or windows
        lasts = [max(ends, key=moments.__getitem__) for ends in dependencies.ends]
        ways = [dependencies.critical_path(node, held, weights) for node in lasts]
        slowest = max(range(len(windows)), key=windows.__getitem__)
        paths[scenario.name] = {kind: spent / 1e6 for kind, spent in ways[slowest].items()}
        for timeline, window, before, unchanged, way in zip(timelines, windows, traced, base, ways, strict=True):
            rows.append(
                {
                    "scenario": scenario.name,
                    "rank": timeline.rank,
                    "window_ms": before / 1e6,
                    "replayed_ms": window / 1e6,
                    "saved_ms": (unchanged - window) / 1e6,
                    "saved_share": 1 - window / unchanged if unchanged > 0 else None,
                    "speedup": unchanged / window if window > 0 else None,
                    "expected_error_share": SCENARIO_ERROR if known else None,
                    "critical_path": max(way, key=way.__getitem__),
                }
            )
    error = max((abs(now - then) / then for now, then in zip(base, traced, strict=True) if then > 0), default=math.nan)
    if error > LARGEST_ERROR:
        problems.append(
            f"the unchanged replay differs from the traced time by {percent(error)}: the trace does not show every "
            "dependency, so do not rely on these results"
        )
    gap, whole = paths[AS_TRACED.name]["unexplained gap"], sum(paths[AS_TRACED.name].values())
    if whole and gap / whole > LARGEST_ERROR:
        problems.append(
            f"{percent(gap / whole)} of the critical path is unexplained gaps before kernels, which are kept"
        )
    return WhatIf(
        table=typed(rows, WHAT_IF_COLUMNS),
        error=None if math.isnan(error) else error,
        problems=tuple(problems),
        outside=outside,
        limits=_limits(dependencies, max(base), len(timelines), world),
        paths_ms=paths,
    )


def _limits(dependencies: Dependencies, unchanged: float, ranks: int, world: int) -> dict[str, float]:
    """See WhatIf.limits."""
    found = {}
    for name, scenario in (("communication", SCENARIOS[1]), ("waiting", SCENARIOS[4]), ("host", NO_HOST)):
        if scenario.waits or ranks > 1:
            moments, _ = dependencies.replay(_weights(dependencies, scenario, world))
            found[name] = 1 - max(_windows(dependencies, moments)) / unchanged if unchanged > 0 else 0.0
    return found


def _outside(timelines: Sequence[Timeline], problems: bool) -> str:
    """See WhatIf.outside."""
    if not all(len(timeline.kernels) for timeline in timelines):
        return " (a CPU trace)"
    if problems:
        return ", for the reasons below"
    if ranks := _absent(timelines):
        return f" ({ranks})"
    if any((timeline.kernels["kind"] == "graph").any() for timeline in timelines):
        return " (CUDA graphs are recorded as one piece)"
    if any(at_once(timeline) > _SELDOM for timeline in timelines):
        return " (several threads launch at once)"
    return ""


def _world_size(timelines: Sequence[Timeline]) -> int:
    """Return the number of ranks, as far as the traces say."""
    sizes = [int(size) for timeline in timelines for size in timeline.collectives["group_size"].unique()]
    return max([*sizes, *(timeline.world_size or 0 for timeline in timelines)], default=0)


def _absent(timelines: Sequence[Timeline]) -> str:
    """Say which ranks the traces are missing of; "" where they are all there, as far as the traces say."""
    ranks = _world_size(timelines)
    return f"traces of {len(timelines)} of {ranks} ranks" if ranks > len(timelines) else ""


def _refused(timelines: Sequence[Timeline]) -> str:
    """Why there is nothing to replay, or ""."""
    work = sum(len(timeline.kernels) or len(timeline.operators) for timeline in timelines)
    if not work:
        return "no replay: the trace has neither kernels nor operators; record with --profiler torch or nsys"
    if work > MOST_WORK:
        return f"no replay of {work:,} kernels or operators (limit {MOST_WORK:,}): record fewer steps"
    count = sum(len(timeline.collectives) for timeline in timelines)
    if count and all(len(timeline.kernels) and (timeline.collectives["device"] < 0).all() for timeline in timelines):
        return (
            f"no replay: {count:,} of the collectives are host calls, not kernels, and the trace does not show what "
            "waits for them"
        )
    return ""


def _dependencies(
    timelines: Sequence[Timeline], matching: Matching, offsets_ns: Sequence[int]
) -> tuple[Dependencies, list[str]]:
    graph = Graph()
    nodes = []
    for timeline, offset in zip(timelines, offsets_ns, strict=True):
        nodes.append((add_gpu_rank if len(timeline.kernels) else add_cpu_rank)(graph, timeline, int(offset)))
        graph.rank_is_complete(data_spans(timeline) - int(offset))
    kinds = [[str(kind) for kind in timeline.collectives["collective"].tolist()] for timeline in timelines]
    sizes = [timeline.collectives["group_size"].tolist() for timeline in timelines]
    volumes = [_volumes(timeline) for timeline in timelines]
    joined: set[tuple[int, int]] = set()
    rows = matching.members[matching.members["transfer_ns"].notna()]
    columns = (rows[name].tolist() for name in ("match", "member", "index", "transfer_ns"))
    groups: dict[int, list[tuple[int, int, float]]] = {}
    for match, member, index, transfer in zip(*columns, strict=True):
        if index in nodes[member]:
            groups.setdefault(match, []).append((member, index, transfer))
    for group in groups.values():
        volume = max(volumes[member][index] for member, index, _ in group)
        members = max(len(group), *(int(sizes[member][index]) for member, index, _ in group))
        # One moment at which all are there: edges grow with the ranks, not with their square.
        begins = [nodes[member][index][0] for member, index, _ in group]
        arrived = graph.node(max(graph.times[begin] for begin in begins))
        for (member, index, transfer), begin in zip(group, begins, strict=True):
            joined.add((member, index))
            end = nodes[member][index][1]
            graph.edge(begin, arrived, 0.0, TRANSFER)
            label = graph.label(kinds[member][index])
            graph.transfer(arrived, end, transfer, volume, True, label, members)
            graph.transfer(begin, end, transfer, volume, False, label, members)
    alone = 0
    for member, own in enumerate(nodes):
        table = timelines[member].collectives
        lengths = (table["end"] - table["start"]).tolist()
        for index, (begin, end) in own.items():
            if (member, index) not in joined:
                label, members = graph.label(kinds[member][index]), max(0, int(sizes[member][index]))
                graph.transfer(begin, end, lengths[index], volumes[member][index], False, label, members)
                alone += 1
    problems = []
    lost = sum(len(timeline.collectives) for timeline in timelines) - sum(map(len, nodes))
    if lost:
        problems.append(f"{lost:,} of the collectives are host calls, not kernels: their time is not changed")
    if alone:
        problems.append(
            f"{alone:,} of the collectives have no partner on another rank or cannot be split: their whole time, "
            "waiting included, counts as transfer"
        )
    if any(len(timeline.kernels) and not len(timeline.api) for timeline in timelines):
        problems.append("a trace has no CUDA calls, so kernels that wait for the host are not seen")
    return finished(graph), problems


def _volumes(timeline: Timeline) -> list[float]:
    """Bytes times bus factor of each collective, NaN unknown."""
    columns = (timeline.collectives[name].tolist() for name in ("collective", "group_size", "bytes"))
    factors = ((bus_factor(str(kind), members), size) for kind, members, size in zip(*columns, strict=True))
    return [size * factor if factor and size > 0 else math.nan for factor, size in factors]


def _weights(dependencies: Dependencies, scenario: Scenario, world: int) -> Floats:
    transfers = dependencies.transfers * scenario.transfer_factor
    if scenario.busbw_gb_s is not None:
        known = (dependencies.transfers > 0) & np.isfinite(dependencies.volumes)
        transfers = np.where(known, dependencies.volumes / scenario.busbw_gb_s, transfers)
    if scenario.ranks is not None:
        transfers = transfers * _growth(dependencies, scenario.ranks, world)
    weights = dependencies.weights
    if not scenario.data:
        weights = np.maximum(weights - dependencies.loading, 0.0)
    if scenario.kernels is not None:
        changed = _matching(dependencies, scenario.kernels)
        launch = changed & (dependencies.kinds == HOST)
        weights = np.where(changed & (dependencies.kinds == COMPUTE), weights * scenario.kernel_factor, weights)
        weights = np.where(launch & (scenario.kernel_factor == 0), 0.0, weights)
    if not scenario.host:
        weights = np.where(dependencies.paced, 0.0, weights)
    weights = weights + transfers
    return weights if scenario.waits else np.where(dependencies.foreign, -np.inf, weights)


def _matching(dependencies: Dependencies, pattern: str) -> npt.NDArray[np.bool_]:
    """Return which edges are the own time of kernels with such a name, or of their launches."""
    kinds = (dependencies.kinds == COMPUTE) | (dependencies.kinds == HOST)
    present = set(dependencies.labels[dependencies.kinds == COMPUTE].tolist()) - {-1}
    wanted = f"*{pattern.casefold()}*"
    found = [number for number in present if is_like(dependencies.names[number].casefold(), wanted)]
    if not found:
        times = {number: float(dependencies.weights[dependencies.labels == number].sum()) for number in present}
        longest = sorted(present, key=times.__getitem__, reverse=True)
        names = list(dict.fromkeys(dependencies.names[number][:_NAME] for number in longest))[:3]
        raise InputError(
            "option-value",
            f"--what-if: no computation's name contains {pattern[:60]!r} (* stands for any text); the longest are "
            + ", ".join(names),
        )
    changed: npt.NDArray[np.bool_] = kinds & np.isin(dependencies.labels, found)
    return changed


def _growth(dependencies: Dependencies, ranks: int, world: int) -> Floats:
    """Return by how much each transfer takes longer with another number of ranks, at the same bus bandwidth.

    Collectives of all ranks grow, those of smaller groups do not.
    """
    if world < 2:
        raise InputError(
            "option-value",
            f"--what-if ranks:{ranks} needs the traces of 2 or more ranks, these are of {max(1, world)}: "
            "only their communication grows; profile a run on 2 or more",
        )
    factors = np.ones(len(dependencies.transfers))
    for number in set(dependencies.labels[dependencies.transfers > 0].tolist()) - {-1}:
        before = bus_factor(dependencies.names[number], world)
        after = bus_factor(dependencies.names[number], ranks) if ranks > 1 else 0.0
        if before and after is not None:
            whole = (dependencies.labels == number) & np.isin(dependencies.members, (0, world))
            factors[whole & (dependencies.transfers > 0)] = after / before
    return factors


def _is_validated(dependencies: Dependencies, scenario: Scenario, world: int) -> bool:
    """Whether changes as large as this one were replayed from generated traces."""
    if scenario.busbw_gb_s is not None:
        known = (dependencies.transfers > 0) & np.isfinite(dependencies.volumes)
        asked = (dependencies.volumes[known] / scenario.busbw_gb_s).sum()
        return bool(asked <= MOST_SLOWER * dependencies.transfers[known].sum())
    more = scenario.ranks is None or world - 1 <= scenario.ranks <= world + 1
    return more and scenario.transfer_factor <= MOST_SLOWER and scenario.kernel_factor <= 1


def _windows(dependencies: Dependencies, moments: Sequence[float]) -> list[float]:
    ends = (max(moments[node] for node in nodes) for nodes in dependencies.ends)
    return [end - moments[begin] for begin, end in zip(dependencies.begins, ends, strict=True)]
