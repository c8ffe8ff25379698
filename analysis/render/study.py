"""Results of searches: tables and figures of a hyper-parameter study, and configurations that autotune tried."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import wording
from analysis.metrics.comparison.ratio import typical_rate
from analysis.render.figure import (
    Figure,
    curve,
    grid,
    legend,
    logarithmic,
    rule,
    short_label,
    whole_ticks,
)
from analysis.render.tables import Block, Column, Facts, Table, columns, computed, plain
from analysis.wording import Row
from common.scores import in_words, score

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_FEW = 20
"""With fewer complete trials, importance is a rough estimate."""
_MOST_ROWS = 20
_STATES = ("complete", "pruned", "failed", "running", "waiting")
_MOST_PANELS, _COLUMNS = 9, 3
_LONGEST_CHOICE = 18
_POINTS: dict[str, Any] = {"linestyle": "none", "marker": "o", "alpha": 0.85, "markersize": 5}


def tune_blocks(study: Row) -> list[Block]:
    """Return the results of a study, the best trial first.

    Args:
        study: tune.json, as bench.tune.document makes it.
    """
    rows = ordered(study)
    facts = [("trials", counts_text(study)), *(("failed", text) for text in reasons(study))]
    importance = importance_text(study)
    facts += [("importance", importance)] if importance else []
    facts += best_facts(study) if study["best"] else [("best", "none: no trial completed")]
    blocks: list[Block] = [trials_table(study, rows[:_MOST_ROWS]) if rows else "no trial has started"]
    blocks += [f"{len(rows) - _MOST_ROWS:,} more trials are in trials.csv"] if len(rows) > _MOST_ROWS else []
    return [*blocks, Facts(facts)]


def best_facts(study: Row) -> list[tuple[str, str]]:
    """Return the best trial with its ties, its command, and the files outside its folder that this overwrites."""
    best = study["best"]
    value = in_words(study["objective"]["name"], best["value"])
    trained = [row for row in study["trials"] if row["state"] == "complete" and row["same_as"] is None]
    tied = sorted({best["number"], *(row["number"] for row in trained if row["value"] == best["value"])})
    text = f"trials {', '.join(map(str, tied[:-1]))} and {tied[-1]} tie at {value}"
    if len(tied) == 1:
        text = f"trial {best['number']}, {value}"
    elif len(tied) == len(trained):  # such a study found nothing
        text = f"none: all {len(trained)} complete trials tie at {value}"
    text += f"; the command repeats trial {best['number']}" if len(tied) > 1 else ""
    facts = [("best", text), ("command", best["command"])]
    if paths := [Path(path) for path in best["replaces"]]:
        names = ", ".join(path.name for path in paths)
        facts.append(
            ("", f"overwrites {names} in {paths[0].parent}: back them up first, or use the trial's checkpoint")
        )
    return facts


def ordered(study: Row) -> list[Row]:
    """Return the trials: complete ones by value, then pruned, failed, running and waiting ones."""
    sign = -1.0 if study["objective"]["maximize"] else 1.0

    def key(row: Row) -> tuple[int, float, int]:
        value = row["value"] if row["state"] == "complete" else None
        return _STATES.index(row["state"]), sign * value if value is not None else 0.0, row["number"]

    return sorted(study["trials"], key=key)


def trials_table(study: Row, rows: Sequence[Row]) -> Table:
    """Return the trials as a table."""
    objective, best = study["objective"], (study["best"] or {}).get("number")

    def value(row: Row) -> str:
        return wording.UNKNOWN if row["value"] is None else score(objective["name"]).text(row["value"])

    def remark(row: Row) -> str:
        if row["same_as"] is not None:
            return f"repeats trial {row['same_as']}"
        if row["state"] == "pruned":
            return f"after reading {len(row['readings'])}"
        return f"killed {row['killed']} times" if row["killed"] else ""

    shown = [
        computed("trial", lambda row: f"{row['number']}{'*' * (row['number'] == best)}", lambda row: row["number"]),
        plain("state"),
        computed(objective["label"], value, lambda row: row["value"]),
        *(_parameter(name, rows) for name in study["space"]),
        *columns("seconds", seconds="s"),
        computed("", remark),
    ]
    return Table("trials", shown, rows, csv="trials.csv")


def _parameter(name: str, rows: Sequence[Row]) -> Column:
    def value(row: Row) -> Any:
        return row["values"].get(name)

    numeric = all(isinstance(row["values"].get(name, 0), int | float) for row in rows)
    return computed(
        name.replace("_", " "), lambda row: wording.text(value_text(value(row))), value if numeric else None
    )


def counts_text(study: Row) -> str:
    """Return how many trials ended how: "12 complete, 5 pruned"."""
    counts = Counter(row["state"] for row in study["trials"])
    again = sum(row["same_as"] is not None for row in study["trials"])
    words = [f"{counts[state]} {state}" for state in _STATES if counts[state]]
    words += [f"{again} repeated earlier values and {'was' if again == 1 else 'were'} not trained"] if again else []
    return ", ".join(words) or "none"


def reasons(study: Row) -> list[str]:
    """Return the reasons why trials failed, each once with its trials."""
    grouped: dict[str, list[str]] = defaultdict(list)
    for row in study["trials"]:
        if row["state"] == "failed":
            grouped[row["reason"]].append(str(row["number"]))
    return [f"{', '.join(numbers)}: {reason}" for reason, numbers in grouped.items()]


def importance_text(study: Row) -> str:
    """Return the importance of the parameters as text, with a caution if trials are few; "" if unknown."""
    importance = study["importance"]
    if not importance["shares"]:
        return f"unknown: {importance['absent']}" if importance["absent"] else ""
    shares = ", ".join(f"{name} {wording.percent(share)}" for name, share in importance["shares"].items())
    complete = sum(row["state"] == "complete" for row in study["trials"])
    few = f"; rough estimate from {complete} complete trials" if complete < _FEW else ""
    return f"{shares} ({importance['evaluator']}){few}"


def value_text(value: Any) -> str:
    """Return the value of a parameter as text; "" for None."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str("" if value is None else value)


