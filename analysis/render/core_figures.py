"""Pictures of kernel counters: bars of core utilisation, and the roofline."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.metrics.kernels.core_utilization import FOUR, CoreUse
from analysis.metrics.kernels.ncu_metrics import L1, L2, MEMORY
from analysis.metrics.kernels.roofline import DRAM, Ceiling, Roofline
from analysis.render.drawing import (
    BLUE,
    BROWN,
    GREEN,
    GREY,
    INK,
    NOTE,
    ORANGE,
    PALE,
    PINK,
    PURPLE,
    SKY,
    STYLE,
    VERMILION,
    canvas,
    save,
    short_label,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PIPE_COLOURS = {"fma": BLUE, "fp16": SKY, "tensor": VERMILION, "sfu": ORANGE}
# A kind of work has the same colour in every picture.
_FAMILY_COLOURS = {
    "GEMM": VERMILION, "attention": BLUE, "norm": GREEN, "elementwise": ORANGE, "optimizer": PINK,
    "dropout": SKY, "softmax and loss": PURPLE, "embedding": BROWN, "copy": GREY,
    "activation": "#F0C800", "reduction and sort": "#882255", "communication": INK,
}  # fmt: skip
_OTHER = PALE
_MOST_GROUPS = 12
_MOST_KERNELS = 200
_LARGEST_AREA, _SMALLEST_AREA = 420.0, 14.0


def draw_core_utilization(path: Path, groups: Mapping[str, CoreUse], label: str) -> Path:
    """Draw a group of four bars per batch size, kind of work or phase; return `path`.

    A pale bar behind FMA and tensor cores is the share of cycles in which the pipe worked at all. A pipe that is not in
    the file is named below and has no place among the bars; a bar of 0 carries its number.

    Args:
        path: PNG to write.
        groups: what `core_use_by_family` and its siblings return, or CoreUse by batch size; the first 12 are drawn.
        label: what the groups are ("batch size", "kind of work").
    """
    import matplotlib

    names = list(groups)[:_MOST_GROUPS]
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = canvas(max(5.2, 1.6 + 1.0 * len(names)), 3.7)
        known = [pipe for pipe in FOUR if any(_value(groups[name], pipe) is not None for name in names)]
        width = 0.8 / max(1, len(known))
        tallest = 5.0
        for position, pipe in enumerate(known):
            places = [index + (position - (len(known) - 1) / 2) * width for index in range(len(names))]
            values = [_value(groups[name], pipe) for name in names]
            active = [_value(groups[name], f"{pipe}_active") for name in names]
            tallest = max([tallest, *(value for value in (*values, *active) if value is not None)])
            colour = _PIPE_COLOURS[pipe]
            axis.bar(places, [value or 0.0 for value in active], width * 0.9, color=colour, alpha=0.28, linewidth=0)
            axis.bar(places, [value or 0.0 for value in values], width * 0.9, color=colour, label=FOUR[pipe])
            _numbers(axis, places, values, active)
        notes = []
        if any(_value(groups[name], f"{pipe}_active") for name in names for pipe in known):
            notes.append("Pale: share of cycles in which the pipe worked.")
        if len(known) < len(FOUR):
            notes.append(f"Not in this file: {', '.join(FOUR[pipe] for pipe in FOUR if pipe not in known)}.")
        axis.set_xticks(range(len(names)), [_wrapped(name) for name in names], fontsize=8.5)
        axis.set_ylim(0, 1.15 * tallest)
        axis.set_xlim(-0.6, max(len(names) - 0.4, 0.6))
        axis.set_ylabel("of the highest rate (%)")
        axis.set_xlabel(label)
        axis.grid(axis="x", visible=False)
        if known:
            figure.legend(loc="outside upper left", ncols=4, fontsize=8.5)
        if notes:
            figure.supxlabel("\n".join(notes), fontsize=8, color=NOTE, x=0.01, ha="left")
        save(figure, path)
    return path


def draw_roofline(path: Path, found: Roofline) -> Path:
    """Draw every kernel by its intensity and rate, under its ceilings; return `path`.

    Colours are kinds of work, areas the time a kernel takes, both axes logarithmic. Kernels whose operations or bytes
    are not known, or that do no floating-point work, cannot be placed; the note says how many, with their time. Bytes
    and ceiling are those of DRAM alone: the note says how many kernels L1/TEX or L2 holds back, which it cannot show.
    """
    import matplotlib

    table = found.kernels.head(_MOST_KERNELS)
    placed = table[(table["intensity_flop_per_byte"] > 0) & (table["achieved_flops"] > 0)]
    rows = [{str(key): value for key, value in row.items()} for row in placed.to_dict("records")]
    with matplotlib.rc_context(STYLE):
        figure, (axis,) = canvas(8.2, 4.6)
        axis.set_xscale("log")
        axis.set_yscale("log")
        ceilings = _shown(found.ceilings, rows)
        _limits(axis, rows, ceilings)
        _draw_ceilings(axis, ceilings)
        _draw_kernels(axis, rows)
        axis.set_xlabel("arithmetic intensity (FLOP per byte of DRAM)")
        axis.set_ylabel("FLOP/s")
        axis.yaxis.set_major_formatter(lambda value, _: _rate(value))
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,g}" if value < 1e4 else f"{value / 1e3:,g}k")
        if rows:
            figure.legend(
                loc="outside right upper", fontsize=8.5, title="kind of work", title_fontsize=8.5, alignment="left"
            )
        note = "\n".join(textwrap.wrap(_note(found, rows), 120))
        if note:
            figure.supxlabel(note, fontsize=8, color=NOTE, x=0.01, ha="left")
        figure.draw_without_rendering()  # the slope of a line on paper is known when all else has its place
        _label_memory(axis, ceilings)
        save(figure, path)
    return path


def _value(use: CoreUse, pipe: str) -> float | None:
    found = use.pipes.get(pipe)
    return None if found is None else found.percent


def _numbers(
    axis: "Axes", places: Sequence[float], values: Sequence[float | None], active: Sequence[float | None]
) -> None:
    """The full bar's number: on it, or, where a pale one stands behind, in it, so that it is read for the full one."""
    for place, value, behind in zip(places, values, active, strict=True):
        if value is None:
            continue
        text = f"{value:.0f}" if value >= 9.5 or value == 0 else f"{value:.1f}"
        inside = behind is not None and behind > value >= 6
        axis.annotate(
            text,
            (place, value if inside else max(value, behind or 0.0)),
            (0, -2 if inside else 2),
            textcoords="offset points",
            ha="center",
            va="top" if inside else "bottom",
            color="white" if inside else INK,
            fontsize=7.5,
        )


