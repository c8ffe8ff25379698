"""The words of --search: the values and ranges they stand for, and those that leave nothing to search."""

from typing import Any

import pytest
from support.refusals import refused

from bench.cli.tune import FIXED, FREE
from bench.search.space import option_words, read_choices, read_space
from bench.sweep.training import Kind, Value, option_kinds
from common.errors import Code

KINDS: dict[str, Kind] = {
    "learning_rate": float, "dropout": float, "micro_batch_size": int, "preset": str, "activation_checkpointing": bool,
}  # fmt: skip


def test_words_are_values_and_ranges() -> None:
    space = read_space(
        ["learning-rate=log:1e-5:1e-4", "micro_batch_size=4,8", "dropout=0:0.3", "activation_checkpointing=true,false"],
        KINDS,
    )
    rate, batch, dropout, switch = space.values()
    assert (rate.low, rate.high, rate.log, rate.choices) == (1e-5, 1e-4, True, ())
    assert (dropout.low, dropout.high, dropout.log) == (0.0, 0.3, False)
    assert batch.choices == (4, 8) and switch.choices == (True, False)


class Draws:
    """Stands for a trial of Optuna: returns what was asked for."""

    def __getattr__(self, method: str) -> Any:
        return lambda *words, **options: (method, *words, *options.values())


def test_the_kind_of_an_option_says_how_it_is_drawn() -> None:
    words = ["learning_rate=log:1e-5:1e-4", "micro_batch_size=4:8", "preset=tiny,mini"]
    drawn: list[Any] = [parameter.suggest(Draws()) for parameter in read_space(words, KINDS).values()]
    assert drawn == [
        ("suggest_float", "learning_rate", 1e-5, 1e-4, True),
        ("suggest_int", "micro_batch_size", 4, 8, False),
        ("suggest_categorical", "preset", ("tiny", "mini")),
    ]


@pytest.mark.parametrize(
    ("word", "code", "fact"),
    [
        ("learning_rate", "option-value", "learning_rate"),
        ("learning_rate=", "option-value", "learning_rate="),
        ("=1,2", "option-value", "=1,2"),
        ("learning_rat=1,2", "option-choice", "learning_rate"),
        ("learning_rate=3e-5", "option-value", "learning_rate=3e-5"),
        ("micro_batch_size=4,4", "option-value", "micro_batch_size=4,4"),
        ("micro_batch_size=4,x", "option-value", "'x'"),
        ("micro_batch_size=4.5,8", "option-value", "'4.5'"),
        ("dropout=nan,0.1", "option-value", "'nan'"),
        ("dropout=0:inf", "option-value", "'inf'"),
        ("dropout=0.3:0.1", "option-value", "HIGH"),
        ("learning_rate=log:0:1", "option-value", "LOW"),
        ("learning_rate=log:1", "option-value", "LOW:HIGH"),
        ("dropout=0:1:2", "option-value", "LOW:HIGH"),
        ("activation_checkpointing=yes,no", "option-value", "'yes'"),
        ("preset=tiny,", "option-value", "preset: ''"),
    ],
)
def test_words_that_are_no_search_are_refused(word: str, code: Code, fact: str) -> None:
    with refused(code, fact):
        read_space([word], KINDS)


def test_an_option_given_twice_and_a_range_of_variants_are_refused() -> None:
    with refused("option-conflict", "dropout", "0:0.1", "0.1,0.2"):
        read_space(["dropout=0:0.1", "dropout=0.1,0.2"], KINDS)
    with refused("option-value", "dropout=0:0.1"):
        read_choices(["dropout=0:0.1"], KINDS)
    assert read_choices(["dropout=0,0.1"], KINDS) == {"dropout": (0.0, 0.1)}


def test_values_are_words_of_the_command() -> None:
    values: dict[str, Value] = {
        "learning_rate": 3e-05,
        "activation_checkpointing": True,
        "trust_remote_code": False,
        "preset": "tiny",
    }
    assert option_words(values) == ["--learning-rate", "3e-05", "--activation-checkpointing", "--preset", "tiny"]


def test_settings_of_a_training_can_be_searched_and_what_decides_on_comparison_cannot() -> None:
    kinds: dict[str, Any] = option_kinds((*FREE, *FIXED))
    expected = {"learning_rate": float, "micro_batch_size": int, "preset": str, "init": str, "seed": int}
    assert expected.items() <= kinds.items() and kinds["activation_checkpointing"] is bool
    assert not {"out", "json", "eval_every", "eval_data", "threads", "task", "log_to"} & set(kinds)
