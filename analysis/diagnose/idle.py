"""What the traces of a run say about idle time and the launch queue: tables, each with a sentence that agrees with the
other's on what the device waits for."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from analysis.diagnose.advice import LEAST, Advice, Context
from analysis.diagnose.finding import Finding
from analysis.diagnose.sentences import number, range_over_ranks
from analysis.metrics.time import launches as queue
from analysis.metrics.time.idle import CAUSES, IdleCauses, idle_frame
from analysis.metrics.time.idle_gaps import LARGEST, PAUSE, Spread, gap_frame
from analysis.timeline import MOSTLY, Timeline
from analysis.wording import percent

_LITTLE = 0.05
_MUCH = 0.25
_HALF = 0.5
_MOST_RANKS = 3
_WAITS = {
    "data_wait": "for data",
    "communication_wait": "for other ranks",
    "launch_bound": "for the CPU to launch work",
    "other": "for an unknown reason",
}
_TRY = {
    "data_wait": "use more loader workers, prefetching, or inputs that are prepared in advance",
    "communication_wait": "look for a straggler, or overlap or reduce the communication",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the idle time of all ranks together is, as shares of the ranks' windows."""

    idle: float
    start_up: float
    tear_down: float
    cause: str
    """Of the time between first and last kernel, the largest: one of idle.CAUSES, where "launch_bound" is that in short
    gaps, or "host_pause", launch-bound time in long ones (see idle_gaps)."""
    steady: float
    repeating: float
    launches: float
    """Repeating launch-bound time in short gaps: what fewer launches could save."""
    pauses: float
    data: float
    pausing: str
    """How many these are, and what the CPU did in them, in words."""
    few: str
    """How much the longest gaps are, in words."""
    fewer: str
    """What makes launches fewer: Context.fewer_launches."""


def diagnosis(rows: Sequence[IdleCauses], context: Context | None = None) -> Diagnosis:
    """Return what the idle time of these ranks is; there must be one with a window."""
    span = sum(row.span_ns for row in rows)
    spreads = [row.spread for row in rows if row.spread is not None]
    steady = {cause: sum(spread.steady_ns[cause] for spread in spreads) for cause in CAUSES}
    repeating = {cause: sum(spread.repeating_ns[cause] for spread in spreads) for cause in CAUSES}
    pauses = steady["launch_bound"] - sum(spread.short_ns for spread in spreads)
    steady["launch_bound"] -= pauses
    repeating["launch_bound"] = sum(spread.short_repeating_ns for spread in spreads)
    steady[PAUSE] = repeating[PAUSE] = pauses
    cause = max(steady, key=steady.__getitem__)
    return Diagnosis(
        idle=sum(row.idle_ns for row in rows) / span,
        start_up=sum(spread.start_up_ns for spread in spreads) / span,
        tear_down=sum(spread.tear_down_ns for spread in spreads) / span,
        cause=cause,
        steady=steady[cause] / span,
        repeating=repeating[cause] / span,
        launches=repeating["launch_bound"] / span,
        pauses=pauses / span,
        data=steady["data_wait"] / span,
        pausing=_pausing(spreads, pauses),
        few=_few(rows),
        fewer=(context or Context()).fewer_launches,
    )


def _few(rows: Sequence[IdleCauses]) -> str:
    spreads = [row.spread for row in rows if row.spread is not None]
    largest = [gap.length_ns for spread in spreads for gap in spread.largest]
    idle_ns = sum(row.idle_ns for row in rows)
    share = percent(sum(largest) / idle_ns) if idle_ns else "0.0 %"
    count = f"{sum(spread.gaps for spread in spreads):,}"
    if not rows[0].on_gpu:  # a CPU that communicates is busy, though nothing computes
        return f"the largest {len(largest)} of {count} times without computation make up {share}"
    return f"the largest {len(largest)} of {count} gaps make up {share} of all idle time"


