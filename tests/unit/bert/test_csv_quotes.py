"""Quotes that are wrong cost no row in silence: text behind a closing quote is what csv.reader(strict=True) refuses."""

import csv
import io
import random
from pathlib import Path

import pytest
from support.csv_files import prepared
from support.refusals import refused

from bert.tasks.classify.config import CsvForm
from bert.tasks.classify.form import find_form
from bert.tasks.classify.reading import BEHIND_QUOTE, BROKEN, LITERAL_QUOTE, SEVERAL_LINES, LeftOut, TextRow, read_rows
from bert.tasks.classify.summary import notes
from common.errors import InputError


def read(path: Path, content: str) -> list[TextRow | LeftOut]:
    path.write_text(content, encoding="utf-8", newline="")
    return list(read_rows(path, find_form(path, CsvForm())))


def is_strict(content: str, delimiter: str = ",") -> bool:
    """Whether Python's csv module takes a file for one without fault."""
    try:
        list(csv.reader(io.StringIO(content, newline=""), delimiter=delimiter, strict=True))
    except csv.Error:
        return False
    return True


@pytest.mark.parametrize("columns", [("label", "text"), ("text", "label")])
@pytest.mark.parametrize("delimiter", [",", "\t"], ids=["comma", "tab"])
def test_two_quotes_that_stand_alone_hold_no_row(tmp_path: Path, columns: tuple[str, str], delimiter: str) -> None:
    plain = [{"text": f"plain text number {number}", "label": "ab"[number % 2]} for number in range(300)]
    plain[100]["text"], plain[131]["text"] = '"unclosed start of it', '"another stray'
    lines = [delimiter.join(columns), *(delimiter.join(row[name] for name in columns) for row in plain)]
    content = "\n".join(lines) + "\n"
    assert not is_strict(content, delimiter)
    rows = read(tmp_path / "a.csv", content)
    assert [(row.text, row.label) for row in rows if isinstance(row, TextRow)] == [
        (row["text"], row["label"]) for row in plain
    ]
    # Rows begin in line 2: those of numbers 100 and 131 stand in lines 102 and 133.
    assert [(row.line, row.odd) for row in rows if isinstance(row, TextRow) and row.odd] == [
        (102, (LITERAL_QUOTE,)), (133, (LITERAL_QUOTE,)),
    ]  # fmt: skip


def test_a_quote_that_stands_alone_holds_no_row_before_one_that_is_quoted_rightly(tmp_path: Path) -> None:
    content = 'text,label\n"stray,a\nplain,b\n"one, two",a\n"of two\nlines",b\nlast,a\n'
    rows = read(tmp_path / "a.csv", content)
    assert [(row.line, row.text) for row in rows if isinstance(row, TextRow)] == [
        (2, '"stray'), (3, "plain"), (4, "one, two"), (5, "of two\nlines"), (7, "last"),
    ]  # fmt: skip
    assert len(rows) == 5


def test_a_broken_text_of_several_lines_is_left_out_whole(tmp_path: Path) -> None:
    # Lines 3 to 6 are one row whose inner quotes are not doubled; lines 5 and 6 alone would pass for other texts.
    content = 'text,label\nfirst,a\n"It began\nand he said "no" to me\nand more\nthe end",b\nlast,b\n'
    rows = read(tmp_path / "a.csv", content)
    assert [row.text for row in rows if isinstance(row, TextRow)] == ["first", "last"]
    assert [(row.place, row.reason) for row in rows if isinstance(row, LeftOut)] == [("lines 3 to 6", BROKEN)]


def test_text_behind_a_closing_quote_in_one_line_is_counted(tmp_path: Path) -> None:
    content = 'label;text\npos;"Go away 0" he said\nneg;"a ""good"" one"\npos;plain\n'
    assert not is_strict(content, ";")
    rows = read(tmp_path / "a.csv", content)
    assert [row.odd for row in rows if isinstance(row, TextRow)] == [(BEHIND_QUOTE,), (), ()]
    expected = list(csv.reader(io.StringIO(content, newline=""), delimiter=";"))[1:]
    assert [(row.label, row.text) for row in rows if isinstance(row, TextRow)] == [tuple(row) for row in expected]


def test_rows_of_several_lines_say_their_range(tmp_path: Path) -> None:
    rows = read(tmp_path / "a.csv", 'text,label\n"one\ntwo\nthree",a\nx,b\n')
    assert isinstance(rows[0], TextRow) and (rows[0].odd, rows[0].place) == ((SEVERAL_LINES,), "lines 2 to 4")


def test_a_quote_closed_by_none_is_still_refused(tmp_path: Path) -> None:
    with refused("file-damaged", "line 3", "--no-quoting"):
        read(tmp_path / "a.csv", 'text,label\nx,a\n"never closed,b\ny,a\n')


def test_no_line_of_a_file_with_stray_quotes_goes_without_a_word(tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(300):
        lines = [f"text {number},{chance.choice('ab')}" for number in range(12)]
        for number in chance.sample(range(12), chance.randrange(1, 5)):
            at = chance.choice([0, lines[number].index(",") + 1, 4])
            lines[number] = lines[number][:at] + '"' + lines[number][at:]
        content = "\n".join(["text,label", "x,a", "y,b", "z,a", *lines]) + "\n"
        try:
            rows = read(tmp_path / "a.csv", content)
        except InputError as error:
            assert "--no-quoting" in str(error)
            continue
        covered = [line for row in rows for line in range(row.line, row.line + row.lines)]
        assert covered == list(range(2, 17))
        if not is_strict(content):
            assert any(isinstance(row, LeftOut) or row.odd for row in rows)


def test_a_note_names_the_option_for_quotes_that_are_text(tmp_path: Path) -> None:
    lines = [f"one two {number},{'ab'[number % 2]}" for number in range(20)]
    lines[5], lines[9] = '"' + lines[5], '"' + lines[9]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    summary = prepared(tmp_path / "a.csv")
    assert summary.source.counts.get("rows") == summary.source.counts.get("texts") == 20
    assert summary.source.counts.names[LITERAL_QUOTE] == ["line 7", "line 11"]
    assert any("--no-quoting" in note and "line 7, line 11" in note for note in notes(summary))
