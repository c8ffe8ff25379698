"""What is refused as a classifier of texts, and what is said of labels that a model does not know."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

from bench.cli.main import run
from bench.text_classifier import TextClassifier, open_classifier
from bert.data.vocabulary import Vocabulary


def write_checkpoint(folder: Path, task: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"settings": {"task": task, "data": "data/squad"}}))
    return folder


def test_a_model_of_another_task_is_no_classifier(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "step_12", "squad")
    with refused("weights-mismatch", checkpoint, "squad", f"`bertbench train classify FILE.csv --init {checkpoint}`"):
        open_classifier(checkpoint, print)


class Knowing(TextClassifier):
    """Takes every text for spam."""

    __slots__ = ()

    def predict(self, texts: Sequence[str], *_: Any) -> list[tuple[str, float] | None]:
        return [("spam", 0.75)] * len(texts)


def test_labels_that_the_model_does_not_know_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = Knowing(None, ("ham", "spam"), Vocabulary((), True), 8)  # type: ignore[arg-type]
    monkeypatch.setattr("bench.text_classifier.open_classifier", lambda *_: classifier)
    labels = ["spam", "ham", "", "Spam", "junk", "junk"]
    (tmp_path / "new.csv").write_text("text,label\n" + "".join(f"a b,{label}\n" for label in labels))
    argv = [
        "predict",
        "classify",
        "--checkpoint",
        str(tmp_path),
        "--data",
        str(tmp_path / "new.csv"),
        "--device",
        "cpu",
    ]
    assert run(argv) == 0
    told = capsys.readouterr().out
    assert "accuracy    20.0 % of 5 labels in the file" in told
    assert (
        "unknown     3 of the 5 labels in the file are none that the model knows ('Spam', 'junk'), and count as wrong"
        in told
    )
    assert run([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unknown_labels"] == 3
    (tmp_path / "new.csv").write_text("text,label\na b,spam\n")
    assert run(argv) == 0
    assert "unknown" not in capsys.readouterr().out
