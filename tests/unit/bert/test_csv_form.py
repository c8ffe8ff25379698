"""Delimiter, quotes and columns of a CSV are judged by its rows; what does not fit is told, never cut."""

import csv
import io
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
from support import shared_files
from support.csv_files import WORDS, pairs, prepared, read
from support.refusals import refused

from bert.tasks.classify.config import CsvForm
from bert.tasks.classify.form import find_form
from bert.tasks.classify.reading import TextRow, read_rows
from bert.tasks.classify.store import left_out, open_source
from bert.tasks.classify.summary import notes, summary_facts
from common.errors import Code

CSV_FOLDER = shared_files.DATA / "csv"
NUMBERS: dict[str, object] = {"text": "1", "label": "2", "header": False}


def write(path: Path, content: str) -> Path:
    path.write_bytes(content.encode())
    return path


@pytest.mark.parametrize("options", [{}, {"delimiter": ";"}], ids=["found out", "given"])
def test_without_a_header_too_many_and_too_few_fields_are_left_out_and_listed(
    tmp_path: Path, options: dict[str, object]
) -> None:
    lines = [f"{number};{'ab'[number % 2]};red cat {number}" for number in range(30)]
    lines[4] = "4;a;red;cat;and more"  # five fields: the text would end at "red"
    lines[7] = "7;b;red; cat"
    lines[11] = "11;b"
    lines[13] = "13;b;red cat;;"  # the surplus is empty: nothing is lost
    path = write(tmp_path / "a.csv", "\n".join(lines) + "\n")
    form, rows, out = read(path, text="3", label="2", header=False, **options)
    assert form.width == 3 and len(rows) == 27
    more, fewer = "more fields than columns", "too few fields"
    assert [(row.line, row.reason) for row in out] == [(5, more), (8, more), (12, fewer)]
    assert [row.odd for row in rows if row.line == 14] == [("empty fields behind the last column",)]
    summary = prepared(path, text="3", label="2", header=False, **options)
    assert left_out(summary.source.path) == [(5, more), (8, more), (12, fewer)]
    assert any("10 % of the rows" in note for note in notes(summary))  # 3 of 30


def test_with_a_header_a_row_needs_the_columns_that_have_a_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label,note,\none,a,x,y\ntwo,b,\nthree,b\nfour,a,x,y,z\nfive,a,,\n")
    _, rows, out = read(path)
    assert pairs(rows) == [("one", "a"), ("two", "b"), ("five", "a")]
    assert [(row.line, row.reason) for row in out] == [(4, "too few fields"), (5, "more fields than columns")]
    assert rows[0].odd == ("text in columns without a name, not read",) and not rows[2].odd


def test_fields_in_single_quotes_between_semicolons_are_found_out(tmp_path: Path) -> None:
    expected = [(f"It's {number}, he said; {WORDS[number % 9]}", ("pos", "neg")[number % 2]) for number in range(1013)]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";", quotechar="'", quoting=csv.QUOTE_ALL).writerows(expected)
    form, rows, out = read(tmp_path / "a.csv", **NUMBERS)
    assert (form.dialect.delimiter, form.dialect.quote_char) == (";", "'")
    assert (pairs(rows), out) == (expected, [])
    frame = pd.read_csv(tmp_path / "a.csv", sep=";", quotechar="'", header=None)
    assert pairs(rows) == list(frame.itertuples(index=False, name=None))


def test_apostrophes_are_no_quotes(tmp_path: Path) -> None:
    texts = ["'tis red, blue", "he said 'yes'", "'yes', he said", "dogs' cat", "'a' or 'b'", "rock 'n' roll"] * 5
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((text, "ab"[n % 2]) for n, text in enumerate(texts))])
    form, rows, _ = read(tmp_path / "a.csv")
    assert form.dialect.quote_char == '"' and [row.text for row in rows] == texts


