"""Speedruns as tables: what each seed needed, the intervals over the seeds, and the decision between two."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.metrics.comparison.speedruns import SIGNIFICANCE, SUMMARIZED, SpeedrunComparison
from analysis.render import tables
from analysis.wording import FORMS
from common.scores import score
from records.schema import SPEEDRUN, Column

Row = Mapping[str, Any]

_COLUMNS = {column.name: column for column in SPEEDRUN}
_SHOWN = ("steps", "tokens", "mlm_loss", "step_seconds", "loop_seconds", "total_seconds", "samples_per_second",
          "energy_joules", "cost")  # fmt: skip
"""Columns of numbers in the table of seeds; energy and cost only where they are known."""
_OPTIONAL = ("energy_joules", "cost")


def speedrun_blocks(found: Row) -> list[tables.Block]:
    """Return a speedrun: the seeds, what they needed on average, and what the numbers depend on.

    Args:
        found: speedrun.json with `summary`, as analysis.metrics.comparison.speedruns.load_speedrun returns it.
    """
    rows, whole = found["rows"], found["summary"]
    facts = [("target", target_text(found)), ("reached", f"{whole['reached']} of {whole['seeds']} seeds")]
    facts += [(_label(name), mean_text(name, whole[name])) for name in SUMMARIZED if whole[name]]
    facts += [(_label(name), f"not known: {why}") for name, why in _unknown(whole).items()]
    facts += [(f"seed {row['seed']}", f"{row['status']}: {row['reason']}") for row in rows if row["reason"]]
    facts += [("machine", machine_text(found))] if found["machine"] else []
    facts += [
        ("caution", f"{one['message']}; {one['remedy']} (seeds {' '.join(map(str, one['seeds']))})")
        for one in found.get("cautions") or []
    ]
    return [seeds_table(rows), tables.Facts(facts)]


def seeds_table(rows: Sequence[Row]) -> tables.Table:
    """Return a row per seed."""
    shown = [name for name in _SHOWN if name not in _OPTIONAL or any(row.get(name) is not None for row in rows)]
    columns = [
        tables.plain("seed", "seed"),
        tables.plain("status", "status"),
        *(tables.measured(_label(name), name, _form(_COLUMNS[name])) for name in shown),
    ]
    return tables.build("speedrun", columns, rows)


def target_text(found: Row) -> str:
    """Return the goal in words."""
    target, data = found["target"], found["data"]
    held_out = data.get("held_out_samples")
    on = "" if held_out is None else f", on {held_out:,} held-out samples"
    return f"{score(target['score']).label} of {target['value']:g} nats or less{on}"


def machine_text(found: Row) -> str:
    """Return the machine and the versions in one line."""
    named = {"device_name": "", "devices": "devices ", "threads_per_rank": "threads per device "}
    words = [f"{named.get(name, f'{name} ')}{value}" for name, value in found["machine"].items()]
    return ", ".join(words)


def mean_text(name: str, value: Row) -> str:
    """Return a mean over the seeds with its interval."""
    form = _form(_COLUMNS[name])
    if value["low"] is None:
        return f"{form(value['mean'])} (one seed: no interval)"
    return f"{form(value['mean'])} (95 % interval {form(value['low'])} to {form(value['high'])})"


def _unknown(whole: Row) -> dict[str, str]:
    """Return why numbers are not known; where no mean is, one line says so."""
    unknown = whole["unknown"]
    if whole["reached"] < whole["seeds"]:
        return {"step_seconds": unknown["step_seconds"]} if "step_seconds" in unknown else {}
    return {name: why for name, why in unknown.items() if name != "cost"}


def _label(name: str) -> str:
    return _COLUMNS[name].label


def _form(column: Column) -> Any:
    if column.name == "mlm_loss":
        return lambda value: score("mlm_loss").text(value) if value is not None else wording.UNKNOWN
    if column.form == "count":  # a mean of counts is shown in whole ones
        return lambda value: wording.count(None if value is None else round(value))
    return FORMS[column.form]


def speedrun_comparison_blocks(a: Row, b: Row, found: SpeedrunComparison) -> list[tables.Block]:
    """Return speedrun B beside speedrun A, and the decision."""
    sides = (a, b)
    rows = [("reached", *(f"{one['summary']['reached']} of {one['summary']['seeds']}" for one in sides), "")]
    for name in SUMMARIZED:
        values = [one["summary"][name] for one in sides]
        if any(values):
            texts = [mean_text(name, value) if value else wording.UNKNOWN for value in values]
            ratio = f"{found.ratios[name]:.3f}" if name in found.ratios else wording.UNKNOWN
            rows.append((_label(name), *texts, ratio))
    facts = [("target", target_text(b)), ("verdict", verdict_text(found)), ("reason", found.reason)]
    if found.saved_seconds is not None and found.saved_low is not None and found.saved_high is not None:
        ends = f"{wording.fine(found.saved_low)} to {wording.fine(found.saved_high)}"
        facts.append(("training time saved", f"{wording.fine(found.saved_seconds)} s (95 % interval {ends})"))
    if found.costs_quality:
        rate, time = found.ratios["samples_per_second"], found.ratios["step_seconds"]
        facts.append(("throughput", f"B makes {rate:.2f} x the samples/s and needs {time:.2f} x the training time"))
    facts += [("differs", text) for text in found.differences]
    return [tables.texts("speedruns", ("", "A", "B", "B / A"), rows), tables.Facts(facts)]


def verdict_text(found: SpeedrunComparison) -> str:
    """Return the decision in words."""
    return {
        "faster": f"B is faster: a new record at a significance of {SIGNIFICANCE:g}",
        "slower": "B is slower",
        "not reached": "B does not reach the target",
        "cannot decide": "not conclusive",
    }[found.verdict]
