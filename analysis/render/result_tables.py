"""Results of trials: their tables, cautions, what repeated rounds decide, and the comparison of two runs."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from analysis import wording
from analysis.diagnose.answer import Answer
from analysis.diagnose.run import grouped_cautions, joined_disturbance, trial_name
from analysis.load import LoadedTrial, measurement
from analysis.metrics.cautions import Caution, quotable
from analysis.metrics.comparison.regression import Comparison
from analysis.metrics.pretraining_cost import PHASES
from analysis.render.columns import columns, without_constant
from analysis.render.tables import Block, Column, Table, advice_lines, computed, measured, plain
from analysis.wording import Row

NOT_MEASURED = ("profile", "probe", "comm", "components")
"""Kinds of trials that have no place in the table of results."""
_OF_MFU = ("peak_changed", "mfu_above_one")
"""Codes of cautions about MFU."""
_MOST_NAMED = 3
"""Configurations named for one reason; more are counted where the table shows which they are."""
_MOST_RANK_TRIALS = 8
_LONGEST_ARGUMENTS = 60
_DECIDED = {"yes": "conclusive", "no": "no difference"}
_CONFIGURATION = "implementation model data strategy devices batch "


def answer_lines(answers: Sequence[Answer]) -> list[str]:
    """Return the answer of each model: how fast, how good, what to do first, what then."""
    lines = []
    for answer in answers:
        badge = " [machine disturbed]" if answer.badge else ""
        lines += [f"{answer.headline.removesuffix('.')}{badge}.", *answer.good, *advice_lines(answer.advice)]
    return lines


def shown_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the table of results: neither profiles nor probes, unless a run has only probes."""
    measured = [row for row in rows if row.get("kind") not in NOT_MEASURED]
    return measured or [row for row in rows if row.get("kind") != "profile"]


def results_blocks(rows: Sequence[Row], ratios: Sequence[Row] = (), *, page: bool = False) -> list[Block]:
    """Return the table of trials, why some have no result, and what the ratios can decide.

    Args:
        rows: result rows: a trial's fields, status, reason and measured columns.
        ratios: what within_run.ratios_of returned for the same run.
        page: with costs, numbers of steps and the CSV file of all columns; the page names failures itself.
    """
    if not rows:
        return ["no trials"]
    shown = sorted(shown_rows(rows) or rows, key=wording.order)
    columns = _result_columns(shown, ratios, page)
    named = any(column.label == "model" for column in columns) or _of_scripts(shown)
    title = "" if named or page else f"BERT {wording.model(shown[0])}"
    table = Table("results", columns, shown, title, "results.csv" if page else "")
    failures = [] if page else _failures(shown)
    return [table, *failures, *_left_out(shown), *_decisions(ratios)]


def _result_columns(rows: Sequence[Row], ratios: Sequence[Row], page: bool) -> list[Column]:
    ratio_of = {measurement(item): item for item in ratios}

    def ratio(row: Row) -> Any:
        return ratio_of.get(measurement(row), {}).get("throughput_ratio") if row.get("status") == "ok" else None

    def decided(row: Row) -> str:
        item = ratio_of.get(measurement(row))
        if row.get("kind") == "input":
            return "input only: nothing was trained"
        return f"differs: {item['decided']} ({item['reason']})" if item else ""

    shown = columns(["implementation, input", *_CONFIGURATION.split()[1:]])
    shown += columns("samples_per_second tokens_per_second step_time_ms step_time_ms~ mfu peak_memory_bytes")
    if ratios:
        label = f"× {wording.reference(ratios[0])}"  # noqa: RUF001
        shown.append(Column(label, (), lambda row: wording.ratio(ratio(row)), ratio, decided))
    if page:
        costs = ("joules_per_sample", "cost_per_million_samples")
        known = [name for name in costs if any(row.get(name) is not None for row in rows)]
        shown += columns([*known, "steps_measured", "steps_warmup"])
    shown.append(Column("status", (), lambda row: str(row["status"]), note=wording.status))
    shown = without_constant(shown, rows)
    if _of_scripts(rows):
        shown = [column for column in shown if column.label not in ("batch", "MFU", "strategy")]
        commands = {(row["implementation"], tuple(row.get("command") or ())) for row in rows}
        if len(commands) > len({row["implementation"] for row in rows}):
            shown.insert(1, Column("arguments", (), _arguments, note=lambda row: " ".join(row.get("command") or ())))
    if len({row.get("round") for row in rows}) > 1:
        shown.insert(1, computed("round", lambda row: str(wording.round_number(row)), wording.round_number))
    return shown


def _arguments(row: Row) -> str:
    """Return what follows the first Python file of a command, or the whole command; its beginning, if it is long."""
    words = list(row.get("command") or ())
    script = next((place for place, word in enumerate(words) if word.endswith(".py")), -1)
    text = " ".join(words[script + 1 :])
    return text if len(text) <= _LONGEST_ARGUMENTS else f"{text[: _LONGEST_ARGUMENTS - 1]}…"


def _of_scripts(rows: Sequence[Row]) -> bool:
    return all(row.get("kind") == "measure" for row in rows)


