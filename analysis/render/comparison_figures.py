"""Figures of comparisons of two runs and of two traces."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis import wording
from analysis.metrics.comparison.regression import Comparison
from analysis.metrics.comparison.traces import TraceComparison
from analysis.render.figure import Axis, Band, Bars, Figure, Line, Panel, Rule, categories, short_label
from analysis.render.figure import Series as Drawn

if TYPE_CHECKING:
    import pandas as pd


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
    largest = sorted(range(len(rows)), key=lambda place: -abs(rows[place]["time_ratio"] - 1))[:_MOST_ROWS]
    shown = [rows[place] for place in sorted(largest)]
    left = f" The {_MOST_ROWS} largest of {len(rows)} changes are shown." if len(shown) < len(rows) else ""
    percent = 100 * comparison.threshold
    reach = _FURTHEST * max(percent, *(abs(_change(row["time_ratio"])) for row in shown))
    series: list[Drawn] = [
        Band(name="threshold", axis="x", low=-percent, high=percent, colour="pale", opacity=0.35, legend=True),
        Rule(name="no change", axis="x", at=0.0),
    ]
    for verdict, colour in _COLOURS.items():
        own = [(place, row) for place, row in enumerate(shown) if row["verdict"] == verdict]
        if own:
            places = [place for place, _ in own]
            series.append(Bars(
                name=verdict, colour=colour, at=places, across=True, thickness=0.22, opacity=0.45,
                begin=[max(-reach, _change(row["time_ratio_low"])) for _, row in own],
                end=[min(reach, _change(row["time_ratio_high"])) for _, row in own],
            ))  # fmt: skip
            values = [_change(row["time_ratio"]) for _, row in own]
            series.append(Line(name=verdict, colour=colour, x=values, y=places, dash="none", marker="circle", size=7,
                               legend=False))  # fmt: skip
    return [
        Figure(
            name="compare",
            title="Change of the step time",
            caption="Step time of the new run against the old run. Points: ratio of the medians; bars: 95 % interval, "
            f"cut at {reach:.0f} %. Right of the middle is slower.{left}",
            panels=[
                Panel(
                    x=Axis(label="change of the step time", unit="%", low=-reach, high=reach),
                    y=categories([_named(row, shown) for row in shown]),
                    series=series,
                )
            ],
            size=(10.6, 1.6 + 0.34 * len(shown)),
        )
    ]


def _change(ratio: float) -> float:
    return 100 * (ratio - 1)


def _named(row: Row, rows: Sequence[Row]) -> str:
    several = len({wording.model(one) for one in rows}) > 1
    model = f" {wording.model(row)}" if several else ""
    return short_label(f"{wording.implementation(row)}{model} {wording.place(row)}")


def traces_figures(found: TraceComparison) -> dict[str, list[Figure]]:
    """Return the figures of a comparison of traces by the name of their finding."""
    shown = {"time": [_times_figure(found)]}
    shown |= {
        name: [_deltas_figure(frame, column, name, title, found.per)]
        for name, frame, column, title in (
            ("changed_families", found.families, "family", "Change by kind of work"),
            ("changed_places", found.places, "path", "Change by place in the model"),
            ("changed_kernels", found.kernels, "name", "Change by kernel"),
        )
        if (frame["delta_ms"] != 0).any()
    }
    return shown


def _times_figure(found: TraceComparison) -> Figure:
    kinds = [str(kind) for kind in found.time["time"]]
    sides = (("old", "before_ms", "pale", -0.19), ("new", "after_ms", "blue", 0.19))
    return Figure(
        name="time",
        title=f"Time per {found.per}, old and new",
        caption="Mean over steps and ranks. Shorter is better.",
        panels=[
            Panel(
                x=Axis(label="time", unit="ms"),
                y=categories(kinds),
                series=[
                    Bars(name=name, colour=colour, at=[place + shift for place in range(len(kinds))], thickness=0.36,
                         end=found.time[column].tolist(), across=True)
                    for name, column, colour, shift in sides
                ],
            )
        ],
        size=(10.6, 1.6 + 0.42 * len(kinds)),
    )  # fmt: skip


def _deltas_figure(frame: "pd.DataFrame", column: str, name: str, title: str, per: str) -> Figure:
    rows = frame[frame["delta_ms"] != 0].head(_MOST_ROWS // 2)
    deltas = rows["delta_ms"].tolist()
    series: list[Drawn] = [Rule(name="no change", axis="x", at=0.0)]
    for words, colour, sign in (("slower", "vermilion", 1), ("faster", "green", -1)):
        own = [(place, delta) for place, delta in enumerate(deltas) if delta * sign > 0]
        if own:
            series.append(Bars(name=words, colour=colour, at=[place for place, _ in own],
                               end=[delta for _, delta in own], across=True, thickness=0.6))  # fmt: skip
    left = len(frame[frame["delta_ms"] != 0]) - len(rows)
    further = f" {left} smaller changes are in {name}.csv." if left else ""
    return Figure(
        name=name,
        title=title,
        caption=f"New minus old time per {per}, largest change first.{further}",
        panels=[
            Panel(
                x=Axis(label="change", unit=f"ms per {per}"),
                y=categories([_label(str(text), column) for text in rows[column]]),
                series=series,
            )
        ],
        size=(10.6, 1.5 + 0.3 * len(deltas)),
    )


def _label(text: str, column: str) -> str:
    """Name a row: of a place in the model the innermost part, which tells places apart."""
    return short_label(text if column != "path" or len(text) <= _LONGEST_PATH else f"…{text[1 - _LONGEST_PATH :]}")
