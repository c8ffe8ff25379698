"""GLUE's tables in every form, and their features: the published layout, the same from tables and from `datasets`."""

import gzip
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.datasets import GLUE, glue_features, glue_splits, glue_vocabulary, make_glue
from support.refusals import refused

from bert.data.features import read_features
from bert.data.vocabulary import load_vocabulary
from bert.tasks.glue.features import GlueConfig, fitted, open_features
from bert.tasks.glue.tables import DIAGNOSTIC, TASKS, find_table, hub_split, read_table
from common import reading
from common.errors import Code, MissingToolError


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
    monkeypatch.setattr(reading, "MOST_BYTES", 4 << 20)
    path = tmp_path / "train.tsv"
    path.write_bytes(gzip.compress(b"sentence\tlabel\n" + b"good\t1\n" * (8 << 20)))
    with refused("file-limit", path, "4 MiB"):
        read_table(path, TASKS["sst2"], "train")


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    return glue_vocabulary(tmp_path)


def test_all_nine_tasks_are_prepared_with_every_split(tmp_path: Path) -> None:
    assert set(GLUE) == set(TASKS)
    made = glue_features(make_glue(tmp_path / "glue"), tmp_path / "out")
    assert list(made) == [(task, split) for task in TASKS for split in glue_splits(task)]
    for (task, split), path in made.items():
        features = open_features(path)
        assert len(features.rows) == 12 and features.rows.has_labels == (not split.startswith("test"))
        assert features.rows.labels.dtype == (np.float32 if TASKS[task].is_regression else np.int64)
        assert features.file.columns["index"].tolist() == list(range(12))


def test_rows_are_cls_first_sep_second_sep(tmp_path: Path, vocab: Path) -> None:
    made = glue_features(make_glue(tmp_path / "glue", ["rte", "sst2"]), tmp_path / "out")
    pieces = load_vocabulary(vocab, True).pieces
    rows = {task: open_features(made[task, "train"]).rows for task in ("rte", "sst2")}
    words = {task: ([pieces[i] for i in one.ids[3]], int(one.second[3])) for task, one in rows.items()}
    assert words["rte"] == (["[CLS]", "one", "3", ".", "[SEP]", "two", "3", ".", "[SEP]"], 5)
    assert words["sst2"] == (["[CLS]", "a", "film", "3", "[SEP]"], 5)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 30))
def test_the_longer_sentence_is_cut_piece_by_piece(first: int, second: int, room: int) -> None:
    plain, other = ["a"] * first, ["b"] * second
    while len(plain) + len(other) > room:
        (plain if len(plain) > len(other) else other).pop()
    assert fitted(first, second, room) == (len(plain), len(other))


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({}, "option-missing"),
        ({"input": Path("a"), "dataset": "b"}, "option-conflict"),
        ({"input": Path("a"), "tasks": ("cols",)}, "option-choice"),
        ({"input": Path("a"), "max_seq_length": 4}, "option-value"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, object], code: Code) -> None:
    with refused(code):
        GlueConfig(vocab=Path("v"), **options)  # type: ignore[arg-type]


def same(one: Path, two: Path) -> bool:
    """Whether two files hold the same columns, made of the same rows with the same settings."""
    ours, theirs = load_file(one), load_file(two)
    columns = all(ours[name].tolist() == theirs[name].tolist() for name in ours.keys() | theirs.keys())
    return columns and read_features(one).fingerprint == read_features(two).fingerprint


def hub_folder(folder: Path, glue: Path, tasks: tuple[str, ...], swap: bool = False) -> Path:
    """The tables as a local dataset of the hub's form: parquet files, class names, a card with configurations."""
    import datasets

    card = ["---", "configs:"]
    for task in tasks:
        spec = TASKS[task]
        card += [f"- config_name: {task}", "  data_files:"]
        names = list(reversed(spec.classes)) if swap else list(spec.classes)
        kind = datasets.Value("float32") if spec.is_regression else datasets.ClassLabel(names=names)
        for split in glue_splits(task):
            rows = read_table(glue / spec.folder / f"{split}.tsv", spec, split).rows
            labels = [-1 if r.label is None else r.label if spec.is_regression else int(r.label) for r in rows]
            labels = [spec.labels - 1 - x if swap and x >= 0 else x for x in labels]
            texts = dict(zip(spec.hub_texts or spec.texts, zip(*((r.first, r.second) for r in rows), strict=True),
                             strict=False))  # fmt: skip
            data = {**texts, "label": labels, "idx": [r.index for r in rows]}
            kinds = {**dict.fromkeys(texts, datasets.Value("string")), "label": kind, "idx": datasets.Value("int32")}
            path = folder / task / f"{hub_split(split)}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            datasets.Dataset.from_dict(data, features=datasets.Features(kinds)).to_parquet(path)
            card += [f"  - split: {hub_split(split)}", f"    path: {task}/{hub_split(split)}-*"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    return folder


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="the package datasets is not installed")
def test_the_datasets_library_gives_the_same_files_as_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    tasks = ("cola", "stsb", "mnli", "qqp", "rte")
    glue = make_glue(tmp_path / "glue", tasks)
    one = glue_features(glue, tmp_path / "one")
    hub = hub_folder(tmp_path / "hub", glue, tasks)
    # Classes in another order are told by their names, not by their numbers.
    swapped = hub_folder(tmp_path / "swapped", glue, ("rte",), swap=True)
    for name, folder, chosen in (("two", hub, tasks), ("three", swapped, ("rte",))):
        other = glue_features(None, tmp_path / name, tasks=chosen, dataset=str(folder))
        assert other.keys() == {table for table in one if table[0] in chosen}
        assert all(path.name == one[table].name and same(path, one[table]) for table, path in other.items())
    with refused("download-failed", hub):
        glue_features(None, tmp_path / "four", tasks=("wnli",), dataset=str(hub))


def test_without_the_datasets_package_or_with_one_that_runs_programs_the_message_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused("package-missing", "pip install datasets", "--input", kind=MissingToolError):
        glue_features(None, tmp_path / "out", tasks=("cola",), dataset="nyu-mll/glue")
    assert not (tmp_path / "out").exists()
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(__version__="3.6.0", load_dataset=pytest.fail))
    with refused("tool-version", "datasets 3.6.0", "'datasets>=4'"):
        glue_features(None, tmp_path / "out", tasks=("cola",), dataset="somebody/glue")
