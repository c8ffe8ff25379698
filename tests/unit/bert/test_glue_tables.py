"""GLUE's tables: where they are looked for, how each form is read, and what is refused or counted with its line."""

import gzip
from pathlib import Path

import pytest
from support.datasets import GLUE, glue_features, glue_splits, make_glue
from support.refusals import refused

from bert.tasks.glue import tables
from bert.tasks.glue.features import open_features
from bert.tasks.glue.tables import DIAGNOSTIC, TASKS, find_table, read_table
from common.errors import Code


@pytest.mark.parametrize("task", list(GLUE))
def test_every_published_form_is_read_with_all_rows_sentences_and_labels(task: str, tmp_path: Path) -> None:
    folder, spec = make_glue(tmp_path, [task]), TASKS[task]
    for split in glue_splits(task):
        path = find_table(folder, spec, split)
        assert path is not None and path == find_table(folder / spec.folder, spec, split)
        table = read_table(path, spec, split)
        assert table.counts.numbers == {"rows": 12}
        assert [row.index for row in table.rows] == list(range(12))
        assert all((row.second is None) == (len(spec.texts) == 1) for row in table.rows)
        labels = [0.0, 5.0, 2.5] * 4 if spec.is_regression else [n % spec.labels for n in range(12)]
        assert [row.label for row in table.rows] == ([None] * 12 if split.startswith("test") else labels)


def test_quotes_are_plain_characters_and_only_a_line_feed_ends_a_row(tmp_path: Path) -> None:
    content = '\ufeffsentence\tlabel\r\n"it is ""good\t1\r\na\x0bb\u2028c\x85d\t0\r\n'.encode()
    for number, packed in enumerate((content, gzip.compress(content))):
        (tmp_path / f"{number}.tsv").write_bytes(packed)
        rows = read_table(tmp_path / f"{number}.tsv", TASKS["sst2"], "train").rows
        assert [(row.first, row.label) for row in rows] == [('"it is ""good', 1.0), ("a\x0bb\u2028c\x85d", 0.0)]


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
    rows = "".join(f"{n}\ta\tb\t2.5\n" for n in range(80))
    path.write_text(f"index\tsentence1\tsentence2\tscore\n{rows}81\ta\tb\tnan\n82\ta\tb\t7\n83\ta\tb\tx\n")
    assert read_table(path, TASKS["stsb"], "dev").counts.get("left out: unknown label") == 3


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        (b"", "file-empty", ()),
        (b"sentence\tlabels\na\t1\n", "columns-missing", ("line 1", "sst2", "sentence, label:", "labels")),
        (b"sentence\tlabel\n", "file-empty", ()),
        (b"sentence\tlabel\na\t1\n\xff\t0\n", "file-encoding", ("line 3", "UTF-8")),
        (b"sentence\tlabel\na\t1\n" + b"a\n" * 9, "rows-invalid", ("9 of the 10",)),
        (b"sentence\tlabel\n" + b"a\t7\n" * 9, "rows-invalid", ("unknown label: line 2",)),
        (gzip.compress(b"sentence\tlabel\na\t1\n" * 99, mtime=0)[:-9], "file-truncated", ()),
    ],
)
def test_what_is_no_table_is_refused_with_its_line(
    content: bytes, code: Code, facts: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "dev.tsv"
    path.write_bytes(content)
    with refused(code, path, *facts):
        read_table(path, TASKS["sst2"], "dev")


def test_a_task_without_tables_is_refused_where_it_is_named(tmp_path: Path) -> None:
    glue = make_glue(tmp_path / "glue", ["cola", "mnli", "rte"])
    (glue / "RTE").rename(glue / "RTE_v1")
    assert {task for task, _ in glue_features(glue, tmp_path / "out")} == {"cola", "mnli"}
    with refused("data-missing", glue, "RTE/train.tsv"):
        glue_features(glue, tmp_path / "out", tasks=("rte",))


def test_the_diagnostic_set_is_a_table_that_mnli_answers(tmp_path: Path) -> None:
    glue = make_glue(tmp_path / "glue", ["mnli"])
    (glue / "diagnostic").mkdir()
    lines = "index\tsentence1\tsentence2\n0\tOne 1.\tTwo 2.\n1\tOne 2.\tTwo 1.\n"
    (glue / "diagnostic/diagnostic.tsv").write_text(lines)
    features = open_features(glue_features(glue, tmp_path / "out")["mnli", DIAGNOSTIC])
    assert len(features.rows) == 2 and not features.rows.has_labels


def test_a_packed_table_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_BYTES", 4 << 20)
    path = tmp_path / "train.tsv"
    path.write_bytes(gzip.compress(b"sentence\tlabel\n" + b"good\t1\n" * (8 << 20)))
    with refused("file-limit", path, "4 MiB"):
        read_table(path, TASKS["sst2"], "train")
