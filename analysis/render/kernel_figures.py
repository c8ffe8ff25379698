"""Figures of kernel counters: core utilization by kind of work, and the roofline."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.counters import KernelCounters
from analysis.metrics.kernels.ceilings import DRAM, LEVEL_KINDS, Ceiling, is_bandwidth
from analysis.metrics.kernels.core_utilization import FOUR, CoreUse, core_use_by_family
from analysis.metrics.kernels.ncu_metrics import DRAM_LEVEL, L1, L2, MEMORY
from analysis.metrics.kernels.roofline import Roofline, roofline
from analysis.render.figure import Axis, Bars, Figure, Line, Marker, Panel, Series, Text, short_label
from analysis.render.trace_figures import Figures

Row = Mapping[str, Any]

_PIPES = {"fma": "blue", "fp16": "sky", "tensor": "vermilion", "sfu": "orange"}
# A kind of work has the same color in every figure.
_FAMILIES = {
    "GEMM": "vermilion", "attention": "blue", "norm": "green", "elementwise": "orange", "optimizer": "pink",
    "dropout": "sky", "softmax and loss": "purple", "embedding": "brown", "copy": "grey",
    "activation": "yellow", "reduction and sort": "wine", "communication": "ink",
}  # fmt: skip
_MOST_GROUPS = 12
_MOST_KERNELS = 200
_LARGEST_AREA, _SMALLEST_AREA = 420.0, 14.0
_MOST_LEVELS = 12
# Where a kernel lies by the bytes of each level: column of its intensity, and marker.
_PLACES: Mapping[str, tuple[str, Marker]] = {
    L1: ("l1_flop_per_byte", "triangle"),
    L2: ("l2_flop_per_byte", "square"),
    DRAM_LEVEL: ("intensity_flop_per_byte", "circle"),
}
_LETTERS = 13
"""Of a line of a group's name."""


def kernel_figures(counters: KernelCounters, ending: str = "", measured: Mapping[str, float] | None = None) -> Figures:
    """Return every figure for which the counters have data, by the name of its finding.

    Args:
        counters: of one file.
        ending: of the names of its findings and figures.
        measured: measured ceilings, as roofline takes them.
    """
    found: Figures = {}
    groups = core_use_by_family(counters)
    if any(use.percent is not None for group in groups.values() for use in group.pipes.values()):
        found[f"core_utilization_by_family{ending}"] = [
            core_utilization_figure(groups, "kind of work", name=f"cores{ending}")
        ]
    lines = roofline(counters, measured)
    if len(lines.kernels) and lines.kernels["achieved_flops"].notna().any():
        found[f"roofline{ending}"] = [roofline_figure(lines, name=f"roofline{ending}")]
    return found


def core_utilization_figure(groups: Mapping[str, CoreUse], label: str, name: str = "cores") -> Figure:
    """Return a group of four bars per batch size, kind of work or phase.

    A pale bar behind FMA and tensor cores is the share of cycles in which the pipe worked at all. A pipe that is not in
    the file is named below and has no place among the bars; a bar of 0 carries its number.

    Args:
        groups: what `core_use_by_family` and its siblings return, or CoreUse by batch size; the first 12 are drawn.
        label: what the groups are ("batch size", "kind of work").
        name: of the figure.
    """
    shown = list(groups)[:_MOST_GROUPS]
    known = [pipe for pipe in FOUR if any(_percent(groups[group], pipe) is not None for group in shown)]
    thickness = 0.8 / max(1, len(known))
    tallest = 5.0
    series: list[Series] = []
    for position, pipe in enumerate(known):
        places = [index + (position - (len(known) - 1) / 2) * thickness for index in range(len(shown))]
        values = [_percent(groups[group], pipe) for group in shown]
        active = [_percent(groups[group], f"{pipe}_active") for group in shown]
        tallest = max([tallest, *(value for value in (*values, *active) if value is not None)])
        for part, ends, opacity in (("", values, 1.0), (" worked", active, 0.28)):
            bars = Bars(
                name=f"{FOUR[pipe]}{part}", colour=_PIPES[pipe], at=places, end=[end or 0.0 for end in ends],
                thickness=0.9 * thickness, opacity=opacity, legend=not part,
            )  # fmt: skip
            series.insert(len(series) - (1 if part else 0), bars)  # the pale one lies behind
        series += _bar_numbers(places, values, active)
    notes = []
    if any(_percent(groups[group], f"{pipe}_active") for group in shown for pipe in known):
        notes.append("Pale: share of cycles in which the pipe worked.")
    if len(known) < len(FOUR):
        notes.append(f"Not in this file: {', '.join(FOUR[pipe] for pipe in FOUR if pipe not in known)}.")
    ticks = [(float(place), _wrapped(group)) for place, group in enumerate(shown)]
    return Figure(
        name=name,
        title="Core utilization",
        caption="Share of the peak rate while kernels of this kind run. Pale: cycles in which the pipe was active.",
        panels=[
            Panel(
                x=Axis(label=label, ticks=ticks, low=-0.6, high=max(len(shown) - 0.4, 0.6), grid=False),
                y=Axis(label="share of the peak rate", unit="%", low=0, high=1.15 * tallest),
                series=series,
            )
        ],
        size=(max(5.2, 1.6 + 1.0 * len(shown)), 3.7),
        note="\n".join(notes),
    )


