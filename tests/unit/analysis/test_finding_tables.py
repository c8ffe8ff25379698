"""Findings on a terminal, as JSON and as CSV files."""

import json
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from support.cli import Cli
from support.commands import text
from support.profiles import sample
from support.refusals import check_refusal, refused

from analysis.diagnose.finding import Finding, plain_rows
from analysis.render.finding_tables import finding_blocks, table_of
from bench.cli.result import document, write_csvs


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
    table = table_of(finding())
    assert table.headings == ("name", "calls", "total ms", "busbw GB/s", "share", "bytes")
    assert [cell.text for cell in table.rows[0]] == ["kernel 0", "1,000", "12.3", "–", "25.0 %", "2.05 kB"]  # noqa: RUF001
    assert table.rows[2][5].text == "–", "an unknown number is no 0"  # noqa: RUF001
    assert table.numeric == (False, True, True, False, True, True)


def test_json_has_full_precision_and_null_for_unknown() -> None:
    said = json.loads(json.dumps(document([finding()], ["lost"], path="x"), allow_nan=False))
    row = said["findings"]["top_kernels"]["rows"][2]
    assert row == {
        "name": "kernel 2",
        "calls": 1002,
        "total_ms": 12.3456,
        "busbw_gb_s": None,
        "share": 0.25,
        "bytes": None,
    }
    assert said["problems"] == ["lost"] and said["path"] == "x"


def test_a_hostile_name_cannot_act_on_a_terminal() -> None:
    frame = pd.DataFrame({"name": ["\x1b[2J[bold]x[/bold]", "a\nb"], "calls": [1, 2]})
    shown = text(finding_blocks([Finding("x", "T\x1b", frame, "S\x07.")]))
    assert "\x1b" not in shown and "\x07" not in shown and "[bold]x[/bold]" in shown and "a b" in shown


def test_csv_files_hold_every_row(tmp_path: Path) -> None:
    (path,) = write_csvs([finding(300), Finding("empty", "E", pd.DataFrame())], tmp_path / "new")
    assert path.name == "top_kernels.csv" and len(pd.read_csv(path)) == 300


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused("write-failed", tmp_path / "file" / "below"):
        write_csvs([finding()], tmp_path / "file" / "below")


def test_values_of_numpy_and_lists_are_plain() -> None:
    frame = pd.DataFrame({"a": pd.Categorical(["x"]), "b": [[1, 2]], "c": [pd.Timestamp("2024-01-01")]})
    assert plain_rows(frame) == [{"a": "x", "b": [1, 2], "c": "2024-01-01 00:00:00"}]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_output_that_takes_nothing_is_one_message(cli: Cli, tmp_path: Path) -> None:
    log = sample("nccl-tests", tmp_path / "all_reduce.log")
    with open("/dev/full", "w") as full:  # noqa: PTH123
        argv = cli.argv("analyze", str(log))
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "Exception ignored" not in done.stderr
    check_refusal(done.stderr, "write-failed", "No space left on device")
