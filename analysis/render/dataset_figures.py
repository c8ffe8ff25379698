"""Pictures of pretraining data: how long the instances and their segments are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.render.drawing import BLUE, GREEN, INK, NOTE, ORANGE, PINK, STYLE, VERMILION, canvas, save, short_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = (BLUE, ORANGE, VERMILION)
_MOST_BARS = 32
_LEAST_SHARE = 0.003
"""The logarithmic axis begins at this percentage, or at the smallest bar."""

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LengthCounts:
    """The lengths of one split's instances; each field counts instances by length, index 0 to L."""

    name: str
    lengths: Sequence[int]
    """[L + 1] by real tokens."""
    first: Sequence[int]
    """[L + 1] by pieces of segment A."""
    second: Sequence[int]
    """[L + 1] by pieces of segment B."""


def draw_lengths(path: Path, splits: Sequence[LengthCounts], title: str = "") -> Path:
    """Draw the lengths of instances and of their two segments, side by side; return `path`.

    Shares of lengths are logarithmic: instances of full length outnumber all others by far.

    Args:
        path: PNG to write.
        splits: at least one, of equal L, each with at least one instance.
        title: name of the data.

    Raises:
        StorageError: the picture cannot be written.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, (whole, segments) = canvas(10.6, 3.9, 1, 2)
        for split, colour in zip(splits, _COLOURS, strict=False):
            _draw_split(whole, split, colour, filled=split is splits[0])
        _draw_segments(segments, splits[0])
        whole.set_yscale("log")
        whole.set_ylim(_bottom(splits), 160)
        seq_len = len(splits[0].lengths) - 1
        for axis, label in ((whole, "real tokens per instance"), (segments, "word pieces per segment")):
            axis.set_xlim(0, 1.01 * seq_len)
            axis.set_xticks(np.unique(np.linspace(0, seq_len, 9).round().astype(int)).tolist())
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
            axis.grid(axis="x", visible=False)
            axis.set_xlabel(label)
            axis.set_ylabel("share of the instances")
        per_bar = f"{_width(seq_len)} lengths per bar" if _width(seq_len) > 1 else ""
        whole.set_title(", ".join(part for part in (short_label(title) or "Lengths", per_bar) if part))
        segments.set_title(f"Segments of the {short_label(splits[0].name)} instances")
        lines = [*map(_summary, splits), "A pair that is too long loses pieces of its longer segment, until it fits."]
        named: dict[str, Any] = {}
        for axis in (whole, segments):
            named |= {text: handle for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)}
        names = sorted(named, key=lambda text: text != short_label(splits[0].name))
        figure.legend([named[text] for text in names], names, loc="outside upper left", ncols=4, fontsize=8.5)
        figure.supxlabel("\n".join(lines), fontsize=8, color=NOTE, x=0.01, ha="left")
        save(figure, path)
    return path


def _width(seq_len: int) -> int:
    """Lengths per bar: as few as leave at most 32 bars."""
    return max(1, -(-seq_len // _MOST_BARS))


def _binned(counts: Sequence[int]) -> tuple[Counts, npt.NDArray[np.float64]]:
    """Edges of the bars and the share of each, in percent; the last bar ends at L."""
    values = np.asarray(counts, dtype=np.int64)
    seq_len, width = len(values) - 1, _width(len(values) - 1)
    edges = np.arange(seq_len, -1, -width, dtype=np.int64)[::-1]
    if edges[0] > 0:
        edges = np.concatenate([[0], edges])
    sums = np.add.reduceat(values, np.concatenate([[0], edges[1:-1] + 1]))
    shares: npt.NDArray[np.float64] = 100 * sums / max(1, int(values.sum()))
    return edges, shares


def _draw_split(axis: "Axes", split: LengthCounts, colour: str, *, filled: bool) -> None:
    edges, shares = _binned(split.lengths)
    name = short_label(split.name)
    if filled:
        axis.bar(edges[:-1], shares, np.diff(edges) * 0.9, align="edge", color=colour, alpha=0.75, label=name)
    else:
        axis.stairs(shares, edges, color=colour, linewidth=1.6, label=name)
    full = 100 * split.lengths[-1] / max(1, sum(split.lengths))
    if filled and full >= 1:
        axis.annotate(
            f"{full:.1f} % are full",
            (edges[-2], shares[-1]),
            (-3, 0),
            textcoords="offset points",
            ha="right",
            va="top",
            fontsize=8.5,
            color=INK,
        )


def _draw_segments(axis: "Axes", split: LengthCounts) -> None:
    for name, counts, colour, dashes in (("A", split.first, GREEN, "solid"), ("B", split.second, PINK, (0, (3, 1.2)))):
        edges, shares = _binned(counts)
        axis.stairs(shares, edges, color=colour, linewidth=1.8, linestyle=dashes, label=f"segment {name}")


def _bottom(splits: Sequence[LengthCounts]) -> float:
    shares = np.concatenate([_binned(split.lengths)[1] for split in splits])
    return float(max(_LEAST_SHARE, 0.7 * shares[shares > 0].min(initial=100.0)))


def _summary(split: LengthCounts) -> str:
    every = np.arange(len(split.lengths))
    instances = max(1, sum(split.lengths))
    mean, first, second = (
        float(np.asarray(counts) @ every) / instances for counts in (split.lengths, split.first, split.second)
    )
    return (
        f"{short_label(split.name)}: {sum(split.lengths):,} instances, {mean:.1f} real tokens on average "
        f"({100 * mean / (len(split.lengths) - 1):.1f} % of all tokens are real), segments of {first:.1f} and "
        f"{second:.1f} pieces"
    )