def configurations_table(rows: Sequence[Row], names: Sequence[str], best: str, close: Sequence[str]) -> Table:
    """Return the configurations that were tried, the best first.

    Args:
        rows: one per trial: samples_per_second, peak_memory_bytes, predicted_bytes, status, round and what it ran.
        names: of the rows, without their rounds.
        best: name of the best configuration; the others are compared with its rate. Empty if there is none.
        close: names of those that may be as fast.
    """
    grouped: dict[str, list[Row]] = defaultdict(list)
    for name, row in zip(names, rows, strict=True):
        grouped[name].append(row)
    rates: dict[str, float | None] = {}
    for name, group in grouped.items():
        ran = [row["samples_per_second"] for row in group if row["status"] == "ok" and row["samples_per_second"]]
        rates[name] = typical_rate(ran) if ran else None
    marks = {**dict.fromkeys(close, "~"), best: "*"}
    top = rates.get(best)
    shown = [
        {**grouped[name][0], "mark": marks.get(name, ""), "configuration": name, "rate": rates[name],
         "of_best": rate / top if (rate := rates[name]) and top else None, "trials": len(grouped[name])}
        for name in sorted(grouped, key=lambda name: (name != best, -(rates[name] or 0.0)))
    ]  # fmt: skip
    mark = computed("", lambda row: row["mark"])
    fields = "configuration rate of_best trials peak_memory_bytes predicted_bytes status"
    return Table("configurations", [mark, *columns(fields)], shown)


def tune_figures(study: Row) -> list[Figure]:
    """Return the figures of a study.

    Args:
        study: tune.json, as bench.tune.document makes it.
    """
    shown = []
    if any(row["value"] is not None for row in study["trials"]):
        shown.append(_history(study))
    if _of_state(study, "complete"):
        shown.append(_parameters(study))
    return shown


def _of_state(study: Row, state: str) -> list[Row]:
    return [row for row in study["trials"] if row["state"] == state and row["value"] is not None]


def _values(study: Row, values: Sequence[float]) -> list[float]:
    scale = 100 if score(study["objective"]["name"]).unit == "fraction" else 1
    return [scale * value for value in values]


def _objective(axes: "Axes", study: Row, rows: Sequence[Row] = ()) -> None:
    """Make y the axis of the objective; with `rows`, a few much worse results do not flatten the others."""
    unit = {"nats": " (nats)", "fraction": " (%)", "percent": " (%)"}.get(score(study["objective"]["name"]).unit, "")
    axes.set_ylabel(f"{short_label(study['objective']['label'])}{unit}")
    values = _values(study, [row["value"] for row in rows])
    ends = robust_limits(values, study["objective"]["maximize"]) if values else None
    if ends:
        beyond = sum(not ends[0] <= value <= ends[1] for value in values)
        axes.set(ylim=ends, title=f"outside the axis: {wording.counted(beyond, 'much worse result')}")


def robust_limits(values: Sequence[float], maximize: bool) -> tuple[float, float] | None:
    """Return the ends of an axis that leaves out much worse results but never better ones; None if all fit."""
    sign = 1.0 if maximize else -1.0
    goodness = sign * np.array(values)
    low, median, high = np.percentile(goodness, (25, 50, 75))
    reach = max(3 * (high - low), 1.5 * (goodness.max() - median))
    inside = goodness[goodness >= median - reach]
    if not reach > 0 or len(inside) == len(goodness):
        return None
    space = 0.08 * (inside.max() - inside.min())
    first, last = sorted((sign * (inside.min() - space), sign * (inside.max() + space)))
    return float(first), float(last)


