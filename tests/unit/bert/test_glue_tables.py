"""GLUE's tables: where they are looked for, how each form is read, and what is refused or counted with its line."""

import gzip
from pathlib import Path

import pytest
from support.glue_folders import FORMS, make_glue, splits_of, write_vocabulary
from support.refusals import refused
from support.shared_files import DATA, OWN

from bert.tasks.glue.config import GlueConfig
from bert.tasks.glue.features import open_features
from bert.tasks.glue.prepare import GlueSummary, prepare
from bert.tasks.glue.tables import find_table, read_table
from bert.tasks.glue.tasks import DIAGNOSTIC, TASKS
from common.errors import Code


@pytest.mark.parametrize("task", list(FORMS))
def test_every_published_form_is_read_with_all_rows_sentences_and_labels(task: str, tmp_path: Path) -> None:
    folder, spec = make_glue(tmp_path, [task]), TASKS[task]
    for split in splits_of(task):
        path = find_table(folder, spec, split)
        assert path is not None and path == find_table(folder / spec.folder, spec, split)
        table = read_table(path, spec, split)
        assert len(table.rows) == 12 and table.counts.numbers == {"rows": 12}
        assert [row.index for row in table.rows] == list(range(12))
        assert all((row.second is None) == (len(spec.texts) == 1) for row in table.rows)
        if split.startswith("test"):
            assert {row.label for row in table.rows} == {None}
        elif spec.is_regression:
            assert [row.label for row in table.rows[:3]] == [0.0, 5.0, 2.5]
        else:
            assert [row.label for row in table.rows[:4]] == [n % spec.labels for n in range(4)]


