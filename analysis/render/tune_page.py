"""The HTML page of a study of hyper-parameters, with its figures and its table of trials."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.render import tables
from analysis.render.page import Block, Gallery, Heading, Items, Page, Prose, Section, write_page
from analysis.render.search_tables import (
    best_text,
    counts_text,
    importance_text,
    ordered,
    reasons,
    replaced_text,
    trials_table,
    value_text,
)
from analysis.render.study_figures import tune_figures
from analysis.render.tables import Facts, Plain

Row = Mapping[str, Any]


def write_tune_report(found: Row, folder: Path) -> list[Path]:
    """Write report.html, its figures and trials.csv into a folder; return the files, the page first.

    Args:
        found: tune.json, as bench.tune.document makes it.
        folder: folder of the study.

    Raises:
        StorageError: the folder cannot be written.
    """
    page, *figures = write_page(tune_page(found, folder.resolve().name), folder)
    table = folder / "trials.csv"
    tables.write_csv(table, [_flat(row) for row in ordered(found)])
    return [page, table, *figures]


def tune_page(found: Row, title: str) -> Page:
    """Return the page of a study; `found` is tune.json."""
    best = found["best"]
    answer: list[Block] = [f"Best: {best_text(found)}." if best else "No trial completed."]
    if best:
        values = [(name.replace("_", " "), value_text(value)) for name, value in best["values"].items()]
        answer += [Facts(values), "To repeat this training:", Plain(best["command"])]
        answer += [Prose(f"The command {text}.", "faint") for text in replaced_text(found)]
    figures = tune_figures(found)
    pictures: list[Block] = [Gallery(figures) if figures else "No trial has a result yet."]
    importance = importance_text(found)
    pictures += [Prose(f"Importance: {importance}", "faint")] if importance else []
    trials: list[Block] = [trials_table(found, ordered(found))]
    failures = reasons(found)
    if failures:
        trials += [Heading("Why trials failed"), Items([("", "", reason) for reason in failures])]
    return Page(
        title,
        "bertbench search report",
        [
            Section("Result", answer, "answer"),
            Section("Figures", pictures),
            Section("Trials", trials),
            Section("Search settings", [Facts(_facts(found))]),
        ],
    )


def _facts(found: Row) -> list[tuple[str, str]]:
    search = found["search"]
    own = {name: value for name, value in found["training"].items() if value is not False}
    better = "higher" if found["objective"]["maximize"] else "lower"
    return [
        ("task", str(found["task"])),
        ("objective", f"{found['objective']['label']}, {better} is better"),
        ("trials", counts_text(found)),
        ("sampler", f"{search['sampler']}, seed {search['seed']}"),
        ("pruner", str(search["pruner"])),
        *((f"search space: {name.replace('_', ' ')}", text) for name, text in found["space"].items()),
        *((name.replace("_", " "), value_text(value)) for name, value in own.items()),
    ]


def _flat(row: Row) -> dict[str, Any]:
    own = {name: row[name] for name in ("number", "state", "value")}
    rest = {name: row[name] for name in ("seconds", "reason", "killed", "same_as", "folder")}
    return {**own, **row["values"], **rest}
