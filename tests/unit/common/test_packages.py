"""Packages of extras: a command that needs one that is missing says so before it does any work."""

import importlib.util
from pathlib import Path

import pytest
from support.commands import document, result
from support.datasets import glue_vocabulary, make_glue
from support.refusals import refused

from bench.loggers import chosen_loggers
from common.errors import MissingToolError
from common.tools import need

ABSENT = {"sklearn", "scipy", "tensorboard", "optuna"}


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that `make bench` does not install are not there."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name.partition(".")[0] in ABSENT else find(name, *rest)
    )


def test_a_missing_module_is_named_as_it_is_installed() -> None:
    need("this", "scores", "json")
    with refused("package-missing", "this", "no_such_module", "bertbench[scores]", kind=MissingToolError):
        need("this", "scores", "json", "no_such_module")


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize(("task", "package"), [("cola", "scikit-learn"), ("stsb", "scipy")])
def test_training_with_scores_is_refused_before_it_begins(tmp_path: Path, task: str, package: str) -> None:
    glue, vocab = make_glue(tmp_path / "glue", [task]), glue_vocabulary(tmp_path)
    features, out = tmp_path / "features", tmp_path / "run"
    document("data", "glue", "--input", glue, "--vocab", vocab, "--output", features, "--tasks", task)
    words = ["--task", task, "--data", features, "--device", "cpu", "--preset", "tiny", "--out", out]
    with refused("package-missing", package, "bertbench[scores]"):
        result("train", "glue", *words)
    assert not list(out.glob("trials/*"))


@pytest.mark.usefixtures("absent")
def test_scoring_is_refused_too_but_accuracy_alone_needs_no_package(tmp_path: Path) -> None:
    glue, answers = make_glue(tmp_path, ["cola", "sst2"]), tmp_path / "answers.tsv"
    answers.write_text("index\tprediction\n" + "".join(f"{n}\t{n % 2}\n" for n in range(12)))
    with refused("package-missing", "bertbench[scores]"):
        result("eval", "glue", "--task", "cola", "--labels", glue / "CoLA/dev.tsv", "--predictions", answers)
    words = ["--task", "sst2", "--labels", glue / "SST-2/dev.tsv", "--predictions", answers]
    assert document("eval", "glue", *words)["scores"] == {"accuracy": 1.0}


@pytest.mark.usefixtures("absent")
def test_without_tensorboard_a_training_logs_nothing_there_and_one_that_asks_for_it_is_refused() -> None:
    assert chosen_loggers(()) == ()
    with refused("package-missing", "tensorboard", "bertbench[tensorboard]"):
        chosen_loggers(["tensorboard"])
