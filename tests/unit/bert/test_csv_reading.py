"""Any CSV is read as it was meant, or refused with the line at fault."""

import codecs
import csv
import gzip
import io
import os
import random
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import shared_files
from support.csv_files import pairs, prepared, read
from support.examples import examples
from support.refusals import refused

from bert.tasks.classify.config import CsvForm
from bert.tasks.classify.form import find_form
from bert.tasks.classify.reading import (
    BEHIND_QUOTE,
    BROKEN,
    HEADER_AGAIN,
    LITERAL_QUOTE,
    SEVERAL_LINES,
    LeftOut,
    TextRow,
    read_rows,
)
from bert.tasks.classify.records import check_file
from bert.tasks.classify.summary import notes
from common.errors import Code, InputError

CSV_FOLDER = shared_files.DATA / "csv"


SENTENCES = {
    "utf-8": "Grüße aus Köln, 東京 und Αθήνα",
    "utf-8-sig": "Grüße aus Köln",
    "utf-16": "Grüße, 東京",
    "latin-1": "Der Mörder fährt über die Straße und läuft zurück nach Hause",
    "cp1252": "“Café” costs €5 — naïve, déjà vu",
    "cp1251": "Привет мир, как дела сегодня",
    "shift_jis": "これは日本語のテキストです。とても長い",
}


@pytest.mark.parametrize("encoding", SENTENCES)
def test_the_encoding_of_a_file_is_found_out(tmp_path: Path, encoding: str) -> None:
    expected = [(f"{SENTENCES[encoding]} {number}", "ab"[number % 2]) for number in range(40)]
    content = io.StringIO()
    csv.writer(content).writerows([("text", "label"), *expected])
    (tmp_path / "a.csv").write_bytes(content.getvalue().encode(encoding))
    form, rows, left_out = read(tmp_path / "a.csv")
    assert (pairs(rows), left_out) == (expected, [])
    assert form.encoding_from in ("every byte", "a byte order mark", "charset-normalizer")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("sentence", ["plain words", "Привет мир, 東京"])
def test_utf_16_without_a_mark_is_read_where_it_is_named_and_else_refused(
    tmp_path: Path, encoding: str, sentence: str
) -> None:
    expected = [(f"{sentence} {number}", "ab"[number % 2]) for number in range(40)]
    content = io.StringIO()
    csv.writer(content).writerows([("text", "label"), *expected])
    (tmp_path / "a.csv").write_bytes(content.getvalue().encode(encoding))
    with refused("file-encoding", "--encoding", "utf-16-le", "utf-16-be"):
        read(tmp_path / "a.csv")
    assert pairs(read(tmp_path / "a.csv", encoding=encoding)[1]) == expected