def _history(study: Row) -> Figure:
    complete, pruned = _of_state(study, "complete"), _of_state(study, "pruned")

    def draw(canvas: "Canvas") -> None:
        axes = canvas.subplots()
        axes.set_xlabel("trial")
        whole_ticks(axes)
        _objective(axes, study, [*complete, *pruned])
        for row in study["trials"]:
            if row["state"] == "failed":
                rule(axes, "x", row["number"], "failed", "orange", label="failed", linestyle="dotted")
        for rows, name, colour, marker in ((complete, "complete", "blue", "o"),
                                           (pruned, "pruned (last reading)", "grey", "x")):  # fmt: skip
            if rows:
                x, y = [row["number"] for row in rows], _values(study, [row["value"] for row in rows])
                curve(axes, x, y, name, colour, **{**_POINTS, "marker": marker})
        if complete:
            end = max(row["number"] for row in study["trials"])
            better = np.maximum if study["objective"]["maximize"] else np.minimum
            best = better.accumulate(_values(study, [row["value"] for row in complete]))
            x = [*(row["number"] for row in complete), end]
            curve(axes, x, [*best, best[-1]], "best so far", "vermilion", drawstyle="steps-post")
        legend(canvas, axes)

    better = "Higher" if study["objective"]["maximize"] else "Lower"
    caption = f"Result of each trial and the best result so far. {better} is better."
    return Figure(name="history", title="Objective by trial", caption=caption, draw=draw)


def _parameters(study: Row) -> Figure:
    names = (list(study["importance"]["shares"]) or list(study["space"]))[:_MOST_PANELS]
    columns = min(_COLUMNS, len(names))

    def draw(canvas: "Canvas") -> None:
        for place, (axes, name) in enumerate(zip(grid(canvas, len(names), columns), names, strict=True)):
            _draw_parameter(axes, study, name)
            axes.set_ylabel(axes.get_ylabel() if place % columns == 0 else "")

    return Figure(
        name="parameters", title="Objective by parameter", draw=draw, half=columns == 1,
        caption="Each point is a complete trial; the best is red. More values are tried where results are good.",
        size=(10.6 if columns > 1 else 5.2, 3.0 * math.ceil(len(names) / columns)),
    )  # fmt: skip


def _draw_parameter(axes: "Axes", study: Row, name: str) -> None:
    complete = [row for row in _of_state(study, "complete") if name in row["values"]]
    values: list[Any] = [row["values"][name] for row in complete]
    text = str(study["space"][name])
    axes.set_xlabel(short_label(name.replace("_", " ")))
    _objective(axes, study, complete)
    if ":" in text and all(isinstance(value, int | float) for value in values):
        places = values
        if text.startswith("log:"):
            low, high = (float(part) for part in text.removeprefix("log:").split(":"))
            logarithmic(axes, "x", "{:g}".format)
            axes.set_xlim(low / 1.1, high * 1.1)
    else:  # choices side by side, in their order
        choices = text.split(",")
        order = {choice: place for place, choice in enumerate(choices)}
        texts = [repr(value) if isinstance(value, float) else value_text(value) for value in values]
        places = [order.get(one, len(order)) for one in texts]
        shown = choice_labels(choices)
        steep = max(map(len, shown)) * len(shown) > 2 * _LONGEST_CHOICE
        axes.set_xlim(-0.5, len(choices) - 0.5)
        axes.set_xticks(range(len(choices)), shown, rotation=90 if steep else 0)
    results = _values(study, [row["value"] for row in complete])
    curve(axes, places, results, "complete", "blue", **_POINTS)
    best = (study["best"] or {}).get("number")
    for place, result, row in zip(places, results, complete, strict=True):
        if row["number"] == best:
            curve(axes, [place], [result], "best", "vermilion", marker="o", markersize=6.6)


def choice_labels(choices: Sequence[str]) -> list[str]:
    """Return distinct short labels: the last part of a path, with its position if two would be equal."""
    ends = [choice.rstrip("/").rsplit("/", 1)[-1] for choice in choices]
    labels = ends if len(set(ends)) == len(ends) else list(choices)
    labels = [short_label(one if len(one) <= _LONGEST_CHOICE else f"…{one[1 - _LONGEST_CHOICE :]}") for one in labels]
    if len(set(labels)) == len(labels):
        return labels
    return [f"{place}: {label}" for place, label in enumerate(labels, start=1)]
