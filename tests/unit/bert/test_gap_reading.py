"""Reading GAP's TSVs: what is read, what is left out with its line, what is refused."""

from pathlib import Path

import pytest
from support.gap_files import COLUMNS, learnable, row, write
from support.refusals import refused
from support.shared_files import samples

from bert.tasks.gap.reading import GapFile, read_gap, told_flaws
from common.errors import Code

TEXT = 'Ada said "no" to Bea - because she was tired.'


def read(tmp_path: Path, content: str | bytes) -> GapFile:
    path = tmp_path / "gap-development.tsv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_gap(path)


def lines(rows: list[dict[str, str]]) -> list[str]:
    return ["\t".join(COLUMNS), *("\t".join(cells.values()) for cells in rows)]


def one_bad(tmp_path: Path, **changes: str) -> GapFile:
    """Ten rows, the third of which (line 4) has other cells."""
    rows = learnable(10)
    rows[2] |= changes
    return read_gap(write(tmp_path / "gap.tsv", rows))


@pytest.mark.parametrize("path", samples("gap/*.tsv"))
def test_every_row_of_a_file_is_read(path: Path) -> None:
    file = read_gap(path)
    rows = len(path.read_text(encoding="utf-8").splitlines()) - 1
    assert (len(file.examples), file.flaws, file.labelled) == (rows, (), True)
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
    assert not other.flaws


def test_a_quotation_mark_is_a_character_of_the_text(tmp_path: Path) -> None:
    text = f'"{TEXT}'
    file = read_gap(write(tmp_path / "gap.tsv", [row("x-1", text, "she", "Ada", "Bea", 1)]))
    assert file.examples[0].text == text


@pytest.mark.parametrize(
    ("changes", "kind", "detail"),
    [
        ({"Pronoun-offset": "3"}, "misaligned offsets", "it is at"),
        ({"A-offset": "-1"}, "offsets that are not numbers", "A-offset is '-1'"),
        ({"A-offset": "1.0"}, "offsets that are not numbers", "A-offset is '1.0'"),
        ({"B-offset": ""}, "offsets that are not numbers", "B-offset is ''"),
        ({"B-offset": "99999999999"}, "offsets that are not numbers", "B-offset"),
        ({"B-offset": "999"}, "misaligned offsets", "at 999 is ''"),
        ({"A": ""}, "an empty mention", "the column A is empty"),
        ({"ID": " "}, "no id", "the column ID is empty"),
        ({"ID": "a\x07b"}, "unprintable ids", "a\\\\x07b"),
        ({"ID": "development-1"}, "repeated ids", "already used in line 2"),
        ({"A-coref": "yes"}, "labels that are neither TRUE nor FALSE", "A-coref is 'yes'"),
        ({"URL": "a\tb"}, "a wrong number of columns", "12 instead of 11"),
    ],
)
def test_a_row_that_cannot_be_used_is_left_out_with_its_line(
    tmp_path: Path, changes: dict[str, str], kind: str, detail: str
) -> None:
    file = one_bad(tmp_path, **changes)
    assert len(file.examples) == 9
    (flaw,) = file.flaws
    assert (flaw.line, flaw.kind) == (4, kind)
    assert detail.replace("\\\\", "\\") in flaw.detail
    assert "line 4" in told_flaws(file.flaws)[0]


def test_a_broken_row_says_how_many_of_its_kind_there_are_and_where(tmp_path: Path) -> None:
    rows = learnable(10)
    for cells in rows[:8]:
        cells["A-offset"] = "x"
    (told,) = told_flaws(read_gap(write(tmp_path / "gap.tsv", rows)).flaws)
    assert told.startswith("8 row(s) with offsets that are not numbers, lines 2, 3, 4, 5, 6, ... (line 2: A-offset")


def test_lines_of_a_merge_conflict_are_left_out(tmp_path: Path) -> None:
    content = lines(learnable(3))
    content[2:2] = ["<<<<<<< HEAD", "======="]
    file = read(tmp_path, "\n".join(content))
    assert len(file.examples) == 3
    assert [flaw.line for flaw in file.flaws] == [3, 4]


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
            ("A-coref", "B-coref"),
        ),
        ("\t".join([*COLUMNS, "A"]).encode() + b"\n", "data-ambiguous", ("column A ",)),
        (b'{"data": []}', "columns-missing", ("line 1",)),
    ],
    ids=range(11),
)
def test_what_is_no_tsv_of_gap_is_refused(tmp_path: Path, content: bytes, code: Code, facts: tuple[str, ...]) -> None:
    with refused(code, tmp_path, *facts):
        read(tmp_path, content)


def test_a_file_none_of_whose_rows_can_be_used_is_refused_with_the_lines(tmp_path: Path) -> None:
    rows = [{**cells, "A-offset": "77"} for cells in learnable(3)]
    with refused("rows-invalid", "3 row(s) with misaligned offsets", "lines 2, 3, 4"):
        read_gap(write(tmp_path / "gap.tsv", rows))


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    places: tuple[tuple[Path, Code], ...] = ((tmp_path, "path-kind"), (tmp_path / "absent.tsv", "path-missing"))
    for path, code in places:
        with refused(code, path):
            read_gap(path)
