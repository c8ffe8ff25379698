"""Reading GAP's TSVs: what is read, what is left out with its line, what is refused."""

from pathlib import Path

import pytest
from support.gap_files import COLUMNS, learnable, row, write
from support.refusals import refused
from support.shared_files import samples

from bert.tasks.gap.reading import GapFile, in_words, read_gap
from common.errors import Code

TEXT = 'Ada said "no" to Bea - because she was tired.'


def read(tmp_path: Path, content: str | bytes) -> GapFile:
    path = tmp_path / "gap-development.tsv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_gap(path)


def one_bad(tmp_path: Path, **changes: str) -> GapFile:
    """Ten rows, the third of which (line 4) has other cells."""
    rows = learnable(10)
    rows[2] |= changes
    return read_gap(write(tmp_path / "gap.tsv", rows))


@pytest.mark.parametrize("path", samples("gap/*.tsv"))
def test_every_row_of_a_file_is_read(path: Path) -> None:
    file = read_gap(path)
    rows = len(path.read_text(encoding="utf-8").splitlines()) - 1
    assert (len(file.examples), file.left_out, file.labelled) == (rows, (), True)
    assert {example.gender for example in file.examples} == {"masculine", "feminine"}
    assert {example.label for example in file.examples} == {0, 1, 2}


def test_byte_order_mark_crlf_empty_lines_and_another_order_of_columns_are_read(tmp_path: Path) -> None:
    columns = ("URL", *reversed(COLUMNS[:-1]))
    rows = learnable(4)
    plain = read_gap(write(tmp_path / "plain.tsv", rows))
    content = "\r\n".join(["\t".join(columns), *("\t".join(cells[c] for c in columns) for cells in rows), "", ""])
    other = read(tmp_path, b"\xef\xbb\xbf" + content.encode())
    assert [example.text for example in other.examples] == [example.text for example in plain.examples]
    assert [example.mentions for example in other.examples] == [example.mentions for example in plain.examples]
    assert not other.left_out


def test_a_quotation_mark_is_a_character_of_the_text(tmp_path: Path) -> None:
    text = f'"{TEXT}'
    file = read_gap(write(tmp_path / "gap.tsv", [row("x-1", text, "she", "Ada", "Bea", 1)]))
    assert file.examples[0].text == text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"Pronoun-offset": "3"}, "Pronoun-offset '3'"),
        ({"A-offset": "-1"}, "A-offset '-1'"),
        ({"A-offset": "1.0"}, "A-offset '1.0'"),
        ({"B-offset": ""}, "B-offset ''"),
        ({"B-offset": "99999999999"}, "B-offset '99999999999'"),
        ({"A": ""}, "A ''"),
        ({"ID": " "}, "its id is ''"),
        ({"ID": "a\x07b"}, "its id is"),
        ({"ID": "development-1"}, "line 2"),
        ({"A-coref": "yes"}, "A-coref is 'yes'"),
        ({"URL": "a\tb"}, "12 columns instead of 11"),
    ],
)
def test_a_row_that_cannot_be_used_is_left_out_with_its_line(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    file = one_bad(tmp_path, **changes)
    assert len(file.examples) == 9
    (row,) = file.left_out
    assert row.line == 4 and why in row.why
    assert "line 4" in in_words(file.left_out)


def test_without_the_columns_of_the_answers_a_file_can_be_predicted(tmp_path: Path) -> None:
    columns = [name for name in COLUMNS if not name.endswith("coref")]
    file = read_gap(write(tmp_path / "test.tsv", learnable(3), columns))
    assert not file.labelled
    assert [example.label for example in file.examples] == [None] * 3


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        (b"", "file-empty", ()),
        (b" \n\n", "file-empty", ()),
        (b"\xff\xfeI\x00D\x00", "file-encoding", ("line 1", "UTF-8")),
        (("\t".join(COLUMNS) + "\n1\tcaf\xe9").encode("latin-1"), "file-encoding", ("line 2", "UTF-8")),
        (b"ID\tText\n", "columns-missing", ("Pronoun, Pronoun-offset",)),
        (b"development-1\tAda ...\tshe\n", "columns-missing", ("line 1",)),
        (",".join(COLUMNS).encode() + b"\n", "columns-missing", ("line 1",)),
        ("\t".join(COLUMNS).encode(), "file-empty", ()),
        (
            "\t".join(name for name in COLUMNS if name != "B-coref").encode() + b"\n",
            "columns-missing",
            ("B-coref",),
        ),
        (b'{"data": []}', "columns-missing", ("line 1",)),
    ],
    ids=range(10),
)
def test_what_is_no_tsv_of_gap_is_refused(tmp_path: Path, content: bytes, code: Code, facts: tuple[str, ...]) -> None:
    with refused(code, tmp_path, *facts):
        read(tmp_path, content)


def test_a_file_none_of_whose_rows_can_be_used_is_refused_with_the_lines(tmp_path: Path) -> None:
    rows = [{**cells, "A-offset": "77"} for cells in learnable(3)]
    with refused("rows-invalid", "line 2", "line 4"):
        read_gap(write(tmp_path / "gap.tsv", rows))


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    places: tuple[tuple[Path, Code], ...] = ((tmp_path, "path-kind"), (tmp_path / "absent.tsv", "path-missing"))
    for path, code in places:
        with refused(code, path):
            read_gap(path)