def caution_lines(trials: Sequence[LoadedTrial], of_run: Sequence[Caution] = (), *, joined: bool = False) -> list[str]:
    """Return the cautions about their run, then about the trials, equal ones together; failures are not repeated.

    Args:
        trials: of one run.
        of_run: cautions about all of it.
        joined: with one line for all that a disturbed machine explains.
    """
    groups = grouped_cautions([trial for trial in trials if trial.row["status"] == "ok"], of_run)
    lines = []
    for group in joined_disturbance(groups) if joined else groups:
        where = f" ({group.where})" if group.where else ""
        of_mfu = "MFU: " if group.code in _OF_MFU else ""
        lines.append(f"caution: {of_mfu}{group.message}{where}; {group.remedy}")
    return lines


def _failures(rows: Sequence[Row]) -> list[str]:
    """Return one line per trial without a result, with its reason; equal ones once."""
    same = len(set(map(wording.model, rows))) == 1
    lines = [
        f"{row['status']} {_place(row, '' if same else f' {wording.model(row)}')}: "
        f"{row.get('reason') or 'no reason was recorded'}"
        for row in rows
        if row["status"] != "ok"
    ]
    return list(dict.fromkeys(lines))


def _left_out(rows: Sequence[Row]) -> list[str]:
    reasons = [f"{name} ({why})" for row in rows for name, why in (row.get("levers_left_out") or {}).items()]
    return [f"left out of --levers: {', '.join(dict.fromkeys(reasons))}"] if reasons else []


def _place(row: Row, model: str = "") -> str:
    return f"{wording.implementation_or_input(row)}{model} {wording.place(row)}"


def _decisions(ratios: Sequence[Row]) -> list[str]:
    """Return what repeated rounds decided, and one line per distinct reason why other ratios decide nothing."""
    measured = [row for row in ratios if row["throughput_ratio"] is not None]
    lines = [
        f"{wording.implementation(row)} {wording.place(row)}: {row['throughput_ratio']:.2f} x {wording.reference(row)} "
        f"({row['throughput_ratio_low']:.2f} to {row['throughput_ratio_high']:.2f}), "
        f"{_DECIDED.get(row['decided'], 'not conclusive')}"
        for row in measured
        if row["decided"] != "cannot decide" or min(row["rounds"], row["reference_rounds"]) > 1
    ]
    reasons = dict.fromkeys(str(row["reason"]) for row in measured if row["decided"] == "cannot decide")
    which = "other ratios" if lines else "ratios"
    return lines + [f"{which} to {wording.reference(ratios[0])} are not conclusive yet: {reason}" for reason in reasons]


def comparison_blocks(comparison: Comparison) -> list[Block]:
    """Return the table of a comparison of two runs, the verdicts with their reasons, and what else differs."""
    rows = sorted(comparison.rows, key=wording.order)
    differing = [*comparison.differences, *(f"at {text}" for text in setting_differences(comparison))]
    verdicts = Counter(row["verdict"] for row in rows)
    tally = ", ".join(f"{count} {name}" for name, count in verdicts.items()) or "nothing compared"
    return [
        comparison_table(comparison) if rows else "the runs have no configuration in common",
        *dict.fromkeys([*comparison_verdicts(comparison), *(f"differs: {text}" for text in differing)]),
        f"{tally}; threshold {100 * comparison.threshold:g} %",
    ]


def comparison_table(comparison: Comparison) -> Table:
    """Return the table of the configurations that are in both runs."""
    rows = sorted(comparison.rows, key=wording.order)
    shown = columns(["implementation, input", *_CONFIGURATION.split()[1:]])
    shown += columns("step_time_ms_a step_time_ms_b time_ratio time_ratio~ time_saved verdict")
    varied = without_constant(shown, rows)
    return Table("compare", [column for column in shown if column.label == "model" or column in varied], rows)


def comparison_verdicts(comparison: Comparison) -> list[str]:
    """Return one line for each reason of each verdict."""
    grouped: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in sorted(comparison.rows, key=wording.order):
        grouped[row["verdict"], row["reason"]].append(row)
    reasons = Counter(verdict for verdict, _ in grouped)
    return [
        f"{_places(rows, reasons[verdict] == 1)}: {verdict}: {reason}" for (verdict, reason), rows in grouped.items()
    ]


def _places(rows: Sequence[Row], brief: bool) -> str:
    """Name the rows; where `brief`, the table shows which they are, and many of them are counted."""
    names = list(dict.fromkeys(map(_place, rows)))
    return f"{len(rows)} configurations" if brief and len(names) > _MOST_NAMED else "; ".join(names)


def setting_differences(comparison: Comparison) -> list[str]:
    """Return the settings that differ between the sides of a configuration, with the configurations."""
    differing: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(comparison.rows, key=wording.order):
        for text in row["differences"]:
            differing[text].append(row)
    return [f"{_places(rows, len(rows) == len(comparison.rows))}: {text}" for text, rows in differing.items()]


