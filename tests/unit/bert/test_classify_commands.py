"""What is refused as a classifier of texts, and what is said of labels that a model does not know."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.commands import document
from support.refusals import refused

from bert.data.vocabulary import Vocabulary
from bert.tasks.classify import commands
from bert.tasks.classify.commands import TextClassifier, open_classifier
from records import classification


def test_another_folder_is_no_classifier(tmp_path: Path) -> None:
    with refused("path-missing", tmp_path, "*_trained_model"):
        open_classifier(tmp_path, None)  # type: ignore[arg-type]
    for content, code in (({"format": "other"}, "record-foreign"), ({}, "record-foreign"), ([], "file-format")):
        (tmp_path / "results.json").write_text(json.dumps(content))
        with refused(code, tmp_path):
            open_classifier(tmp_path, None)  # type: ignore[arg-type]
    found = commands.RESULTS_FORMAT, commands.RESULTS_FILE
    assert found == (classification.FORMAT, classification.RESULTS_FILE)


class Knowing(TextClassifier):
    """Takes every text for spam."""

    __slots__ = ()

    def predict(self, texts: Sequence[str], *_: Any) -> list[tuple[str, float] | None]:
        return [("spam", 0.75)] * len(texts)


def test_labels_that_the_model_does_not_know_count_as_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = SimpleNamespace(ready=lambda *_: None)
    classifier = Knowing(opened, ("ham", "spam"), Vocabulary((), True), 8)  # type: ignore[arg-type]
    monkeypatch.setattr("bert.tasks.classify.commands.open_classifier", lambda *_: classifier)
    labels = ["spam", "ham", "", "Spam", "junk", "junk"]
    (tmp_path / "new.csv").write_text("text,label\n" + "".join(f"a b,{label}\n" for label in labels))
    words = ("--checkpoint", tmp_path, "--data", tmp_path / "new.csv", "--device", "cpu")
    found = document("predict", "classify", *words)
    assert (found["texts"], found["accuracy"], found["unknown_labels"]) == (6, 0.2, 3)