def _pausing(spreads: Sequence[Spread], pauses_ns: int) -> str:
    count = sum(spread.pauses for spread in spreads)
    limits = sorted({spread.short_limit_ns for spread in spreads if spread.pauses})
    if not count:
        return ""
    longer = " to ".join(dict.fromkeys(number(limit / 1e3) for limit in (limits[0], limits[-1])))
    said = f"{count:,} gap{'s' if count > 1 else ''} longer than {longer} µs"
    names, times = dict[str, set[str]](), dict[str, int]()
    for spread in spreads:
        for name, length in spread.doing_ns.items():
            alike = re.sub(r"\d+", "n", name)  # "IO 190" and "IO 200" are one thing
            names.setdefault(alike, set()).add(name)
            times[alike] = times.get(alike, 0) + length
    most = max(times, key=times.__getitem__)
    if not most:
        return f"{said}, {'most of them ' if count > 1 else ''}without any CPU call in the trace"
    what = most if len(names[most]) > 1 else next(iter(names[most]))
    share = f"{number(times[most] / 1e6)} of {number(pauses_ns / 1e6)} ms"
    said = f"{said}, {share if times[most] >= _HALF * pauses_ns else f'the most, {share},'} in {what[:80]}"
    did = _mostly([spread.pause_activities_ns for spread in spreads])
    return f"{said}; {did}" if did else said


def _mostly(activities: Sequence[Mapping[str, int]]) -> str:
    """Name what the CPU did for a quarter of the time or more, with its shares; "" for nothing."""
    sums = Counter[str]()
    for one in activities:
        sums.update(one)
    named = [(what, ns / sums.total()) for what, ns in sums.most_common() if ns >= _MUCH * sums.total() > 0]
    return ", ".join(f"{what} {percent(share)}" for what, share in named)


def causes(rows: Sequence[IdleCauses], context: Context | None = None) -> Finding | None:
    """Return idle_causes: idle time by cause and rank."""
    if not rows:
        return None
    on_gpu = rows[0].on_gpu
    table = idle_frame(rows)
    if not on_gpu:  # a CPU launches nothing
        table = table[~table["cause"].isin(("launch_bound", PAUSE))].drop(columns="note").reset_index(drop=True)
    title = "Why the GPU is idle" if on_gpu else "Why the CPU does not compute"
    found = diagnosis(rows, context)
    return Finding("idle_causes", title, table, _why(rows, found), tuple(_advice(rows, found)) if on_gpu else ())


def _advice(rows: Sequence[IdleCauses], found: Diagnosis) -> Iterator[Advice]:
    """Yield what the idle time could save if its cause took none: its share of all ranks' time, an upper bound."""
    if found.launches >= LEAST and found.launches >= found.pauses:
        yield Advice(cause="host", seen=_launch_bound(rows), remedy=f"try {found.fewer}", saves=found.launches)
    elif found.pauses >= LEAST:
        seen = f"the CPU pauses without launching for {percent(found.pauses)} of the time ({found.pausing})"
        yield Advice(cause="host", seen=seen, remedy="find out what the CPU does in these gaps", saves=found.pauses)
    if found.data >= LEAST:
        seen = f"the GPU waits for data {percent(found.data)} of the time"
        yield Advice(cause="data", seen=seen, remedy=_TRY["data_wait"], saves=found.data)


