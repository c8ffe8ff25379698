"""A CSV is read as it was meant; what cannot be used is named with its lines."""

import codecs
import csv
import io
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.datasets import csv_database
from support.examples import examples
from support.refusals import refused
from support.shared_files import DATA, OWN

from bert.tasks.classify import reading
from bert.tasks.classify.store import left_out
from common.errors import Code

ROWS = "text,label\none two,a\ntwo three,b\nthree one,a\n"
SENTENCES = {
    "utf-8": "Grüße aus Köln, 東京 und Αθήνα",
    "utf-8-sig": "Grüße aus Köln",
    "utf-16": "Grüße, 東京",
    "latin-1": "Der Mörder fährt über die Straße und läuft zurück nach Hause",
    "cp1252": "“Café” costs €5 — naïve, déjà vu",
    "cp1251": "Привет мир, как дела сегодня",
    "shift_jis": "これは日本語のテキストです。とても長い",
}


def read(path: Path, **given: object) -> tuple[reading.FoundForm, list[reading.Row], list[reading.Row]]:
    """A CSV as it is read with what is given of its form: the form, the rows, and what was left out."""
    form = reading.find_form(path, reading.CsvForm(**given))  # type: ignore[arg-type]
    rows = list(reading.read_rows(path, form))
    return form, [row for row in rows if not row.left_out], [row for row in rows if row.left_out]


def pairs(rows: list[reading.Row]) -> list[tuple[str, str | None]]:
    """Text and label of each row."""
    return [(row.text, row.label) for row in rows]


def write(path: Path, content: str) -> Path:
    path.write_bytes(content.encode())
    return path


@pytest.mark.parametrize("encoding", SENTENCES)
def test_the_encoding_of_a_file_is_found_out(tmp_path: Path, encoding: str) -> None:
    expected = [(f"{SENTENCES[encoding]} {number}", "ab"[number % 2]) for number in range(40)]
    content = io.StringIO()
    csv.writer(content).writerows([("text", "label"), *expected])
    (tmp_path / "a.csv").write_bytes(content.getvalue().encode(encoding))
    _, rows, out = read(tmp_path / "a.csv")
    assert (pairs(rows), out) == (expected, [])


@pytest.mark.parametrize(("encoding", "mark"), [("utf-8", codecs.BOM_UTF8), ("utf-16-le", codecs.BOM_UTF16_LE)])
def test_an_encoding_that_is_given_holds_with_and_without_a_byte_order_mark(
    tmp_path: Path, encoding: str, mark: bytes
) -> None:
    for content in (mark, b""):
        (tmp_path / "a.csv").write_bytes(content + "text,label\nprix 5€,a\n".encode(encoding))
        assert pairs(read(tmp_path / "a.csv", encoding=encoding)[1]) == [("prix 5€", "a")]


def test_a_few_invalid_bytes_are_replaced_and_counted_with_their_rows(tmp_path: Path) -> None:
    rows = ["text,label", *(f"Grüße {number},a" for number in range(50))]
    content = "\n".join(rows).encode().replace("Grüße 7,".encode(), b"Gr\xff\xfee 7,")
    (tmp_path / "a.csv").write_bytes(content)
    _, found, _ = read(tmp_path / "a.csv")
    assert [(row.line, row.odd) for row in found if row.odd] == [(9, (reading.INVALID,))]
    assert "\ufffd" in found[7].text and len(found) == 50


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"], ids=["comma", "semicolon", "tab", "bar"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_delimiter_and_line_ends_are_found_out(tmp_path: Path, delimiter: str, line_end: str) -> None:
    expected = [("one, two; three", "a"), ('he said "no"\nand left', "b"), ("last|one\tis", "a")] * 4
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator=line_end, quoting=csv.QUOTE_ALL).writerows(
            [("text", "label"), *expected]
        )
    form, rows, out = read(tmp_path / "a.csv")
    assert (form.delimiter, pairs(rows), out) == (delimiter, expected, [])


def test_rows_that_cannot_be_used_are_named_by_line_and_reason(tmp_path: Path) -> None:
    content = (
        "\ntext,label\ngood,a\n,a\nno label,\nalone\na,b,c\n\nfine,b,,\n"
        '"two\nlines",b\n   ,b\n"broken" quotes,a\nlast,a\n'
    )
    path = write(tmp_path / "a.csv", content)
    _, rows, _ = read(path)
    assert [(row.line, row.text) for row in rows] == [(3, "good"), (9, "fine"), (10, "two\nlines"), (14, "last")]
    summary = csv_database(path)
    assert left_out(summary.source.path) == [
        (1, reading.BLANK), (4, reading.EMPTY_TEXT), (5, reading.EMPTY_LABEL), (6, reading.FEWER), (7, reading.MORE),
        (8, reading.BLANK), (12, reading.EMPTY_TEXT), (13, reading.BROKEN),
    ]  # fmt: skip
    assert any("--no-quoting" in note for note in summary.notes())