@pytest.mark.parametrize("quote", ["'", "|", "%"])
def test_another_quote_can_be_given(tmp_path: Path, quote: str) -> None:
    expected = [
        (f"one, two {number}" if number % 9 == 0 else f"red {number}", "ab"[number % 2]) for number in range(60)
    ]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file, quotechar=quote).writerows([("text", "label"), *expected])
    assert len(read(tmp_path / "a.csv")[2]) == 7  # 0, 9, ..., 54, each cut at its comma
    assert pairs(read(tmp_path / "a.csv", quote_char=quote)[1]) == expected


@pytest.mark.parametrize("inside", [",", ";", "|"], ids=["comma", "semicolon", "bar"])
def test_of_delimiters_that_cut_evenly_that_one_counts_whose_labels_repeat(tmp_path: Path, inside: str) -> None:
    # Each text has one other delimiter: both make two columns of every row.
    expected = [(f"red{inside} cat {number}", "ab"[number % 2]) for number in range(40)]
    path = write(tmp_path / "a.tsv", "".join(f"{text}\t{label}\n" for text, label in expected))
    form, rows, out = read(path, **NUMBERS)
    assert (form.dialect.delimiter, pairs(rows), out) == ("\t", expected, [])
    assert form.delimiter_from == "40 of the first 40 rows fit"
    # Two of them in each text: what they cut out of it as a label is different in every row.
    expected = [(f"red{inside} cat {number}{inside} dog", "ab"[number % 2]) for number in range(40)]
    path = write(tmp_path / "b.tsv", "".join(f"{text}\t{label}\n" for text, label in expected))
    assert pairs(read(path, **NUMBERS)[1]) == expected


def test_as_many_labels_as_texts_are_refused_with_what_was_tried(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "".join(f"red, cat {number}\t{'ab'[number % 2]}\n" for number in range(40)))
    with refused("labels-invalid", 40, "comma (as given)", "--delimiter", "--label", "--quote-char"):
        prepared(path, delimiter=",", **NUMBERS)
    assert not (tmp_path / "a.sqlite").exists()
    path = write(tmp_path / "b.csv", "text,label\n" + "".join(f"red {number},L{number}\n" for number in range(21)))
    with refused("labels-invalid", 21, "comma: 2 columns in 100 % of 21 rows"):
        prepared(path)
    path = write(tmp_path / "c.csv", "text,label\n" + "".join(f"red {number},L{number}\n" for number in range(20)))
    assert len(prepared(path).source.labels) == 20  # so few that nobody can tell


def test_a_file_that_no_delimiter_makes_sense_of_is_refused_with_what_was_tried(tmp_path: Path) -> None:
    # Commas: 1, 2, 3, 4, 1, 2, 3, 4 fields, no width in more than 2 of 8 rows; semicolons in one row of eight.
    lines = ["red", "red, cat", "red, cat, dog", "one, two, red, cat", "dog; cat", "a, b", "x, y, z", "one, two, a, b"]
    path = write(tmp_path / "a.txt", "\n".join(lines))
    counts = ("comma: 1 column in 25 % of 8 rows", "semicolon: 1 column in 88 % of 8 rows")
    with refused("columns-missing", *counts, "--delimiter", "--quote-char"):
        read(path, **NUMBERS)
    # Three of seven rows have two columns, two have one and two have three: less than half.
    lines = ["red,a", "cat,b", "dog,a", "one", "two", "a,b,c", "x,y,z"]
    with refused("file-format", "comma: 2 columns in 43 % of 7 rows", "tab: 1 column in 100 %"):
        read(write(tmp_path / "b.txt", "\n".join(lines)), **NUMBERS)
    assert len(read(tmp_path / "b.txt", delimiter=",", **NUMBERS)[1]) == 3, "a given one is obeyed"


SPACED = 'label, text\nham, "hello" he said\nspam, "one, two"\nham,   three\nspam,"a, b"\n'


