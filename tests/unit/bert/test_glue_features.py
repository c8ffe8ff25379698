"""Features of GLUE: the published layout, the same files from tables and from `datasets`."""

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
from bert.tasks.glue.tables import TASKS, hub_split, read_table
from common.errors import Code, MissingToolError


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
        assert features.index.tolist() == list(range(12))


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