def test_columns_are_taken_by_their_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "v1,V2,,,\nham,hello there,,,\nspam,buy,now,,\nham,short\n")
    _, rows, out = read(path, text="V2", label="v1")
    assert (pairs(rows), out) == ([("hello there", "ham"), ("buy", "spam"), ("short", "ham")], [])
    assert [row.odd for row in rows] == [(), (reading.NAMELESS,), ()]
    with refused("columns-missing", "'text'", "--text", "'v1', 'V2'"):
        read(path)
    with refused("columns-missing", "'6'", "--label"):
        read(path, text="V2", label="6")
    with refused("option-conflict", "--text", "--label", "'v2'"):
        read(path, text="v2", label="v2")


def test_rows_without_a_label_are_read_where_none_is_needed(tmp_path: Path) -> None:
    for content, expected in (
        ("text,label\none,\ntwo\nthree,a\n", [("one", ""), ("two", ""), ("three", "a")]),
        ("text\n" + "red, green, blue\n" * 30, [("red, green, blue", None)] * 30),
    ):
        path = write(tmp_path / "a.csv", content)
        form = reading.find_form(path, reading.CsvForm(), needs_label=False)
        assert pairs(list(reading.read_rows(path, form, needs_label=False))) == expected


def test_quotes_are_text_where_that_is_given(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text\tlabel\nfine\ta\n"Never closed\tb\nthird\ta\n')
    assert [(row.line, row.left_out) for row in read(path)[2]] == [(3, reading.BROKEN)]
    assert pairs(read(path, quoting=False)[1])[1] == ('"Never closed', "b")
    write(path, 'text,label\nfine,a\n"' + "word, word\n" * 60)
    with refused("file-damaged", "lines 3 to 62", "--no-quoting"):
        read(path)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "file-empty"),
        (b"\n \r\n\n", "file-empty"),
        (bytes(range(256)) * 40, "columns-missing"),
        ("text,label\nred,a\n".encode("utf-16-le"), "file-encoding"),
        (b"PK\x03\x04 of a spreadsheet", "file-format"),
    ],
    ids=["empty", "blank", "binary", "utf-16 without a mark", "zip"],
)
def test_what_is_no_csv_of_texts_is_refused(tmp_path: Path, content: bytes, code: Code) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with refused(code, "a.csv"):
        read(tmp_path / "a.csv")


FIELDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)


@settings(deadline=None, max_examples=examples(60))
@given(rows=st.lists(st.tuples(FIELDS, FIELDS), max_size=8))
@example(rows=[(" ", "a"), ("b", "\n"), ("c", "d"), ("text", "label")])
def test_what_csv_writes_is_read_back(rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "written.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("text", "label"), *rows])
    found = list(reading.read_rows(path, reading.find_form(path, reading.CsvForm(encoding="utf-8", delimiter=","))))
    assert len(found) == len(rows)
    for row, (text, label) in zip(found, rows, strict=True):
        assert row.left_out if not text.strip() or not label.strip() else (row.text, row.label) == (text, label.strip())


PUBLISHED = {
    "banking77_train": ("text", "category", "utf-8-sig", 0),
    "banking77_test": ("text", "category", "utf-8-sig", 0),
    "sms_spam_kaggle": ("v2", "v1", "utf-8-sig", 50),
    "sms_spam_latin1": ("v2", "v1", "cp1252", 50),
}


@pytest.mark.parametrize(
    ("path", "text", "label", "encoding", "spilled"),
    [
        (OWN / "csv/quoted.csv", "text", "category", "utf-8-sig", 0),
        (OWN / "csv/latin-1.csv", "v2", "v1", "latin-1", 6),
        *(
            pytest.param(DATA / f"csv/{name}.csv", *facts, marks=pytest.mark.public)
            for name, facts in PUBLISHED.items()
        ),
    ],
)
def test_files_are_read_as_pandas_reads_them(path: Path, text: str, label: str, encoding: str, spilled: int) -> None:
    form, rows, out = read(path, text=text, label=label)
    frame = pd.read_csv(path, encoding=encoding, dtype=str, keep_default_na=False)
    assert (form.encoding, form.delimiter, out) == (encoding, ",", [])
    assert pairs(rows) == list(zip(frame[text], frame[label], strict=True))
    assert Counter(what for row in rows for what in row.odd)[reading.NAMELESS] == spilled


def test_another_file_of_the_user_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", ROWS)
    write(tmp_path / "mine.csv", ROWS * 20)
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as connection:
        connection.execute("CREATE TABLE mine (one)")
        connection.commit()
    before = [(tmp_path / name).read_bytes() for name in ("a.csv", "mine.csv", "other.sqlite")]
    for name, code in (("a.csv", "data-unprepared"), ("mine.csv", "data-unprepared"), ("other.sqlite", "file-format")):
        with refused(code, name):  # type: ignore[arg-type]
            csv_database(tmp_path / "a.csv", output=tmp_path / name)
    assert before == [(tmp_path / name).read_bytes() for name in ("a.csv", "mine.csv", "other.sqlite")]


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path, code in ((tmp_path, "path-kind"), (tmp_path / "nothing.csv", "path-missing")):
        with refused(code, path):  # type: ignore[arg-type]
            csv_database(path)
    with refused("option-value", "--encoding", "hex"):
        reading.CsvForm(encoding="hex")