def _percent(use: CoreUse, pipe: str) -> float | None:
    found = use.pipes.get(pipe)
    return None if found is None else found.percent


def _bar_numbers(
    places: Sequence[float], values: Sequence[float | None], active: Sequence[float | None]
) -> list[Text]:  # fmt: skip
    """Return the number of the full bar: above it, or inside it if a pale bar is behind it."""
    found = []
    for place, value, behind in zip(places, values, active, strict=True):
        if value is None:
            continue
        inside = behind is not None and behind > value >= 6
        found.append(
            Text(
                name="percent",
                x=place,
                y=value if inside else max(value, behind or 0.0),
                text=f"{value:.0f}" if value >= 9.5 or value == 0 else f"{value:.1f}",
                shift=(0, -2 if inside else 2),
                align="center",
                upright="top" if inside else "bottom",
                colour="paper" if inside else "ink",
            )
        )
    return found


def _wrapped(name: str) -> str:
    lines = [""]
    for word in short_label(name).split(" "):
        if len(lines[-1]) + len(word) < _LETTERS:
            lines[-1] = f"{lines[-1]} {word}".strip()
        else:
            lines.append(word)
    return "\n".join(lines).strip("\n")


def roofline_figure(found: Roofline, name: str = "roofline") -> Figure:
    """Return every kernel by arithmetic intensity and rate, with the ceilings: a hierarchical roofline.

    Colors are kinds of work, areas the time a kernel takes, both axes logarithmic. The circle of a kernel is at its
    operations per byte of DRAM; where the bytes of L2 and L1/TEX were counted, a square and a triangle at the same
    height are at its operations per byte there (of the 12 kernels that take longest). Each level with a known peak has
    its own slope. Kernels whose operations or bytes are not known, or that do no floating-point work, cannot be placed;
    the note says how many, with their time, and how many a level without a slope holds back.
    """
    table = found.kernels.head(_MOST_KERNELS)
    columns = [column for column, _ in _PLACES.values()]
    placed = table[table[columns].gt(0).any(axis=1) & (table["achieved_flops"] > 0)]
    rows = [{str(key): value for key, value in row.items()} for row in placed.to_dict("records")]
    used = {str(row["flop_type"]) for row in rows}
    drawn = {
        kind
        for kind in found.ceilings
        if kind == DRAM or any(row[f"{kind}_bytes"] > 0 for row in rows if is_bandwidth(kind))
    }
    ceilings = {
        kind: one for kind, one in found.ceilings.items() if kind in drawn | used or not (rows or is_bandwidth(kind))
    }
    x, y = _limits(rows, ceilings)
    several = any(row[column] > 0 for row in rows for column in columns[:-1])
    levels = "Circle: bytes of DRAM; square: of L2; triangle: of L1/TEX. " if several else ""
    return Figure(
        name=name,
        title="Roofline",
        caption="Memory limits kernels near a slope, cores those near the roof; latency those far below both.",
        panels=[
            Panel(
                x=Axis(
                    label="arithmetic intensity", unit="FLOP per byte" if several else "FLOP per byte of DRAM",
                    scale="log", form="si", low=x[0], high=x[1],
                ),
                y=Axis(label="FLOP/s", scale="log", form="si", low=y[0], high=y[1]),
                series=[*_ceilings(ceilings, x, y), *_kernels(rows)],
            )
        ],
        size=(8.2, 4.6),
        note=f"{levels}{_note(found, rows)}".strip(),
        legend="right",
        legend_title="kind of work",
        legend_columns=1,
    )  # fmt: skip


Ends = tuple[float, float]


def _limits(rows: Sequence[Row], ceilings: Mapping[str, Ceiling]) -> tuple[Ends, Ends]:
    peaks = [ceiling.rate for kind, ceiling in ceilings.items() if not is_bandwidth(kind)]
    xs = [float(row[column]) for row in rows for column, _ in _PLACES.values() if row[column] > 0]
    ys = [float(row["achieved_flops"]) for row in rows] + peaks
    xs += [peak / one.rate for kind, one in ceilings.items() if is_bandwidth(kind) for peak in peaks]
    left, right = (min(xs), max(xs)) if xs else (0.1, 1000.0)
    low, high = (min(ys), max(ys)) if ys else (1e9, 1e13)
    x = (10 ** math.floor(math.log10(left) - 0.3), 10 ** math.ceil(math.log10(right) + 0.3))
    return x, (0.7 * 10 ** math.floor(math.log10(low) - 0.2), 10 ** (math.log10(high) + 0.45))


