"""What changed between two traces: time and calls per kernel name or family, per step of a rank.

Sums over all ranks of a side are divided by its number of steps (ranks times marked steps), so that traces of different
length and number of ranks compare. Where a side has no marked step, both sides are divided by their traces (ranks), and
`per` says so. Without GPU work on either side, operators with their own time (less what they called) are compared.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from analysis.metrics.kernel_tables import kernel_rows
from analysis.metrics.operator_tables import operator_rows
from analysis.timeline import Timeline, empty
from common.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

By = Literal["name", "family"]
COLUMNS = (
    "change",
    "calls_before",
    "calls_after",
    "before_ms",
    "after_ms",
    "delta_ms",
    "ratio",
    "change_share",
    "per",
)


def trace_diff(before: Sequence[Timeline], after: Sequence[Timeline], by: By = "name") -> "pd.DataFrame":
    """Return one row per kernel name or family, the largest change of time first, whichever its sign.

    Columns: name (with by="name"), family, change (added | removed | slower | faster | same), calls_before, calls_after
    (per step or trace), before_ms, after_ms, delta_ms (after less before), ratio (after / before, missing for added
    ones), change_share (of the sum of all absolute changes), per ("step" or "trace").

    Args:
        before: one timeline per rank of the first trace.
        after: those of the second.
        by: what a row is.

    Raises:
        InputError: one side has GPU work and the other has none, or a side holds nothing to compare.
    """
    import pandas as pd

    on_gpu = [any(len(timeline.kernels) for timeline in side) for side in (before, after)]
    if on_gpu[0] != on_gpu[1]:
        raise InputError(
            "run-mismatch",
            f"the {'second' if on_gpu[0] else 'first'} trace has no GPU work and the other has: times of kernels and "
            "of operators do not compare; record both on the same kind of device",
        )
    keys = ["name", "family"] if by == "name" else ["family"]
    tables = [_work(side, on_gpu[0], keys) for side in (before, after)]
    for side, table in zip(("first", "second"), tables, strict=True):
        if not len(table):
            raise InputError(
                "trace-without-work",
                f"the {side} trace holds no kernel and no operator in its steps: nothing to compare",
            )
    stepped = all(len(timeline.steps) for side in (before, after) for timeline in side)
    units = [sum(len(timeline.steps) for timeline in side) if stepped else len(side) for side in (before, after)]
    joined = pd.merge(tables[0], tables[1], on=keys, how="outer", suffixes=("_before", "_after")).fillna(0)
    found = joined[keys].copy()
    for place, number in zip(("before", "after"), units, strict=True):
        found[f"calls_{place}"] = joined[f"calls_{place}"] / number
    for place, number in zip(("before", "after"), units, strict=True):
        found[f"{place}_ms"] = joined[f"ns_{place}"] / 1e6 / number
    old, new = found["before_ms"], found["after_ms"]
    found["delta_ms"] = new - old
    found["ratio"] = np.where(old > 0, new / old.where(old > 0, 1.0), np.nan)
    total = float(found["delta_ms"].abs().sum())
    found["change_share"] = found["delta_ms"].abs() / total if total else 0.0
    found["per"] = "step" if stepped else "trace"
    found.insert(len(keys), "change", _change(found))
    order = found["delta_ms"].abs().sort_values(ascending=False, kind="stable").index
    return found.loc[order, [*keys, *COLUMNS]].reset_index(drop=True)


def _change(found: "pd.DataFrame") -> list[str]:
    columns = ("calls_before", "calls_after", "delta_ms")
    words = []
    for had, has, delta in zip(*(found[name].tolist() for name in columns), strict=True):
        moved = "slower" if delta > 0 else "faster" if delta < 0 else "same"
        words.append("added" if not had else "removed" if not has else moved)
    return words


def _work(side: Sequence[Timeline], on_gpu: bool, keys: list[str]) -> "pd.DataFrame":
    """Calls and whole nanoseconds by key, over all ranks of one side."""
    import pandas as pd

    parts = []
    for timeline in side:
        if on_gpu:
            rows = kernel_rows(timeline)
            parts.append(rows[["name", "family", "calls"]].assign(ns=(rows["total_ms"] * 1e6).round().astype("int64")))
        else:
            parts.append(operator_rows(timeline).rename(columns={"self_ns": "ns"}))
    joined = pd.concat(parts) if parts else empty({"name": "str", "family": "str", "calls": "int64", "ns": "int64"})
    return joined.groupby(keys, sort=False)[["calls", "ns"]].sum().reset_index()
