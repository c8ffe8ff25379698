"""Reading GAP's TSVs and files of predictions: what is read, what is left out with its line, what is refused."""

from pathlib import Path

import pytest
from support.gap_files import COLUMNS, learnable, row, write
from support.refusals import refused

from bert.tasks.gap.reading import read_gap, read_predictions
from common.errors import Code

TEXT = '"Ada said "no" to Bea - because she was tired.'


def test_byte_order_mark_crlf_empty_lines_quotes_and_another_order_of_columns_are_read(tmp_path: Path) -> None:
    rows = [*learnable(4), row("x-1", TEXT, "she", "Ada", "Bea", 1)]
    path = write(tmp_path / "gap.tsv", rows, ("URL", *reversed(COLUMNS[:-1])))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    plain = read_gap(write(tmp_path / "plain.tsv", rows))
    assert (read_gap(path).examples, read_gap(path).left_out) == (plain.examples, ())
    assert plain.examples[-1].text == TEXT


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"Pronoun-offset": "3"}, "Pronoun-offset '3'"),
        ({"A-offset": "-1"}, "A-offset '-1'"),
        ({"B-offset": ""}, "B-offset ''"),
        ({"B-offset": "99999999999"}, "B-offset '99999999999'"),
        ({"A": ""}, "A ''"),
        ({"ID": "a\x07b"}, "its id is"),
        ({"ID": "development-1"}, "line 2"),
        ({"A-coref": "yes"}, "'YES'"),
        ({"URL": "a\tb"}, "12 columns instead of 11"),
    ],
)
def test_a_row_that_cannot_be_used_is_left_out_with_its_line(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    rows = learnable(10)
    rows[2] |= changes
    file = read_gap(write(tmp_path / "gap.tsv", rows))
    assert len(file.examples) == 9
    (left_out,) = file.left_out
    assert left_out.line == 4 and why in left_out.why


HEADER = "\t".join(COLUMNS)


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        (b" \n\n", "file-empty", ()),
        (f"{HEADER}\n1\tcaf\xe9".encode("latin-1"), "file-encoding", ("line 2", "UTF-8")),
        (b"ID\tText\n", "columns-missing", ("Pronoun, Pronoun-offset",)),
        (HEADER.replace("\t", ",").encode(), "columns-missing", ("line 1",)),
        (HEADER.encode(), "file-empty", ()),
        (HEADER.replace("\tB-coref", "").encode(), "columns-missing", ("B-coref",)),
        (f"{HEADER}\na\tb\nc\n".encode(), "rows-invalid", ("line 2", "line 3")),
    ],
    ids=range(7),
)
def test_what_is_no_tsv_of_gap_is_refused(tmp_path: Path, content: bytes, code: Code, facts: tuple[str, ...]) -> None:
    (tmp_path / "gap.tsv").write_bytes(content)
    with refused(code, tmp_path, *facts):
        read_gap(tmp_path / "gap.tsv")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"\n \n", "file-empty"),
        (b"development-1\tTRUE\n", "answers-invalid"),
        (b"ID\tA-coref\tB-coref\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,0.1,0.2\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,0.1,nan,0\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,-0.1,1,0\n", "answers-invalid"),
        (b"ID,A,B,NEITHER\nx,0,0,0\n", "answers-invalid"),
    ],
    ids=range(8),
)
def test_what_is_no_file_of_predictions_is_refused(tmp_path: Path, content: bytes, code: Code) -> None:
    (tmp_path / "system").write_bytes(content)
    with refused(code, tmp_path / "system"):
        read_predictions(tmp_path / "system")


def test_the_first_line_of_an_id_counts_and_other_words_are_no_decision(tmp_path: Path) -> None:
    path = tmp_path / "system"
    path.write_text("a\tTRUE\tFALSE\na\tFALSE\tFALSE\nb\tmaybe\tFALSE\n")
    assert read_predictions(path) == ({"a": (True, False), "b": (None, False)}, None)
    path.write_bytes(b'ID,A,B,NEITHER\r\n"a",0.25,0.5,0.25\r\na,1,0,0\r\n')
    assert read_predictions(path) == ({"a": (False, True)}, {"a": (0.25, 0.25, 0.5)})
