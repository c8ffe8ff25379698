"""The HTML page: one file that opens anywhere, without network."""

import base64
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.load import LoadedRun, LoadedTrial, load_run
from analysis.metrics import cautions as cautions_of
from analysis.metrics.breakdown import Breakdown, breakdown
from analysis.metrics.regression import ratios_of
from analysis.metrics.scaling import efficiency
from analysis.readers import kineto
from analysis.records import RESULT_COLUMNS, RunDirectory
from analysis.report import figures, sections, tables
from analysis.report.answer import answers, nothing_measured, points
from analysis.report.glossary import GLOSSARY
from analysis.report.largest import largest_tables, read_largest
from common.atomic import write_text
from common.errors import InputError

if TYPE_CHECKING:
    import markupsafe

Row = Mapping[str, Any]

_HERE = Path(__file__).parent
# Traces of more ranks than this say the same again.
_MOST_TRACES = 4


def write_report(run: RunDirectory, price_per_hour: float | None = None) -> Path:
    """Write report.html, its pictures and its CSV tables into the run's report folder; return the page.

    Everything is computed afresh from the raw records. The page holds its pictures, style and script.

    Args:
        run: the run directory.
        price_per_hour: price of the machine, for the cost columns.

    Raises:
        InputError: no run directory, or one without trials.
        SchemaError: the run was written by a newer bertbench.
        UsageError: price_per_hour is not above 0.
        StorageError: the report folder cannot be written.
    """
    trials = load_run(run, price_per_hour)
    rows = sorted((trial.row for trial in trials), key=tables.order)
    shown = sections.shown_rows(rows)
    reference = _reference(trials)
    ratios = ratios_of(trials, reference)
    scaling = efficiency(rows)
    found = points(trials)
    profiles, profile_errors = _profiles(trials)
    largest, largest_errors = read_largest(run)
    pictures = figures.draw_all(run.report, trials, found, scaling)
    _write_csvs(run.report, rows, ratios, scaling, trials, profiles)
    shown_tables = [
        sections.results(shown, ratios),
        *largest_tables(largest),
        *sections.rank_tables(trials),
        *sections.scaling_tables(scaling),
    ]
    page = _render(
        {
            "title": run.path.resolve().name,
            "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "answers": answers(found, ratios) or [nothing_measured(trials)],
            "facts": sections.facts(trials),
            "failures": sections.failures(trials),
            "decides": sections.what_it_decides(trials, ratios),
            "cautions": sections.grouped_cautions(trials, _run_cautions(trials, ratios)),
            "largest_errors": largest_errors,
            "tables": {table.name: table for table in shown_tables},
            "pictures": [(picture, _data_uri(picture.path)) for picture in pictures],
            "profiles": [(name, profile, sections.profile_tables(profile)) for name, profile in profiles],
            "profile_errors": profile_errors,
            "environment": sections.environment(trials),
            "glossary": GLOSSARY,
        }
    )
    path = run.report / "report.html"
    write_text(path, page)
    return path


def _reference(trials: Sequence[LoadedTrial]) -> str:
    """hf where it was measured, else another implementation that ours can be held against."""
    names = sorted({trial.trial.implementation for trial in trials if trial.trial.kind == "throughput"})
    others = [name for name in names if name != "bertbench"]
    return "hf" if "hf" in names or not others else others[0]


def _run_cautions(trials: LoadedRun, ratios: Sequence[Row]) -> list[cautions_of.Caution]:
    found = [cautions_of.damaged(problem) for problem in trials.problems]
    found += cautions_of.of_run([trial.environment for trial in trials])
    rounds = [min(row["rounds"], row["reference_rounds"]) for row in ratios if row["throughput_ratio"] is not None]
    fewest = min(rounds, default=3)
    return [*found, cautions_of.one_round(fewest)] if fewest < 3 else found


def _profiles(trials: Sequence[LoadedTrial]) -> tuple[list[tuple[str, Breakdown]], list[str]]:
    """Read the traces of profile trials; a damaged trace is named, and the rest is still shown."""
    found: list[tuple[str, Breakdown]] = []
    errors: list[str] = []
    for trial in trials:
        if trial.trial.kind != "profile":
            continue
        folder = trial.directory.profile
        traces = sorted({*folder.glob("*.json"), *folder.glob("*.json.gz")})
        name = f"{trial.trial.implementation}, batch {tables.batch(trial.row)}, {tables.devices(trial.row)}"
        if not traces:
            errors.append(
                f"{name}: no trace ({trial.row['status']}: {trial.row.get('reason') or 'nothing was written'})"
            )
        for path in traces[:_MOST_TRACES]:
            try:
                found.append((name, breakdown(kineto.read(path))))
            except InputError as error:
                errors.append(str(error))
    return found, errors


def _write_csvs(
    folder: Path,
    rows: Sequence[Row],
    ratios: Sequence[Row],
    scaling: Sequence[Row],
    trials: Sequence[LoadedTrial],
    profiles: Sequence[tuple[str, Breakdown]],
) -> None:
    tables.write_csv(folder / "results.csv", rows, RESULT_COLUMNS)
    ranks = [
        {"trial_id": trial.trial.trial_id, **rank} for trial in trials if trial.ok for rank in trial.row["per_rank"]
    ]
    operators = [
        {"profile": name, "rank": profile.rank, **operator}
        for name, profile in profiles
        for operator in profile.operators
    ]
    for name, content in (("ratios", ratios), ("scaling", scaling), ("ranks", ranks), ("operators", operators)):
        if content:
            tables.write_csv(folder / f"{name}.csv", content)


def _data_uri(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _mark_options(text: str) -> "markupsafe.Markup":
    """Escape `text`, and set command line options apart so that they are not broken over lines."""
    import markupsafe

    escaped = str(markupsafe.escape(text))
    return markupsafe.Markup(re.sub(r"--[a-z][a-z-]*(?: \d+)?", r"<code>\g<0></code>", escaped))  # noqa: S704


def _render(context: Mapping[str, Any]) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["options"] = _mark_options
    files = {name: (_HERE / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    return environment.get_template("page.html").render(**context, **files)