def _launch_bound(rows: Sequence[IdleCauses]) -> str:
    """Name the ranks that wait for launches, with their shares of the time, most first; there is at least one rank."""
    shares = [(diagnosis([row]).launches, row.rank) for row in rows if row.span_ns]
    bound = sorted((one for one in shares if one[0] >= LEAST), key=lambda one: -one[0])
    if len(rows) == 1 or not bound or any(rank is None for _, rank in bound):
        share = diagnosis(rows).launches
        return f"the GPU is launch-bound: it waits for the CPU to launch work {percent(share)} of the time"
    if len(bound) == len(rows) > _MOST_RANKS:
        spread = f"{percent(bound[-1][0])} to {percent(bound[0][0])}"
        return f"all {len(rows)} ranks are launch-bound ({spread})"
    named, left = bound[:_MOST_RANKS], len(bound) - _MOST_RANKS
    words = [f"{rank}" for _, rank in named] + ([f"{left} more"] if left > 0 else [])
    ranks = words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
    said = f"rank{'s'[: len(words) > 1]} {ranks} {'are' if len(words) > 1 else 'is'} launch-bound"
    return f"{said} ({', '.join(percent(share) for share, _ in named)})"


def _why(rows: Sequence[IdleCauses], found: Diagnosis) -> str:
    on_gpu = rows[0].on_gpu
    said = f"The GPU is idle {percent(found.idle)} of the time"
    if not on_gpu:  # what communicates does not compute; the table of where the time goes counts it as busy
        said = f"The CPU does not compute {percent(found.idle)} of the time"
    said += range_over_ranks([row.idle_ns / row.span_ns for row in rows])
    if found.idle < _LITTLE:
        return f"{said}: little time is lost there."
    work, outer = "kernel" if on_gpu else "operator", found.start_up + found.tear_down
    said += f", {percent(found.start_up)} before the first {work} (start-up)" if found.start_up >= _LITTLE else ""
    said += f", {percent(found.tear_down)} after the last (tear-down)" if found.tear_down >= _LITTLE else ""
    if found.idle - outer < _LITTLE:
        return f"{said}: little in between; profile later or more steps."
    return f"{said}; {_cause(rows, found)}."


def _cause(rows: Sequence[IdleCauses], found: Diagnosis) -> str:
    if found.cause == PAUSE:
        said = f"for {percent(found.steady)} the CPU pauses without launching ({found.pausing}; {found.few})"
        if found.steady < _LITTLE:
            return f"{said}; no cause takes 5 %"
        said += ": find out what the CPU does in these gaps"
        if found.launches >= _LITTLE:
            return f"{said}; {percent(found.launches)} recurs in every step in shorter gaps: try {found.fewer}"
        return said
    recurs = found.repeating >= _HALF * found.steady
    # The row of the table is what recurs.
    share = found.repeating if found.cause == "launch_bound" and recurs else found.steady
    said = f"for {percent(share)} it waits {_waits(rows, found.cause)}"
    if found.cause == "other":
        said += f" ({rows[0].reason})" if rows[0].reason and rows[0].on_gpu else ""
    elif found.steady < _LITTLE:
        said += "; no cause takes 5 %"
    elif recurs:
        small = found.repeating < _LITTLE
        said += (
            f", {percent(found.repeating)} of that in every step: little to gain" if small else f": {_try(rows, found)}"
        )
    else:
        said += (
            f", most of it in gaps that do not recur in every step ({found.few}): find out what the CPU does in them"
        )
        if found.repeating >= _LITTLE:
            said += f"; {percent(found.repeating)} recurs in every step: {_try(rows, found)}"
    if found.pauses >= _LITTLE:
        said += f"; for {percent(found.pauses)} the CPU pauses ({found.pausing}): find out what it does then"
    if found.cause != "data_wait" and found.data >= _LITTLE:
        said += f"; for {percent(found.data)} it waits {_WAITS['data_wait']}: {_TRY['data_wait']}"
    if found.cause != "launch_bound" and found.launches >= _LITTLE:
        said += f"; for {percent(found.launches)}, in every step, it waits for launches: try {found.fewer}"
    return said


def _waits(rows: Sequence[IdleCauses], cause: str) -> str:
    """What is waited for. Whether a CPU in communication waits for other ranks does not show on one rank's trace."""
    alone = cause == "communication_wait" and len(rows) == 1
    return "in communication, for other ranks or for transfers" if alone else _WAITS[cause]


