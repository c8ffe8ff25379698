"""Features of GLUE: the published layout, a key of everything that changes them, damage noticed."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.glue_folders import FORMS, make_glue, splits_of, write_vocabulary
from support.refusals import refused

from bert.data.features import read_header
from bert.data.vocabulary import load_vocabulary
from bert.tasks.glue.config import GlueConfig
from bert.tasks.glue.features import fitted, open_features
from bert.tasks.glue.prepare import GlueSummary, prepare
from bert.tasks.glue.tasks import TASKS
from common.errors import Code, MissingToolError


@pytest.fixture
def vocab(tmp_path: Path) -> Path:
    return write_vocabulary(tmp_path / "vocab.txt")


def made(**options: object) -> list[GlueSummary]:
    return prepare(GlueConfig(**options), lambda stage, done, total: None)  # type: ignore[arg-type]


def test_all_nine_tasks_are_prepared_with_every_split(tmp_path: Path, vocab: Path) -> None:
    assert set(FORMS) == set(TASKS)
    summaries = made(input=make_glue(tmp_path / "glue"), vocab=vocab, output=tmp_path / "out")
    assert [(s.task, s.split) for s in summaries] == [(task, split) for task in TASKS for split in splits_of(task)]
    for summary in summaries:
        assert summary.features is not None
        features = open_features(summary.features)
        spec = TASKS[summary.task]
        assert len(features.rows) == 12 and features.rows.has_labels == (not summary.split.startswith("test"))
        assert features.rows.labels.dtype == (np.float32 if spec.is_regression else np.int64)
        assert features.index.tolist() == list(range(12))


def test_rows_are_cls_first_sep_second_sep(tmp_path: Path, vocab: Path) -> None:
    make_glue(tmp_path / "glue", ["rte", "sst2"])
    paths = {s.task: s.features for s in made(input=tmp_path / "glue", vocab=vocab, output=tmp_path / "out")[::-1]}
    pieces = load_vocabulary(vocab, True).pieces
    words = {}
    for task, path in paths.items():
        assert path is not None
        rows = open_features(path).rows
        words[task] = [pieces[i] for i in rows.ids[3]], int(rows.second[3])
    assert words["rte"] == (["[CLS]", "one", "3", ".", "[SEP]", "two", "3", ".", "[SEP]"], 5)
    assert words["sst2"] == (["[CLS]", "a", "film", "3", "[SEP]"], 5)


def same(one: Path, two: Path) -> bool:
    """Whether two files hold the same columns, made of the same rows with the same settings."""
    ours, theirs = load_file(one), load_file(two)
    columns = all(ours[name].tolist() == theirs[name].tolist() for name in ours.keys() | theirs.keys())
    return columns and read_header(one).fingerprint == read_header(two).fingerprint


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 30))
def test_the_longer_sentence_is_cut_piece_by_piece(first: int, second: int, room: int) -> None:
    plain, other = ["a"] * first, ["b"] * second
    while len(plain) + len(other) > room:
        (plain if len(plain) > len(other) else other).pop()
    assert fitted(first, second, room) == (len(plain), len(other))


@pytest.mark.parametrize("sentences", [(20, 0), (0, 20), (20, 20), (0, 0)], ids=["first", "second", "both", "none"])
def test_rows_of_a_pair_with_an_empty_sentence_are_cut_to_the_length(
    tmp_path: Path, vocab: Path, sentences: tuple[int, int]
) -> None:
    folder = make_glue(tmp_path / "glue", ["rte"])
    table = folder / "RTE" / "train.tsv"
    first, second = ("two " * count for count in sentences)
    table.write_text(f"{table.read_text()}99\t{first}\t{second}\tentailment\n")
    (path,) = (s.features for s in made(input=folder, vocab=vocab, output=tmp_path / "out", max_seq_length=12)
               if s.split == "train")  # fmt: skip
    assert path is not None
    rows = open_features(path).rows
    kept = {(20, 0): (9, 0), (0, 20): (0, 9), (20, 20): (5, 4), (0, 0): (0, 0)}[sentences]
    pieces = load_vocabulary(vocab, True).pieces
    expected = ["[CLS]", *["two"] * kept[0], "[SEP]", *["two"] * kept[1], "[SEP]"]
    assert [pieces[number] for number in rows.ids[12]] == expected and rows.second[12] == kept[0] + 2


def test_where_a_table_lies_and_how_it_is_packed_changes_nothing(tmp_path: Path, vocab: Path) -> None:
    one = made(input=make_glue(tmp_path / "glue", ["wnli"]), vocab=vocab, output=tmp_path / "one")[0].features
    table = tmp_path / "glue" / "WNLI" / "train.tsv"
    other = tmp_path / "elsewhere" / "WNLI"
    other.mkdir(parents=True)
    (other / "train.tsv").write_bytes(table.read_bytes().replace(b"\n", b"\r\n"))
    two = made(tasks=("wnli",), input=other, vocab=vocab, output=tmp_path / "two")[0].features
    assert one is not None and two is not None
    assert one.name == two.name and same(one, two)


def test_the_text_of_the_training_tables_is_written_for_pretraining(tmp_path: Path) -> None:
    summaries = made(input=make_glue(tmp_path / "glue", ["cola", "rte"], rows=2), text=tmp_path / "text")
    assert [s.text and s.text.name for s in summaries] == ["cola.txt", None, None, "rte.txt", None, None]
    assert (tmp_path / "text" / "rte.txt").read_text() == "One 0. Two 0.\n\nOne 1. Two 1.\n\n"
    assert all(s.features is None for s in summaries)


@pytest.mark.parametrize(
    ("options", "code", "facts"),
    [
        ({}, "option-missing", ("--input", "--dataset")),
        ({"input": Path("a"), "dataset": "b", "vocab": Path("v")}, "option-conflict", ("--input", "--dataset")),
        ({"input": Path("a")}, "option-missing", ("--vocab", "--text")),
        ({"input": Path("a"), "vocab": Path("v"), "tasks": ("cols",)}, "option-choice", ("'cols'", "'cola'")),
        ({"input": Path("a"), "vocab": Path("v"), "max_seq_length": 4}, "option-value", ("--max-seq-length 4", 5)),
    ],
)
def test_options_that_mean_nothing_are_refused(
    options: dict[str, object], code: Code, facts: tuple[object, ...]
) -> None:
    with refused(code, *facts):
        GlueConfig(**options)  # type: ignore[arg-type]


def test_a_folder_without_tables_leaves_nothing_behind(tmp_path: Path, vocab: Path) -> None:
    (tmp_path / "empty").mkdir()
    with refused("data-missing", "CoLA/train.tsv"):
        made(tasks=("cola",), input=tmp_path / "empty", vocab=vocab, output=tmp_path / "out")
    make_glue(tmp_path / "bad", ["cola"])
    (tmp_path / "bad" / "CoLA" / "train.tsv").write_text("nothing\n")
    with refused("rows-invalid", "train.tsv"):
        made(input=tmp_path / "bad", vocab=vocab, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def hub_folder(folder: Path, glue: Path, tasks: tuple[str, ...], swap: bool = False) -> Path:
    """The tables as a local dataset of the hub's form: parquet files, class names, a card with configurations."""
    import datasets

    from bert.tasks.glue.tables import hub_split, read_table

    card = ["---", "configs:"]
    for task in tasks:
        spec = TASKS[task]
        card += [f"- config_name: {task}", "  data_files:"]
        names = list(reversed(spec.classes)) if swap else list(spec.classes)
        kind = datasets.Value("float32") if spec.is_regression else datasets.ClassLabel(names=names)
        for split in splits_of(task):
            rows = read_table(glue / spec.folder / f"{split}.tsv", spec, split).rows
            labels = [-1 if r.label is None else r.label if spec.is_regression else int(r.label) for r in rows]
            labels = [spec.labels - 1 - x if swap and x >= 0 else x for x in labels]
            hub_texts = spec.hub_texts or spec.texts
            texts = {hub_texts[0]: [r.first for r in rows]}
            texts |= {hub_texts[1]: [r.second for r in rows]} if len(hub_texts) > 1 else {}
            data = {**texts, "label": labels, "idx": [r.index for r in rows]}
            kinds = {
                **{name: datasets.Value("string") for name in texts},
                "label": kind,
                "idx": datasets.Value("int32"),
            }
            path = folder / task / f"{hub_split(split)}-00000-of-00001.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            datasets.Dataset.from_dict(data, features=datasets.Features(kinds)).to_parquet(path)
            card += [f"  - split: {hub_split(split)}", f"    path: {task}/{hub_split(split)}-*"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    return folder


@pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason="the package datasets is not installed")
def test_the_datasets_library_gives_the_same_files_as_the_tables(
    tmp_path: Path, vocab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    tasks = ("cola", "stsb", "mnli", "qqp", "rte")
    glue = make_glue(tmp_path / "glue", tasks)
    hub = hub_folder(tmp_path / "hub", glue, tasks)
    made(input=glue, vocab=vocab, output=tmp_path / "one")
    made(tasks=tasks, dataset=str(hub), vocab=vocab, output=tmp_path / "two")
    names = sorted(path.name for path in (tmp_path / "one").glob("*.safetensors"))
    assert names and names == sorted(path.name for path in (tmp_path / "two").glob("*.safetensors"))
    assert all(same(tmp_path / "one" / name, tmp_path / "two" / name) for name in names)

    # Classes in another order are told by their names, not by their numbers.
    swapped = hub_folder(tmp_path / "swapped", glue, ("rte",), swap=True)
    made(tasks=("rte",), dataset=str(swapped), vocab=vocab, output=tmp_path / "three")
    for path in (tmp_path / "three").glob("*.safetensors"):
        assert same(path, tmp_path / "one" / path.name)
    with refused("download-failed", "datasets.load_dataset(", hub):
        made(tasks=("wnli",), dataset=str(hub), vocab=vocab, output=tmp_path / "four")


def test_without_the_datasets_package_the_message_says_what_to_do(
    tmp_path: Path, vocab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with refused("package-missing", "pip install datasets", "--input", kind=MissingToolError):
        made(tasks=("cola",), dataset="nyu-mll/glue", vocab=vocab, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_shards_for_pretraining_are_made_of_the_text(tmp_path: Path, vocab: Path) -> None:
    from bert.tasks.pretrain.config import PrepareConfig
    from bert.tasks.pretrain.prepare import prepare as prepare_shards
    from bert.tasks.pretrain.shards import folder_info

    made(input=make_glue(tmp_path / "glue", ["cola", "rte"], rows=40), text=tmp_path / "text")
    config = PrepareConfig(
        input=tmp_path / "text", vocab=vocab, output=tmp_path / "out", shards=1, test_fraction=0.0, seq_lens=(32,)
    )
    prepare_shards(config)
    info = folder_info(config.hdf5_folder(32), "training", 32)
    assert info.seq_len == 32 and len(info.paths) == 1
