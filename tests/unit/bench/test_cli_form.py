"""The help of every command: groups, choices, defaults; and that the form gives back the options it was made of."""

import contextlib
import io
import os
import pty
import re
import shlex
import subprocess
import sys

import pytest
from support.refusals import refused

from bench.cli.dispatch import COMMANDS, find, options_of
from bench.cli.form import GROUPS, examples_of, leaves
from bench.cli.options import in_plural, parse, parse_task
from bench.cli.result import Result
from bench.cli.throughput import ThroughputOptions
from bench.plan.training import TrainOptions
from bench.plan.trials import Sweep
from bert.tasks.glue.tasks import TASKS as GLUE
from bert.tasks.pretrain.config import STAGES
from common.flags import choice_of, flag

OPTIONS = {words: options for name in COMMANDS for words, options in options_of(name).items()}


def help_of(options: type, *words: str) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), pytest.raises(SystemExit) as end:
        parse(options, [*words, "--help"], "bertbench")
    assert end.value.code == 0
    return " ".join(re.sub("[│╭╰─╮╯]", " ", shown.getvalue()).split())


@pytest.mark.parametrize("words", OPTIONS)
def test_no_default_is_shown_as_none_or_as_nothing(words: str) -> None:
    text = help_of(OPTIONS[words])
    assert not re.search(r"default: *(None|False|True|''|\)|\()", text), text


def test_the_help_of_a_sweep_is_in_groups_with_the_options_of_its_task_alone() -> None:
    pretrain, gap = help_of(ThroughputOptions, "pretrain"), help_of(ThroughputOptions, "gap")
    for group in GROUPS:
        assert f"{group} options" in pretrain
    assert "--head" in gap and "--head" not in pretrain
    assert "--presets {tiny,mini,small,medium,base,large,distilbert}" in pretrain


EXAMPLES = [(words, example) for words, options in OPTIONS.items() for example, _ in examples_of(options)]


@pytest.mark.parametrize("words", OPTIONS)
def test_every_help_ends_with_one_to_three_examples(words: str) -> None:
    shown = examples_of(OPTIONS[words])
    assert 1 <= len(shown) <= 3
    for example, _ in shown:
        assert " ".join(example.split()) in help_of(OPTIONS[words]).partition("examples:")[2]


@pytest.mark.parametrize(("words", "example"), EXAMPLES)
def test_examples_can_be_run_as_they_are(words: str, example: str) -> None:
    program, *argv = shlex.split(example.partition(" > ")[0])
    assert program == "bertbench"
    called = [word for word in words.split() if word.islower() and word.isascii() and not word.startswith("-")]
    assert argv[: len(called)] == called
    found = find(argv)
    assert not isinstance(found, Result)
    found.read_words(found.words, found.program)


def test_every_grouped_name_is_an_option_of_some_command() -> None:
    found = [leaf for options in OPTIONS.values() for leaf in leaves(options)]
    assert {name for names in GROUPS.values() for name in names} <= {leaf.name for leaf in found}
    for owner in {leaf.owner for leaf in found if leaf.owner is not None}:
        own = [name for names in getattr(owner, "GROUPS", {}).values() for name in names]
        assert set(own) <= {leaf.name for leaf in found if leaf.owner is owner}, owner
        assert len(own) == len(set(own)), owner


@pytest.mark.parametrize(
    ("words", "option", "heading"),
    [
        ("launch", "node_rank", "node"),
        ("submit slurm -- COMMAND", "array", "job array"),
        ("submit slurm -- COMMAND", "time_limit", "job"),
        ("tune TASK", "pruner", "pruning"),
        ("train classify FILE", "delimiter", "CSV"),
        ("train classify FILE", "epochs", "training"),
        ("comm", "warmup", ""),
    ],
)
def test_commands_have_headings_of_their_own(words: str, option: str, heading: str) -> None:
    (leaf,) = (leaf for leaf in leaves(OPTIONS[words]) if leaf.name == option)
    assert leaf.group == heading
    if heading:
        assert flag(option) in help_of(OPTIONS[words]).partition(f" {heading} options ")[2]


