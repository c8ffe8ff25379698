"""What may be searched: words and files come to the same space, and what leaves nothing to choose is refused."""

from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

from bench.cli.tune import NOT_SEARCHED
from bench.plan.training import option_kinds
from bench.tune.space import Kind, make_space
from common.errors import Code

KINDS: dict[str, Kind] = {
    "learning_rate": float, "dropout": float, "micro_batch_size": int, "preset": str, "activation_checkpointing": bool,
}  # fmt: skip


def texts(*words: str) -> dict[str, str]:
    return make_space(words, None, KINDS).texts()


def test_words_say_choices_and_ranges() -> None:
    found = texts(
        "learning-rate=log:1e-5:1e-4", "micro_batch_size=4,8,16", "dropout=0:0.3:0.1", "preset=tiny,mini",
        "activation_checkpointing=true,false",
    )  # fmt: skip
    assert found == {
        "activation_checkpointing": "true,false", "dropout": "0.0:0.3:0.1", "learning_rate": "log:1e-05:0.0001",
        "micro_batch_size": "4,8,16", "preset": "tiny,mini",
    }  # fmt: skip


def test_a_file_says_the_same_as_words(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(
        'preset = ["tiny", "mini"]\nmicro_batch_size = "4,8,16"\n'
        "[learning-rate]\nlow = 1e-5\nhigh = 1e-4\nlog = true\n[dropout]\nlow = 0\nhigh = 0.3\nstep = 0.1\n"
        "[activation_checkpointing]\nchoices = [true, false]\n"
    )
    assert make_space([], path, KINDS).texts() == texts(
        "learning_rate=log:1e-5:1e-4", "micro_batch_size=4,8,16", "dropout=0:0.3:0.1", "preset=tiny,mini",
        "activation_checkpointing=true,false",
    )  # fmt: skip


def test_what_is_written_reads_back_as_itself() -> None:
    first = texts("learning_rate=log:1e-5:1e-4", "micro_batch_size=2:10:2", "dropout=0:0.5")
    assert texts(*(f"{name}={text}" for name, text in first.items())) == first


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["micro_batch_size=4,8,16", "preset=tiny,mini"], 6),
        (["micro_batch_size=1:8"], 8),
        (["micro_batch_size=2:9:3"], 3),
        (["dropout=0:0.3:0.1"], 4),
        (["micro_batch_size=4,8", "dropout=0:0.3"], None),
    ],
)
def test_the_size_is_the_number_of_combinations(words: list[str], size: int | None) -> None:
    assert make_space(words, None, KINDS).size == size


@pytest.mark.parametrize(
    ("word", "code", "fact"),
    [
        ("learning_rate", "option-value", "'learning_rate': give NAME=VALUE"),
        ("learning_rate=", "option-value", "'learning_rate=': give NAME=VALUE"),
        ("=1,2", "option-value", "'=1,2': give NAME=VALUE"),
        ("learning_rat=1,2", "option-choice", "'learning_rate'"),
        ("learning_rate=3e-5", "option-value", "learning_rate=3e-05"),
        ("micro_batch_size=4,4", "option-value", "micro_batch_size=4,4"),
        ("micro_batch_size=4,x", "option-value", "'x'"),
        ("micro_batch_size=4.5,8", "option-value", "'4.5'"),
        ("dropout=nan,0.1", "option-value", "'nan'"),
        ("dropout=0:inf", "option-value", "'inf'"),
        ("dropout=0.3:0.1", "option-value", "HIGH"),
        ("learning_rate=log:0:1", "option-value", "LOW"),
        ("learning_rate=log:1:2:0.1", "option-value", "step"),
        ("learning_rate=log:1", "option-value", "LOW:HIGH"),
        ("dropout=0:1:2", "option-value", "step"),
        ("dropout=0:1:2:3", "option-value", "LOW:HIGH"),
        ("activation_checkpointing=yes,no", "option-value", "'yes'"),
        ("preset=tiny,", "option-value", "preset: ''"),
    ],
)
def test_words_that_are_no_search_are_refused(word: str, code: Code, fact: str) -> None:
    with refused(code, fact):
        texts(word)


def test_nothing_to_search_and_the_same_twice_are_refused() -> None:
    with refused("option-missing", "--search", "--space"):
        texts()
    with refused("option-conflict", "dropout", "0.0:0.1", "0.1,0.2"):
        texts("dropout=0:0.1", "dropout=0.1,0.2")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"\xff\xfe", "file-encoding"), (b"learning_rate = ", "file-damaged"), (b"", "option-missing"),
        (b"speed = [1, 2]", "option-choice"), (b"learning_rate = 3", "option-value"),
        (b"learning_rate = [1, 1]", "option-value"), (b"[learning_rate]\nlow = 1", "option-value"),
        (b"[learning_rate]\nlow = 1\nhigh = 2\nhihg = 3", "option-value"),
        (b"[learning_rate]\nchoices = 3", "option-value"),
        (b"[learning_rate]\nchoices = [1, 2]\nlog = true", "option-value"),
        (b"[learning_rate]\nlow = 'a'\nhigh = 2", "option-value"), (b"[preset]\nlow = 1\nhigh = 2", "option-value"),
        (b"micro_batch_size = [1.5, 2]", "option-value"),
        (b"[learning_rate]\nlow = 1\nhigh = 2\nlog = 1", "option-value"),
        (b"learning_rate = [[1], [2]]", "option-value"), (b"[learning_rate]\nlow = nan\nhigh = 2", "option-value"),
        (b"[learning_rate]\nchoices = []", "option-value"), (b"preset = ['tiny,base', 'large']", "option-value"),
    ],
    ids=range(18),
)  # fmt: skip
def test_a_file_that_is_no_space_is_refused(content: bytes, code: Code, tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_bytes(content)
    with refused(code, path if content else "--space"):
        make_space([], path, KINDS)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with refused("path-missing", tmp_path / "none.toml", "--space"):
        make_space([], tmp_path / "none.toml", KINDS)


def test_settings_of_a_training_can_be_searched_and_what_decides_on_comparison_cannot() -> None:
    kinds: dict[str, Any] = option_kinds(NOT_SEARCHED)
    assert {"learning_rate": float, "micro_batch_size": int, "preset": str, "init": str, "seed": int}.items() <= (
        kinds.items()
    )
    assert kinds["activation_checkpointing"] is bool
    assert not {"out", "json", "eval_every", "eval_data", "threads", "task", "log_to"} & set(kinds)