def _try(rows: Sequence[IdleCauses], found: Diagnosis) -> str:
    if found.cause == "launch_bound":
        return f"try {found.fewer}"
    alone = found.cause == "communication_wait" and len(rows) == 1
    return "overlap or reduce the communication" if alone else _TRY[found.cause]


def gaps(rows: Sequence[IdleCauses]) -> Finding | None:
    """Return idle_gaps: the longest idle times of each rank, where they are and what the CPU did."""
    named = [(row.rank, row.idle_ns, row.spread) for row in rows if row.spread is not None and row.spread.largest]
    if not named:
        return None
    what = "Largest idle gaps" if rows[0].on_gpu else "Longest times without computation"
    title = f"{what} (at most {LARGEST}{' of each rank' if len(named) > 1 else ''})"
    firsts = [(rank, spread.largest[0]) for rank, _, spread in named]
    rank, longest = max(firsts, key=lambda item: item[1].length_ns)
    where = [f"rank {rank}"] if len(rows) > 1 and rank is not None else []
    if longest.part != "steady":
        where.append(longest.part)
    elif longest.step is not None:
        where.append(f"step {longest.step}")
    where += [f"CPU in {longest.cpu}"] if longest.cpu else []
    said = f"{_few(rows).capitalize()}, the longest takes {number(longest.length_ns / 1e6)} ms"
    said += f" ({', '.join(where)})" if where else ""
    did = _mostly([gap.activities for _, _, spread in named for gap in spread.largest])
    said += f". What the CPU did in them: {did}" if did else ""
    return Finding("idle_gaps", title, gap_frame(named), f"{said}.")


def launches(
    timelines: Sequence[Timeline], idles: Sequence[IdleCauses], context: Context | None = None
) -> Finding | None:
    """Return launch_queue: how long work waits between its launch and its start."""
    import pandas as pd

    rows = [row for row in map(queue.launch_queue, timelines) if row is not None]
    if not rows:
        return None
    table = pd.DataFrame([dataclasses.asdict(row) for row in rows])
    table = table.astype({"rank": "Int64", "launches_per_step": "float64"})
    matched = sum(row.matched for row in rows)
    waited = sum(row.found_idle_share * row.matched for row in rows) / matched
    said = (
        f"{percent(waited)} of the kernels were launched onto an idle GPU, or started within {queue.SHORT_DELAY_US:g} "
        "µs of their launch"
    )
    found = diagnosis(idles, context) if idles else None
    empty = sum(row.empty_share * row.matched for row in rows) / matched
    known = matched >= MOSTLY * sum(row.kernels for row in rows)
    spreads = [row.spread for row in idles if row.spread is not None]
    span = sum(row.span_ns for row in idles)
    bound = sum(spread.steady_ns["launch_bound"] for spread in spreads) / span if span else 0.0
    if found is not None and found.launches >= _LITTLE and found.launches >= found.pauses:
        said += f": the GPU waits for the CPU, try {found.fewer}"
    elif found is not None and found.pauses >= _LITTLE:
        said += f": the GPU waits for the CPU{' rarely but for long' if waited <= _MUCH else ''}, {found.pausing}"
        said += f"; it also waits for every launch, try {found.fewer}" if found.launches >= _LITTLE else ""
    elif not known:
        said += f"; the launch calls of {matched:,} of {sum(row.kernels for row in rows):,} kernels are known"
    elif waited <= _MUCH and empty <= _HALF and bound < _LITTLE:
        said += ": the CPU runs ahead of the GPU most of the time, as it should"
    elif waited <= _MUCH:
        said += f", and the queue is empty {percent(empty)} of the time"
    elif found is None or found.idle < _LITTLE:
        said += ": the CPU just keeps up, and the GPU is hardly idle"
    else:
        said += ": the queue is short; see the table of idle causes"
    return Finding("launch_queue", "Launch queue", table, said + ".")
