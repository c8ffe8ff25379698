"""The HTML page of a study of hyper-parameters, with its pictures and its table of trials."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import wording
from analysis.render import tables
from analysis.render.drawing import (
    BLUE,
    FAINT,
    GREY,
    NOTE,
    ORANGE,
    PALE,
    STYLE,
    VERMILION,
    Picture,
    canvas,
    save,
    short_label,
)
from analysis.render.page import render_page
from analysis.render.search_tables import (
    best_text,
    counts_text,
    importance_text,
    ordered,
    reasons,
    replaced_text,
    trials_table,
    value_text,
)
from common.atomic import write_text
from common.scores import score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

_MOST_PANELS = 9
_COLUMNS = 3
_MOST_CHOICES = 12
_LONGEST_CHOICE = 18


def draw_tune(found: Row, folder: Path) -> list[Picture]:
    """Draw what there is to see of a study.

    Args:
        found: tune.json, as bench.tune.document makes it.
        folder: where the PNGs go.

    Raises:
        StorageError: a picture cannot be written.
    """
    import matplotlib

    drawn = []
    with matplotlib.rc_context(STYLE):
        if any(row["value"] is not None for row in found["trials"]):
            drawn.append(_history(folder / "history.png", found))
        if found["importance"]["shares"]:
            drawn.append(_importance(folder / "importance.png", found))
        if _of_state(found, "complete"):
            drawn.append(_parameters(folder / "parameters.png", found))
        if any(len(row["readings"]) > 1 for row in found["trials"] if row["state"] != "failed"):
            drawn.append(_courses(folder / "courses.png", found))
    return drawn


def _of_state(found: Row, state: str) -> list[Row]:
    return [row for row in found["trials"] if row["state"] == state and row["value"] is not None]


def _scaled(found: Row, value: float) -> float:
    """As people read it: fractions in percent."""
    return 100 * value if score(found["objective"]["name"]).unit == "fraction" else value


def _axis_label(found: Row) -> str:
    unit = {"nats": " (nats)", "fraction": " (%)", "percent": " (%)"}.get(score(found["objective"]["name"]).unit, "")
    return short_label(f"{found['objective']['label']}{unit}")


def _history(path: Path, found: Row) -> Picture:
    complete, pruned = _of_state(found, "complete"), _of_state(found, "pruned")
    failed = [row["number"] for row in found["trials"] if row["state"] == "failed"]
    figure, (axis,) = canvas(10.6, 3.9)
    _points(axis, found, complete, [row["number"] for row in complete])
    if pruned:
        numbers = [row["number"] for row in pruned]
        last = [_scaled(found, row["value"]) for row in pruned]
        axis.scatter(numbers, last, marker="x", color=GREY, s=30, linewidths=1.4, label="pruned, its last reading")
    numbers, best = _best_so_far(found, complete)
    if numbers:
        end = max(row["number"] for row in found["trials"])
        axis.step(
            [*numbers, end], [*best, best[-1]], where="post", color=VERMILION, linewidth=1.8, label="the best so far"
        )
    for place, number in enumerate(failed):
        axis.axvline(number, color=ORANGE, linewidth=1, linestyle=":", label=None if place else "failed")
    _robust_limits(axis, found, [*complete, *pruned])
    axis.set_xlabel("trial")
    axis.set_ylabel(_axis_label(found))
    axis.locator_params(axis="x", integer=True)
    axis.grid(axis="x", visible=False)
    figure.legend(loc="outside upper left", ncols=4, fontsize=8.5)
    save(figure, path)
    better = "Higher" if found["objective"]["maximize"] else "Lower"
    return Picture(path, "History", f"What each trial reached, and the best up to there. {better} is better.")


def _points(axis: "Axes", found: Row, rows: Sequence[Row], places: Sequence[Any]) -> None:
    axis.scatter(
        places,
        [_scaled(found, row["value"]) for row in rows],
        color=BLUE,
        s=26,
        alpha=0.85,
        linewidths=0,
        zorder=3,
        label="complete",
    )


def _best_so_far(found: Row, complete: Sequence[Row]) -> tuple[list[int], list[float]]:
    numbers: list[int] = []
    best: list[float] = []
    choose = max if found["objective"]["maximize"] else min
    for row in complete:
        value = _scaled(found, row["value"])
        numbers.append(row["number"])
        best.append(value if not best else choose(best[-1], value))
    return numbers, best


def _robust_limits(axis: "Axes", found: Row, rows: Sequence[Row]) -> None:
    """Keep a few results that are far worse from flattening all others; those are cut off, better ones never."""
    import numpy as np

    sign = 1.0 if found["objective"]["maximize"] else -1.0
    goodness = sign * np.array([_scaled(found, row["value"]) for row in rows])
    low, median, high = np.percentile(goodness, (25, 50, 75))
    reach = max(3 * (high - low), 1.5 * (goodness.max() - median))
    inside = goodness[goodness >= median - reach]
    if reach > 0 and len(inside) < len(goodness):
        space = 0.08 * (inside.max() - inside.min())
        axis.set_ylim(*sorted((sign * (inside.min() - space), sign * (inside.max() + space))))
        axis.set_title(f"{len(goodness) - len(inside)} far worse, outside the picture", fontsize=8.5, color=NOTE)


def _importance(path: Path, found: Row) -> Picture:
    shares = dict(list(found["importance"]["shares"].items())[:_MOST_CHOICES])
    figure, (axis,) = canvas(5.2, 1.0 + 0.42 * len(shares))
    names = [short_label(name.replace("_", " ")) for name in shares]
    axis.barh(names, [100 * share for share in shares.values()], color=BLUE, height=0.6)
    for place, share in enumerate(shares.values()):
        axis.annotate(
            wording.percent(share), (100 * share, place), (4, 0), textcoords="offset points", va="center", fontsize=8.5
        )
    axis.invert_yaxis()
    axis.set_xlim(0, 100 * max(shares.values()) * 1.2)
    axis.set_xlabel("share of the differences (%)")
    axis.grid(axis="y", visible=False)
    save(figure, path)
    complete = len(_of_state(found, "complete"))
    caption = f"How much of the differences between {complete} complete trials goes back to each option, by Optuna's "
    return Picture(path, "What matters", f"{caption}{found['importance']['evaluator']}.", half=True)


def _parameters(path: Path, found: Row) -> Picture:
    names = list(found["importance"]["shares"]) or list(found["space"])
    names = names[:_MOST_PANELS]
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure, axes = canvas(10.6 if columns > 1 else 5.2, 3.0 * rows, rows, columns, sharey=True)
    for place, (axis, name) in enumerate(zip(axes, names, strict=False)):
        _against(axis, found, name)
        if place % columns == 0:
            axis.set_ylabel(_axis_label(found))
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    save(figure, path)
    caption = "Each complete trial; the best one is red. Values that were drawn often lie where the search found most."
    return Picture(path, "Values and results", caption, half=columns == 1)


def _against(axis: "Axes", found: Row, name: str) -> None:
    complete = [row for row in _of_state(found, "complete") if name in row["values"]]
    text = str(found["space"][name])
    if ":" in text and all(isinstance(row["values"][name], int | float) for row in complete):
        places: list[Any] = [row["values"][name] for row in complete]
        if text.startswith("log:"):
            _log_axis(axis, text)
    else:  # choices stand side by side, in their order
        labels = text.split(",")
        order = {label: place for place, label in enumerate(labels)}
        places = [order.get(_as_given(row["values"][name]), len(order)) for row in complete]
        shown = choice_labels(labels)
        axis.set_xticks(range(len(labels)), shown, rotation=0 if max(map(len, shown)) < 8 else 20)
        axis.set_xlim(-0.5, len(labels) - 0.5)
    _points(axis, found, complete, places)
    best = (found["best"] or {}).get("number")
    for row, place in zip(complete, places, strict=True):
        if row["number"] == best:
            axis.scatter([place], [_scaled(found, row["value"])], color=VERMILION, s=44, linewidths=0, zorder=4)
    _robust_limits(axis, found, complete)
    axis.set_xlabel(short_label(name.replace("_", " ")))


def _log_axis(axis: "Axes", text: str) -> None:
    """A logarithmic axis over a range, with ticks in plain words: formulas are off."""
    low, high = (float(part) for part in text.removeprefix("log:").split(":"))
    axis.set_xscale("log")
    axis.set_xlim(low / 1.1, high * 1.1)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if high / low > 200 else (1, 2, 5) if high / low <= 20 else (1, 3)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    shown = [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)] or [low, high]
    axis.set_xticks(shown, [f"{tick:.3g}" for tick in shown])
    axis.minorticks_off()


def _as_given(value: Any) -> str:
    """A value as the text of the space has it."""
    return repr(value) if isinstance(value, float) else value_text(value)


def choice_labels(choices: Sequence[str]) -> list[str]:
    """Return short labels of values, each another one: of paths the last parts, their places where those are alike."""
    ends = [choice.rstrip("/").rsplit("/", 1)[-1] for choice in choices]
    told = ends if len(set(ends)) == len(ends) else list(choices)
    told = [
        short_label(label if len(label) <= _LONGEST_CHOICE else f"…{label[1 - _LONGEST_CHOICE :]}") for label in told
    ]
    return told if len(set(told)) == len(told) else [f"{place}: {label}" for place, label in enumerate(told, start=1)]


def _courses(path: Path, found: Row) -> Picture:
    figure, (axis,) = canvas(10.6, 3.9)
    best = (found["best"] or {}).get("number")
    labels = {"complete": "complete", "pruned": "pruned"}
    for row in sorted(found["trials"], key=lambda row: row["number"] == best):
        if not row["readings"] or row["state"] == "failed":
            continue
        colour = VERMILION if row["number"] == best else {"complete": BLUE, "pruned": GREY}.get(row["state"], PALE)
        label = "the best" if row["number"] == best else labels.pop(row["state"], None)
        numbers, values = zip(*row["readings"], strict=True)
        axis.plot(
            [number + 1 for number in numbers],
            [_scaled(found, value) for value in values],
            color=colour,
            marker="o",
            markersize=3,
            linewidth=2.2 if row["number"] == best else 1,
            alpha=1 if row["number"] == best else 0.55,
            label=label,
        )
    most = max(len(row["readings"]) for row in found["trials"])
    axis.set_xticks(range(1, most + 1)) if most <= _MOST_CHOICES else None
    axis.set_xlabel("tenth of the run" if found["objective"]["name"] == "loss" else "evaluation")
    axis.set_ylabel(_axis_label(found))
    axis.spines["bottom"].set_color(FAINT)
    figure.legend(loc="outside upper left", ncols=4, fontsize=8.5)
    save(figure, path)
    return Picture(path, "The course of trials", "What each trial told while it trained; grey ones were pruned.")


def write_tune_report(found: Row, folder: Path) -> list[Path]:
    """Write report.html, its pictures and trials.csv into a folder; return the files, the page first.

    Args:
        found: tune.json, as bench.tune.document makes it.
        folder: of the study.

    Raises:
        StorageError: the folder cannot be written.
    """
    pictures = draw_tune(found, folder)
    rows = ordered(found)
    best = found["best"]
    context = {
        "title": folder.resolve().name,
        "answer": _answer(found),
        "best": best,
        "best_values": [
            (name.replace("_", " "), value_text(value)) for name, value in (best["values"] if best else {}).items()
        ],
        "replaced": replaced_text(found) if best else [],
        "facts": _facts(found),
        "failures": reasons(found),
        "pictures": pictures,
        "table": trials_table(found, rows),
        "importance": importance_text(found),
    }
    page, table = folder / "report.html", folder / "trials.csv"
    write_text(page, render_page("tune.html", context))
    tables.write_csv(table, [_flat(row) for row in rows])
    return [page, table, *(picture.path for picture in pictures)]


def _answer(found: Row) -> str:
    best = found["best"]
    if best is None:
        return "No trial came to its end."
    return f"The best: {best_text(found)}."


def _facts(found: Row) -> list[tuple[str, str]]:
    search = found["search"]
    own = {name: value for name, value in found["training"].items() if value is not False}
    better = "higher" if found["objective"]["maximize"] else "lower"
    return [
        ("trained", str(found["task"])),
        ("objective", f"{found['objective']['label']}, {better} is better"),
        ("trials", counts_text(found)),
        ("sampler", f"{search['sampler']}, seed {search['seed']}"),
        ("pruner", str(search["pruner"])),
        *((f"searched: {name.replace('_', ' ')}", text) for name, text in found["space"].items()),
        *((name.replace("_", " "), value_text(value)) for name, value in own.items()),
    ]


def _flat(row: Row) -> dict[str, Any]:
    """A row of the CSV file."""
    own = {name: row[name] for name in ("number", "state", "value")}
    rest = {name: row[name] for name in ("seconds", "reason", "killed", "same_as", "folder")}
    return {**own, **row["values"], **rest}