@pytest.mark.parametrize(
    ("words", "option", "choices"),
    [("eval glue", "task", tuple(GLUE)), ("predict glue", "task", tuple(GLUE)), ("data pretrain", "stages", STAGES)],
)
def test_the_words_of_an_option_are_shown_as_choices(words: str, option: str, choices: tuple[str, ...]) -> None:
    assert f"{flag(option)} {choice_of(choices)}" in help_of(OPTIONS[words])


def test_a_word_that_is_none_of_the_choices_keeps_the_error_code_of_its_dataclass() -> None:
    stages = OPTIONS["data pretrain"]
    with refused("option-choice", *STAGES):
        parse(stages, ["--output", "out", "--dataset", "own", "--stages", "sharding"], "bertbench data pretrain")
    taken = parse(
        OPTIONS["eval glue"], ["--task", "hugo", "--labels", "a", "--predictions", "b"], "bertbench eval glue"
    )
    assert taken.own.task == "hugo"  # the command refuses it


def test_what_the_form_returns_is_the_flat_dataclass_with_its_own_refusals() -> None:
    given = parse_task(
        ThroughputOptions, ["squad", "--presets", "mini", "tiny", "--rounds", "2", "--json"], "throughput"
    )
    assert given == ThroughputOptions(sweep=Sweep(task="squad", presets=("mini", "tiny"), rounds=2), json=True)
    with refused("option-choice", "hugo", "tiny"):
        parse_task(ThroughputOptions, ["pretrain", "--presets", "hugo"], "throughput")
    with refused("option-not-applicable", "--head", "gap"):
        parse_task(ThroughputOptions, ["pretrain", "--head", "mul"], "throughput")


@pytest.mark.parametrize(("changes", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_help_on_a_terminal_has_color_unless_it_is_unwanted(changes: dict[str, str], colored: bool) -> None:
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    command = [sys.executable, "-m", "bench.cli.main", "doctor", "--help"]
    subprocess.run(command, stdout=theirs, env={**environment, "TERM": "xterm", **changes}, check=True)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(ours, 4096):
            shown += part
    os.close(ours)
    assert b"--help" in shown and (b"\x1b[" in shown) == colored


def test_v_is_version() -> None:
    short, long = (
        subprocess.check_output([sys.executable, "-m", "bench.cli.main", one]) for one in ("-V", "--version")
    )
    assert short == long and short.startswith(b"bertbench ")


@pytest.mark.parametrize("words", OPTIONS)
def test_the_singular_of_a_list_is_no_other_option_and_means_the_list(words: str) -> None:
    found = list(leaves(OPTIONS[words]))
    aliases = {leaf.alias: leaf.flag for leaf in found if leaf.alias}
    assert not {leaf.flag for leaf in found} & {*aliases}
    for alias, listed in aliases.items():
        assert alias in help_of(OPTIONS[words])
        assert in_plural([f"{alias}=x", alias, "y"], OPTIONS[words]) == [f"{listed}=x", listed, "y"]


def test_the_help_of_a_task_has_its_own_options_and_defaults_alone() -> None:
    pretrain, glue, squad = (help_of(TrainOptions, task) for task in ("pretrain", "glue", "squad"))
    assert "--phase" in pretrain and "--phase" not in glue and "--phase" in help_of(TrainOptions)
    assert "lamb)" in pretrain and "adamw" not in pretrain.partition("Optimizer.")[2].partition(")")[0]
    assert "(default: adamw)" in glue and "(default: 3)" in glue and "(default: 2)" in squad
    assert "384" in squad and "384" not in glue and "(default: 128)" in help_of(ThroughputOptions, "glue")
    assert "(default: 384)" in help_of(ThroughputOptions, "squad")
