"""The words of --search: the values and ranges they stand for, and those that leave nothing to search."""

from typing import Any

import pytest
from support.refusals import refused

from bench.cli.parser import parse
from bench.search.score import Parameter, option_words, read_space
from bench.sweep.training import TrainOptions
from common.errors import UsageError


def space(*words: str) -> dict[str, Parameter]:
    return read_space(words, lambda more: parse(TrainOptions, ["gap", *more], "bertbench train"))


class Draws:
    """Stands for a trial of Optuna: returns what was asked for."""

    def __getattr__(self, method: str) -> Any:
        return lambda *words, **options: (method, *words, *options.values())


@pytest.mark.parametrize(
    ("word", "drawn"),
    [
        ("learning-rate=log:1e-5:1e-4", ("suggest_float", "learning_rate", 1e-5, 1e-4, True)),
        ("dropout=0:0.3", ("suggest_float", "dropout", 0.0, 0.3, False)),
        ("micro_batch_size=4:8", ("suggest_int", "micro_batch_size", 4, 8, False)),
        ("micro_batch_size=4, 8", ("suggest_categorical", "micro_batch_size", (4, 8))),
        ("preset=tiny,mini", ("suggest_categorical", "preset", ("tiny", "mini"))),
        ("activation_checkpointing=true,false", ("suggest_categorical", "activation_checkpointing", (True, False))),
        ("epochs=2:4", ("suggest_float", "epochs", 2.0, 4.0, False)),
        ("head=mul,concat", ("suggest_categorical", "head", ("mul", "concat"))),
    ],
)
def test_the_kind_of_an_option_says_how_it_is_drawn(word: str, drawn: Any) -> None:
    (parameter,) = space(word).values()
    assert parameter.suggest(Draws()) == drawn


@pytest.mark.parametrize(
    "word",
    ["learning_rate", "learning_rate=3e-5", "micro_batch_size=4,4", "micro_batch_size=4,x", "dropout=0:inf",
     "learning_rate=2:1", "learning_rate=log:0:1", "learning_rate=log:1", "epochs=0:1:2",
     "activation_checkpointing=maybe,no", "head=mul,", "preset=tiny:mini"],
)  # fmt: skip
def test_words_that_are_no_search_are_refused(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        space(word)
    assert caught.value.code in ("option-value", "option-choice")
    assert word.partition("=")[0] in str(caught.value).replace("-", "_")


def test_options_that_are_unknown_or_define_the_comparison_are_refused() -> None:
    for word in ("eval_every=1,2", "out=a,b", "json=true,false"):
        with refused("option-conflict", word.partition("=")[0]):
            space(word)
    with refused("option-unknown", "--learning-rat"):
        space("learning_rat=1,2")


def test_values_become_words_of_the_command() -> None:
    values = {"learning_rate": 3e-05, "activation_checkpointing": True, "trust_remote_code": False}
    assert option_words(values) == [
        *("--learning-rate", "3e-05"),
        "--activation-checkpointing",
        "--trust-remote-code=false",
    ]