def _ceilings(ceilings: Mapping[str, Ceiling], x: Ends, y: Ends) -> list[Series]:
    """The slopes of the levels, each type's peak from where no level is its ceiling, and labels as there is room."""
    found: list[Series] = []
    peaks = sorted((one for kind, one in ceilings.items() if not is_bandwidth(kind)), key=lambda ceiling: ceiling.rate)
    slopes = {level: ceilings[kind].rate for level, kind in LEVEL_KINDS.items() if kind in ceilings}
    previous = 0.0
    for ceiling in peaks:
        ridge = max(x[0], ceiling.rate / max(slopes.values())) if slopes else x[0]
        found.append(_ceiling(ceiling.kind, (ridge, ceiling.rate), (x[1], ceiling.rate)))
        if math.log10(ceiling.rate / max(previous, 1e-300)) * 3.4 / math.log10(y[1] / y[0]) > 0.16:
            words = f"{ceiling.kind.replace('_', ' ')} {wording.flops(ceiling.rate)}"
            found.append(
                Text(
                    name=f"{ceiling.kind} peak", x=x[1], y=ceiling.rate, text=words, shift=(-3, 3), align="right",
                    upright="bottom",
                )
            )  # fmt: skip
            previous = ceiling.rate
    for level, rate in slopes.items():
        end = min(x[1], (peaks[-1].rate if peaks else y[1]) / rate)
        found.append(_ceiling(LEVEL_KINDS[level], (x[0], x[0] * rate), (end, end * rate)))
        at = max(x[0], y[0] / rate) * 10 ** (0.04 * math.log10(x[1] / x[0]))
        words = f"{level} {rate / 1e9:,.0f} GB/s"
        found.append(Text(name=f"{level} peak", x=at, y=at * rate, text=words, along=(at * 10, at * 10 * rate)))
    return found


def _ceiling(name: str, begin: Ends, end: Ends) -> Line:
    x, y = zip(begin, end, strict=True)
    return Line(name=name, x=x, y=y, colour="ink", width=1.2, legend=False)


def _kernels(rows: Sequence[Row]) -> list[Line]:
    times: dict[str, float] = {}
    for row in rows:
        times[str(row["family"])] = times.get(str(row["family"]), 0.0) + _time(row)
    longest = max((_time(row) for row in rows), default=0.0)
    found = []
    for family in sorted(times, key=lambda name: -times[name]):
        for level, (column, marker) in _PLACES.items():
            near = rows if level == DRAM_LEVEL else rows[:_MOST_LEVELS]
            members = [row for row in near if row["family"] == family and row[column] > 0]
            if not members and level != DRAM_LEVEL:
                continue
            areas = [max(_SMALLEST_AREA, _LARGEST_AREA * _time(r) / longest if longest else 0.0) for r in members]
            found.append(
                Line(
                    name=short_label(family) if level == DRAM_LEVEL else f"{short_label(family)}, {level}",
                    x=[row[column] for row in members],
                    y=[row["achieved_flops"] for row in members],
                    areas=areas if level == DRAM_LEVEL else (),
                    colour=_FAMILIES.get(family, "pale"),
                    opacity=0.75,
                    dash="none",
                    marker=marker,
                    legend=level == DRAM_LEVEL,
                )
            )
    return found


def _time(row: Row) -> float:
    value = float(row["time_ms"])
    return value if math.isfinite(value) else 0.0


def _note(found: Roofline, rows: Sequence[Row]) -> str:
    parts = []
    left = len(found.kernels) - len(rows)
    if left:
        share = float(found.kernels["time_share"].sum()) - sum(float(row["time_share"]) for row in rows)
        of_time = f" ({100 * share:.0f} % of the time)" if math.isfinite(share) else ""
        parts.append(
            f"{left} of {len(found.kernels)} kernels{of_time} cannot be placed: no operations, or not counted."
        )
    seen = {level for level, kind in LEVEL_KINDS.items() if kind in found.ceilings and level != DRAM_LEVEL}
    cached = found.kernels[found.kernels["bound"].isin({L1, L2, MEMORY} - seen)]
    if len(cached):
        levels = " or ".join(dict.fromkeys(cached["bound"]))
        parts.append(
            f"The peak of {levels} is not in this file; it holds back {len(cached)} of {len(found.kernels)} kernels, "
            "which this does not show."
        )
    if any(found.kernels[f"{LEVEL_KINDS[level]}_bytes"].gt(0).any() for level in (L1, L2)) and len(rows) > _MOST_LEVELS:
        parts.append(f"L1/TEX and L2 are drawn for the {_MOST_LEVELS} longest kernels.")
    if DRAM not in found.ceilings:
        parts.append("The memory peak is unknown.")
    if all(map(is_bandwidth, found.ceilings)):
        parts.append("The compute peak is unknown.")
    return " ".join(parts)