@pytest.mark.parametrize("skip", [False, True])
def test_spaces_behind_a_delimiter_are_as_in_the_csv_module(tmp_path: Path, skip: bool) -> None:
    expected = list(csv.reader(io.StringIO(SPACED, newline=""), skipinitialspace=skip))[1:]
    _, rows, out = read(write(tmp_path / "a.csv", SPACED), skip_initial_space=skip)
    assert pairs(rows) == [(row[1], row[0]) for row in expected if len(row) == 2]
    assert [row.line for row in out] == ([] if skip else [3])  # "one, two" is cut where its quotes are text
    assert rows[0].text == ("hello he said" if skip else ' "hello" he said')
    # With spaces dropped there is text behind a quote that closes, which is odd as well.
    assert [bool(row.odd) for row in rows] == [True, *[False] * (len(rows) - 1)]


def test_a_quote_behind_a_space_that_is_never_closed_is_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'label,text\nham, "unclosed\nspam,red\nham,cat\n')
    assert [row.text for row in read(path)[1]] == [' "unclosed', "red", "cat"]
    assert any("--skip-initial-space" in note for note in notes(prepared(path)))
    with refused("file-damaged", "a.csv line 2"):
        read(path, skip_initial_space=True)
    path = write(tmp_path / "b.csv", '"text", "label"\n"red, cat", "a"\n"dog", "b"\n')
    with refused("columns-missing", "'label'", "--skip-initial-space"):
        read(path)
    assert pairs(read(path, skip_initial_space=True)[1]) == [("red, cat", "a"), ("dog", "b")]


def test_columns_are_proposed_and_all_listed_where_names_do_not_match(tmp_path: Path) -> None:
    others = [f"x{number}" for number in range(30)]
    header = ["id", "review", "stars", "sentiment", *others]
    rows = [
        [str(n), f"one two {WORDS[n % 9]} red cat {n}", str(n % 5), ("pos", "neg")[n % 2], *"0" * 30] for n in range(20)
    ]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([header, *rows])
    with refused("columns-missing", "--text review --label sentiment;", "'label'", "--label", *map(repr, header)):
        read(tmp_path / "a.csv")
    with refused("columns-missing", "--text review --label stars;"):
        read(tmp_path / "a.csv", label="stars")  # what is given and there stays
    # Names that say nothing: the texts have the most words, and v1 fewer values than v0.
    lines = [f"{n % 7},{'ab'[n % 2]},red cat {n}" for n in range(28)]
    with refused("columns-missing", "--text v2 --label v1;"):
        read(write(tmp_path / "b.csv", "\n".join(["v0,v1,v2", *lines])))
    # The first row has a label of the others: it is data.
    with refused("columns-missing", "--no-header --text 3 --label 2;"):
        read(write(tmp_path / "c.csv", "\n".join(lines)))


@pytest.mark.parametrize("marks", [6, 7])
def test_lines_of_an_unfinished_merge_are_told_and_content_like_them_is_read(tmp_path: Path, marks: int) -> None:
    ours, middle, theirs = "<" * marks, "=" * marks, ">" * marks
    content = f"{ours} HEAD\ntext,label\none,a\n{middle}\ntwo,b\n{theirs} branch\n<<<<<< six,a\n{'=' * 8},b\n"
    path = write(tmp_path / "a.csv", content)
    _, rows, out = read(path)
    assert pairs(rows) == [("one", "a"), ("two", "b"), ("<<<<<< six", "a"), ("========", "b")]
    assert [(row.line, row.reason) for row in out] == [(line, "merge-conflict line") for line in (1, 4, 6)]
    assert any("merge" in note for note in notes(prepared(path)))
    form = find_form(write(tmp_path / "b.csv", "text\none\n======\ntwo\n"), CsvForm(), needs_label=False)
    texts = [row.text for row in read_rows(tmp_path / "b.csv", form, needs_label=False) if isinstance(row, TextRow)]
    assert texts == ["one", "======", "two"], "where a row has one field it is a text"


