"""Tables for the terminal, as text."""

from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

from analysis.metrics.breakdown import Breakdown
from analysis.metrics.regression import Comparison
from analysis.report import tables
from analysis.report.sections import profile_tables

Row = Mapping[str, Any]

_LONGEST_STATUS = 60
DEFAULT_WIDTH = 150


def results_table(rows: Sequence[Row], ratios: Sequence[Row] = (), width: int = DEFAULT_WIDTH) -> str:
    """Return the table of trials, one line each, and what the ratios in it can decide.

    Args:
        rows: result rows: a trial's fields, status, reason and measured columns.
        ratios: what regression.implementation_ratios returned for the same run.
        width: characters per line.
    """
    if not rows:
        return "no trials"
    kinds = {row.get("kind", "throughput") for row in rows}
    shown = sorted((row for row in rows if row.get("kind") != "profile" or kinds == {"profile"}), key=tables.order)
    columns = tables.result_columns(ratios)
    if not ratios:
        columns = [column for column in columns if not column.heading.startswith("×")]  # noqa: RUF001
    columns = tables.without_constant_model(columns, shown)
    title = f"BERT {tables.model(shown[0])}" if all(column.heading != "model" for column in columns) else ""
    if len({row.get("round") for row in shown}) > 1:
        columns.insert(1, tables.measured("round", "round", tables.count))
    text = _render(tables.build("results", columns, shown), width, title)
    return f"{text}\n{_decisions(ratios)}".rstrip() if ratios else text


def _decisions(ratios: Sequence[Row]) -> str:
    """One line per distinct reason why ratios decide nothing."""
    open_ones = [row for row in ratios if row["decided"] == "cannot decide" and row["throughput_ratio"] is not None]
    reasons = dict.fromkeys(str(row["reason"]) for row in open_ones)
    lines = [f"ratios to {ratios[0]['reference']} are measured, not decided: {reason}" for reason in reasons]
    return "\n".join(lines)


def comparison_table(comparison: Comparison, width: int = DEFAULT_WIDTH) -> str:
    """Return the table of a comparison of two runs, with the differences between them and the verdict."""
    columns = [
        tables.plain("implementation", "implementation"),
        tables.Column("model", tables.model, tables.model, False),
        tables.Column("devices", tables.devices, tables.devices, False),
        tables.Column("batch", lambda row: row["micro_batch_size"], tables.batch),
        tables.measured("old ms", "step_time_ms_a"),
        tables.measured("new ms", "step_time_ms_b"),
        tables.measured("new/old time", "time_ratio", tables.ratio),
        tables.Column(
            "95 % interval",
            lambda row: row["time_ratio_low"],
            lambda row: tables.interval(row["time_ratio_low"], row["time_ratio_high"], lambda x: f"{x:.3f}"),
        ),
        tables.measured("time saved", "time_saved", tables.percent),
        tables.Column("verdict", lambda row: row["verdict"], lambda row: f"{row['verdict']}: {row['reason']}", False),
    ]
    rows = sorted(comparison.rows, key=tables.order)
    lines = [_render(tables.build("compare", columns, rows), width)] if rows else ["no configuration is in both runs"]
    lines += [f"differs: {difference}" for difference in comparison.differences]
    for row in rows:
        lines += [
            f"differs at {row['implementation']} batch {tables.batch(row)}: {text}" for text in row["differences"]
        ]
    lines = list(dict.fromkeys(lines))
    verdicts = [row["verdict"] for row in rows]
    tally = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts)) or "nothing compared"
    lines.append(f"{tally}; threshold {100 * comparison.threshold:g} %")
    return "\n".join(lines)


def _render(table: tables.Table, width: int, title: str = "") -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    view = Table(box=box.SIMPLE_HEAD, title=Text(title) if title else None, title_justify="left", pad_edge=False)
    for heading, numeric in zip(table.headings, table.numeric, strict=True):
        view.add_column(
            Text(heading),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=numeric,
            max_width=None if numeric else _LONGEST_STATUS,
        )
    for row in table.rows:
        # Text, not str: names from outside must not be read as rich's markup.
        view.add_row(*(Text(_printable(cell.text)) for cell in row))
    output = StringIO()
    Console(file=output, width=width, color_system=None, force_terminal=False).print(view)
    return "\n".join(line.rstrip() for line in output.getvalue().strip("\n").splitlines())


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def profile_text(profile: Breakdown, width: int = DEFAULT_WIDTH) -> str:
    """Return the tables of one rank's profile: steps, phases, kinds of work, operators."""
    return "\n\n".join(_render(table, width, heading) for heading, table in profile_tables(profile))