def test_an_encoding_that_is_given_holds(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text,label\nprix 5€,a\n".encode("iso8859-15"))
    assert pairs(read(tmp_path / "a.csv", encoding="iso8859-15")[1]) == [("prix 5€", "a")]


@pytest.mark.parametrize(
    ("encoding", "mark"),
    [("utf-8", codecs.BOM_UTF8), ("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE),
     ("utf-32-le", codecs.BOM_UTF32_LE)],
    ids=["utf-8", "utf-16-le", "utf-16-be", "utf-32-le"],
)  # fmt: skip
def test_a_byte_order_mark_is_no_part_of_the_header_where_the_encoding_is_given(
    tmp_path: Path, encoding: str, mark: bytes
) -> None:
    for content in (mark, b""):
        (tmp_path / "a.csv").write_bytes(content + "text,label\nprix 5€,a\n".encode(encoding))
        assert pairs(read(tmp_path / "a.csv", encoding=encoding)[1]) == [("prix 5€", "a")]


def test_a_few_invalid_bytes_are_replaced_and_told_with_their_rows(tmp_path: Path) -> None:
    rows = ["text,label", *(f"Grüße {number},a" for number in range(50))]
    content = "\n".join(rows).encode().replace("Grüße 7,".encode(), b"Gr\xff\xfee 7,")
    (tmp_path / "a.csv").write_bytes(content)
    form, found, _ = read(tmp_path / "a.csv")
    assert form.encoding_from == "nearly every byte"
    assert [row.line for row in found if row.odd] == [9] and "\ufffd" in found[7].text and len(found) == 50


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"], ids=["comma", "semicolon", "tab", "bar"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_delimiter_and_line_ends_are_found_out(tmp_path: Path, delimiter: str, line_end: str) -> None:
    expected = [("one, two; three", "a"), ('he said "no"\nand left', "b"), ("last|one\tis", "a")] * 4
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter, lineterminator=line_end).writerows([("text", "label"), *expected])
    form, rows, left_out = read(tmp_path / "a.csv")
    assert (form.dialect.delimiter, pairs(rows), left_out) == (delimiter, expected, [])


def test_rows_that_cannot_be_used_are_named_by_line_and_reason(tmp_path: Path) -> None:
    content = (
        "<<<<<<< HEAD\n\ntext,label\ngood,a\n,a\nno label,\nalone\na,b,c\n\n<<<<<<< HEAD\nours,a\n=======\n"
        'theirs,b\n>>>>>>> branch\ntext,label\n"two\n=======\nlines",b\n   ,b\n'
    )
    (tmp_path / "a.csv").write_text(content)
    _, rows, left_out = read(tmp_path / "a.csv")
    assert [(row.line, row.text) for row in rows] == [
        (4, "good"),
        (11, "ours"),
        (13, "theirs"),
        (16, "two\n=======\nlines"),
    ]
    assert [(row.line, row.reason) for row in left_out] == [
        (1, "merge-conflict line"), (2, "blank line"), (5, "empty text"), (6, "empty label"), (7, "too few fields"),
        (8, "more fields than columns"), (9, "blank line"), (10, "merge-conflict line"), (12, "merge-conflict line"),
        (14, "merge-conflict line"), (15, "header again"), (19, "empty text"),
    ]  # fmt: skip


def test_columns_without_names_go_by_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("v1,v2,,,\nham,hello there,,,\nspam,buy,now,,\nham,short\n")
    _, rows, left_out = read(tmp_path / "a.csv", text="2", label="v1")
    assert (pairs(rows), left_out) == ([("hello there", "ham"), ("buy", "spam"), ("short", "ham")], [])


def test_a_file_without_a_header_is_read_by_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,first text\nb,second text\n")
    _, rows, _ = read(tmp_path / "a.csv", text="2", label="1", header=False)
    assert pairs(rows) == [("first text", "a"), ("second text", "b")]
    with refused("columns-missing", "'a', 'first text'", "--no-header"):
        read(tmp_path / "a.csv")
    with refused("option-conflict", "--no-header", "--text 1 --label 2"):
        CsvForm(header=False)


def test_rare_damage_to_utf8_does_not_make_it_another_encoding(tmp_path: Path) -> None:
    rows = [b"plain words %d,a" % number for number in range(400)]
    rows[7:9] = ["Grüße,b".encode(), "Köln,b".encode()]
    rows[20], rows[30] = b"Gr\xfc\xdfe,b", b"words\xff,b"
    rows[40] = "Größe,b".encode()
    (tmp_path / "a.csv").write_bytes(b"text,label\n" + b"\n".join(rows))
    form, found, _ = read(tmp_path / "a.csv")
    assert form.encoding == "utf-8-sig" and ("Grüße", "b") in pairs(found)
    assert [row.line for row in found if row.odd] == [22, 32]
    rows[7:9], rows[40] = [b"plain,a"] * 2, b"plain,a"  # nothing speaks for UTF-8 then
    (tmp_path / "a.csv").write_bytes(b"text,label\n" + b"\n".join(rows))
    assert read(tmp_path / "a.csv")[0].encoding in ("latin-1", "cp1252")


def test_nul_characters_are_taken_out_and_told(tmp_path: Path) -> None:
    rows = [f"Grüße {number},a" + "\0" * (number % 2) for number in range(50)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    form, found, _ = read(tmp_path / "a.csv")
    assert form.encoding == "utf-8-sig" and {row.label for row in found} == {"a"}
    assert [row.odd for row in found[:2]] == [(), ("NUL characters, taken out",)]
    (tmp_path / "a.csv").write_bytes(b"text,label\n" + b"\xe9\0\0" * 400)
    with refused("file-encoding", "a.csv", "--encoding", "utf-16-le"):
        read(tmp_path / "a.csv")


def test_a_header_without_any_name_is_the_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(",\none,a\ntwo,b\n")
    assert pairs(read(tmp_path / "a.csv", text="1", label="2")[1]) == [("one", "a"), ("two", "b")]
    (tmp_path / "a.csv").write_text(",\n\ntext,label\none,a\n")
    assert pairs(read(tmp_path / "a.csv")[1]) == [("one", "a")]


def test_a_first_line_that_names_the_delimiter_is_no_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sep=;\ntext;label\na, b, c;x\nd;y\n")
    form, rows, left_out = read(tmp_path / "a.csv")
    assert (form.delimiter_from, pairs(rows), left_out) == ("the first line", [("a, b, c", "x"), ("d", "y")], [])
    assert [row.line for row in rows] == [3, 4]


def test_one_column_cannot_be_text_and_label(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\none,a\n")
    for label in ("text", "1"):
        with refused("option-conflict", "--text text", f"--label {label}"):
            read(tmp_path / "a.csv", label=label)


def test_a_row_of_very_many_lines_says_from_where_to_where(tmp_path: Path) -> None:
    lines = ["text,label", *(f"text {number},a" for number in range(100))]
    lines[10], lines[90] = '"text,a', 'text",a'
    (tmp_path / "a.csv").write_text("\n".join(lines))
    _, rows, _ = read(tmp_path / "a.csv")
    found = [row for row in rows if row.odd]
    assert [(row.odd, row.place) for row in found] == [(("fields of very many lines",), "lines 11 to 91")]


def test_rows_without_a_label_are_read_where_none_is_needed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\none,\ntwo\nthree,a\n")
    form = find_form(tmp_path / "a.csv", CsvForm())
    found = list(read_rows(tmp_path / "a.csv", form, needs_label=False))
    assert [(row.text, row.label) for row in found if isinstance(row, TextRow)] == [
        ("one", ""), ("two", ""), ("three", "a")
    ]  # fmt: skip


def test_cells_like_formulas_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\n"=HYPERLINK(""x"")",a\n@SUM(1),-1\n')
    _, rows, _ = read(tmp_path / "a.csv")
    assert pairs(rows) == [('=HYPERLINK("x")', "a"), ("@SUM(1)", "-1")]
    assert all(row.odd == ("cells like formulas, read as text",) for row in rows)


def test_a_quote_that_is_never_closed_is_refused_with_its_line_or_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text\tlabel\nfine\ta\n"Never closed\tb\nthird\ta\n')
    with refused("file-damaged", "a.csv line 3", "--no-quoting"):
        read(tmp_path / "a.csv")
    assert pairs(read(tmp_path / "a.csv", quoting=False)[1])[1] == ('"Never closed', "b")
    (tmp_path / "a.csv").write_text('text,label\nfine,a\n"' + "word, word\n" * 200_000)
    with refused("file-damaged", "a.csv line 3"):
        read(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        (b"", "file-empty", ()),
        (codecs.BOM_UTF8, "file-empty", ()),
        (b"\n \r\n\n", "file-empty", ()),
        (bytes(range(256)) * 40, "file-encoding", ()),
        (b"text,text,label\na,b,c\n", "data-ambiguous", ("2 columns 'text'", "--text 1, 2")),
        (b"text,label\n" + b"a" * 2**21, "file-limit", ("line 2",)),
    ],
    ids=["empty", "mark alone", "blank", "binary", "twice", "one line"],
)
def test_what_is_no_csv_of_texts_is_refused(
    tmp_path: Path, content: bytes, code: Code, facts: tuple[object, ...]
) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with refused(code, "a.csv", *facts):
        read(tmp_path / "a.csv")


@pytest.mark.parametrize("encoding", ["hex", "no-such", "rot13", "idna", "punycode", "unicode_escape"])
def test_an_encoding_of_no_text_is_refused(encoding: str) -> None:
    with refused("option-value", "--encoding", repr(encoding)):
        CsvForm(encoding=encoding)


FIELDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)


@settings(deadline=None, max_examples=examples(60))
@given(rows=st.lists(st.tuples(FIELDS, FIELDS), max_size=8))
@example(rows=[(" ", "a"), ("b", "\n"), ("c", "d"), ("text", "label")])
def test_what_csv_writes_is_read_back(rows: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "written.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("text", "label"), *rows])
    form = find_form(path, CsvForm(encoding="utf-8", delimiter=","))
    found = list(read_rows(path, form))
    assert len(found) == len(rows)
    for row, (text, label) in zip(found, rows, strict=True):
        if not text.strip() or not label.strip():
            assert not isinstance(row, TextRow)
        elif isinstance(row, TextRow):
            assert (row.text, row.label) == (text, label.strip())
        else:
            assert row.reason == "header again"


@pytest.mark.public
def test_the_published_files_are_read_whole() -> None:
    found = {
        name: read(CSV_FOLDER / f"{name}.csv", text=text, label=label)
        for name, text, label in (
            ("banking77_train", "text", "category"), ("sms_spam_kaggle", "v2", "v1"), ("sms_spam_latin1", "v2", "v1"),
        )
    }  # fmt: skip
    assert {name: len(rows) for name, (_, rows, _) in found.items()} == {
        "banking77_train": 10_003, "sms_spam_kaggle": 5572, "sms_spam_latin1": 5572,
    }  # fmt: skip
    assert not any(left_out for _, _, left_out in found.values())
    assert found["sms_spam_latin1"][0].encoding == "cp1252"


ROWS = "text,label\none two,a\ntwo three,b\nthree one,a\n"


def test_another_file_of_the_user_is_not_to_be_removed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(ROWS)
    (tmp_path / "mine.csv").write_text(ROWS * 20)
    with refused("folder-occupied", "mine.csv", "--output") as caught:
        prepared(tmp_path / "a.csv", output=tmp_path / "mine.csv")
    assert "remove" not in str(caught.value) and "data csv" not in str(caught.value)
    assert (tmp_path / "mine.csv").read_text() == ROWS * 20


def test_a_database_of_another_program_is_refused_as_that(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(ROWS)
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as connection:
        connection.execute("CREATE TABLE mine (one)")
        connection.commit()
    with refused("file-format", "other.sqlite"):
        prepared(tmp_path / "a.csv", output=tmp_path / "other.sqlite")


def test_a_pipe_is_no_file_that_does_not_exist(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with refused("path-kind", "pipe"):
        prepared(tmp_path / "pipe.csv")
    with refused("path-missing", "nothing.csv"):
        prepared(tmp_path / "nothing.csv")


def test_packed_files_are_to_be_unpacked(tmp_path: Path) -> None:
    book, archive = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(book, "w") as file:  # the parts of a workbook, in the order in which Excel writes them
        file.writestr("[Content_Types].xml", "<Types/>")
        file.writestr("xl/workbook.xml", "<workbook/>")
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.csv", ROWS)
    for content, said in (
        (gzip.compress(ROWS.encode()), "gzip"),
        (archive.getvalue(), "with zip"),
        (book.getvalue(), "spreadsheet"),
    ):
        (tmp_path / "a.csv").write_bytes(content)
        with refused("file-format", said):
            check_file(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("BZh,PK\none,a\n")
    check_file(tmp_path / "a.csv")


def test_a_delimiter_that_does_not_fit_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(ROWS)
    with refused("columns-missing", "--delimiter", "semicolon", "comma"):
        find_form(tmp_path / "a.csv", CsvForm(delimiter=";"))


def test_the_header_again_is_met_in_other_letter_case(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(ROWS + "TEXT,Label\nText,other\n")
    rows = list(read_rows(tmp_path / "a.csv", find_form(tmp_path / "a.csv", CsvForm())))
    assert [(row.line, row.reason) for row in rows if isinstance(row, LeftOut)] == [(5, HEADER_AGAIN)]
    assert len(rows) == 5


def rows_in(path: Path, content: str) -> list[TextRow | LeftOut]:
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
    rows = rows_in(tmp_path / "a.csv", content)
    assert [(row.text, row.label) for row in rows if isinstance(row, TextRow)] == [
        (row["text"], row["label"]) for row in plain
    ]
    # Rows begin in line 2: those of numbers 100 and 131 stand in lines 102 and 133.
    assert [(row.line, row.odd) for row in rows if isinstance(row, TextRow) and row.odd] == [
        (102, (LITERAL_QUOTE,)), (133, (LITERAL_QUOTE,)),
    ]  # fmt: skip


def test_a_quote_that_stands_alone_holds_no_row_before_one_that_is_quoted_rightly(tmp_path: Path) -> None:
    content = 'text,label\n"stray,a\nplain,b\n"one, two",a\n"of two\nlines",b\nlast,a\n'
    rows = rows_in(tmp_path / "a.csv", content)
    assert [(row.line, row.text) for row in rows if isinstance(row, TextRow)] == [
        (2, '"stray'), (3, "plain"), (4, "one, two"), (5, "of two\nlines"), (7, "last"),
    ]  # fmt: skip
    assert len(rows) == 5


def test_a_broken_text_of_several_lines_is_left_out_whole(tmp_path: Path) -> None:
    # Lines 3 to 6 are one row whose inner quotes are not doubled; lines 5 and 6 alone would pass for other texts.
    content = 'text,label\nfirst,a\n"It began\nand he said "no" to me\nand more\nthe end",b\nlast,b\n'
    rows = rows_in(tmp_path / "a.csv", content)
    assert [row.text for row in rows if isinstance(row, TextRow)] == ["first", "last"]
    assert [(row.place, row.reason) for row in rows if isinstance(row, LeftOut)] == [("lines 3 to 6", BROKEN)]


def test_text_behind_a_closing_quote_in_one_line_is_counted(tmp_path: Path) -> None:
    content = 'label;text\npos;"Go away 0" he said\nneg;"a ""good"" one"\npos;plain\n'
    assert not is_strict(content, ";")
    rows = rows_in(tmp_path / "a.csv", content)
    assert [row.odd for row in rows if isinstance(row, TextRow)] == [(BEHIND_QUOTE,), (), ()]
    expected = list(csv.reader(io.StringIO(content, newline=""), delimiter=";"))[1:]
    assert [(row.label, row.text) for row in rows if isinstance(row, TextRow)] == [tuple(row) for row in expected]


def test_rows_of_several_lines_say_their_range(tmp_path: Path) -> None:
    rows = rows_in(tmp_path / "a.csv", 'text,label\n"one\ntwo\nthree",a\nx,b\n')
    assert isinstance(rows[0], TextRow) and (rows[0].odd, rows[0].place) == ((SEVERAL_LINES,), "lines 2 to 4")


def test_a_quote_closed_by_none_is_still_refused(tmp_path: Path) -> None:
    with refused("file-damaged", "line 3", "--no-quoting"):
        rows_in(tmp_path / "a.csv", 'text,label\nx,a\n"never closed,b\ny,a\n')


def test_no_line_of_a_file_with_stray_quotes_goes_without_a_word(tmp_path: Path) -> None:
    chance = random.Random(0)
    for _ in range(300):
        lines = [f"text {number},{chance.choice('ab')}" for number in range(12)]
        for number in chance.sample(range(12), chance.randrange(1, 5)):
            at = chance.choice([0, lines[number].index(",") + 1, 4])
            lines[number] = lines[number][:at] + '"' + lines[number][at:]
        content = "\n".join(["text,label", "x,a", "y,b", "z,a", *lines]) + "\n"
        try:
            rows = rows_in(tmp_path / "a.csv", content)
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
