"""Packages of extras: a command that needs one that is missing says so before it does any work."""

import importlib.util
from pathlib import Path

import pytest
from support.commands import document, result
from support.glue_folders import make_glue, write_vocabulary
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


@pytest.fixture
def features(tmp_path: Path) -> Path:
    glue = make_glue(tmp_path / "glue", ["cola", "sst2", "stsb"])
    vocab = write_vocabulary(tmp_path / "vocab.txt")
    for task in ("cola", "sst2", "stsb"):
        words = ["--input", glue, "--vocab", vocab, "--output", tmp_path / "features", "--tasks", task]
        document("data", "glue", *words)
    return tmp_path / "features"


def test_a_missing_module_is_named_as_it_is_installed() -> None:
    need("this", "scores", "json")
    with refused("package-missing", "this", "no_such_module", "bertbench[scores]", kind=MissingToolError):
        need("this", "scores", "json", "no_such_module")


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize(("task", "package"), [("cola", "scikit-learn"), ("stsb", "scipy")])
def test_training_with_scores_is_refused_before_it_begins(features: Path, task: str, package: str) -> None:
    out = features.parent / "run"
    words = ["--task", task, "--data", features, "--device", "cpu", "--preset", "tiny", "--out", out]
    with refused("package-missing", package, "bertbench[scores]"):
        result("train", "glue", *words)
    assert not list(out.glob("trials/*"))


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize(("task", "folder"), [("cola", "CoLA"), ("stsb", "STS-B")])
def test_scoring_is_refused_too(tmp_path: Path, task: str, folder: str) -> None:
    labels = make_glue(tmp_path, [task]) / folder / "dev.tsv"
    answers = tmp_path / "answers.tsv"
    answers.write_text("index\tprediction\n" + "".join(f"{n}\t1\n" for n in range(12)))
    with refused("package-missing", "bertbench[scores]"):
        result("eval", "glue", "--task", task, "--labels", labels, "--predictions", answers)


@pytest.mark.usefixtures("absent")
def test_accuracy_alone_needs_no_package(tmp_path: Path) -> None:
    labels = make_glue(tmp_path, ["sst2"]) / "SST-2" / "dev.tsv"
    answers = tmp_path / "answers.tsv"
    answers.write_text("index\tprediction\n" + "".join(f"{n}\t{n % 2}\n" for n in range(12)))
    found = document("eval", "glue", "--task", "sst2", "--labels", labels, "--predictions", answers)
    assert found["scores"] == {"accuracy": 1.0}


@pytest.mark.usefixtures("absent")
def test_without_tensorboard_a_training_logs_nothing_there_and_one_that_asks_for_it_is_refused() -> None:
    assert chosen_loggers(()) == ()
    with refused("package-missing", "tensorboard", "bertbench[tensorboard]"):
        chosen_loggers(["tensorboard"])
