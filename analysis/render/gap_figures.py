"""Pictures of GAP: what a system answers where, for whom it does so better, and how heads learn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.render.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PINK,
    STYLE,
    VERMILION,
    canvas,
    save,
    short_label,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PINK, GREY)
_DARK = 0.55
"""Share of a row from which on its cell is too dark for dark text."""


@dataclass(frozen=True, slots=True)
class Confusion:
    """Rows by what is right and what was answered."""

    counts: npt.NDArray[np.int64]
    """[right, answered]."""
    right: Sequence[str]
    answered: Sequence[str]


@dataclass(frozen=True, slots=True)
class Bar:
    """The accuracy on some of the rows."""

    group: str
    name: str
    rows: int
    accuracy: float
    """A fraction."""


@dataclass(frozen=True, slots=True)
class HeadCurve:
    """How a head does after each epoch, on data that it is not trained on."""

    name: str
    epochs: Sequence[float]
    """Epochs trained, ascending."""
    losses: Sequence[float | None]
    """Log loss in nats; None where it was not finite."""
    accuracies: Sequence[float | None]
    """A fraction, likewise."""
    seconds: float | None
    """Of the whole training; None where it is not known."""


def draw_gap_scores(
    path: Path, confusion: Confusion, bars: Sequence[Bar], overall: float, names: Sequence[str] = (), facts: str = ""
) -> Path:
    """Draw a confusion matrix, and beside it the accuracy on parts of the rows; return `path`.

    Args:
        path: PNG to write.
        confusion: at least one line.
        bars: at least one; those of a group stand next to each other.
        overall: accuracy on all rows, a fraction.
        names: of the dataset and the predictions, for the title.
        facts: what else the title says.

    Raises:
        StorageError: the picture cannot be written.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, (left, right) = canvas(9.6, 4.0, columns=2, width_ratios=(1, 1.45))
        _draw_confusion(left, confusion)
        _draw_bars(right, bars, overall)
        title = ", ".join(filter(None, [*map(short_label, names), facts]))
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        save(figure, path)
    return path


def draw_heads(path: Path, curves: Sequence[HeadCurve], majority: float | None, title: str = "") -> Path:
    """Draw log loss and accuracy after each epoch, and the time of each head; return `path`.

    Args:
        path: PNG to write.
        curves: at least one, each with at least one epoch.
        majority: accuracy of always answering what is most frequent, a fraction; None where it is not known.
        title: what was trained.

    Raises:
        StorageError: the picture cannot be written.
    """
    import matplotlib
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context(STYLE):
        figure, (loss, accuracy, time) = canvas(10.4, 3.7, columns=3, width_ratios=(1.2, 1.2, 0.9))
        for curve, colour in zip(curves, _COLOURS * len(curves), strict=False):
            epochs = np.asarray(curve.epochs, float)
            line: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 3.5, "linewidth": 1.6}
            loss.plot(epochs, _floats(curve.losses), label=short_label(curve.name), **line)
            accuracy.plot(epochs, 100 * _floats(curve.accuracies), **line)
        if majority is not None:
            accuracy.axhline(
                100 * majority, color=GREY, linewidth=1.2, linestyle=(0, (4, 3)), label="most frequent answer"
            )
        for axis, name in ((loss, "validation log loss, nats"), (accuracy, "validation accuracy, %")):
            axis.set(title=name, xlabel="epoch")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        # Below the axes: the curves of four heads leave no corner free.
        figure.legend(loc="outside lower left", ncols=len(curves) + 1)
        _draw_times(time, curves)
        if title:
            figure.suptitle(short_label(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
        save(figure, path)
    return path


def _floats(values: Sequence[float | None]) -> npt.NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], float)


def _draw_times(axis: "Axes", curves: Sequence[HeadCurve]) -> None:
    places = np.arange(len(curves))
    seconds = _floats([curve.seconds for curve in curves])
    axis.barh(places, np.nan_to_num(seconds), color=[_COLOURS[n % len(_COLOURS)] for n in range(len(curves))])
    for place, value in zip(places, seconds, strict=True):
        text = "not measured" if np.isnan(value) else f" {value:,.0f} s"
        axis.annotate(text, (float(np.nan_to_num(value)), place), va="center", color=INK, fontsize=8.5)
    axis.set(title="time, s", yticks=places, yticklabels=[short_label(curve.name) for curve in curves])
    axis.set_xlim(0, 1.3 * float(np.nanmax(seconds, initial=0.0)) or 1.0)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)


def _draw_confusion(axis: "Axes", confusion: Confusion) -> None:
    totals = np.maximum(confusion.counts.sum(1, keepdims=True), 1)
    shares = confusion.counts / totals
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for line, row in enumerate(confusion.counts):
        for column, count in enumerate(row):
            share = shares[line, column]
            axis.text(
                column, line, f"{count:,}\n{100 * share:.0f} %", ha="center", va="center", fontsize=9,
                color="white" if share > _DARK else INK,
            )  # fmt: skip
    axis.set(
        title="what is right, and what was answered", xlabel="answered", ylabel="right",
        xticks=range(len(confusion.answered)), yticks=range(len(confusion.right)),
        xticklabels=confusion.answered, yticklabels=confusion.right,
    )  # fmt: skip
    axis.grid(visible=False)


def _draw_bars(axis: "Axes", bars: Sequence[Bar], overall: float) -> None:
    colours = _group_colours(bars)
    places, labels, place, group = [], [], 0.0, None
    for bar in bars:
        place += 1.6 if group not in (None, bar.group) else 1.0
        group = bar.group
        places.append(place)
        labels.append(f"{bar.name} ({bar.rows:,})")
    values = [100 * bar.accuracy for bar in bars]
    axis.barh(places, values, color=[colours[bar.group] for bar in bars], height=0.75)
    for height, value in zip(places, values, strict=True):
        # At the edge, where no bar and not the line of all rows cross them.
        axis.annotate(f"{value:.1f}", (112, height), va="center", ha="right", color=INK, fontsize=8.5)
    axis.axvline(100 * overall, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
    axis.set(title=f"accuracy, %; all rows {100 * overall:.1f}", yticks=places, yticklabels=labels, xlim=(0, 112))
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)


def _group_colours(bars: Sequence[Bar]) -> Mapping[str, str]:
    groups = list(dict.fromkeys(bar.group for bar in bars))
    return dict(zip(groups, (BLUE, GREEN, ORANGE, PINK, PALE) * len(groups), strict=False))
