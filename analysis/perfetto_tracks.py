"""What a rank did at any time, as tables of slices: tracks beside those of the profiler."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from analysis.metrics.intervals import Intervals, clipped, difference, merged
from analysis.metrics.phases import PHASES
from analysis.metrics.range_tree import PREFIX
from analysis.metrics.temporal import work_sets, work_window
from analysis.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd


def derived_tracks(timeline: Timeline) -> Iterator[tuple[str, "pd.DataFrame"]]:
    """Yield (title, table) of the tracks that have a slice; tables have name, start, end, ns.

    "communication" has a slice per collective, with bytes and group; the others are unions of intervals as
    metrics.temporal defines them. Exposed communication is communication less computation, idle the window of the steps
    (of the work where no step is marked) less all work.
    """
    phases = timeline.ranges[timeline.ranges["name"].isin([PREFIX + phase for phase in PHASES])]
    if len(phases):
        yield "phases", phases.assign(name=[str(name).removeprefix(PREFIX) for name in phases["name"]])
    sets = work_sets(timeline)
    yield from _track("computation", sets.compute)
    if len(timeline.collectives):
        yield "communication", timeline.collectives.assign(name=timeline.collectives["collective"])
    else:
        yield from _track("communication", sets.communication)
    yield from _track("exposed communication", difference(sets.communication, sets.compute))
    yield from _track("copies", sets.memory)
    window = work_window(timeline, sets)
    if window is not None:
        yield from _track("idle", difference(merged([window[0]], [window[1]]), clipped(sets.busy, *window)))


def _track(title: str, intervals: Intervals) -> Iterator[tuple[str, "pd.DataFrame"]]:
    import pandas as pd

    if len(intervals):
        yield title, pd.DataFrame({"name": title, "start": intervals[:, 0], "end": intervals[:, 1]})
