"""The help of every command: choices, defaults, length; and that the form gives back the options it was made of."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from support.refusals import refused

from bench.cli.dispatch import COMMANDS, options_of, read
from bench.cli.measure import MeasureOptions
from bench.cli.parser import examples_of, parse, words_of
from bench.cli.report import ReportOptions
from bench.cli.throughput import ThroughputOptions
from bench.cli.train import TrainClassifyOptions
from bench.sweep.training import TrainOptions
from bench.sweep.trials import Sweep

OPTIONS = {words: options for name in COMMANDS for words, options in options_of(name).items()}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def help_lines(options: type, *words: str) -> list[str]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit) as end:
        parse(options, words, "bertbench")
    assert end.value.code == 0
    return shown.getvalue().splitlines()


def help_of(options: type, *words: str) -> str:
    return " ".join(re.sub("[│╭╰─╮╯]", " ", "\n".join(help_lines(options, *words, "--help"))).split())


def test_the_help_of_a_sweep_leaves_rare_options_to_help_all() -> None:
    pretrain = help_of(ThroughputOptions, "pretrain")
    assert "--threads" not in pretrain and "bertbench --help-all" in pretrain
    assert "--threads" in "".join(help_lines(ThroughputOptions, "pretrain", "--help-all"))
    assert "[choices: tiny, mini, small, medium, base, large, distilbert]" in pretrain


EXAMPLES = [(words, example) for words, options in OPTIONS.items() for example in examples_of(options)]


@pytest.mark.parametrize("words", OPTIONS)
def test_every_help_has_defaults_that_say_something_and_one_to_three_examples(words: str) -> None:
    text, shown = help_of(OPTIONS[words]), examples_of(OPTIONS[words])
    assert len(help_lines(OPTIONS[words], *words.split()[1:2], "--help")) <= 50, "it fits a screen"
    assert not re.search(r"default: *(None|False|True|''|\)|\()", text), text
    assert 1 <= len(shown) <= 3
    assert all(" ".join(example.split()) in text.partition("Examples:")[2] for example in shown)


@pytest.mark.parametrize(("words", "example"), EXAMPLES)
def test_examples_can_be_run_as_they_are(words: str, example: str) -> None:
    program, *argv = shlex.split(example.partition(" > ")[0], comments=True)
    assert program == "bertbench"
    called = [word for word in words.split() if word.islower() and word.isascii() and not word.startswith("-")]
    assert argv[: len(called)] == called
    read(argv)


def test_words_become_the_dataclass_with_its_own_refusals() -> None:
    given = parse(ThroughputOptions, ["squad", "--preset", "mini", "tiny", "--rounds", "2", "--json"], "throughput")
    assert given == ThroughputOptions(sweep=Sweep(task="squad", presets=("mini", "tiny"), rounds=2), json=True)
    with refused("option-choice", "hugo", "tiny"):
        parse(ThroughputOptions, ["pretrain", "--presets", "hugo"], "throughput")
    with refused("option-not-applicable", "head", "pretrain"):
        parse(ThroughputOptions, ["pretrain", "--head", "mul"], "throughput")


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["--rounds", "1.5"], "option-value", "1.5"),
        (["--batch-sizes", "[4,8]"], "option-value", "[4,8]"),
        (["--strategy", "dpd"], "option-choice", "ddp"),
        (["--bath-sizes", "4"], "option-unknown", "--batch-sizes"),
        (["--out"], "option-missing", "--out"),
        (["more"], "option-unknown", "more"),
    ],
)
def test_wrong_words_are_refused_with_what_is_near(words: list[str], code: str, named: str) -> None:
    with refused(code, named):
        parse(ThroughputOptions, ["pretrain", *words], "bertbench throughput")


def test_words_go_to_the_option_or_argument_that_can_take_them() -> None:
    report = parse(ReportOptions, ["RUN", "--project", "8", "16"], "bertbench report")
    assert (report.project, report.paths) == ((8, 16), (Path("RUN"),))
    with refused("option-missing", "PATH"):
        parse(ReportOptions, ["--project", "8", "16"], "bertbench report")
    measure = parse(MeasureOptions, ["--out", "x", "--", "python", "a.py", "--help", "--", "1"], "bertbench measure")
    assert measure.command == ("python", "a.py", "--help", "--", "1") and measure.out == Path("x")
    words = ["pretrain", "--batch-sizes", "4", "8", "--rounds", "1", "--batch-size", "16", "--rounds=2"]
    sweep = parse(ThroughputOptions, words, "bertbench throughput").sweep
    assert (sweep.batch_sizes, sweep.rounds) == ((16,), 2), "the last counts"


def test_the_words_of_options_give_the_same_options() -> None:
    words = [
        "classify",
        "a.csv",
        "--no-quoting",
        "--vary",
        "devices=1,2",
        "head=mul",
        "--steps",
        "20",
        "--task",
        "cola",
    ]
    options = parse(TrainClassifyOptions, [*words, "--step=plain", "--activation-checkpointing"], "bertbench train")
    again = words_of(options)
    assert again[:2] == ["classify", "a.csv"] and {"--no-quoting", "--task", "cola"} <= {*again}
    assert parse(TrainClassifyOptions, again, "bertbench train") == options
    assert words_of(TrainOptions(task="gap")) == ["gap"]