def test_a_replacement_character_that_is_in_the_file_is_no_damage(tmp_path: Path) -> None:
    lines = [f"Grüße {number},a" for number in range(200)]
    lines[3:6] = ["literal \ufffd here,a", "\ufffd\ufffd,\ufffd", "two \ufffd,b"]
    path = write(tmp_path / "a.csv", "\n".join(["text,label", *lines]))
    form, rows, _ = read(path)
    assert (form.encoding, form.encoding_from) == ("utf-8-sig", "every byte")
    assert not any(row.odd for row in rows) and rows[4].text == "\ufffd\ufffd" and rows[4].label == "\ufffd"
    path.write_bytes(path.read_bytes().replace("Grüße 9,".encode(), b"Gr\xfc\xdfe 9,"))
    form, rows, _ = read(path)
    assert form.encoding == "utf-8-sig"
    assert [row.line for row in rows if row.odd] == [11] and rows[9].text == "Gr\ufffd\ufffde 9"


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252", "shift_jis", "utf-8"])
def test_bytes_that_are_none_of_the_encoding_are_told_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    bad = {"utf-16": b"\x00\xdc", "cp1252": b"\x81", "shift_jis": b"\x85\x20", "utf-8": b"\xff"}[encoding]
    content = "text,label\none,a\nMARK,b\n".encode(encoding).replace("MARK".encode(encoding)[-8:], bad)
    (tmp_path / "a.csv").write_bytes(content)
    _, rows, _ = read(tmp_path / "a.csv", encoding=encoding)
    assert [row.line for row in rows if row.odd] == [3] and "\ufffd" in rows[1].text


@pytest.mark.parametrize(
    ("given", "code", "facts"),
    [
        ({"quote_char": "'", "quoting": False}, "option-conflict", ("--quote-char '", "--no-quoting")),
        ({"quote_char": "''"}, "option-value", ("--quote-char", repr("''"))),
        ({"quote_char": ";", "delimiter": ";"}, "option-value", ("--quote-char ';'",)),
        (
            {"delimiter": " ", "skip_initial_space": True},
            "option-conflict",
            ("--skip-initial-space", "--delimiter ' '"),
        ),
    ],
    ids=["no quoting", "two characters", "the delimiter", "space"],
)
def test_options_that_contradict_each_other_are_refused(
    given: dict[str, object], code: Code, facts: tuple[str, ...]
) -> None:
    with refused(code, *facts):
        CsvForm(**given)  # type: ignore[arg-type]


def test_texts_without_labels_in_a_single_column_are_read_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "what\n" + "red, green, blue\n" * 30)
    form = find_form(path, CsvForm(text="what"), needs_label=False)
    rows = list(read_rows(path, form, needs_label=False))
    assert [row.text for row in rows if isinstance(row, TextRow)] == ["red, green, blue"] * 30


def test_how_it_is_cut_is_said_and_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "".join(f"'red; {number}';'{'ab'[number % 2]}'\n" for number in range(30)))
    summary = prepared(path, **NUMBERS)
    lines = "\n".join(f"{name:<11} {value}" for name, value in summary_facts(summary))
    assert "semicolon (30 of the first 30 rows fit), quotes '" in lines and "label 'number 2', of 2" in lines
    settings = open_source(summary.source.path).settings
    assert (settings["quote_char"], settings["skip_initial_space"], settings["columns"]) == ("'", False, 2)
    assert prepared(path, **NUMBERS).kept
    again = prepared(path, quote_char="'", **NUMBERS)
    assert not again.kept and again.replaced == "had quote_char None, not '"


@pytest.mark.skipif(not CSV_FOLDER.exists(), reason="../shared/data/csv is not there")
@pytest.mark.parametrize(
    ("name", "encoding", "odd"), [("sms_spam_kaggle", "utf-8", 50), ("sms_spam_latin1", "cp1252", 50)]
)
def test_text_that_spilled_into_columns_without_a_name_is_counted(name: str, encoding: str, odd: int) -> None:
    path = CSV_FOLDER / f"{name}.csv"
    frame = pd.read_csv(path, encoding=encoding, dtype=str, keep_default_na=False, na_values=[""])
    spilled = frame.iloc[:, 2:].notna().any(axis=1)
    assert spilled.sum() == odd
    form, rows, out = read(path, text="v2", label="v1")
    counts = Counter(what for row in rows for what in row.odd)
    assert counts["text in columns without a name, not read"] == odd and not out and form.width == 5
    assert pairs(rows) == list(zip(frame["v2"], frame["v1"], strict=True))
