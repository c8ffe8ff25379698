"""A comparison of trainings as lines of text and as rows of a CSV file."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.metrics.comparison.trainings import COLUMNS, FINISHED, TrainingComparison
from analysis.render.terminal import printable
from common.scores import score

Row = Mapping[str, Any]

_GAP = "   "
_MOST_BESIDE = 4


def comparison_text(comparison: TrainingComparison) -> str:
    """Return the comparison as lines of text: a column per variant, a line per figure that any of them has.

    More variants than fit beside each other have a line each, with the figures that decide.
    """
    rows = comparison.rows
    if len(rows) > _MOST_BESIDE:
        return _rows_text(comparison)
    lines = [("", row_names(rows))]
    for label, value in _FIGURES:
        cells = [value(row) for row in rows]
        if any(cells):
            lines.append((label, [cell or wording.UNKNOWN for cell in cells]))
    behind = ("communication", "all-reduce")
    place = next((at for at, (label, _) in enumerate(lines) if label.startswith(behind)), len(lines))
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
        table.writerow([_cell(value) for value in values])
    return text.getvalue()


def row_names(rows: Sequence[Row]) -> list[str]:
    """Return a name for each variant, such as "ddp x 2": implementation and precision where they are not all alike."""
    names = []
    for row in rows:
        words = [f"{row['strategy']} x {row['devices']}"]
        words[:0] = [row["implementation"]] if len({other["implementation"] for other in rows}) > 1 else []
        if len({other["precision"] for other in rows if other["precision"]}) > 1:
            words.append(row["precision"] or wording.UNKNOWN)
        names.append(" ".join(words))
    return names


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join("" if item is None else str(item) for item in value)
    return "" if value is None else value


def _rows_text(comparison: TrainingComparison) -> str:
    """A line per variant, a column per figure that any of them has."""
    rows = comparison.rows
    columns = [("", row_names(rows))]
    for heading, form in _COLUMN_FIGURES:
        cells = [form(row) for row in rows]
        if any(cells):
            columns.append((heading, [cell or wording.UNKNOWN for cell in cells]))
    columns += _scores(comparison)
    widths = [max(len(heading), *(len(cell) for cell in cells)) for heading, cells in columns]
    lines = [[heading for heading, _ in columns], *zip(*(cells for _, cells in columns), strict=True)]
    text = []
    for line in lines:
        first, *others = (
            f"{cell:<{width}}" if place == 0 else f"{cell:>{width}}"
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        text.append(printable("  ".join([first, *others])).rstrip())
    return "\n".join(text)


def _scores(comparison: TrainingComparison) -> list[tuple[str, list[str]]]:
    names = dict.fromkeys(name for row in comparison.rows for name in row["scores"] if score(name).headline)
    return [
        (
            score(name).label,
            [
                score(name).text(row["scores"][name]) if name in row["scores"] else wording.UNKNOWN
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
    return f"{wording.fine(row['seconds_saved'])} s ({100 * row['time_saved']:.1f} %)"


def _difference(row: Row) -> str:
    if row["greatest_loss_difference"] is None:
        return ""
    return f"{row['greatest_loss_difference']:.2g} (step {row['greatest_loss_difference_step']:,})"


def _hidden(row: Row) -> str:
    if row["all_reduce_share"] is None:
        return ""
    exposed, hidden = (wording.percent(row[f"all_reduce_{kind}_share"]) for kind in ("exposed", "hidden"))
    return f"{exposed} + {hidden}"


def _ranks_losses(row: Row) -> str:
    losses = row["loss_per_rank"]
    return "" if losses is None else " ".join(wording.UNKNOWN if loss is None else f"{loss:.4f}" for loss in losses)


def _memory(row: Row) -> str:
    if row["peak_memory_bytes"] is None:
        return ""
    kind = {"resident set": "RSS", "device allocator": "GPU"}.get(row["peak_memory_kind"] or "", "")
    return f"{wording.size(row['peak_memory_bytes'])} {kind}".rstrip()


def _exposed(row: Row) -> str:
    if row["communication_exposed_share"] is None:
        return ""
    base = "" if row["profiled_step_ms"] is None else f" of {wording.fine(row['profiled_step_ms'])}"
    share = wording.percent(row["communication_exposed_share"])
    return f"{wording.fine(row['communication_exposed_ms'])}{base} ms ({share})"


_LAST_LOSS = _known("last_loss", lambda value: f"{value:.4f}")

_FIGURES: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("training", lambda row: str(row["status"])),
    ("parameters", _known("parameters", lambda value: f"{value:,}")),
    ("precision", _known("precision", str)),
    ("the processes talk through", _known("backend", str)),
    ("threads per process", _known("threads_per_rank", wording.count)),
    ("global batch = micro batch x accumulation x devices", _batch),
    ("steps", _steps),
    ("time of the steps alone, s", _known("step_seconds", wording.fine)),
    ("time with evaluations and checkpoints, s", _known("loop_seconds", wording.fine)),
    ("median step, ms", _known("step_time_ms", wording.fine)),
    ("samples/s", _known("samples_per_second", wording.fine)),
    ("time of an epoch at that rate, s", _known("epoch_seconds", wording.fine)),
    ("throughput ratio, to the first", _known("speedup", wording.fine)),
    ("time saved, against the first", _saved),
    ("peak memory of a process", _memory),
    ("last loss, mean of the processes", _LAST_LOSS),
    ("  each process's own", _ranks_losses),
    ("greatest difference of the loss from the first", _difference),
    ("communication exposed, of a profiled step", _exposed),
    ("all-reduce alone, share of a profiled step", _known("all_reduce_share", wording.percent)),
    ("  of it exposed + hidden by computation", _hidden),
)

_COLUMN_FIGURES: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("training", lambda row: str(row["status"])),
    ("backend", _known("backend", str)),
    ("parameters", _known("parameters", lambda value: f"{value:,}")),
    ("batch", _batch),
    ("steps", _steps),
    ("time, s", _known("step_seconds", wording.fine)),
    ("epoch, s", _known("epoch_seconds", wording.fine)),
    ("samples/s", _known("samples_per_second", wording.fine)),
    ("throughput ratio", _known("speedup", wording.fine)),
    ("time saved", _saved),
    ("exposed of a profiled step", _exposed),
    ("peak memory", _memory),
    ("last loss", _LAST_LOSS),
    ("of each process", _ranks_losses),
)
