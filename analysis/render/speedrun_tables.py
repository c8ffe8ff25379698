"""Speedruns as tables: what each seed needed, the intervals over the seeds, and the decision between two."""

from collections.abc import Sequence
from typing import Any

from analysis import wording
from analysis.metrics.comparison.speedruns import SIGNIFICANCE, SUMMARIZED
from analysis.render.columns import columns
from analysis.render.tables import Block, Facts, Table, texts
from analysis.wording import FORMS, Row
from common.scores import score
from records.schema import SPEEDRUN

_COLUMNS = {column.name: column for column in SPEEDRUN}
_SHOWN = "steps tokens mlm_loss step_seconds loop_seconds total_seconds samples_per_second energy_joules cost"
"""Columns of numbers in the table of seeds."""
_OPTIONAL = ("energy_joules", "cost")


def speedrun_blocks(run: Row) -> list[Block]:
    """Return a speedrun: the seeds, what they needed on average, and what the numbers depend on.

    Args:
        run: speedrun.json with `summary`, as analysis.metrics.comparison.speedruns.load_speedrun returns it.
    """
    rows, whole = run["rows"], run["summary"]
    facts = [("target", _target_text(run)), ("reached", f"{whole['reached']} of {whole['seeds']} seeds")]
    facts += [(_COLUMNS[name].label, _mean_text(name, whole[name])) for name in SUMMARIZED if whole[name]]
    facts += [(_COLUMNS[name].label, f"not known: {why}") for name, why in _unknown(whole).items()]
    facts += [(f"seed {row['seed']}", f"{row['status']}: {row['reason']}") for row in rows if row["reason"]]
    if run["machine"]:
        facts.append(("machine", ", ".join(f"{name} {value}" for name, value in run["machine"].items())))
    facts += [
        ("caution", f"{one['message']}; {one['remedy']} (seeds {' '.join(map(str, one['seeds']))})")
        for one in run.get("cautions") or []
    ]
    return [seeds_table(rows), Facts(facts)]


def seeds_table(rows: Sequence[Row]) -> Table:
    """Return a row per seed; energy and cost only where they are known."""
    shown = [name for name in _SHOWN.split() if name not in _OPTIONAL or any(row.get(name) is not None for row in rows)]
    return Table("speedrun", columns(["seed", "status", *shown]), rows)


def _target_text(run: Row) -> str:
    target, held_out = run["target"], run["data"].get("held_out_samples")
    on = "" if held_out is None else f", on {held_out:,} held-out samples"
    return f"{score(target['score']).label} of {target['value']:g} nats or less{on}"


def _mean_text(name: str, value: Row) -> str:
    """Return a mean over the seeds with its interval; a mean of counts in whole ones."""
    form: Any = FORMS[_COLUMNS[name].form] if name != "mlm_loss" else score(name).text
    mean, low, high = (None if value[key] is None else form(value[key]) for key in ("mean", "low", "high"))
    return f"{mean} ({'one seed: no interval' if low is None else f'95 % interval {low} to {high}'})"


def _unknown(whole: Row) -> dict[str, str]:
    """Return why numbers are not known; where no mean is, one line says so."""
    unknown = whole["unknown"]
    if whole["reached"] < whole["seeds"]:
        return {"step_seconds": unknown["step_seconds"]} if "step_seconds" in unknown else {}
    return {name: why for name, why in unknown.items() if name != "cost"}


def speedrun_comparison_blocks(a: Row, b: Row, comparison: Row) -> list[Block]:
    """Return speedrun B beside speedrun A, and the decision."""
    both, ratios = (a["summary"], b["summary"]), comparison["ratios"]
    rows = [("reached", *(f"{one['reached']} of {one['seeds']}" for one in both), "")]
    for name in SUMMARIZED:
        if any(one[name] for one in both):
            means = [_mean_text(name, one[name]) if one[name] else wording.UNKNOWN for one in both]
            ratio = f"{ratios[name]:.3f}" if name in ratios else wording.UNKNOWN
            rows.append((_COLUMNS[name].label, *means, ratio))
    facts = [
        ("target", _target_text(b)),
        ("verdict", _VERDICTS[comparison["verdict"]]),
        ("reason", comparison["reason"]),
    ]
    if comparison["saved_seconds"] is not None:
        saved = [wording.fine(comparison[name]) for name in ("saved_seconds", "saved_low", "saved_high")]
        facts.append(("training time saved", f"{saved[0]} s (95 % interval {saved[1]} to {saved[2]})"))
    if comparison["costs_quality"]:
        rate, time = ratios["samples_per_second"], ratios["step_seconds"]
        facts.append(("throughput", f"B makes {rate:.2f} x the samples/s and needs {time:.2f} x the training time"))
    facts += [("differs", text) for text in comparison["differences"]]
    return [texts("speedruns", ("", "A", "B", "B / A"), rows), Facts(facts)]


_VERDICTS = {
    "faster": f"B is faster: a new record at a significance of {SIGNIFICANCE:g}",
    "slower": "B is slower",
    "not reached": "B does not reach the target",
    "cannot decide": "not conclusive",
}