def _wrapped(name: str) -> str:
    words = short_label(name).split(" ")
    lines = [""]
    for word in words:
        lines = [*lines[:-1], f"{lines[-1]} {word}".strip()] if len(lines[-1]) + len(word) < 13 else [*lines, word]
    return "\n".join(lines).strip("\n")


def _shown(ceilings: Mapping[str, Ceiling], rows: Sequence[Mapping[str, Any]]) -> dict[str, Ceiling]:
    """The memory's ceiling and those of the types that the kernels use; without kernels all."""
    used = {str(row["flop_type"]) for row in rows}
    return {kind: ceiling for kind, ceiling in ceilings.items() if kind == DRAM or kind in used or not rows}


def _limits(axis: "Axes", rows: Sequence[Mapping[str, Any]], ceilings: Mapping[str, Ceiling]) -> None:
    peaks = [ceiling.rate for kind, ceiling in ceilings.items() if kind != DRAM]
    xs = [float(row["intensity_flop_per_byte"]) for row in rows]
    ys = [float(row["achieved_flops"]) for row in rows]
    if DRAM in ceilings and peaks:
        xs += [peak / ceilings[DRAM].rate for peak in peaks]
    ys += peaks
    low_x, high_x = (min(xs), max(xs)) if xs else (0.1, 1000.0)
    low_y, high_y = (min(ys), max(ys)) if ys else (1e9, 1e13)
    axis.set_xlim(10 ** math.floor(math.log10(low_x) - 0.3), 10 ** math.ceil(math.log10(high_x) + 0.3))
    axis.set_ylim(0.7 * 10 ** math.floor(math.log10(low_y) - 0.2), 10 ** (math.log10(high_y) + 0.45))


