"""Comparisons of trainings: variants of one training, and the heads of GAP by epoch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.metrics.comparison.trainings import FINISHED, HeadResult, TrainingComparison
from analysis.render import tables
from common.scores import score
from records.schema import COMPARISON_COLUMNS

Row = Mapping[str, Any]

_MOST_BESIDE = 2


def comparison_table(comparison: TrainingComparison) -> tables.Table:
    """Return the metrics that any variant has, with a column per variant.

    If there are too many variants for columns, each has a row with what they are compared by; `comparison_notes` has
    the rest.
    """
    rows, names = comparison.rows, row_names(comparison.rows)
    if len(rows) <= _MOST_BESIDE:
        found = _texts(comparison, [(long, value) for long, _, value in _figures(comparison)])
        return tables.texts("comparison", ("", *names), [(label, *cells) for label, cells in found])
    same = () if comparison.failed else ("training", "steps")
    found = _texts(
        comparison,
        [
            (short, _exposed_share if value is _exposed else value)
            for _, short, value in _figures(comparison)
            if short and short not in same
        ],
    )
    lines = zip(names, *(cells for _, cells in found), strict=True)
    return tables.texts("comparison", ("", *(label for label, _ in found)), lines)


def comparison_notes(comparison: TrainingComparison) -> list[str]:
    """Return what a table with a row per variant has no column for: batch, parameters, memory; none beside columns."""
    if len(comparison.rows) <= _MOST_BESIDE:
        return []
    notes = []
    for label, cells in _texts(comparison, _BELOW):
        known = dict.fromkeys(cell for cell in cells if cell != wording.UNKNOWN)
        notes.append(f"{label}: {', '.join(known)}")
    return ["; ".join(notes)] if notes else []


def _texts(
    comparison: TrainingComparison, figures: Sequence[tuple[str, Callable[[Row], str]]]
) -> list[tuple[str, list[str]]]:
    found = [(label, [value(row) for row in comparison.rows]) for label, value in figures]
    return [(label, [cell or wording.UNKNOWN for cell in cells]) for label, cells in found if any(cells)]


def comparison_rows(comparison: TrainingComparison) -> list[Row]:
    """Return a row of a CSV file per variant: COMPARISON_COLUMNS, score_<name> of the last evaluation; no lists."""
    names = dict.fromkeys(name for row in comparison.rows for name in row["scores"])
    return [
        {
            **{name: _plain(row[name]) for name in COMPARISON_COLUMNS},
            **{f"score_{name}": row["scores"].get(name) for name in names},
        }
        for row in comparison.rows
    ]


def row_names(rows: Sequence[Row]) -> list[str]:
    """Return a name for each variant, such as "ddp x 2", with implementation and precision if they differ."""
    names = []
    for row in rows:
        if row.get("name"):
            names.append(row["name"])
            continue
        words = [f"{row['strategy']} x {row['devices']}"]
        words[:0] = [row["implementation"]] if len({other["implementation"] for other in rows}) > 1 else []
        if len({other["precision"] for other in rows if other["precision"]}) > 1:
            words.append(row["precision"] or wording.UNKNOWN)
        names.append(" ".join(words))
    return names


def _plain(value: Any) -> Any:
    return " ".join("" if item is None else str(item) for item in value) if isinstance(value, list) else value


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


def _exposed_share(row: Row) -> str:
    share = row["communication_exposed_share"]
    return "" if share is None else wording.percent(share)


def _figures(comparison: TrainingComparison) -> list[tuple[str, str, Callable[[Row], str]]]:
    """Return the name of each metric, its short name as a heading ("" if left out there), and its text."""
    names = dict.fromkeys(name for row in comparison.rows for name in row["scores"] if score(name).headline)
    scores = [(score(name).label, score(name).label, _score(name)) for name in names]
    place = next(place for place, (long, _, _) in enumerate(_FIGURES) if long.startswith("exposed communication"))
    return [*_FIGURES[:place], *scores, *_FIGURES[place:]]


def _score(name: str) -> Callable[[Row], str]:
    return lambda row: score(name).text(row["scores"][name]) if name in row["scores"] else ""


# What a metric is called in a column per variant, as a heading over rows ("" if it is left out there), and its text.
_FIGURES: tuple[tuple[str, str, Callable[[Row], str]], ...] = (
    ("training", "training", lambda row: str(row["status"])),
    ("parameters", "", _known("parameters", wording.count)),
    ("precision", "", _known("precision", str)),
    ("communication backend", "", _known("backend", str)),
    ("threads per process", "", _known("threads_per_rank", wording.count)),
    ("global batch = micro batch x accumulation x devices", "", _batch),
    ("steps", "steps", _steps),
    ("time in steps, s", "time, s", _known("step_seconds", wording.fine)),
    ("time including evaluations and checkpoints, s", "", _known("loop_seconds", wording.fine)),
    ("median step, ms", "", _known("step_time_ms", wording.fine)),
    ("samples/s", "samples/s", _known("samples_per_second", wording.fine)),
    ("time per epoch at that rate, s", "", _known("epoch_seconds", wording.fine)),
    ("throughput ratio to the first", "ratio", _known("speedup", wording.fine)),
    ("time saved compared with the first", "", _saved),
    ("peak memory per process", "", _memory),
    ("last loss, mean over processes", "last loss", _known("last_loss", lambda value: f"{value:.4f}")),
    ("  of each process", "", _ranks_losses),
    ("largest loss difference from the first", "", _difference),
    ("exposed communication of a profiled step", "exposed", _exposed),
    ("all-reduce, share of a profiled step", "", _known("all_reduce_share", wording.percent)),
    ("  exposed + hidden by computation", "", _hidden),
)
_BELOW: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("global batch = micro batch x accumulation x devices", _batch),
    ("parameters", _known("parameters", wording.count)),
    ("peak memory per process", _memory),
)


def heads_blocks(results: Sequence[HeadResult], majority: float | None = None) -> list[tables.Block]:
    """Return the evaluations of each head, its best one with the training time, and the score that selects it.

    Args:
        results: results of analysis.metrics.comparison.trainings.
        majority: accuracy of always giving the most frequent answer, a fraction.
    """
    evaluations = [row for result in results for row in result.evaluations]
    heads = [_head_row(result) for result in results]
    heads += [] if majority is None else [{"head": "(majority)", "accuracy": majority}]
    loss, epoch = (lambda value, digits=digits: _decimals(value, digits) for digits in (4, 2))
    epochs = [
        tables.plain("head", "head"),
        tables.measured("epoch", "epoch", epoch),
        tables.measured("training loss", "training_loss", loss),
        tables.measured("validation loss", "log_loss", loss),
        tables.measured("accuracy", "accuracy", wording.percent),
        tables.Column("", lambda row: str(row["best"]), lambda row: "best" * row["best"], False),
    ]
    best = [
        tables.plain("head", "head"),
        tables.measured("accuracy", "accuracy", wording.percent),
        tables.measured("at epoch", "epoch", epoch),
        tables.measured("time s", "seconds", lambda value: _decimals(value, 1)),
        tables.measured("samples/s", "samples_per_second", lambda value: _decimals(value, 1)),
        tables.plain("status", "status"),
    ]
    return [
        tables.build("epochs", epochs, evaluations),
        tables.build("heads", best, heads),
        *(f"best epoch selected by {by}" for by in dict.fromkeys(score(result.best_by).label for result in results)),
    ]


def _head_row(result: HeadResult) -> Row:
    best = result.best or {}
    measured = {name: result.training[name] for name in ("samples_per_second", "status")}
    return {"head": result.head, **{name: best.get(name) for name in ("accuracy", "epoch")}, "seconds": result.seconds,
            **measured}  # fmt: skip


def head_summary(result: HeadResult) -> dict[str, Any]:
    """Return the summary of a head as plain JSON values."""
    training = result.training
    names = ("status", "step_seconds", "loop_seconds", "epoch_seconds", "samples_per_second", "parameters", "reason")
    return {
        "head": result.head,
        **{name: training[name] for name in names},
        "best": None if result.best is None else dict(result.best),
    }


def _decimals(value: float | None, digits: int) -> str:
    return wording.UNKNOWN if value is None else f"{value:,.{digits}f}"
