"""Results of trials: their tables, cautions, what rounds decide, a broken-down step, collectives, two runs compared."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from analysis import wording
from analysis.diagnose.answer import Answer
from analysis.diagnose.run import trial_name
from analysis.load import LoadedTrial
from analysis.metrics.cautions import quotable
from analysis.metrics.communication.collectives import Link, link_rows
from analysis.metrics.scaling import PHASES
from analysis.metrics.speed_of_light import FLOOR, LOSS
from analysis.render.tables import (
    Block,
    Column,
    Table,
    advice_lines,
    columns,
    computed,
    measured,
    plain,
    spread,
    without_constant,
)
from analysis.wording import Row

NOT_MEASURED = ("profile", "probe", "comm", "components")
"""Kinds of trials that have no place in the table of results."""
_MOST_NAMED = 3
"""Configurations named for one reason; the table shows all."""
_MOST_RANK_TRIALS = 8
_LONGEST_ARGUMENTS = 60
_CONFIGURATION = "implementation model data strategy devices batch "


def answer_lines(answers: Sequence[Answer]) -> list[str]:
    """Return the answer of each model: how fast, how good, what to do first, what then."""
    lines = []
    for answer in answers:
        badge = " [machine disturbed]" if answer.badge else ""
        lines += [f"{answer.headline}{badge}", *answer.facts, *advice_lines(answer.advice)]
    return lines


def results_blocks(rows: Sequence[Row], ratios: Sequence[Row] = (), *, page: bool = False) -> list[Block]:
    """Return the table of trials, why some have no result, and what runs.ratios_of can decide of the same run.

    For a page with costs, numbers of steps and the CSV file of all columns; it names failures itself.
    """
    if not rows:
        return ["no trials"]
    measured = [row for row in rows if row.get("kind") not in NOT_MEASURED]
    measured = measured or [row for row in rows if row.get("kind") != "profile"]  # a run may have only probes
    shown = sorted(measured or rows, key=wording.order)
    columns = _result_columns(shown, page)
    named = page or any(column.label == "model" for column in columns) or _of_scripts(shown)
    title = "" if named else f"BERT {wording.model(shown[0])}"
    table = Table("results", columns, shown, title, "results.csv" if page else "")
    failed = [] if page else [row for row in shown if row["status"] != "ok"]
    failures = (f"{row['status']} {trial_name(row)}: {row.get('reason') or 'no reason was recorded'}" for row in failed)
    return [table, *dict.fromkeys(failures), *_ratios_blocks(ratios)]


def _result_columns(rows: Sequence[Row], page: bool) -> list[Column]:
    shown = columns(_CONFIGURATION)
    shown += columns("samples_per_second tokens_per_second step_time_ms step_time_ms~ mfu peak_memory_bytes")
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


def _ratios_blocks(ratios: Sequence[Row]) -> list[Block]:
    """Return the throughput of configurations by that of the reference, and why rounds do not decide."""
    rows = [row for row in ratios if row["throughput_ratio"] is not None]
    if not rows:
        return []
    reference, decided = wording.reference(rows[0]), {"yes": "yes", "no": "no difference"}
    shown = [
        *columns(_CONFIGURATION),
        measured(f"× {reference}", "throughput_ratio", "ratio"),  # noqa: RUF001
        spread("throughput_ratio", wording.number),
        *columns("rounds"),
        computed("conclusive", lambda row: decided.get(row["decided"], "not yet")),
    ]
    reasons = dict.fromkeys(row["reason"] for row in rows if row["decided"] not in decided)
    title = f"throughput relative to {reference}"
    table = Table("ratios", without_constant(shown, rows), sorted(rows, key=wording.order), title)
    return [table, *(f"ratios to {reference} are not conclusive yet: {reason}" for reason in reasons)]


def _arguments(row: Row) -> str:
    """Return what follows the first Python file of a command, or the whole command; its beginning, if it is long."""
    words = list(row.get("command") or ())
    script = next((place for place, word in enumerate(words) if word.endswith(".py")), -1)
    return wording.shortened(" ".join(words[script + 1 :]), _LONGEST_ARGUMENTS)


def _of_scripts(rows: Sequence[Row]) -> bool:
    return all(row.get("kind") == "measure" for row in rows)


def comparison_blocks(comparison: Row) -> list[Block]:
    """Return the table of what compare_runs returned, a line for each reason of a verdict, and what else differs."""
    rows = sorted(comparison["rows"], key=wording.order)
    shown = columns(_CONFIGURATION)
    shown += columns("step_time_ms_a step_time_ms_b time_ratio time_ratio~ time_saved verdict")
    varied = without_constant(shown, rows)
    table = Table("compare", [column for column in shown if column.label == "model" or column in varied], rows)
    notes: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        notes[f"{row['verdict']}: {row['reason']}"].append(row)
        for text in row["differences"]:
            notes[f"differs: {text}"].append(row)
    lines = [f"{_places(of)}: {text}" for text, of in notes.items()]
    lines += [f"differs: {text}" for text in comparison["differences"]]
    tally = Counter(row["verdict"] for row in rows)
    counts = ", ".join(f"{count} {name}" for name, count in tally.items()) or "nothing compared"
    return [
        table if rows else "the runs have no configuration in common",
        *dict.fromkeys(lines),
        f"{counts}; threshold {100 * comparison['threshold']:g} %",
    ]


def _places(rows: Sequence[Row]) -> str:
    names = list(dict.fromkeys(map(trial_name, rows)))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return "; ".join(names[:_MOST_NAMED]) + more


def rank_tables(trials: Sequence[LoadedTrial]) -> list[Table]:
    """Return the table of ranks of the trials with several; those with the largest skew where there are many."""
    several = [trial for trial in trials if trial.ok and len(trial.row["per_rank"]) > 1
               and trial.trial.kind not in (*NOT_MEASURED, "input")]  # fmt: skip
    several = sorted(several, key=lambda trial: -(trial.row["rank_skew"] or 0.0))[:_MOST_RANK_TRIALS]
    rows = [{**rank, "trial": trial_name(trial.row)} for trial in several for rank in trial.row["per_rank"]]
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


def input_tables(inputs: Sequence[Row]) -> list[Table]:
    """Return the table of runs.input_ratios where there are any."""
    rates = "samples_per_second tokens_per_second shards_read_samples_per_second training_samples_per_second"
    shown = columns(f"{_CONFIGURATION} {rates} throughput_ratio throughput_ratio~ rounds")
    return [Table("input", without_constant(shown, inputs), sorted(inputs, key=wording.order))] if inputs else []


def pretraining_table(rows: Sequence[Row]) -> list[Table]:
    """Return the table of what scaling.pretraining_costs returned; none where there are no rows."""
    shown = [
        *columns("implementation"),
        computed("model", lambda row: f"{row['preset']} {row['precision']}"),
        *columns("strategy devices" if wording.names_strategies(rows) else "devices"),
    ]
    cost = ["cost"] if any(row[f"phase_{phase}_cost"] is not None for row in rows for phase in PHASES) else []
    for phase, (seq_len, _) in PHASES.items():
        shown += [
            measured(f"batch at {seq_len}", f"phase_{phase}_batch", "count"),
            measured(f"real tokens at {seq_len}", f"phase_{phase}_padding_efficiency", "percent"),
            measured(f"samples/s at {seq_len}", f"phase_{phase}_samples_per_second"),
            *(measured(f"{name} of phase {phase}", f"phase_{phase}_{name}") for name in ("days", *cost)),
        ]
    return [Table("pretraining", [*shown, *columns(["days", *cost])], rows)] if rows else []


def largest_tables(rows: Sequence[Row]) -> list[Table]:
    """Return the table of what fits and what fails, one line per search; none where nothing was searched."""
    labels = {"grad_accum_steps": "micro-steps", "memory_limit_gib": "limit, GiB"}
    searched = columns("strategy task data grad_accum_steps memory_limit_gib", **labels)
    shown = [
        *columns("implementation model world_size"),
        *(column for column in searched if len(set(map(column.text, rows))) > 1),
        computed(
            "largest batch that fits", lambda row: f"{row['micro_batch_size']:,}" if row["micro_batch_size"] else "none"
        ),
        computed("fails at", lambda row: f"{row['fails_at']:,}" if row.get("fails_at") else "no size tried"),
        plain("why the search ended", "failure"),
        computed("confirmed", lambda row: {True: "yes", False: "no", None: "not recorded"}[row.get("proved")]),
        computed("sizes tried", lambda row: ", ".join(f"{size} {status}" for size, status in row.get("tried") or ())),
    ]
    return [Table("largest", shown, rows)] if rows else []


def light_blocks(trial: LoadedTrial) -> list[Block]:
    """Return a step broken down: the floor, the ceilings, the waterfall, every part beside its ceiling, cautions."""
    row = trial.row
    drift = {name: row["drift"][name] for name in ("steps", "peak", "bandwidth")}
    moved = ", ".join(f"{name} {wording.signed(value)}" for name, value in drift.items() if value is not None)
    each = " per rank" if int(row["world_size"]) > 1 else ""
    ceilings = (
        f"measured peak{each} {wording.flops(row['peak_flops_per_second'])}, memory bandwidth{each} "
        f"{_bandwidth(row)}; MFU {wording.percent(row['mfu'])}; "
        f"{row['rounds']} rounds; change from before to after them: {moved or 'unknown'}"
    )
    # The floor that the bars begin from is a row of its own.
    begin = [bar for bar in row["waterfall"] if bar["kind"] == FLOOR]
    floor = {"name": "= floor", "kind": "sum", **{key: sum(bar[key] for bar in begin) for key in ("ms", "share")}}
    bars = [*begin, floor, *(bar for bar in row["waterfall"] if bar["kind"] != FLOOR)]
    of_step = computed("of the step", lambda bar: f"{'+ ' if bar['kind'] == LOSS else ''}{bar['name']}")
    parts = columns("name shape calls_per_step time_ms time_ms~ step_ms floor_ms", name="part")
    rate = computed(
        "rate",
        lambda part: wording.flops(part["flops_per_second"]) if part["flops_per_second"] else _bandwidth(part),
        lambda part: part["of_ceiling"],
    )
    return [
        wording.floor_sentence(row),
        ceilings,
        Table("waterfall", [of_step, *columns("ms ms~ share")], bars),
        Table("components", [*parts, rate, *columns("of_ceiling")], row["components"]),
        *(f"caution: {caution['message']}; {caution['remedy']}" for caution in row["cautions"]),
    ]


def _bandwidth(row: Row) -> str:
    rate = row.get("bandwidth_bytes_per_second") or row.get("bytes_per_second")
    return f"{wording.number(rate / 1e9)} GB/s" if rate else wording.UNKNOWN


def collectives_table(rows: Sequence[Row]) -> Table:
    """Return the measured collectives by message size."""
    nodes = "nodes" if any(row["nodes"] > 1 for row in rows) else ""
    names = f"collective dtype ranks {nodes} placement size_bytes count time_us time_us~ algbw_gb_s busbw_gb_s wrong"
    return Table("collectives", columns(names), rows)


def links_table(links: Sequence[Link]) -> Table:
    """Return the fitted lines: time = 2 (n - 1) x alpha + 2 (n - 1) / n x bytes / bandwidth for n ranks."""
    rows = link_rows(links)
    names = "nodes sizes alpha_us bandwidth_gb_s median_error largest_error largest_error_bytes"
    shown = [plain("dtype"), plain("ranks"), *columns(names)]
    shown += columns("reason", reason="not fitted because") if any(row["reason"] for row in rows) else []
    return Table("links", shown, rows)


def projection_blocks(rows: Sequence[Row]) -> list[Block]:
    """Return the projections with what the model assumes, then why configurations were not projected."""
    made = [row for row in rows if not row["reason"]]
    refused: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["reason"]:
            name = f"{wording.implementation(row)} {wording.model(row)} batch {wording.batch(row)}{wording.by(row)}"
            refused.setdefault(row["reason"], {})[name] = None
    blocks: list[Block] = []
    if made:
        names = (
            "implementation strategy model batch world_size step_time_ms measured_step_time_ms error "
            "samples_per_second efficiency work_ms all_reduce_ms predicted_exposed_ms communication_ms"
        )
        labels = {"batch": "batch per device", "step_time_ms": "model step ms", "work_ms": "work ms"}
        labels |= {"samples_per_second": "model samples/s", "efficiency": "model efficiency"}
        nodes = wording.counted(max(row["link_nodes"] for row in made), "node")
        note = (
            "A model, not a measurement: equally fast ranks, all-reduces by the alpha-beta line during the measured "
            f"backward pass, links as measured on {nodes}. error is model / measured - 1."
        )
        blocks = [Table("projection", without_constant(columns(names, **labels), made), made), note]
    blocks += [f"not projected: {reason}: {'; '.join(names)}" for reason, names in refused.items()]
    return blocks if rows else ["no measured throughput to project"]