def test_quotes_are_plain_characters_and_only_a_line_feed_ends_a_row(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_bytes('sentence\tlabel\r\n"it is ""good\t1\r\na\x0bb\u2028c\x85d\t0\r\n'.encode())
    rows = read_table(path, TASKS["sst2"], "train").rows
    assert [row.first for row in rows] == ['"it is ""good', "a\x0bb\u2028c\x85d"]
    assert [row.label for row in rows] == [1.0, 0.0]


def test_rows_that_cannot_be_used_are_counted_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    good = "".join(f"{n}\ta\tb\tentailment\n" for n in range(100, 160))
    bad = "1\ta\tb\n2\ta\tb\t\n3\ta\tb\tmaybe\nx\ta\tb\tentailment\n100\ta\tb\tentailment\n\n9\t \tb\tentailment\n"
    path.write_text(f"index\tsentence1\tsentence2\tlabel\n{good}{bad}")
    table = read_table(path, TASKS["rte"], "dev")
    assert len(table.rows) == 61
    assert table.counts.names == {
        "left out: another number of fields than the header": ["line 62"],
        "left out: no label": ["line 63"],
        "left out: unknown label": ["line 64"],
        "left out: no number in the index": ["line 65"],
        "left out: index used before": ["line 66"],
        "empty sentences": ["line 68"],
    }


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        (b"", "file-empty", ()),
        (b"sentence\tlabels\na\t1\n", "columns-missing", ("line 1", "sst2", "sentence, label:", "labels")),
        (b"a,b,c\n1,2,3\n", "columns-missing", ("line 1",)),
        (b"sentence\tlabel\n", "file-empty", ()),
        (b"sentence\tlabel\na\t1\n\xff\t0\n", "file-encoding", ("line 3", "UTF-8")),
        (b"sentence\tlabel\na\t1\n" + b"a\n" * 9, "rows-invalid", ("9 of the 10",)),
        (b"sentence\tlabel\n" + b"a\t7\n" * 9, "rows-invalid", ("unknown label: line 2",)),
        (gzip.compress(b"sentence\tlabel\na\t1\n" * 99, mtime=0)[:-9], "file-truncated", ()),
        (b"PK\x03\x04zip", "columns-missing", ("line 1",)),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(
    content: bytes, code: Code, facts: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "dev.tsv"
    path.write_bytes(content)
    with refused(code, path, *facts):
        read_table(path, TASKS["sst2"], "dev")


def test_a_byte_order_mark_and_gzip_are_read(tmp_path: Path) -> None:
    text = "sentence\tlabel\ncafé\t1\nno\t0\n"
    plain = text.encode()
    for number, content in enumerate((plain, b"\xef\xbb\xbf" + plain, gzip.compress(plain))):
        path = tmp_path / f"{number}.tsv"
        path.write_bytes(content)
        assert [row.first for row in read_table(path, TASKS["sst2"], "dev").rows] == ["café", "no"]


def test_labels_of_a_regression_are_finite_and_in_their_range(tmp_path: Path) -> None:
    path = tmp_path / "dev.tsv"
    rows = "".join(f"{n}\ta\tb\t2.5\n" for n in range(80))
    path.write_text(f"index\tsentence1\tsentence2\tscore\n{rows}81\ta\tb\tnan\n82\ta\tb\t7\n83\ta\tb\tx\n")
    assert read_table(path, TASKS["stsb"], "dev").counts.get("left out: unknown label") == 3


@pytest.mark.parametrize(
    ("folder", "counts"),
    [
        (OWN / "glue", {"cola": [24] * 3, "stsb": [24] * 3, "wnli": [24] * 3}),
        pytest.param(
            DATA / "glue",
            {"cola": [8551, 1043, 1063], "stsb": [5749, 1500, 1379], "wnli": [635, 71, 146]},
            marks=pytest.mark.public,
        ),
    ],
    ids=["own", "public"],
)
def test_tables_are_read_whole(folder: Path, counts: dict[str, list[int]]) -> None:
    for task, rows in counts.items():
        for split, count in zip(("train", "dev", "test"), rows, strict=True):
            path = find_table(folder, TASKS[task], split)
            assert path is not None and len(read_table(path, TASKS[task], split).rows) == count


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return make_glue(tmp_path / "glue", ["cola", "sst2", "mnli", "rte"])


def made(glue: Path, *tasks: str) -> list[GlueSummary]:
    write_vocabulary(glue.parent / "vocab.txt")
    return made_of(glue, *tasks)


def made_of(glue: Path, *tasks: str) -> list[GlueSummary]:
    vocab = glue.parent / "vocab.txt"
    return prepare(GlueConfig(input=glue, vocab=vocab, output=glue.parent / "out", tasks=tasks), lambda *_: None)


def test_a_table_is_found_by_its_published_name_alone(glue: Path) -> None:
    assert find_table(glue, TASKS["sst2"], "dev") == glue / "SST-2" / "dev.tsv"
    assert find_table(glue / "SST-2", TASKS["sst2"], "dev") == glue / "SST-2" / "dev.tsv"
    (glue / "SST-2").rename(glue / "sst2")
    assert find_table(glue, TASKS["sst2"], "dev") is find_table(glue / "sst2", TASKS["sst2"], "dev") is None


def test_a_task_without_tables_is_refused_where_it_is_named(glue: Path) -> None:
    (glue / "RTE").rename(glue / "RTE_v1")
    assert {summary.task for summary in made(glue)} == {"cola", "sst2", "mnli"}
    with refused("data-missing", glue, "RTE/train.tsv"):
        made(glue, "rte")


def test_a_whole_archive_has_no_notes_beside_its_own_other_files(glue: Path) -> None:
    (glue / "CoLA" / "dev_ids.tsv").write_text("1\n")
    assert all(summary.notes == () for summary in made(glue))
    assert all(summary.notes == () for summary in made(glue, "cola")), "what is not asked for is not told"


def test_the_diagnostic_set_is_a_table_that_mnli_answers(glue: Path) -> None:
    name = "diagnostic/diagnostic.tsv"
    (glue / name).parent.mkdir()
    (glue / name).write_text("index\tsentence1\tsentence2\n0\tOne 1.\tTwo 2.\n1\tOne 2.\tTwo 1.\n")
    found = made(glue, "mnli")[-1]
    assert (found.task, found.split, found.input, found.notes) == ("mnli", DIAGNOSTIC, glue / name, ())
    features = open_features(glue.parent / "out", DIAGNOSTIC, task="mnli")
    assert len(features.rows) == 2 and not features.rows.has_labels
    assert TASKS["mnli"].answer_file(DIAGNOSTIC) == "AX.tsv"


@pytest.mark.parametrize(
    ("task", "table", "code"),
    [
        ("cola", "CoLA/test.tsv", "rows-invalid"),
        ("mnli", "MNLI/test_matched.tsv", "columns-missing"),
        ("cola", "SST-2/dev.tsv", "rows-invalid"),
        ("sst2", "CoLA/dev.tsv", "columns-missing"),
        ("wnli", "RTE/dev.tsv", "rows-invalid"),
    ],
)
def test_a_table_of_something_else_is_refused(glue: Path, task: str, table: str, code: Code) -> None:
    with refused(code, glue / table):
        read_table(glue / table, TASKS[task], "dev")
