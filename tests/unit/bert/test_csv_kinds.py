"""Files that are no CSV by their kind are told before they are read, and nothing of the user's is advised away."""

import gzip
import io
import os
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

from support.csv_files import prepared
from support.refusals import refused

from bert.tasks.classify.config import CsvForm
from bert.tasks.classify.form import find_form
from bert.tasks.classify.reading import HEADER_AGAIN, LeftOut, read_rows
from bert.tasks.classify.records import check_file

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