def rank_tables(trials: Sequence[LoadedTrial]) -> list[Table]:
    """Return the table of ranks of the trials with several; those with the largest skew where there are many."""
    several = [trial for trial in trials if trial.ok and len(trial.row["per_rank"]) > 1
               and trial.trial.kind not in (*NOT_MEASURED, "input")]  # fmt: skip
    several = sorted(several, key=lambda trial: -(trial.row["rank_skew"] or 0.0))[:_MOST_RANK_TRIALS]
    rows = [{**rank, "trial": trial_name(trial)} for trial in several for rank in trial.row["per_rank"]]
    shown = columns(
        "trial rank step_time_ms work_ms data_wait_ms communication_ms skew slowest_share peak_memory_bytes"
    )
    if any(row["straggler"] for row in rows):
        shown.append(computed("straggler", lambda row: "straggler" if row["straggler"] else ""))
    return [Table("ranks", shown, rows)] if rows else []


def scaling_tables(scaling: Sequence[Row]) -> list[Table]:
    """Return the table of scaling efficiencies where there are any."""
    not_quoted = dict.fromkeys(("speedup", "efficiency", "efficiency_low", "efficiency_high"))
    rows = [row if quotable(row) else {**row, **not_quoted}
            for row in scaling if row["world_size"] != row["base_world_size"]]  # fmt: skip
    shown = [
        *columns("scaling implementation strategy model"),
        computed("devices", lambda r: f"{r['base_world_size']} → {r['world_size']}", lambda row: row["world_size"]),
        *columns("nodes" if any(row["nodes"] > 1 for row in scaling) else ""),
        *columns("micro_batch_size global_batch_size samples_per_second speedup efficiency efficiency~ rounds"),
        plain("measured against", "basis"),
    ]
    return [Table("scaling", without_constant(shown, rows), rows)] if rows else []


def input_tables(inputs: Sequence[Row], gaps: Sequence[Row]) -> list[Table]:
    """Return the tables that have rows.

    Args:
        inputs: what within_run.input_ratios returned.
        gaps: what within_run.synthetic_gaps returned.
    """
    rates = "samples_per_second tokens_per_second shards_read_samples_per_second training_samples_per_second"
    of_input = columns(f"{_CONFIGURATION} {rates} throughput_ratio throughput_ratio~ rounds")
    of_gap = columns(
        f"{_CONFIGURATION} samples_per_second synthetic_samples_per_second gap gap~ rounds decided",
        samples_per_second="real samples/s", decided="differs",
    )  # fmt: skip
    return [
        Table(name, without_constant(shown, rows), sorted(rows, key=wording.order))
        for name, shown, rows in (("input", of_input, inputs), ("gap", of_gap, gaps))
        if rows
    ]


def pretraining_table(rows: Sequence[Row]) -> list[Table]:
    """Return the table of what pretraining_cost.pretraining_costs returned; none where there are no rows."""
    shown = [
        *columns("implementation"),
        computed("model", lambda row: f"{row['preset']} {row['precision']}"),
        *columns("strategy devices" if wording.names_strategies(rows) else "devices"),
    ]
    costs = any(row[f"phase_{phase}_cost"] is not None for row in rows for phase in PHASES)
    for phase, (seq_len, _) in PHASES.items():
        shown += [
            measured(f"batch at {seq_len}", f"phase_{phase}_batch", "count"),
            measured(f"real tokens at {seq_len}", f"phase_{phase}_padding_efficiency", "percent"),
            measured(f"samples/s at {seq_len}", f"phase_{phase}_samples_per_second"),
            measured(f"days of phase {phase}", f"phase_{phase}_days"),
        ]
        shown += [measured(f"cost of phase {phase}", f"phase_{phase}_cost")] if costs else []
    shown += columns("days cost" if costs else "days")
    return [Table("pretraining", shown, rows)] if rows else []


_SEARCHED = {
    "task": "task", "data": "data", "grad_accum_steps": "micro-steps", "memory_limit_gib": "limit, GiB",
}  # fmt: skip
"""What searches in one folder may differ in besides, and the headings of these columns."""
_LARGEST: dict[str, Callable[[Row], str]] = {
    "largest batch that fits": lambda row: f"{row['micro_batch_size']:,}" if row["micro_batch_size"] else "none",
    "fails at": lambda row: f"{row['fails_at']:,}" if row.get("fails_at") else "no size tried",
    "why the search ended": lambda row: str(row.get("failure") or "not recorded").strip().rstrip(":"),
    "confirmed": lambda row: {True: "yes", False: "no", None: "not recorded"}[row.get("proved")],
    "sizes tried": lambda row: ", ".join(f"{size} {status}" for size, status in row.get("tried") or ()),
}


def largest_tables(rows: Sequence[Row]) -> list[Table]:
    """Return the table of what fits and what fails, one line per search; none where nothing was searched."""

    task = ["task"] if len(set(map(wording.task, rows))) > 1 else []
    differing = task + [name for name in _SEARCHED if len({row.get(name) for row in rows}) > 1 and name != "task"]
    strategy = "strategy" if wording.names_strategies(rows) else ""
    shown = columns(f"implementation model world_size {strategy} {' '.join(differing)}", **_SEARCHED)
    shown += [computed(heading, text) for heading, text in _LARGEST.items()]
    return [Table("largest", shown, rows)] if rows else []
