"""The waterfall: from the floor of a step, loss by loss, to the step that was measured."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import wording
from analysis.load import LoadedTrial
from analysis.metrics.speed_of_light import FLOOR, LOSS, NOT_EXPLAINED
from analysis.render.drawing import BLUE, GREEN, GREY, INK, NOTE, PALE, SKY, STYLE, VERMILION, Picture, canvas, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

_ROW_HEIGHT = 0.34
_LEAST_SHOWN = 1e-9
# Characters of a line of the title that fit beside the names of the bars.
_TITLE_WIDTH = 72


def taken_apart(trials: Sequence[LoadedTrial]) -> list[LoadedTrial]:
    """Return the trials of kind components that ended well."""
    return [trial for trial in trials if trial.trial.kind == "components" and trial.row["status"] == "ok"]


def draw_waterfalls(folder: Path, trials: Sequence[LoadedTrial]) -> list[Picture]:
    """Draw one waterfall for each trial that was taken apart. Raises StorageError."""
    found = taken_apart(trials)
    return [draw_waterfall(folder / f"waterfall-{number}.png", trial.row) for number, trial in enumerate(found)]


def draw_waterfall(path: Path, row: Row) -> Picture:
    """Draw the waterfall of the row of a trial. Raises StorageError."""
    import matplotlib

    bars = row["waterfall"]
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = canvas(9.6, 1.1 + _ROW_HEIGHT * len(bars))
        _bars(axis, bars)
        title = f"{row['implementation']} {wording.model(row)} {wording.place(row)}"
        axis.set_title("\n".join(textwrap.wrap(title, _TITLE_WIDTH, break_on_hyphens=False)))
        axis.set_xlabel("ms")
        save(figure, path)
    caption = (
        "Blue is the floor: what the mathematics takes at the measured peak, and what memory has to move at the "
        "measured bandwidth. Each bar below begins where the one above ends: time that parts take beyond their floor "
        "when they are timed alone (orange), or less than it (green). Grey is what the parts leave unexplained."
    )
    return Picture(path, "From the floor of a step to the measured step", caption)


def spans(bars: Sequence[Row]) -> list[tuple[float, float]]:
    """Return where each bar begins and ends in ms: one behind the other, the last from 0."""
    found, reached = [], 0.0
    for bar in bars:
        begin = reached if bar["kind"] in (FLOOR, LOSS) else 0.0
        reached = begin + bar["ms"]
        found.append((begin, reached))
    return found


def _bars(axis: "Axes", bars: Sequence[Row]) -> None:
    ends = spans(bars)
    most = max(max(pair) for pair in ends)
    for place, (bar, (begin, end)) in enumerate(zip(bars, ends, strict=True)):
        width = max(abs(end - begin), _LEAST_SHOWN)
        axis.barh(place, width, left=min(begin, end), height=0.62, color=_colour(bar), zorder=2)
        if place + 1 < len(bars) and bar["kind"] != "total":
            axis.plot([end, end], [place, place + 1], color=NOTE, linewidth=0.7, zorder=1)
        sign = "+" if bar["kind"] == LOSS and bar["ms"] >= 0 else "-" if bar["ms"] < 0 else ""
        text = f"{sign}{wording.number(abs(bar['ms']))} ms, {100 * bar['share']:.1f} %"
        axis.text(max(begin, end) + most * 0.012, place, text, va="center", fontsize=8.5, color=INK)
    floor = max(end for bar, (_, end) in zip(bars, ends, strict=True) if bar["kind"] == FLOOR)
    axis.axvline(floor, color=BLUE, linewidth=1, linestyle=":", zorder=1)
    axis.set_yticks(range(len(bars)), [bar["name"] for bar in bars])
    axis.invert_yaxis()
    axis.set_xlim(min(0.0, *(min(pair) for pair in ends)), most * 1.2)
    axis.grid(axis="y", visible=False)


def _colour(bar: Row) -> str:
    if bar["kind"] == FLOOR:
        return BLUE if bar["name"].startswith("products") else SKY
    if bar["kind"] != LOSS:
        return GREY
    if bar["name"] == NOT_EXPLAINED:
        return PALE
    return VERMILION if bar["ms"] >= 0 else GREEN
