"""Tables of comparisons: runs over time, and several trainings."""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.metrics.comparison.runs import describe
from analysis.metrics.comparison.trainings import WHOLE, score_columns
from analysis.render.tables import Block, Column, Facts, Table, columns, computed, measured, plain
from analysis.wording import FORMS, UNKNOWN, Row
from common.scores import Score, score


def history_blocks(history: Row) -> list[Block]:
    """Return a table per measurement, what changed between its runs, the reasons for verdicts, and their counts.

    Args:
        history: what history_of returned.
    """
    runs = [point["run"] for one in history["series"] for point in one["points"]]
    above = os.path.commonpath([Path(run).parent for run in runs])
    names = "when run rounds step_time_ms time_ratio time_ratio~ time_ratio_first verdict"
    shown = columns(names, when="started (UTC)", time_ratio="new/previous time")
    blocks: list[Block] = []
    for one in sorted(history["series"], key=lambda one: len(one["points"]) < 2):
        rows: list[Row] = []
        changes: list[Block] = []
        reasons: dict[str, list[str]] = defaultdict(list)
        for point in one["points"]:
            name = os.path.relpath(point["run"], above)
            verdict = point["verdict"] or ("first" if point["status"] == "ok" else point["status"])
            rows.append({**point, "run": name, "when": point["began"][:16].replace("T", " "), "verdict": verdict})
            changes += [f"{name}: changed: {'; '.join(point['changed'])}"] if point["changed"] else []
            if point["reason"]:
                reasons[f"{verdict}: {point['reason']}"].append(name)
        data = "" if one["kind"] == "measure" else f", {wording.data(one)}"
        blocks += [Table("history", shown, rows, f"{describe(one)}{data}: {one['machine']}"), *changes]
        blocks += [f"{', '.join(places)}: {reason}" for reason, places in reasons.items()]
    newest = [one["points"][-1]["verdict"] or "first" for one in history["series"]]
    tally = ", ".join(f"{newest.count(name)} {name}" for name in dict.fromkeys(newest))
    counted = wording.counted(len(newest), "configuration")
    return [*blocks, f"{counted}; latest verdicts: {tally}; threshold {100 * history['threshold']:g} %"]


def trainings_blocks(run: Row) -> list[Block]:
    """Return several trainings: a row per variant, a row per training where they tell more, and what they depend on.

    Args:
        run: trainings.json.
    """
    rows, variants = run["rows"], run["variants"]
    blocks: list[Block] = [variants_table(variants)]
    if len(rows) > len(variants) or any(row["status"] not in WHOLE for row in rows):
        blocks.append(trainings_table(rows))
    facts = []
    if run["target"] is not None:
        on, target = run["data"].get("held_out_samples"), run["target"]
        where = "" if on is None else f", on {on:,} held-out samples"
        facts.append(("target", f"{score(target['score']).label} of {target['value']:g} nats or less{where}"))
    facts += [(row["folder"], f"{row['status']}: {row['reason']}") for row in rows if row["reason"]]
    facts += [(one["variant"], f"faster or slower: {one['decided']}, {one['why']}")
              for one in variants if one["why"] and one["seeds"] > 1]  # fmt: skip
    facts += [("machine", run["machine"]["device_name"])] if run["machine"].get("device_name") else []
    cautions: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in rows:
        for one in row["cautions"]:
            cautions[one["code"]].append((row["folder"], f"{one['message']}; {one['remedy']}"))
    facts += [("caution", f"{', '.join(name for name, _ in same)}: {same[0][1]}") for same in cautions.values()]
    return [*blocks, Facts(facts)]


def variants_table(variants: Sequence[Row]) -> Table:
    """Return a row per variant: the means over its seeds with their intervals."""
    seeds = computed("seeds", lambda row: f"{row['whole']} of {row['seeds']}", lambda row: row["seeds"])
    first = [plain("", "variant"), *([seeds] if any(one["seeds"] > 1 for one in variants) else [])]
    return _table("variants", first, variants, _mean)


def trainings_table(rows: Sequence[Row]) -> Table:
    """Return a row per training; trainings.csv has all columns."""

    def steps(row: Row) -> str:
        return UNKNOWN if row["steps"] is None else f"{row['steps']:,} of {row['total_steps']:,}"

    status = computed("training", lambda row: str(row["status"]))
    return _table("trainings", [plain("", "folder"), status, computed("steps", steps)], rows, measured, "trainings.csv")


_MakeColumn = Callable[[str, str, Callable[[Any], str]], Column]
_MEANS = (
    ("time, s", "step_seconds", "fine"), ("with start-up, s", "total_seconds", "fine"),
    ("samples/s", "samples_per_second", "fine"), ("speed-up", "speedup", "fine"), ("last loss", "last_loss", "fine"),
    ("energy, J", "energy_joules", "number"), ("cost", "cost", "number"), ("peak memory", "peak_memory_bytes", "size"),
)  # fmt: skip
_SHARES = (("exposed", "communication_exposed_share"), ("all-reduce", "all_reduce_share"))


def _table(name: str, first: Sequence[Column], rows: Sequence[Row], column: _MakeColumn, csv: str = "") -> Table:
    """Return a table without the columns of which no row has a value."""
    scores = {name: score(name.removeprefix("score_")) for name in score_columns(rows)}
    best = dict.fromkeys(row["best_score"] for row in rows if row.get("best_score"))
    shown = [
        *first,
        *(column(label, field, FORMS[form]) for label, field, form in _MEANS),
        *(column(one.label, name, _text(one)) for name, one in scores.items() if one.headline),
        *(column(f"best {one.label}", "best_value", _text(one)) for one in map(score, best)),
        *(measured(label, field, "percent") for label, field in _SHARES),
    ]
    known = [one for one in shown if not one.fields or any(row.get(one.fields[0]) is not None for row in rows)]
    return Table(name, known, rows, csv=csv)


def _mean(label: str, name: str, form: Callable[[Any], str]) -> Column:
    """Return a column of means with half the width of their intervals, of ratios with their intervals."""

    def text(row: Row) -> str:
        mean, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
        if mean is None or low is None or high is None:
            return form(mean)
        if name == "speedup":
            return f"{form(mean)} ({form(low)} to {form(high)})"
        return f"{form(mean)} \N{PLUS-MINUS SIGN} {form(high - mean)}"

    return Column(label, (name, f"{name}_low", f"{name}_high"), text, lambda row: row.get(name))


def _text(known: Score) -> Callable[[Any], str]:
    return lambda value: UNKNOWN if value is None else known.text(value)
