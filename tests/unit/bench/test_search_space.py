"""The words of --search: the values and ranges they stand for, and those that leave nothing to search."""

from typing import Any

import pytest
from support.refusals import refused

from bench.search.space import FIXED, FREE, option_words, read_choices, read_space
from bench.sweep.training import option_kinds
from common.errors import Code

KINDS: Any = {
    "learning_rate": float, "dropout": float, "micro_batch_size": int, "preset": str, "activation_checkpointing": bool,
}  # fmt: skip


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
    ],
)
def test_the_kind_of_an_option_says_how_it_is_drawn(word: str, drawn: Any) -> None:
    (parameter,) = read_space([word], KINDS).values()
    assert parameter.suggest(Draws()) == drawn


@pytest.mark.parametrize(
    "word",
    ["learning_rate", "learning_rate=3e-5", "micro_batch_size=4,4", "micro_batch_size=4,x", "micro_batch_size=4.5,8",
     "dropout=0:inf", "dropout=0.3:0.1", "learning_rate=log:0:1", "learning_rate=log:1", "dropout=0:1:2",
     "activation_checkpointing=yes,no", "preset=tiny,", "learning_rat=1,2"],
)  # fmt: skip
def test_words_that_are_no_search_are_refused(word: str) -> None:
    code: Code = "option-choice" if "learning_rat=" in word else "option-value"
    with refused(code, word.partition("=")[0]):
        read_space([word], KINDS)


def test_the_values_of_variants_are_listed_and_become_words_of_the_command() -> None:
    with refused("option-value", "dropout=0:0.1"):
        read_choices(["dropout=0:0.1"], KINDS)
    assert read_choices(["dropout=0,0.1"], KINDS) == {"dropout": (0.0, 0.1)}
    values = {"learning_rate": 3e-05, "activation_checkpointing": True, "trust_remote_code": False}
    assert option_words(values) == ["--learning-rate", "3e-05", "--activation-checkpointing"]
    kinds: dict[str, Any] = option_kinds((*FREE, *FIXED))
    assert {"learning_rate": float, "preset": str, "init": str, "seed": int}.items() <= kinds.items()
    assert not {"out", "json", "eval_every", "eval_data", "threads", "task", "log_to"} & set(kinds)
