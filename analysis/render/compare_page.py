"""The HTML page of a comparison, of two runs or of two traces, with its figures and tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import wording
from analysis.diagnose.finding import Finding
from analysis.metrics.comparison.regression import Comparison
from analysis.metrics.comparison.traces import TraceComparison
from analysis.render import tables
from analysis.render.comparison_figures import runs_figures, traces_figures
from analysis.render.page import (
    Badge,
    Block,
    Gallery,
    Heading,
    Items,
    Page,
    Prose,
    Section,
    finding_panel,
    report_folder,
    write_page,
)
from analysis.render.result_tables import comparison_table, comparison_verdicts, setting_differences

if TYPE_CHECKING:
    pass


def write_runs_report(comparison: Comparison, a: Path, b: Path, folder: Path) -> list[Path]:
    """Write the page of a comparison of two runs into a folder; return the files, the page first.

    Args:
        comparison: what `compare_runs` returned.
        a: the old run.
        b: the new run.
        folder: made if it does not exist.

    Raises:
        StorageError: a file cannot be written.
    """
    with report_folder(folder):
        return write_page(runs_page(comparison, a, b), folder)


def runs_page(comparison: Comparison, a: Path, b: Path) -> Page:
    """Return the page of a comparison of two runs."""
    headline, badge = _judged(comparison)
    table = comparison_table(comparison)
    figures = runs_figures(comparison)
    unlike = [*comparison.differences, *setting_differences(comparison)]
    return Page(
        f"{b.resolve().name} compared with {a.resolve().name}",
        "bertbench compare",
        [
            Section("", [Heading(headline, "headline"), badge, *_list(comparison_verdicts(comparison))], "answer"),
            Section("Changes", [Gallery(figures)] if figures else []),
            Section("Configurations", [table] if table else []),
            Section("Differences between the runs", _list(unlike)),
            Section("Input", [tables.Facts([
                ("old", str(a)), ("new", str(b)), ("threshold", f"{100 * comparison.threshold:g} %"),
                ("spread between rounds", wording.percent(comparison.spread)),
            ])]),
        ],
    )  # fmt: skip


def _judged(comparison: Comparison) -> tuple[str, Badge]:
    verdicts = [row["verdict"] for row in comparison.rows]
    of, threshold = wording.counted(len(verdicts), "configuration"), f"{100 * comparison.threshold:g} %"
    better = verdicts.count("improvement")
    gained = f" {better} became faster by more than {threshold}." if better else ""
    if comparison.regressed:
        text = f"Regression in {verdicts.count('regression')} of {of} (threshold {threshold}).{gained}"
        return text, Badge("regression")
    if comparison.undecided:
        doubtful = sum(verdict in ("cannot decide", "slower") for verdict in verdicts)
        text = f"No regression found, but {doubtful} of {of} {'is' if doubtful == 1 else 'are'} not conclusive.{gained}"
        return text, Badge("not conclusive")
    return f"No regression in {of} (threshold {threshold}).{gained}", Badge("no regression", "good")


def _list(texts: Sequence[str]) -> list[Block]:
    return [Items([("", "", text) for text in dict.fromkeys(texts)])] if texts else []


def write_traces_report(
    found: TraceComparison, findings: Sequence[Finding], a: Path, b: Path, folder: Path
) -> list[Path]:
    """Write the page of a comparison of two traces into a folder; return the files, the page first.

    Args:
        found: what `compare_traces` returned.
        findings: what `comparison_findings` returned.
        a: the old trace.
        b: the new trace.
        folder: made if it does not exist.

    Raises:
        StorageError: a file cannot be written.
    """
    with report_folder(folder):
        csvs = [folder / f"{finding.name}.csv" for finding in findings if len(finding.table)]
        for finding in findings:
            if len(finding.table):
                tables.write_frame(folder / f"{finding.name}.csv", finding.table)
        page, *others = write_page(traces_page(found, findings, a, b), folder)
    return [page, *others, *csvs]


def traces_page(found: TraceComparison, findings: Sequence[Finding], a: Path, b: Path) -> Page:
    """Return the page of a comparison of two traces."""
    figures = traces_figures(found)
    change = f"{100 * (found.ratio - 1):+.1f} %"
    badge = Badge(found.verdict, "caution" if found.verdict == "slower" else "good")
    said = [(one.name, one.title, one.sentence) for one in findings if one.sentence]
    return Page(
        f"{b.resolve().name} compared with {a.resolve().name}",
        "bertbench compare",
        [
            Section("", [Heading(f"The {found.per} time changed by {change}: {found.verdict}.", "headline"), badge,
                         Items(said, start=1)], "answer"),
            Section("Details", [finding_panel(one, figures.get(one.name, ())) for one in findings]),
            Section("Differences between the traces", [
                *_list(found.differences),
                Prose("If settings, devices or ranks differ, the kernels are not the only cause of a change.", "faint"),
            ] if found.differences else []),
            Section("Input", [tables.Facts([
                ("old", str(a)), ("new", str(b)), (f"{found.per} time, old", f"{found.before_ms:,.3f} ms"),
                (f"{found.per} time, new", f"{found.after_ms:,.3f} ms"),
                ("threshold", f"{100 * found.threshold:g} %"),
            ])]),
        ],
    )  # fmt: skip
