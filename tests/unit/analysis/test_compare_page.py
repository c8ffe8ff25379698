"""Pages of comparisons: the verdict first, intervals as they are in the rows, tables, exit codes."""

import csv
from pathlib import Path

import pytest
from support.charts import titles, values
from support.commands import result
from support.fake_run import write_sweep
from support.timelines import recording

from analysis import wording
from analysis.diagnose.explain import comparison_findings
from analysis.metrics.comparison.regression import compare_runs
from analysis.metrics.comparison.traces import compare_traces
from analysis.render.comparison_figures import runs_figures, traces_figures
from analysis.render.page import Page, Text
from analysis.render.pages import runs_page, traces_page, write_traces_report
from bench.cli.dispatch import result_of
from records.run import RunDirectory

MS = 1_000_000


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """The same configurations at several speeds, and one with a single round."""
    folder = tmp_path_factory.mktemp("runs")
    one = {"implementations": ("bertbench",), "batches": (8, 16), "worlds": (1,), "rounds": 3}
    found = {name: write_sweep(folder / name, scale=scale, **one)
             for name, scale in (("old", 1.0), ("slow", 1.3), ("fast", 0.7))}  # fmt: skip
    found["short"] = write_sweep(folder / "short", **{**one, "rounds": 1})
    return found


def badge(page: Page) -> Text:
    (found,) = [block for block in page.sections[0].blocks if isinstance(block, Text) and "badge" in block.style]
    return found


@pytest.mark.parametrize(
    "new, code, style, word",
    [("slow", 1, "caution", "regression"), ("fast", 0, "good", "no regression"),
     ("short", 4, "caution", "not conclusive")],
)  # fmt: skip
def test_the_verdict_stands_first_and_exit_codes_do_not_depend_on_the_page(
    runs: dict[str, RunDirectory], tmp_path: Path, new: str, code: int, style: str, word: str
) -> None:
    words = ["compare", runs["old"].path, runs[new].path]
    found = result(*words, "--out", tmp_path / "out")
    assert found.code == result(*words).code == code
    assert found.written[0] == tmp_path / "out/report.html" and found.document["report"] == str(found.written[0])
    assert "report" not in result(*words).document and all(path.is_file() for path in found.written)
    page = runs_page(compare_runs(runs["old"], runs[new]), runs["old"].path, runs[new].path)
    assert badge(page) == Text(word, f"badge {style}")


def test_figure_and_table_hold_the_ratios_of_the_rows(runs: dict[str, RunDirectory], tmp_path: Path) -> None:
    comparison = compare_runs(runs["old"], runs["slow"])
    (figure,) = runs_figures(comparison)
    rows = sorted(comparison.rows, key=lambda row: row["micro_batch_size"])
    points = [lines[1] for lines in titles(figure)["regression"][-2:]]  # after the bars of the intervals
    assert points == [f"change of the step time (%): {wording.fine(100 * (row['time_ratio'] - 1))}" for row in rows]
    result("compare", runs["old"].path, runs["slow"].path, "--out", tmp_path)
    with (tmp_path / "tables/compare.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [float(row["time_ratio"]) for row in table] == [row["time_ratio"] for row in rows]
    assert [row["verdict"] for row in table] == ["regression", "regression"]


def test_runs_without_a_common_configuration_have_no_page(runs: dict[str, RunDirectory], tmp_path: Path) -> None:
    other = write_sweep(tmp_path / "other", implementations=("hf",), batches=(2,), worlds=(1,), rounds=1, count=12)
    found = result_of(["compare", str(runs["old"].path), str(other.path), "--out", str(tmp_path / "out")])
    assert found.failure is not None and found.failure.code == "run-mismatch"
    assert not (tmp_path / "out").exists()


def test_the_page_of_two_traces_shows_the_times_and_what_changed(tmp_path: Path) -> None:
    found = compare_traces([recording(20)], [recording(30, extra_ms=10)])
    figures = traces_figures(found)
    (times,) = figures["time"]
    for series, column in (("old", "before_ms"), ("new", "after_ms")):
        assert values(times, series) == pytest.approx(found.time[column].tolist(), rel=1e-3)
    (kernels,) = figures["changed_kernels"]
    assert values(kernels, "slower") == pytest.approx([10.0, 10.0])
    findings = comparison_findings(found)
    page = traces_page(found, findings, tmp_path / "a", tmp_path / "b")
    assert badge(page) == Text("slower", "badge caution")
    written = write_traces_report(found, findings, tmp_path / "a", tmp_path / "b", tmp_path / "out")
    names = {str(path.relative_to(tmp_path / "out")) for path in written}
    assert {"report.html", "time.csv", "changed_kernels.csv", "changed_families.csv", "time.png"} <= names
    with (tmp_path / "out/changed_kernels.csv").open(newline="") as file:
        assert {row["name"] for row in csv.DictReader(file)} == {"sgemm", "softmax_kernel"}


def test_equal_traces_have_no_figure_of_changes(tmp_path: Path) -> None:
    found = compare_traces([recording(20)], [recording(20)])
    assert set(traces_figures(found)) == {"time"}
    page = traces_page(found, comparison_findings(found), tmp_path, tmp_path)
    assert badge(page).style == "badge good"
