"""Results of searches: trials of a hyper-parameter study, and configurations that autotune tried."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.metrics.comparison.winner import typical_rate
from analysis.render import tables
from common.scores import in_words, score

Row = Mapping[str, Any]

_FEW = 20
"""With fewer complete trials, importance is a rough estimate."""
_MOST_ROWS = 20
_STATES = ("complete", "pruned", "failed", "running", "waiting")


def tune_blocks(found: Row) -> list[tables.Block]:
    """Return the results of a study, the best trial first.

    Args:
        found: tune.json, as bench.tune.document makes it.
    """
    rows = ordered(found)
    facts = [("trials", counts_text(found)), *(("failed", text) for text in reasons(found))]
    importance = importance_text(found)
    facts += [("importance", importance)] if importance else []
    if found["best"] is None:
        facts.append(("best", "none: no trial completed"))
    else:
        facts += [("best", best_text(found)), ("command", found["best"]["command"])]
        facts += [("", text) for text in replaced_text(found)]
    blocks: list[tables.Block] = [trials_table(found, rows[:_MOST_ROWS]) if rows else "no trial has started"]
    blocks += [f"{len(rows) - _MOST_ROWS:,} more trials are in trials.csv"] * (len(rows) > _MOST_ROWS)
    return [*blocks, tables.Facts(facts)]


def best_text(found: Row) -> str:
    """Return the best trial and those that tie with it. A study in which all trials tie found nothing."""
    best = found["best"]
    value = in_words(found["objective"]["name"], best["value"])
    trained = [row for row in found["trials"] if row["state"] == "complete" and row["same_as"] is None]
    tied = sorted({best["number"], *(row["number"] for row in trained if row["value"] == best["value"])})
    if len(tied) == 1:
        return f"trial {best['number']}, {value}"
    if len(tied) == len(trained):
        return f"none: all {len(trained)} complete trials tie at {value}; the command repeats trial {best['number']}"
    numbers = f"{', '.join(map(str, tied[:-1]))} and {tied[-1]}"
    return f"trials {numbers} tie at {value}; the command repeats trial {best['number']}"


def replaced_text(found: Row) -> list[str]:
    """Return which files outside its folder the command of the best trial overwrites, as at most one sentence."""
    paths = [Path(path) for path in found["best"]["replaces"]]
    if not paths:
        return []
    names = ", ".join(path.name for path in paths)
    return [f"overwrites {names} in {paths[0].parent}: back them up first, or use the checkpoint that the trial kept"]


def ordered(found: Row) -> list[Row]:
    """Return the trials: complete ones by value, then pruned, failed, running and waiting ones."""
    sign = -1.0 if found["objective"]["maximize"] else 1.0

    def key(row: Row) -> tuple[int, float, int]:
        value = row["value"] if row["state"] == "complete" else None
        return _STATES.index(row["state"]), sign * value if value is not None else 0.0, row["number"]

    return sorted(found["trials"], key=key)


def trials_table(found: Row, rows: Sequence[Row]) -> tables.Table:
    """Return the trials as a table."""
    name = found["objective"]["name"]
    best = (found["best"] or {}).get("number")

    def number(row: Row) -> str:
        return f"{row['number']}{'*' * (row['number'] == best)}"

    def value_of(row: Row) -> str:
        return wording.UNKNOWN if row["value"] is None else score(name).text(row["value"])

    columns = [
        tables.Column("trial", lambda row: row["number"], number),
        tables.Column("state", lambda row: _STATES.index(row["state"]), lambda row: str(row["state"]), False),
        tables.Column(found["objective"]["label"], lambda row: row["value"], value_of),
        *(_parameter(parameter, rows) for parameter in found["space"]),
        tables.measured("s", "seconds"),
        tables.Column("", _remark, _remark, False),
    ]
    return tables.build("trials", columns, rows, csv="trials.csv")


def counts_text(found: Row) -> str:
    """Return how many trials ended how: "12 complete, 5 pruned"."""
    counts = Counter(row["state"] for row in found["trials"])
    again = sum(row["same_as"] is not None for row in found["trials"])
    words = [f"{counts[state]} {state}" for state in _STATES if counts[state]]
    words += [f"{again} repeated earlier values and {'was' if again == 1 else 'were'} not trained"] * bool(again)
    return ", ".join(words) or "none"


def reasons(found: Row) -> list[str]:
    """Return the reasons why trials failed, each once with its trials."""
    grouped: dict[str, list[str]] = {}
    for row in found["trials"]:
        if row["state"] == "failed":
            grouped.setdefault(row["reason"], []).append(str(row["number"]))
    return [f"{', '.join(numbers)}: {reason}" for reason, numbers in grouped.items()]


def importance_text(found: Row) -> str:
    """Return the importance of the parameters as text, with a caution if trials are few; "" if unknown."""
    importance = found["importance"]
    if not importance["shares"]:
        return f"unknown: {importance['absent']}" if importance["absent"] else ""
    shares = ", ".join(f"{name} {wording.percent(share)}" for name, share in importance["shares"].items())
    complete = sum(row["state"] == "complete" for row in found["trials"])
    few = f"; rough estimate from {complete} complete trials" if complete < _FEW else ""
    return f"{shares} ({importance['evaluator']}){few}"


def value_text(value: Any) -> str:
    """Return the value of a parameter as text."""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return f"{value:.4g}"


def _parameter(name: str, rows: Sequence[Row]) -> tables.Column:
    numeric = all(isinstance(row["values"].get(name, 0), int | float) for row in rows)

    def shown(row: Row) -> str:
        return value_text(row["values"][name]) if name in row["values"] else wording.UNKNOWN

    return tables.Column(name.replace("_", " "), lambda row: row["values"].get(name), shown, numeric)


def _remark(row: Row) -> str:
    if row["same_as"] is not None:
        return f"repeats trial {row['same_as']}"
    if row["state"] == "pruned":
        return f"after reading {len(row['readings'])}"
    return f"killed {row['killed']} times" if row["killed"] else ""


def configurations_table(rows: Sequence[Row], names: Sequence[str], best: str, close: Sequence[str]) -> tables.Table:
    """Return the configurations that were tried, the best first.

    Args:
        rows: one per trial: samples_per_second, peak_memory_bytes, predicted_bytes, status, round and what it ran.
        names: of the rows, without their rounds.
        best: name of the best configuration; the others are compared with its rate. Empty if there is none.
        close: names of those that may be as fast.
    """
    grouped: dict[str, list[Row]] = {}
    for name, row in zip(names, rows, strict=True):
        grouped.setdefault(name, []).append(row)
    rates = {name: _rate(found) for name, found in grouped.items()}
    marks = {**dict.fromkeys(close, "~"), best: "*"}
    shown = [
        {
            **grouped[name][0],
            "mark": marks.get(name, ""),
            "configuration": name,
            "rate": rates[name],
            "of_best": _share(rates[name], rates.get(best)),
            "trials": len(grouped[name]),
        }
        for name in sorted(grouped, key=lambda name: (name != best, -(rates[name] or 0.0)))
    ]
    columns = [
        tables.Column("", lambda row: row["mark"], lambda row: str(row["mark"]), False),
        tables.plain("configuration", "configuration"),
        tables.measured("samples/s", "rate", wording.fine),
        tables.measured("of best", "of_best", wording.percent),
        tables.measured("trials", "trials", wording.count),
        tables.recorded("peak_memory_bytes"),
        tables.measured("predicted", "predicted_bytes", wording.size),
        tables.plain("status", "status"),
    ]
    return tables.build("configurations", columns, shown)


def _rate(found: Sequence[Row]) -> float | None:
    """Return the typical rate over the rounds that ran; None if none did."""
    rates = [row["samples_per_second"] for row in found if row["status"] == "ok" and row["samples_per_second"]]
    return typical_rate(rates) if rates else None


def _share(rate: float | None, best: float | None) -> float | None:
    return rate / best if rate and best else None