def _draw_ceilings(axis: "Axes", ceilings: Mapping[str, Ceiling]) -> None:
    low, high = axis.get_xlim()
    bottom, top = axis.get_ylim()
    peaks = sorted((c for kind, c in ceilings.items() if kind != DRAM), key=lambda ceiling: ceiling.rate)
    memory = ceilings.get(DRAM)
    previous = 0.0
    for ceiling in peaks:
        ridge = low if memory is None else max(low, ceiling.rate / memory.rate)
        axis.plot([ridge, high], [ceiling.rate] * 2, color=INK, linewidth=1.2)
        if math.log10(ceiling.rate / max(previous, 1e-300)) * 3.4 / math.log10(top / bottom) > 0.16:
            text = f"{ceiling.kind.replace('_', ' ')} {_rate(ceiling.rate)}FLOP/s"
            label = axis.annotate(
                text, (high, ceiling.rate), (-3, 3), textcoords="offset points", ha="right", va="bottom", fontsize=8
            )
            label.set_in_layout(False)
            previous = ceiling.rate
    if memory is not None:
        end = min(high, (peaks[-1].rate if peaks else top) / memory.rate)
        axis.plot([low, end], [low * memory.rate, end * memory.rate], color=INK, linewidth=1.2)


def _label_memory(axis: "Axes", ceilings: Mapping[str, Ceiling]) -> None:
    """Write the memory's peak along its line, above it."""
    memory = ceilings.get(DRAM)
    if memory is None:
        return
    (low, high), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    start = max(low, bottom / memory.rate)
    box = axis.get_window_extent()
    slope = math.atan2(box.height / math.log10(top / bottom), box.width / math.log10(high / low))
    at = start * 10 ** (0.04 * math.log10(high / low))
    label = axis.annotate(
        f"DRAM {memory.rate / 1e9:,.0f} GB/s",
        (at, at * memory.rate),
        (-5 * math.sin(slope), 5 * math.cos(slope)),
        textcoords="offset points",
        rotation=math.degrees(slope),
        rotation_mode="anchor",
        va="bottom",
        fontsize=8,
        annotation_clip=False,
    )
    label.set_in_layout(False)


def _draw_kernels(axis: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    times: dict[str, float] = {}
    for row in rows:
        times[str(row["family"])] = times.get(str(row["family"]), 0.0) + _time(row)
    families = sorted(times, key=lambda name: -times[name])
    longest = max((_time(row) for row in rows), default=0.0)
    for name in families:
        members = [row for row in rows if row["family"] == name]
        areas = [max(_SMALLEST_AREA, _LARGEST_AREA * _time(row) / longest if longest else 0.0) for row in members]
        axis.scatter(
            [row["intensity_flop_per_byte"] for row in members],
            [row["achieved_flops"] for row in members],
            s=areas,
            color=_FAMILY_COLOURS.get(name, _OTHER),
            alpha=0.75,
            edgecolor="white",
            linewidth=0.8,
            zorder=3,
        )
        axis.scatter([], [], s=40, color=_FAMILY_COLOURS.get(name, _OTHER), label=short_label(name))


def _time(row: Mapping[str, Any]) -> float:
    value = float(row["time_ms"])
    return value if math.isfinite(value) else 0.0


def _note(found: Roofline, rows: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    left = len(found.kernels) - len(rows)
    if left:
        shares = found.kernels["time_share"]
        share = float(shares.sum()) - sum(float(row["time_share"]) for row in rows)
        of_time = f" ({100 * share:.0f} % of the time)" if math.isfinite(share) else ""
        parts.append(
            f"{left} of {len(found.kernels)} kernels{of_time} cannot be placed: no operations, or not counted."
        )
    cached = found.kernels[found.kernels["bound"].isin((L1, L2, MEMORY))]
    if len(cached):
        levels = " or ".join(dict.fromkeys(cached["bound"]))
        parts.append(
            f"Bytes and ceiling are those of DRAM; {levels} holds back {len(cached)} of {len(found.kernels)} kernels, "
            "which this does not show."
        )
    if DRAM not in found.ceilings:
        parts.append("The memory's peak is not known.")
    if all(kind == DRAM for kind in found.ceilings):
        parts.append("No compute peak is known.")
    return " ".join(parts)


def _rate(value: float) -> str:
    for factor, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor * 0.9999:
            return f"{value / factor:.3g} {letter}"
    return f"{value:.3g} "
