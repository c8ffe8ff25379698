"""The HTML page of a study of hyper-parameters, with its pictures and its table of trials."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.report import tables
from analysis.report.page import render_page
from analysis.report.tune_figures import draw_tune
from analysis.report.tune_text import (
    best_text,
    counts_text,
    importance_text,
    ordered,
    reasons,
    replaced_text,
    trials_table,
    value_text,
)
from common.atomic import write_text

Row = Mapping[str, Any]


def write_tune_report(found: Row, folder: Path) -> list[Path]:
    """Write report.html, its pictures and trials.csv into a folder; return the files, the page first.

    Args:
        found: tune.json, as bench.tune.document makes it.
        folder: of the study.

    Raises:
        StorageError: the folder cannot be written.
    """
    pictures = draw_tune(found, folder)
    rows = ordered(found)
    best = found["best"]
    context = {
        "title": folder.resolve().name,
        "answer": _answer(found),
        "best": best,
        "best_values": [
            (name.replace("_", " "), value_text(value)) for name, value in (best["values"] if best else {}).items()
        ],
        "replaced": replaced_text(found) if best else [],
        "facts": _facts(found),
        "failures": reasons(found),
        "pictures": pictures,
        "table": trials_table(found, rows),
        "importance": importance_text(found),
    }
    page, table = folder / "report.html", folder / "trials.csv"
    write_text(page, render_page("tune.html", context))
    tables.write_csv(table, [_flat(row) for row in rows])
    return [page, table, *(picture.path for picture in pictures)]


def _answer(found: Row) -> str:
    best = found["best"]
    if best is None:
        return "No trial came to its end."
    return f"The best: {best_text(found)}."


def _facts(found: Row) -> list[tuple[str, str]]:
    search = found["search"]
    own = {name: value for name, value in found["training"].items() if value is not False}
    better = "higher" if found["objective"]["maximize"] else "lower"
    return [
        ("trained", str(found["task"])),
        ("objective", f"{found['objective']['label']}, {better} is better"),
        ("trials", counts_text(found)),
        ("sampler", f"{search['sampler']}, seed {search['seed']}"),
        ("pruner", str(search["pruner"])),
        *((f"searched: {name.replace('_', ' ')}", text) for name, text in found["space"].items()),
        *((name.replace("_", " "), value_text(value)) for name, value in own.items()),
    ]


def _flat(row: Row) -> dict[str, Any]:
    """A row of the CSV file."""
    own = {name: row[name] for name in ("number", "state", "value")}
    rest = {name: row[name] for name in ("seconds", "reason", "killed", "same_as", "folder")}
    return {**own, **row["values"], **rest}
