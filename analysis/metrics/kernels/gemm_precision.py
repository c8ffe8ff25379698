"""The data types of a trace's GEMMs by time, for advice on precision."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.metrics.kernels.modules import launched_in
from analysis.metrics.time.window import in_window
from analysis.names import PRECISIONS, family, precision
from analysis.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.int64]

_UNKNOWN = PRECISIONS.index("")


def gemm_time_by_precision(timelines: Sequence[Timeline]) -> dict[str, int]:
    """Return the ns of the window's GEMMs by type (of names.PRECISIONS), most time first.

    A kernel's name decides; where it does not tell, the input types of the operator that launched it, if the trace has
    those. On a trace without GPU work, the operators' own time by their inputs' types.
    """
    sums = np.zeros(len(PRECISIONS), dtype=np.int64)
    for timeline in timelines:
        places, lengths = _of_kernels(timeline) if len(timeline.kernels) else _of_operators(timeline)
        np.add.at(sums, places, lengths)
    return {PRECISIONS[place]: int(sums[place]) for place in np.argsort(-sums, kind="stable") if sums[place]}


def fp32_share(timelines: Sequence[Timeline]) -> float:
    """Return the share of the GEMMs' time that runs in fp32, by what names and shapes tell; 0 where nothing does."""
    times = gemm_time_by_precision(timelines)
    total = sum(times.values())
    return times.get("fp32", 0) / total if total else 0.0


def _of_kernels(timeline: Timeline) -> tuple[Numbers, Numbers]:
    """The place in PRECISIONS and the ns of each product of the window."""
    work, operators = timeline.work, timeline.operators
    kept, _ = in_window(timeline)
    rows = np.flatnonzero(kept & work.is_kind("kernel") & work.is_named(_multiplies))
    told = np.array([PRECISIONS.index(precision(name)) for name in work.names], dtype=np.int64)
    places = told[work.name[rows]]
    unknown = np.flatnonzero(places == _UNKNOWN)
    if len(unknown) and "precision" in operators.columns:
        known = operators[(operators["precision"] != "").to_numpy()]
        owner = launched_in(timeline, known, rows[unknown])
        places[unknown[owner >= 0]] = _places(known)[owner[owner >= 0]]
    return places, (work.end - work.start)[rows]


def _of_operators(timeline: Timeline) -> tuple[Numbers, Numbers]:
    table = timeline.operators
    if len(table):
        table = table[timeline.inside(table["start"].to_numpy(dtype=np.int64))]
    table = table[table["name"].isin([name for name in table["name"].unique() if _multiplies(str(name))])]
    return _places(table), table["self_ns"].to_numpy(dtype=np.int64)


def _places(operators: "pd.DataFrame") -> Numbers:
    if "precision" not in operators.columns:
        return np.full(len(operators), _UNKNOWN, dtype=np.int64)
    return np.array([PRECISIONS.index(label) for label in operators["precision"].astype(str)], dtype=np.int64)


def _multiplies(name: str) -> bool:
    return family(name) == "GEMM"
