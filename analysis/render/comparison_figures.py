"""Figures of comparisons of two runs and of two traces."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis import wording
from analysis.metrics.comparison.regression import Comparison
from analysis.metrics.comparison.traces import TraceComparison
from analysis.render.figure import Figure, band, bars, categories, curve, legend, rule

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Canvas

Row = Mapping[str, Any]

_MOST_ROWS = 40
"""Configurations, kinds of work or kernels of a figure."""
_COLOURS = {"regression": "vermilion", "slower": "orange", "no change": "blue", "quicker": "sky",
            "improvement": "green", "cannot decide": "grey"}  # fmt: skip
_LONGEST_PATH = 40
_FURTHEST = 1.6
"""Length of the axis relative to the largest change; intervals of few processes may be far longer."""


def runs_figures(comparison: Comparison) -> list[Figure]:
    """Return the change of the step time by configuration with intervals; no figure if nothing was measured."""
    rows = [row for row in sorted(comparison.rows, key=wording.order) if row["time_ratio"] is not None]
    if not rows:
        return []
    largest = sorted(rows, key=lambda row: -abs(row["time_ratio"] - 1))[:_MOST_ROWS]
    shown = [row for row in rows if row in largest]
    percent = 100 * comparison.threshold
    reach = _FURTHEST * max(percent, *(abs(_change(row["time_ratio"])) for row in shown))

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set(xlabel="change of the step time (%)", xlim=(-reach, reach))
        categories(axes, [_named(row, shown) for row in shown])
        band(axes, "x", -percent, percent, "threshold", "grid", label="threshold")
        rule(axes, "x", 0.0, "no change")
        for verdict, colour in _COLOURS.items():
            members = [(place, row) for place, row in enumerate(shown) if row["verdict"] == verdict]
            if members:
                places = [place for place, _ in members]
                low = [max(-reach, _change(row["time_ratio_low"])) for _, row in members]
                high = [min(reach, _change(row["time_ratio_high"])) for _, row in members]
                bars(axes, places, high, verdict, colour, begin=low, thickness=0.22, alpha=0.45)
                changes = [_change(row["time_ratio"]) for _, row in members]
                curve(axes, changes, places, verdict, colour, linestyle="none", marker="o", legend=False)
        legend(canvas, axes)

    left = f" The {_MOST_ROWS} largest of {len(rows)} changes are shown." if len(shown) < len(rows) else ""
    caption = (
        "Step time of the new run against the old run. Points: ratio of the medians; bars: 95 % interval, "
        f"cut at {reach:.0f} %. Right of the middle is slower.{left}"
    )
    size = (10.6, 1.6 + 0.34 * len(shown))
    return [Figure(name="compare", title="Change of the step time", caption=caption, draw=draw, size=size)]


def _change(ratio: float) -> float:
    return 100 * (ratio - 1)


def _named(row: Row, rows: Sequence[Row]) -> str:
    several = len({wording.model(one) for one in rows}) > 1
    model = f" {wording.model(row)}" if several else ""
    return f"{wording.implementation_or_input(row)}{model} {wording.place(row)}"


def traces_figures(comparison: TraceComparison) -> dict[str, list[Figure]]:
    """Return the figures of a comparison of traces by the name of their finding."""
    tables = (
        ("changed_families", comparison.families, "family", "Change by kind of work"),
        ("changed_places", comparison.places, "path", "Change by place in the model"),
        ("changed_kernels", comparison.kernels, "name", "Change by kernel"),
    )
    return {"time": [_times_figure(comparison)]} | {
        name: [_deltas_figure(frame, column, name, title, comparison.per)]
        for name, frame, column, title in tables
        if (frame["delta_ms"] != 0).any()
    }


def _times_figure(comparison: TraceComparison) -> Figure:
    kinds = [str(kind) for kind in comparison.time["time"]]

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set_xlabel("time (ms)")
        categories(axes, kinds)
        for name, column, colour, shift in (("old", "before_ms", "pale", -0.19), ("new", "after_ms", "blue", 0.19)):
            places = [place + shift for place in range(len(kinds))]
            bars(axes, places, comparison.time[column].tolist(), name, colour, thickness=0.36)
        axes.set_xlim(left=0)
        legend(canvas, axes)

    title, size = f"Time per {comparison.per}, old and new", (10.6, 1.6 + 0.42 * len(kinds))
    return Figure(name="time", title=title, caption="Mean over steps and ranks.", draw=draw, size=size)


def _deltas_figure(frame: "pd.DataFrame", column: str, name: str, title: str, per: str) -> Figure:
    changed = frame[frame["delta_ms"] != 0]
    rows = changed.head(_MOST_ROWS // 2)

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set_xlabel(f"change (ms per {per})")
        # Of a place in the model the innermost part tells places apart.
        texts = [str(text) for text in rows[column]]
        categories(axes, [f"…{text[1 - _LONGEST_PATH :]}" if column == "path" and len(text) > _LONGEST_PATH else text
                          for text in texts])  # fmt: skip
        rule(axes, "x", 0.0, "no change")
        for verdict, colour, sign in (("slower", "vermilion", 1), ("faster", "green", -1)):
            members = [(place, delta) for place, delta in enumerate(rows["delta_ms"].tolist()) if delta * sign > 0]
            if members:
                places, deltas = zip(*members, strict=True)
                bars(axes, places, deltas, verdict, colour, thickness=0.6)
        legend(canvas, axes)

    further = f" {len(changed) - len(rows)} smaller changes are in {name}.csv." if len(changed) > len(rows) else ""
    caption = f"New minus old time per {per}, largest change first.{further}"
    return Figure(name=name, title=title, caption=caption, draw=draw, size=(10.6, 1.5 + 0.3 * len(rows)))
