"""Tables of comparisons: runs over time, variants of a training, the heads of GAP by epoch, speedruns."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.load import CIRCUMSTANCES
from analysis.metrics.comparison.history import History
from analysis.metrics.comparison.runs import describe
from analysis.metrics.comparison.trainings import SIGNIFICANCE, SUMMARIZED, HeadResult, TrainingComparison, row_names
from analysis.render.tables import Block, Facts, Table, columns, computed, measured, plain, texts
from analysis.wording import FORMS, UNKNOWN, Row
from common.scores import score
from records.schema import COMPARISON_COLUMNS, SPEEDRUN


def history_blocks(history: History) -> list[Block]:
    """Return a table per repeated measurement, a line per other one, and a count of the latest verdicts."""
    runs = [point["run"] for one in history.series for point in one["points"]]
    above = os.path.commonpath([Path(run).parent for run in runs])
    varied = [name for name in CIRCUMSTANCES if name not in ("kind", "data", "data_fingerprint", "command")
              and len({str(one.get(name)) for one in history.series}) > 1]  # fmt: skip
    blocks: list[Block] = []
    for one in sorted(history.series, key=lambda one: len(one["points"]) < 2):
        settings = "".join(f", {name.replace('_', ' ')} {one.get(name) or 'default'}" for name in varied)
        data = "" if one["kind"] == "measure" else f", {wording.data(one)}"
        blocks += _series_blocks(one, f"{describe(one)}{data}{settings}: {one['machine']}", above)
    newest = [one["points"][-1]["verdict"] or "first" for one in history.series]
    tally = ", ".join(f"{newest.count(name)} {name}" for name in dict.fromkeys(newest))
    counted = wording.counted(len(newest), "configuration")
    return [*blocks, f"{counted}; latest verdicts: {tally}; threshold {100 * history.threshold:g} %"]


def _series_blocks(one: Row, title: str, above: str) -> list[Block]:
    """Return the table of a measurement, the changes between its runs, and the reasons for verdicts."""
    point = one["points"][0]
    if len(one["points"]) == 1:
        speed, time = point["samples_per_second"], point["step_time_ms"]
        known = f"{wording.number(time)} ms per step" if time else point["status"]
        known = f"{wording.number(speed)} samples/s" if speed else known
        return [f"measured once, {known}: {title}: {point['run']}"]
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
    names = "when run rounds samples_per_second samples_per_second~ step_time_ms time_ratio time_ratio_first verdict"
    shown = columns(names, when="started (UTC)", time_ratio="new/previous time")
    return [
        Table("history", shown, rows, title),
        *changes,
        *(f"{', '.join(names)}: {reason}" for reason, names in reasons.items()),
    ]


def comparison_table(comparison: TrainingComparison, csv: str = "") -> Table:
    """Return a row per variant, without the columns of which no variant has a value; comparison.csv has all."""
    rows = [
        {**row, "variant": name, **{f"score_{name}": value for name, value in row["scores"].items()}}
        for name, row in zip(row_names(comparison.rows), comparison.rows, strict=True)
    ]
    names = dict.fromkeys(name for row in comparison.rows for name in row["scores"] if score(name).headline)

    def steps(row: Row) -> str:
        return UNKNOWN if row["steps"] is None else f"{row['steps']:,} of {row['total_steps']:,}"

    shown = [
        plain("", "variant"),
        *([computed("training", lambda row: str(row["status"])), computed("steps", steps)] * bool(comparison.failed)),
        measured("time, s", "step_seconds", "fine"),
        measured("samples/s", "samples_per_second", "fine"),
        measured("ratio", "speedup", "fine"),
        measured("last loss", "last_loss", "fine"),
        *(measured(score(name).label, f"score_{name}", _score_form(name)) for name in names),
        measured("exposed", "communication_exposed_share", "percent"),
        measured("all-reduce", "all_reduce_share", "percent"),
    ]
    known = [one for one in shown if not one.fields or any(row.get(one.fields[0]) is not None for row in rows)]
    return Table("comparison", known, rows, csv=csv)


def _score_form(name: str) -> Any:
    return lambda value: UNKNOWN if value is None else score(name).text(value)


def comparison_notes(comparison: TrainingComparison) -> list[str]:
    """Return what the table has no column for, each value once: batch, parameters, memory."""
    notes: dict[str, dict[str, None]] = {}
    for row in comparison.rows:
        batch = f"{row['global_batch_size']} = {row['micro_batch_size']} x {row['grad_accum_steps']} x {row['devices']}"
        memory = f"{wording.size(row['peak_memory_bytes'])} ({row['peak_memory_kind']})"
        for label, field, text in (
            (
                "global batch = micro batch x accumulation x devices",
                "global_batch_size",
                batch,
            ),
            ("threads per process", "threads_per_rank", wording.count(row["threads_per_rank"])),
            ("parameters", "parameters", wording.count(row["parameters"])),
            ("peak memory per process", "peak_memory_bytes", memory),
        ):
            if row[field] is not None:
                notes.setdefault(label, {})[text] = None
    return ["; ".join(f"{label}: {', '.join(texts)}" for label, texts in notes.items())] if notes else []


def comparison_rows(comparison: TrainingComparison) -> list[Row]:
    """Return a row of a CSV file per variant: COMPARISON_COLUMNS, score_<name> of the last evaluation; no lists."""
    names = dict.fromkeys(name for row in comparison.rows for name in row["scores"])
    return [
        {name: row[name] for name in COMPARISON_COLUMNS} | {f"score_{name}": row["scores"].get(name) for name in names}
        for row in comparison.rows
    ]


def heads_blocks(results: Sequence[HeadResult], majority: float | None = None) -> list[Block]:
    """Return the evaluations of each head, its best one with the training time, and the score that selects it.

    Args:
        results: of compare_heads.
        majority: accuracy of always giving the most frequent answer, a fraction.
    """
    evaluations = [row for result in results for row in result.evaluations]
    heads: list[Row] = [
        {**{name: result.training[name] for name in ("samples_per_second", "status")}, **(result.best or {}),
         "head": result.head, "seconds": result.training["loop_seconds"]}
        for result in results
    ]  # fmt: skip
    heads += [] if majority is None else [{"head": "(majority)", "accuracy": majority}]
    best = computed("", lambda row: "best" * row["best"])
    return [
        Table("epochs", [*columns("head epoch training_loss log_loss accuracy"), best], evaluations),
        Table("heads", columns("head accuracy epoch seconds samples_per_second status", epoch="at epoch"), heads),
        *(f"best epoch selected by {by}" for by in dict.fromkeys(score(result.best_by).label for result in results)),
    ]


def head_summary(result: HeadResult) -> dict[str, Any]:
    """Return the summary of a head as plain JSON values."""
    names = ("status", "step_seconds", "loop_seconds", "epoch_seconds", "samples_per_second", "parameters", "reason")
    summary = {name: result.training[name] for name in names}
    return {"head": result.head, **summary, "best": None if result.best is None else dict(result.best)}


_SEEDS = "steps tokens mlm_loss step_seconds loop_seconds total_seconds samples_per_second energy_joules cost"
_OPTIONAL = ("energy_joules", "cost")
_LABELS = {column.name: column.label for column in SPEEDRUN}
_FORMS = {column.name: FORMS[column.form] for column in SPEEDRUN}


def speedrun_blocks(run: Row) -> list[Block]:
    """Return a speedrun: the seeds, what they needed on average, and what the numbers depend on.

    Args:
        run: speedrun.json with `summary`, as load_speedrun returns it.
    """
    rows, whole = run["rows"], run["summary"]
    facts = [("target", _target_text(run)), ("reached", f"{whole['reached']} of {whole['seeds']} seeds")]
    facts += [(_LABELS[name], _mean_text(name, whole)) for name in SUMMARIZED if whole[name]]
    # Where no mean is known, one line says so.
    names = ("step_seconds",) if whole["reached"] < whole["seeds"] else set(whole["unknown"]) - {"cost"}
    facts += [(_LABELS[name], f"not known: {why}") for name, why in whole["unknown"].items() if name in names]
    facts += [(f"seed {row['seed']}", f"{row['status']}: {row['reason']}") for row in rows if row["reason"]]
    if run["machine"]:
        facts.append(("machine", ", ".join(f"{name} {value}" for name, value in run["machine"].items())))
    facts += [
        ("caution", f"{one['message']}; {one['remedy']} (seeds {' '.join(map(str, one['seeds']))})")
        for one in run.get("cautions") or []
    ]
    shown = [name for name in _SEEDS.split() if name not in _OPTIONAL or any(row.get(name) is not None for row in rows)]
    return [Table("speedrun", columns(["seed", "status", *shown]), rows), Facts(facts)]


def _target_text(run: Row) -> str:
    target, held_out = run["target"], run["data"].get("held_out_samples")
    on = "" if held_out is None else f", on {held_out:,} held-out samples"
    return f"{score(target['score']).label} of {target['value']:g} nats or less{on}"


def _mean_text(name: str, whole: Row) -> str:
    """Return a mean over the seeds with its interval."""
    if not whole[name]:
        return UNKNOWN
    mean, low, high = (whole[name][key] for key in ("mean", "low", "high"))
    known = f"95 % interval {_FORMS[name](low)} to {_FORMS[name](high)}"
    return f"{_FORMS[name](mean)} ({'one seed: no interval' if low is None else known})"


def speedrun_comparison_blocks(a: Row, b: Row, comparison: Row) -> list[Block]:
    """Return speedrun B beside speedrun A, and the decision."""
    both, ratios = (a["summary"], b["summary"]), comparison["ratios"]
    rows = [("reached", *(f"{one['reached']} of {one['seeds']}" for one in both), "")]
    for name in SUMMARIZED:
        if any(one[name] for one in both):
            ratio = f"{ratios[name]:.3f}" if name in ratios else UNKNOWN
            rows.append((_LABELS[name], *(_mean_text(name, one) for one in both), ratio))
    verdict = {"not reached": "B does not reach the target", "cannot decide": "not conclusive"}.get(
        comparison["verdict"], f"B is {comparison['verdict']}, at a significance of {SIGNIFICANCE:g}"
    )
    facts = [("target", _target_text(b)), ("verdict", verdict), ("reason", comparison["reason"])]
    if comparison["saved_seconds"] is not None:
        saved, low, high = (wording.fine(comparison[name]) for name in ("saved_seconds", "saved_low", "saved_high"))
        facts.append(("training time saved", f"{saved} s (95 % interval {low} to {high})"))
    facts += [("differs", text) for text in comparison["differences"]]
    return [texts("speedruns", ("", "A", "B", "B / A"), rows), Facts(facts)]
