"""Results of trials: their table, cautions, what repeated rounds decide, and the comparison of two runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.diagnose.answer import Answer
from analysis.diagnose.run import grouped_cautions, trial_name
from analysis.load import LoadedTrial
from analysis.metrics.cautions import Caution, quotable
from analysis.metrics.comparison.regression import Comparison
from analysis.metrics.pretraining_cost import PHASES
from analysis.render import tables
from analysis.render.finding_tables import advice_lines
from analysis.render.sections import NOT_MEASURED, shown_rows

Row = Mapping[str, Any]

# Codes of cautions.
_OF_MFU = ("peak_changed", "mfu_above_one")
# Headings of what a script does not tell.
_OF_MODEL = ("batch", "MFU", "strategy")
# Configurations named for one reason; more are counted where the table shows which they are.
_MOST_NAMED = 3
_MOST_RANK_TRIALS = 8
_LONGEST_ARGUMENTS = 60


def answer_lines(said: Sequence[Answer]) -> list[str]:
    """Return the answer of each model for the terminal: how fast, how good, what to do first, what then."""
    lines = []
    for answer in said:
        badge = " [machine disturbed]" if answer.badge else ""
        lines += [f"{answer.headline.removesuffix('.')}{badge}.", *answer.how_good]
        lines += advice_lines(answer.advice)
    return lines


def results_blocks(rows: Sequence[Row], ratios: Sequence[Row] = ()) -> list[tables.Block]:
    """Return the table of trials, one line each, why some have no result, and what the ratios can decide.

    Args:
        rows: result rows: a trial's fields, status, reason and measured columns.
        ratios: what within_run.ratios_of returned for the same run.
    """
    if not rows:
        return ["no trials"]
    shown = sorted(shown_rows(rows) or rows, key=wording.order)
    columns = _result_columns(shown, ratios)
    one_model = all(column.heading != "model" for column in columns) and not _of_scripts(shown)
    title = f"BERT {wording.model(shown[0])}" if one_model else ""
    return [tables.build("results", columns, shown, title), *_failures(shown), *_left_out(shown), *_decisions(ratios)]


def results_table(rows: Sequence[Row], ratios: Sequence[Row]) -> tables.Table:
    """Return the table of all trials, failed ones too, as a page has it: with costs and numbers of steps."""
    columns = _result_columns(rows, ratios)
    for name in ("joules_per_sample", "cost_per_million_samples"):
        if any(row.get(name) is not None for row in rows):
            columns.insert(-1, tables.recorded(name))
    columns[-1:-1] = [tables.recorded("steps_measured"), tables.recorded("steps_warmup")]
    return tables.build("results", columns, rows, csv="results.csv")


def _result_columns(rows: Sequence[Row], ratios: Sequence[Row]) -> list[tables.Column]:
    columns = tables.without_constant_model(tables.result_columns(ratios), rows)
    if _of_scripts(rows):
        columns = [column for column in columns if column.heading not in _OF_MODEL]
        names = {row["implementation"] for row in rows}
        if len({(row["implementation"], tuple(row.get("command") or ())) for row in rows}) > len(names):
            columns.insert(1, tables.Column("arguments", _arguments, _arguments, False, title=_command))
    if len({row.get("round") for row in rows}) > 1:
        columns.insert(1, tables.Column("round", wording.round_number, lambda row: str(wording.round_number(row))))
    return columns


def _command(row: Row) -> str:
    return " ".join(row.get("command") or ())


def _arguments(row: Row) -> str:
    """What follows the first Python file of a command, or the whole command; its beginning, where it is long."""
    words = list(row.get("command") or ())
    script = next((place for place, word in enumerate(words) if word.endswith(".py")), -1)
    text = " ".join(words[script + 1 :])
    return text if len(text) <= _LONGEST_ARGUMENTS else f"{text[: _LONGEST_ARGUMENTS - 1]}…"


def _of_scripts(rows: Sequence[Row]) -> bool:
    return all(row.get("kind") == "measure" for row in rows)


def caution_lines(trials: Sequence[LoadedTrial], of_run: Sequence[Caution] = ()) -> list[str]:
    """Return the cautions about their run, then about the trials, equal ones together; failures are not repeated.

    Of the measured peak too: with it MFU may move against the speed.
    """
    lines = []
    for group in grouped_cautions([trial for trial in trials if trial.row["status"] == "ok"], of_run):
        where = f" ({group.where})" if group.where else ""
        if len(group.messages) > 1:
            others = group.trials - 1
            where = f" ({others} other trial{' is' if others == 1 else 's are'} affected)"
        of_mfu = "MFU: " if group.code in _OF_MFU else ""
        lines.append(f"caution: {of_mfu}{group.messages[0]}{where}; {group.remedy}")
    return lines


def _failures(rows: Sequence[Row]) -> list[str]:
    """One line per trial without a result and its reason; equal ones once."""
    failed = [row for row in rows if row["status"] != "ok"]
    same = len({wording.model(row) for row in rows}) == 1
    lines = []
    for row in failed:
        model = "" if same else f" {wording.model(row)}"
        lines.append(f"{row['status']} {_place(row, model)}: {row.get('reason') or 'no reason was recorded'}")
    return list(dict.fromkeys(lines))


def _left_out(rows: Sequence[Row]) -> list[str]:
    """One line on the optimizations that trials left out because they have no effect there, and why."""
    reasons = [f"{name} ({why})" for row in rows for name, why in (row.get("levers_left_out") or {}).items()]
    return [f"left out of --levers: {', '.join(dict.fromkeys(reasons))}"] if reasons else []


def _place(row: Row, model: str = "") -> str:
    return f"{wording.implementation(row)}{model} {wording.place(row)}"


def _decisions(ratios: Sequence[Row]) -> list[str]:
    """What repeated rounds decided, and one line per distinct reason why other ratios decide nothing."""
    measured = [row for row in ratios if row["throughput_ratio"] is not None]
    lines = []
    for row in measured:
        if min(row["rounds"], row["reference_rounds"]) < 2 and row["decided"] == "cannot decide":
            continue
        verdict = {"yes": "conclusive", "no": "no difference"}.get(row["decided"], "not conclusive")
        lines.append(
            f"{row['implementation']} {wording.place(row)}: "
            f"{row['throughput_ratio']:.2f} x {row['reference']} "
            f"({row['throughput_ratio_low']:.2f} to {row['throughput_ratio_high']:.2f}), {verdict}"
        )
    reasons = dict.fromkeys(str(row["reason"]) for row in measured if row["decided"] == "cannot decide")
    which = "other ratios" if lines else "ratios"
    return lines + [f"{which} to {ratios[0]['reference']} are not conclusive yet: {reason}" for reason in reasons]


def _verdicts(rows: Sequence[Row]) -> list[str]:
    grouped: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        grouped.setdefault((row["verdict"], row["reason"]), []).append(row)
    reasons = [verdict for verdict, _ in grouped]
    return [
        f"{_places(found, reasons.count(verdict) == 1)}: {verdict}: {reason}"
        for (verdict, reason), found in grouped.items()
    ]


def _places(rows: Sequence[Row], plain: bool) -> str:
    """Name the rows; where `plain`, the table shows which they are, and many of them are counted."""
    names = list(dict.fromkeys(map(_place, rows)))
    return f"{len(rows)} configurations" if plain and len(names) > _MOST_NAMED else "; ".join(names)


def comparison_blocks(comparison: Comparison) -> list[tables.Block]:
    """Return the table of a comparison of two runs, the verdicts with their reasons, and what else differs."""
    table = comparison_table(comparison)
    lines = [*comparison_verdicts(comparison), *(f"differs: {text}" for text in comparison.differences)]
    lines += [f"differs at {text}" for text in setting_differences(comparison)]
    verdicts = [row["verdict"] for row in sorted(comparison.rows, key=wording.order)]
    tally = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts)) or "nothing compared"
    return [
        table or "the runs have no configuration in common",
        *dict.fromkeys(lines),
        f"{tally}; threshold {100 * comparison.threshold:g} %",
    ]


def comparison_table(comparison: Comparison) -> tables.Table | None:
    """Return the table of the configurations that are in both runs; None where there is none."""
    several = len({wording.data(row) for row in comparison.rows}) > 1
    competing = wording.names_strategies(comparison.rows)
    columns = [
        tables.Column("implementation", wording.implementation, wording.implementation, False),
        tables.Column("model", wording.model, wording.model, False),
        *([tables.Column("data", wording.data, wording.data, False)] if several else []),
        *([tables.plain("strategy", "strategy")] if competing else []),
        tables.Column("devices", wording.devices, wording.devices, False),
        tables.Column("batch", lambda row: row["micro_batch_size"], wording.batch),
        tables.measured("old ms", "step_time_ms_a"),
        tables.measured("new ms", "step_time_ms_b"),
        tables.measured("new/old time", "time_ratio", wording.ratio),
        tables.spread("time_ratio", lambda value: f"{value:.3f}"),
        tables.measured("time saved", "time_saved", wording.percent),
        tables.plain("verdict", "verdict"),
    ]
    rows = sorted(comparison.rows, key=wording.order)
    return tables.build("compare", columns, rows) if rows else None


def comparison_verdicts(comparison: Comparison) -> list[str]:
    """Return one line for each reason of each verdict."""
    return _verdicts(sorted(comparison.rows, key=wording.order))


def setting_differences(comparison: Comparison) -> list[str]:
    """Return the settings that differ between the sides of a configuration, with the configurations."""
    rows = sorted(comparison.rows, key=wording.order)
    differing: dict[str, list[Row]] = {}
    for row in rows:
        for text in row["differences"]:
            differing.setdefault(text, []).append(row)
    return [f"{_places(found, len(found) == len(rows))}: {text}" for text, found in differing.items()]


def rank_tables(trials: Sequence[LoadedTrial]) -> list[tables.Table]:
    """Return the table of ranks of the trials with several; those with the largest skew where there are many."""
    several = [
        trial
        for trial in trials
        if trial.ok and len(trial.row["per_rank"]) > 1 and trial.trial.kind not in (*NOT_MEASURED, "input")
    ]
    if not several:
        return []
    several = sorted(several, key=lambda trial: -(trial.row["rank_skew"] or 0.0))[:_MOST_RANK_TRIALS]
    rows = [{**rank, "trial": trial_name(trial)} for trial in several for rank in trial.row["per_rank"]]
    columns = [
        tables.plain("trial", "trial"),
        tables.measured("rank", "rank", wording.count),
        tables.recorded("step_time_ms"),
        tables.measured("own work ms", "work_ms"),
        tables.recorded("data_wait_ms"),
        tables.recorded("communication_ms"),
        tables.measured("skew", "skew", wording.percent),
        tables.measured("slowest in", "slowest_share", wording.percent),
        tables.recorded("peak_memory_bytes"),
    ]
    if any(row["straggler"] for row in rows):
        columns.append(tables.Column("straggler", _straggler, _straggler, False))
    return [tables.build("ranks", columns, rows)]


def _straggler(row: Row) -> str:
    return "straggler" if row["straggler"] else ""


def scaling_tables(scaling: Sequence[Row]) -> list[tables.Table]:
    """Return the table of scaling efficiencies where there are any."""
    rows = [row for row in scaling if row["world_size"] != row["base_world_size"]]
    if not rows:
        return []
    not_quoted = dict.fromkeys(("speedup", "efficiency", "efficiency_low", "efficiency_high"))
    rows = [row if quotable(row) else {**row, **not_quoted} for row in rows]
    columns = [
        tables.plain("scaling", "scaling"),
        tables.plain("implementation", "implementation"),
        tables.plain("strategy", "strategy"),
        tables.Column("model", wording.model, wording.model, False),
        tables.Column(
            "devices", lambda row: row["world_size"], lambda r: f"{r['base_world_size']} → {r['world_size']}"
        ),
        tables.recorded("micro_batch_size"),
        tables.measured("global batch", "global_batch_size", wording.count),
        tables.recorded("samples_per_second"),
        tables.measured("speed-up", "speedup", wording.ratio),
        tables.measured("efficiency", "efficiency", wording.percent),
        tables.spread(
            "efficiency",
            wording.percent,
            lambda row: f"over {row['rounds']} process{'es'[: 2 * (row['rounds'] != 1)]} per side",
        ),
        tables.measured("rounds", "rounds", wording.count),
        tables.plain("measured against", "basis"),
    ]
    if any(row["nodes"] > 1 for row in scaling):
        columns.insert(5, tables.recorded("nodes"))
    return [tables.build("scaling", tables.without_constant_model(columns, rows), rows)]


def input_tables(inputs: Sequence[Row], gaps: Sequence[Row]) -> list[tables.Table]:
    """Return the tables that have rows.

    Args:
        inputs: what within_run.input_ratios returned.
        gaps: what within_run.synthetic_gaps returned.
    """
    inputs, gaps = sorted(inputs, key=wording.order), sorted(gaps, key=wording.order)
    found = []
    if inputs:
        columns = [
            *_who(),
            tables.recorded("samples_per_second"),
            tables.recorded("tokens_per_second"),
            tables.recorded("shards_read_samples_per_second"),
            tables.measured("training samples/s", "training_samples_per_second"),
            tables.measured("input / training", "throughput_ratio", wording.ratio),
            tables.spread("throughput_ratio", lambda value: f"{value:.2f}"),
            tables.measured("rounds", "rounds", wording.count),
        ]
        found.append(tables.build("input", tables.without_constant_model(columns, inputs), inputs))
    if gaps:
        columns = [
            *_who(),
            tables.measured("real samples/s", "samples_per_second"),
            tables.measured("synthetic samples/s", "synthetic_samples_per_second"),
            tables.measured("gap", "gap", signed),
            tables.spread("gap", signed),
            tables.measured("rounds", "rounds", wording.count),
            tables.plain("differs", "decided"),
        ]
        found.append(tables.build("gap", tables.without_constant_model(columns, gaps), gaps))
    return found


def pretraining_table(rows: Sequence[Row]) -> list[tables.Table]:
    """Return the table of what pretraining_cost.pretraining_costs returned; none where there are no rows."""
    if not rows:
        return []

    def model(row: Row) -> str:
        return f"{row['preset']} {row['precision']}"

    strategy = [tables.plain("strategy", "strategy")] if wording.names_strategies(rows) else []
    devices = tables.Column("devices", lambda row: row["world_size"], wording.devices)
    columns = [tables.plain("implementation", "implementation"), tables.Column("model", model, model, False)]
    columns += [*strategy, devices]
    costs = any(row[f"phase_{phase}_cost"] is not None for row in rows for phase in PHASES)
    for phase, (seq_len, _) in PHASES.items():
        columns += [
            tables.measured(f"batch at {seq_len}", f"phase_{phase}_batch", wording.count),
            tables.measured(f"real tokens at {seq_len}", f"phase_{phase}_padding_efficiency", wording.percent),
            tables.measured(f"samples/s at {seq_len}", f"phase_{phase}_samples_per_second"),
            tables.measured(f"days of phase {phase}", f"phase_{phase}_days"),
        ]
        if costs:
            columns.append(tables.measured(f"cost of phase {phase}", f"phase_{phase}_cost"))
    columns += [tables.measured("days", "days"), *([tables.measured("cost", "cost")] if costs else [])]
    return [tables.build("pretraining", columns, rows)]


def signed(value: Any) -> str:
    """Return a relative difference as a percentage with its sign."""
    return wording.UNKNOWN if value is None else f"{100 * value:+.1f} %"


def input_lines(inputs: Sequence[Row], gaps: Sequence[Row]) -> list[str]:
    """Return the same in sentences, for the terminal."""
    lines = []
    for row in sorted(inputs, key=wording.order):
        place = f"input pipeline of {_input_place(row)}: {wording.number(row['samples_per_second'])} samples/s"
        if row["throughput_ratio"] is not None:
            span = f"{wording.number(row['throughput_ratio_low'])} to {wording.number(row['throughput_ratio_high'])}"
            place += f", {wording.number(row['throughput_ratio'])} times the rate of training ({span})"
        if row["shards_read_samples_per_second"] is not None:
            place += (
                f"; compressed shards are read at {wording.number(row['shards_read_samples_per_second'])} samples/s"
            )
        lines.append(place)
    for row in sorted(gaps, key=wording.order):
        verdict = {"yes": "conclusive", "no": "no difference"}.get(row["decided"], f"not conclusive: {row['reason']}")
        lines.append(
            f"real compared with synthetic data, {_input_place(row)}: {signed(row['gap'])} samples/s "
            f"({signed(row['gap_low'])} to {signed(row['gap_high'])}), {verdict}"
        )
    return lines


def _who() -> list[tables.Column]:
    return [
        tables.plain("implementation", "implementation"),
        tables.Column("model", wording.model, wording.model, False),
        tables.Column("data", wording.data, wording.data, False),
        tables.plain("strategy", "strategy"),
        tables.Column("devices", lambda row: row["world_size"], wording.devices),
        tables.Column("batch", lambda row: row["micro_batch_size"], wording.batch),
    ]


def _input_place(row: Row) -> str:
    return f"{row['implementation']} {wording.model(row)} {wording.place(row)}"
