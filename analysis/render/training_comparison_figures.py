"""Picture of trainings held against each other: progress against time, loss and learning rate against progress."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import wording
from analysis.metrics.comparison.trainings import TrainingComparison, VariantCurve
from analysis.render.drawing import LINES, NOTE, STYLE, canvas, clock_unit, save, short_label
from analysis.render.training import running_median
from common.scores import in_words, score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES = ("-", (0, (4, 2.5)), (0, (1.2, 1.6)), (0, (6, 2, 1.2, 2)))
# The first line is drawn broad, so that those that lie on it can be seen.
_WIDTHS = (3.6, 1.7)
_EVEN_WIDTH = 2.0
_FEWEST_SMOOTHED = 100
_MOST_SCORES = 2
# More curves have shorter labels, and their times there.
_MOST_IN_WORDS = 4


def draw_comparison(path: Path, comparison: TrainingComparison, title: str = "", note: str = "") -> Path | None:
    """Draw a comparison and return `path`; None where no variant made a step.

    Args:
        path: PNG to write.
        comparison: what is drawn.
        title: what was trained.
        note: lines below the picture, such as the machine.

    Raises:
        StorageError: the picture cannot be written.
    """
    if not comparison.curves:
        return None
    import matplotlib
    from matplotlib.lines import Line2D

    with matplotlib.rc_context(STYLE):
        figure, (progress, losses) = canvas(10.6, 4.6, 1, 2, width_ratios=(9, 11))
        _progress(progress, comparison)
        _losses(losses, comparison)
        progress.set_title(short_label(title) or "Progress against time")
        losses.set_title("Loss and learning rate: the same curve?")
        names = [_label(curve, comparison) for curve in comparison.curves]
        handles = [Line2D([], [], **_even_style(number)) for number in range(len(names))]
        figure.legend(
            handles, names, loc="outside upper left", ncols=1 if len(names) <= _MOST_IN_WORDS else 2, fontsize=8.5
        )
        if note:
            figure.supxlabel(note, fontsize=8, color=NOTE, x=0.01, ha="left")
        save(figure, path)
    return path


def variant_label(strategy: str, devices: int, device: str | None) -> str:
    """Return a strategy on its devices in words: "ddp on 2 GPUs", "single on 1 CPU process"."""
    kind = {"cuda": "GPU"}.get(device or "", "CPU process")
    return f"{strategy} on {devices} {kind}{('es' if kind.endswith('s') else 's') if devices > 1 else ''}"


def scores_text(curve: VariantCurve) -> str:
    """Return the first scores of the last evaluation that are no losses, in words; losses where there is nothing else.

    An empty text where nothing was evaluated.
    """
    known = [name for name in curve.scores if score(name).headline]
    names = [name for name in known if score(name).unit != "nats"] or known
    names.sort(key=lambda name: name != "f1")
    return ", ".join(in_words(name, curve.scores[name]) for name in names[:_MOST_SCORES])


def _label(curve: VariantCurve, comparison: TrainingComparison) -> str:
    row = curve.row
    rows = [other.row for other in comparison.curves]
    differ = {name: len({other[name] for other in rows}) > 1 for name in ("implementation", "precision")}
    words = variant_label(row["strategy"], row["devices"], row["device"])
    words = ", ".join([*([row["implementation"]] if differ["implementation"] else []), words])
    words += f", {row['precision']}" if differ["precision"] else ""
    scores = scores_text(curve)
    speed = "" if row["samples_per_second"] is None else f", {wording.number(row['samples_per_second'])} samples/s"
    if len(comparison.curves) > _MOST_IN_WORDS:  # the table has the scores
        return f"{words}{speed}{_end(curve)}"
    return f"{words}: {scores}{speed}" if scores else f"{words}{speed}"


def _end(curve: VariantCurve) -> str:
    """When the last step ended, where that is known."""
    if not np.isfinite(curve.seconds).any():
        return ""
    return f", {wording.number(float(np.nanmax(curve.seconds)))} s"


def line_style(number: int) -> dict[str, Any]:
    """How a line is drawn; no two of the first 32 look alike: each round of the colours moves the dashes on by one."""
    again, colour = divmod(number, len(LINES))
    return {
        "color": LINES[colour],
        "linestyle": _DASHES[(colour + again) % len(_DASHES)],
        "linewidth": _WIDTHS[min(number, 1)],
    }


def _even_style(number: int) -> dict[str, Any]:
    """As `line_style`, all of one width."""
    return {**line_style(number), "linewidth": _EVEN_WIDTH}


def _percent_of(comparison: TrainingComparison) -> str:
    if comparison.epochs is None:
        return "percent of the run"
    if abs(comparison.epochs - 1) < 0.05:
        return "percent of the epoch"
    return f"percent of {comparison.epochs:.3g} epochs" if comparison.epochs > 1 else "percent of the run"


def _progress(axis: "Axes", comparison: TrainingComparison) -> None:
    longest = max((float(np.nanmax(curve.seconds)) for curve in _timed(comparison)), default=0.0)
    unit, seconds = clock_unit(longest)
    axis.set_xlim(0, 1.12 * longest / seconds or 1)
    for number, curve in enumerate(comparison.curves):
        if curve not in _timed(comparison):
            continue
        known = np.isfinite(curve.seconds)
        times, percents = curve.seconds[known] / seconds, curve.percent[known]
        style = _even_style(number)
        axis.plot([0, *times], [0, *percents], **style)
        axis.plot(times[-1], percents[-1], marker="o", color=style["color"], markersize=5, clip_on=False)
        if len(comparison.curves) > _MOST_IN_WORDS:
            continue
        end, place = f"{wording.number(times[-1])} {unit}", (7, 3 if number % 2 == 0 else -11)
        axis.annotate(end, (times[-1], percents[-1]), place, textcoords="offset points", fontsize=8.5)
    axis.set_ylim(0, 108)
    axis.set_yticks(range(0, 101, 20))
    axis.set_xlabel(f"time in the loop, evaluations and checkpoints included ({unit})")
    axis.set_ylabel(_percent_of(comparison))


def _timed(comparison: TrainingComparison) -> list[VariantCurve]:
    return [curve for curve in comparison.curves if np.isfinite(curve.seconds).any()]


def _losses(axis: "Axes", comparison: TrainingComparison) -> None:
    rates = axis.twinx()
    smoothed = max(len(curve.loss) for curve in comparison.curves) >= _FEWEST_SMOOTHED
    for number, curve in enumerate(comparison.curves):
        style = line_style(number)
        loss = running_median(curve.loss) if smoothed else curve.loss
        if smoothed:
            axis.plot(curve.percent, curve.loss, color=style["color"], linewidth=0.6, alpha=0.25)
        axis.plot(curve.percent, loss, **style)
        rates.plot(curve.percent, curve.learning_rate, **{**style, "linewidth": 0.6 * style["linewidth"]})
    axis.set_xlim(0, 100)
    axis.set_xlabel(_percent_of(comparison))
    axis.set_ylabel("training loss (nats), " + ("every step and running median" if smoothed else "every step"))
    _share_height(axis, rates, max(float(np.nanmax(curve.learning_rate, initial=0.0)) for curve in comparison.curves))


def _share_height(axis: "Axes", rates: "Axes", highest: float) -> None:
    """Give the lower third to the learning rates, so that they do not run through the losses."""
    from matplotlib.ticker import MaxNLocator

    low, high = axis.get_ylim()
    ticks = [tick for tick in axis.get_yticks() if low <= tick <= high]
    axis.set_ylim(low - 0.45 * (high - low), high)
    axis.set_yticks(ticks)
    ticks = [tick for tick in MaxNLocator(nbins=3).tick_values(0, highest or 1) if tick <= 1.001 * (highest or 1)]
    rates.set_ylim(0, 3.4 * (highest or 1))
    rates.set_yticks(ticks, [f"{tick:.3g}" for tick in ticks])
    rates.grid(visible=False)
    rates.set_ylabel("learning rate (thin)", y=0.0, ha="left")
    rates.spines["right"].set_visible(True)
