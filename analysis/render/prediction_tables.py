"""The ledger of predictions: predicted and measured values, the errors by kind, and how to check the rest."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.diagnose.predictions import ledger_rows
from analysis.metrics.comparison.predictions import Ledger
from analysis.render import tables
from records.prediction import KINDS, UNITS

Row = Mapping[str, Any]

_MOST_ROWS = 40
_FORMS: dict[str, Callable[[Any], str]] = {
    "ms": lambda value: f"{wording.number(value)} ms" if wording.is_known(value) else wording.UNKNOWN,
    "B": wording.size,
}
_NAMES = {"step_time_ms": "step", "sample_time_ms": "time per sample", "peak_memory_bytes": "peak memory"}


def ledger_blocks(ledger: Ledger) -> list[tables.Block]:
    """Return the checked predictions, the errors by kind, and the unchecked predictions with their commands."""
    rows = ledger_rows(ledger)
    if not rows:
        return ["No predictions are stored in these runs: `bertbench throughput`, `report --project`, `autotune` and "
                "`speed-of-light` store them."]  # fmt: skip
    checked = [row for row in rows if not row["reason"]]
    unchecked = [row for row in rows if row["reason"]]
    blocks: list[tables.Block] = []
    if checked:
        places = sorted(range(len(checked)), key=lambda place: -abs(checked[place]["error"]))[:_MOST_ROWS]
        shown = [checked[place] for place in sorted(places)]
        blocks.append(tables.build("predictions", _COLUMNS, shown, "Checked predictions"))
        if len(shown) < len(checked):
            blocks.append(f"The {len(shown)} largest errors of {len(checked):,}: --json and --out have all.")
    blocks.append(
        tables.build("prediction_errors", _ERROR_COLUMNS, ledger.errors(), "Errors: predicted / measured - 1")
    )
    blocks.append(tables.Facts([(row["kind"], KINDS[row["kind"]]) for row in ledger.errors()]))
    if unchecked:
        commands = _to_check(unchecked)
        blocks.append(tables.Facts(commands[:_MOST_ROWS], f"Unchecked: {len(unchecked):,} of {len(rows):,}"))
        if len(commands) > _MOST_ROWS:
            blocks.append(f"{_MOST_ROWS} of {len(commands):,} commands: --json and --out have all.")
    return blocks


def write_ledger(ledger: Ledger, folder: Path) -> list[Path]:
    """Write predictions.csv and prediction_errors.csv into a folder, in full precision; return the files.

    Raises:
        StorageError: a file cannot be written.
    """
    files: dict[str, Sequence[Row]] = {"predictions.csv": ledger_rows(ledger), "prediction_errors.csv": ledger.errors()}
    for name, rows in files.items():
        tables.write_csv(folder / name, rows)
    return [folder / name for name in files]


def _to_check(rows: list[Row]) -> list[tuple[str, str]]:
    """Each command once, with what it checks and why that is unchecked."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        found.setdefault(row["command"], Counter())[f"{row['kind']}: {row['reason']}"] += 1
    facts = []
    for command, counts in found.items():
        said = [f"{text} (x {count})" if count > 1 else text for text, count in counts.items()]
        facts.append(("; ".join(said), command))
    return facts


def _value(name: str) -> Callable[[Row], str]:
    return lambda row: _FORMS[UNITS[row["quantity"]]](row[name])


def _interval(row: Row) -> str:
    form = wording.size if UNITS[row["quantity"]] == "B" else wording.fine
    return wording.interval(row["predicted_low"], row["predicted_high"], form)


def _verdict(row: Row) -> str:
    if row["held"] is not None:
        near = not row["held"] and row["measured_high"] is not None and row["measured_high"] >= row["predicted"]
        return "above the bound" if row["held"] else f"{'just ' * near}below the bound"
    if row["inside"] is not None:
        return "in the interval" if row["inside"] else "outside the interval"
    return wording.UNKNOWN


def _what(row: Row) -> str:
    return f"{row['task']} {row['implementation']} {wording.model(row)} {wording.place(row)}"


def _of(part: str, whole: str) -> Callable[[Row], str]:
    return lambda row: f"{row[part]} of {row[whole]}" if row[whole] else wording.UNKNOWN


def _text(heading: str, text: Callable[[Row], str]) -> tables.Column:
    return tables.Column(heading, text, text, numeric=False)


def signed(value: Any) -> str:
    """Return an error in percent with its sign."""
    return f"{'+' * (value >= 0)}{wording.percent(value)}" if wording.is_known(value) else wording.UNKNOWN


_COLUMNS = (
    tables.plain("kind", "kind"),
    _text("configuration", _what),
    _text("quantity", lambda row: _NAMES[row["quantity"]]),
    tables.Column("predicted", lambda row: row["predicted"], _value("predicted")),
    tables.Column("95 % interval", lambda row: row["predicted_low"], _interval),
    tables.Column("measured", lambda row: row["measured"], _value("measured")),
    tables.measured("rounds", "rounds", wording.count),
    tables.measured("error", "error", signed),
    _text("verdict", _verdict),
)
_ERROR_COLUMNS = (
    tables.plain("kind", "kind"),
    tables.measured("predictions", "predictions", wording.count),
    tables.measured("checked", "checked", wording.count),
    tables.measured("unchecked", "unchecked", wording.count),
    tables.measured("median error", "median_error", wording.percent),
    tables.measured("p90 error", "p90_error", wording.percent),
    tables.measured("bias", "bias", signed),
    _text("in interval", _of("inside", "intervals")),
    _text("above bound", _of("held", "bounds")),
)
