"""Results of searches: tables of a hyper-parameter study, and of the configurations that autotune tried."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.metrics.comparison.ratio import typical_rate
from analysis.render.tables import Block, Column, Facts, Table, columns, computed, plain
from analysis.wording import Row
from common.scores import in_words, score

_FEW = 20
"""With fewer complete trials, importance is a rough estimate."""
_MOST_ROWS = 20
_STATES = ("complete", "pruned", "failed", "running", "waiting")


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
    blocks += [f"{len(rows) - _MOST_ROWS:,} more trials are in tune.json"] if len(rows) > _MOST_ROWS else []
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
    return Table("trials", shown, rows)


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
