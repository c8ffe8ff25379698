"""A comparison of trainings as lines of text and as rows of a CSV file."""

import csv
import io
from collections.abc import Callable, Mapping
from typing import Any

from analysis.metrics.training_comparison import COLUMNS, FINISHED, TrainingComparison
from analysis.report import tables
from analysis.report.terminal import printable
from analysis.train_scores import score

Row = Mapping[str, Any]

_GAP = "   "


def comparison_text(comparison: TrainingComparison) -> str:
    """Return the comparison as lines of text: a column per variant, a line per figure that any of them has."""
    rows = comparison.rows
    lines = [("", [f"{row['strategy']} x {row['devices']}" for row in rows])]
    for label, value in _FIGURES:
        cells = [value(row) for row in rows]
        if any(cells):
            lines.append((label, [cell or tables.UNKNOWN for cell in cells]))
    place = next((at for at, (label, _) in enumerate(lines) if label.startswith("all-reduce")), len(lines))
    lines[place:place] = _scores(comparison)
    widths = [max(len(cells[number]) for _, cells in lines) for number in range(len(rows))]
    widest = max(len(label) for label, _ in lines)
    text = [
        f"{label:<{widest}}{_GAP}" + _GAP.join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        for label, cells in lines
    ]
    return "\n".join(printable(line).rstrip() for line in text)


def comparison_csv(comparison: TrainingComparison) -> str:
    """Return a CSV table with one row per variant: COLUMNS, and score_<name> of the last evaluation."""
    names = list(dict.fromkeys(name for row in comparison.rows for name in row["scores"]))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*COLUMNS, *(f"score_{name}" for name in names)])
    for row in comparison.rows:
        values = [*(row[name] for name in COLUMNS), *(row["scores"].get(name) for name in names)]
        table.writerow(["" if value is None else value for value in values])
    return text.getvalue()


def _scores(comparison: TrainingComparison) -> list[tuple[str, list[str]]]:
    names = dict.fromkeys(name for row in comparison.rows for name in row["scores"] if score(name).headline)
    return [
        (
            score(name).label,
            [
                score(name).text(row["scores"][name]) if name in row["scores"] else tables.UNKNOWN
                for row in comparison.rows
            ],
        )
        for name in names
    ]


def _known(name: str, form: Callable[[Any], str]) -> Callable[[Row], str]:
    return lambda row: "" if row[name] is None else form(row[name])


def _batch(row: Row) -> str:
    if row["global_batch_size"] is None:
        return ""
    parts = f"{row['micro_batch_size']} x {row['grad_accum_steps']} x {row['devices']}"
    return f"{row['global_batch_size']:,} = {parts}"


def _steps(row: Row) -> str:
    if row["steps"] is None:
        return ""
    whole = row["status"] == FINISHED and row["steps"] == row["total_steps"]
    return f"{row['steps']:,}" if whole else f"{row['steps']:,} of {row['total_steps']:,}"


def _saved(row: Row) -> str:
    if row["time_saved"] is None:
        return ""
    return f"{tables.fine(row['seconds_saved'])} s ({100 * row['time_saved']:.1f} %)"


def _difference(row: Row) -> str:
    if row["greatest_loss_difference"] is None:
        return ""
    return f"{row['greatest_loss_difference']:.2g} (step {row['greatest_loss_difference_step']:,})"


def _hidden(row: Row) -> str:
    if row["all_reduce_share"] is None:
        return ""
    exposed, hidden = (tables.percent(row[f"all_reduce_{kind}_share"]) for kind in ("exposed", "hidden"))
    return f"{exposed} + {hidden}"


_FIGURES: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("training", lambda row: str(row["status"])),
    ("threads per process", _known("threads_per_rank", tables.count)),
    ("global batch = micro batch x accumulation x devices", _batch),
    ("steps", _steps),
    ("time of the steps alone, s", _known("step_seconds", tables.fine)),
    ("time with evaluations and checkpoints, s", _known("loop_seconds", tables.fine)),
    ("median step, ms", _known("step_time_ms", tables.fine)),
    ("samples/s", _known("samples_per_second", tables.fine)),
    ("times the first", _known("speedup", tables.fine)),
    ("time saved", _saved),
    ("peak memory of a process", _known("peak_memory_bytes", tables.size)),
    ("last loss", _known("last_loss", lambda value: f"{value:.4f}")),
    ("greatest difference of the loss from the first", _difference),
    ("all-reduce, share of a step", _known("all_reduce_share", tables.percent)),
    ("  of it exposed + hidden by computation", _hidden),
)
