"""Results of searches: the trials of a hyper-parameter study, and the configurations tried for throughput."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from analysis import wording
from analysis.metrics.comparison.ratio import typical_rate
from analysis.render.tables import Block, Column, Facts, Table, columns, computed, plain
from analysis.wording import Row
from common.scores import in_words, score

_MOST_ROWS = 20
_STATES = ("complete", "pruned", "failed", "running", "waiting")


def tune_blocks(study: Row) -> list[Block]:
    """Return the trials of a study: complete ones by value, then pruned, failed, running, waiting; and the best.

    Args:
        study: tune.json, as bench.search.score writes it.
    """
    sign = -1.0 if study["objective"]["maximize"] else 1.0

    def key(row: Row) -> tuple[int, float, int]:
        value = row["value"] if row["state"] == "complete" else None
        return _STATES.index(row["state"]), sign * value if value is not None else 0.0, row["number"]

    rows = sorted(study["trials"], key=key)
    counts = Counter(row["state"] for row in rows)
    failed: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["state"] == "failed":
            failed[row["reason"]].append(str(row["number"]))
    facts = [("trials", ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state]) or "none")]
    facts += [("failed", f"{', '.join(numbers)}: {reason}") for reason, numbers in failed.items()]
    facts += _best_facts(study) if study["best"] else [("best", "none: no trial completed")]
    blocks: list[Block] = [_trials_table(study, rows[:_MOST_ROWS]) if rows else "no trial has started"]
    blocks += [f"{len(rows) - _MOST_ROWS:,} more trials are in tune.json"] if len(rows) > _MOST_ROWS else []
    return [*blocks, Facts(facts)]


def _best_facts(study: Row) -> list[tuple[str, str]]:
    """Return the best trial and its command."""
    best = study["best"]
    trained = [row["value"] for row in study["trials"] if row["state"] == "complete" and row["same_as"] is None]
    ties = trained.count(best["value"]) - 1
    text = f"trial {best['number']}, {in_words(study['objective']['name'], best['value'])}"
    text += f"; {wording.counted(ties, 'other trial')} of {len(trained)} with the same value" if ties > 0 else ""
    return [("best", text), ("command", best["command"])]


def _trials_table(study: Row, rows: Sequence[Row]) -> Table:
    objective, best = study["objective"], (study["best"] or {}).get("number")

    def value(row: Row) -> str:
        return wording.UNKNOWN if row["value"] is None else score(objective["name"]).text(row["value"])

    def remark(row: Row) -> str:
        if row["same_as"] is not None:
            return f"repeats trial {row['same_as']}"
        if row["state"] == "pruned":
            return f"after reading {len(row['readings'])}"
        return f"resumed {row['resumed']} times" if row["resumed"] else ""

    shown = [
        computed("trial", lambda row: f"{row['number']}{'*' * (row['number'] == best)}", lambda row: row["number"]),
        plain("state"),
        computed(objective["label"], value, lambda row: row["value"]),
        *map(_parameter, study["space"]),
        *columns("seconds", seconds="s"),
        computed("", remark),
    ]
    return Table("trials", shown, rows)


def _parameter(name: str) -> Column:
    def text(row: Row) -> str:
        value: Any = row["values"].get(name)
        return f"{value:.4g}" if isinstance(value, float) else wording.text(value)

    return computed(name.replace("_", " "), text)


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
    shown: list[dict[str, Any]] = []
    for name, group in grouped.items():
        rates = [row["samples_per_second"] for row in group if row["status"] == "ok" and row["samples_per_second"]]
        mark = "*" if name == best else "~" if name in close else ""
        rate = typical_rate(rates) if rates else None
        shown.append({**group[0], "mark": mark, "configuration": name, "rate": rate, "trials": len(group)})
    shown.sort(key=lambda row: (row["configuration"] != best, -(row["rate"] or 0.0)))
    top = shown[0]["rate"] if best else None
    for row in shown:
        row["of_best"] = row["rate"] / top if row["rate"] and top else None
    fields = "configuration rate of_best trials peak_memory_bytes predicted_bytes status"
    return Table("configurations", [computed("", lambda row: row["mark"]), *columns(fields)], shown)
