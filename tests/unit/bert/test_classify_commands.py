"""What is refused as a classifier of texts, and what is said of labels that a model does not know."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.commands import result, text
from support.csv_files import colours_and_animals, prepared, write_rows
from support.refusals import refused
from support.training_runs import run, settings

from bench.cli.dispatch import call
from bench.cli.task_commands import _Terminal
from bert.data.vocabulary import Vocabulary
from bert.tasks.classify import commands
from bert.tasks.classify.commands import TextClassifier, open_classifier
from records import classification


class Host:
    """Knows what checkpoints were trained on."""

    def __init__(self, *trained: str | None) -> None:
        self._trained = trained or None

    def trained_on(self, checkpoint: Path) -> Any:
        return self._trained


def test_a_model_of_another_task_or_of_an_unknown_one_is_no_classifier(tmp_path: Path) -> None:
    with refused("weights-mismatch", tmp_path, "squad"):
        open_classifier(tmp_path, Host("squad", "data/squad", None))  # type: ignore[arg-type]
    with refused("checkpoint-missing", tmp_path):
        open_classifier(tmp_path, Host())  # type: ignore[arg-type]
    with refused("path-missing", tmp_path / "none"):
        open_classifier(tmp_path / "none", Host())  # type: ignore[arg-type]
    with refused("data-unprepared", "gone.sqlite"):
        open_classifier(tmp_path, Host("classify", str(tmp_path / "gone.sqlite"), None))  # type: ignore[arg-type]
    for document, code in (({"format": "other"}, "record-foreign"), ({}, "record-foreign"), ([], "file-format")):
        (tmp_path / "results.json").write_text(json.dumps(document))
        with refused(code, "results.json"):
            open_classifier(tmp_path, Host())  # type: ignore[arg-type]


def test_labels_of_a_checkpoint_are_not_read_from_a_database_made_again_otherwise(tmp_path: Path) -> None:
    rows = colours_and_animals(60)
    source = prepared(write_rows(tmp_path / "a.csv", rows), max_seq_length=16).source
    wanted = settings(
        source.path, task="classify", task_options='{"labels":3}', seq_len=16,
        vocab_size=len(source.vocabulary.pieces), steps=1,
    )  # fmt: skip
    run(wanted, tmp_path / "run")
    assert open_classifier(tmp_path / "run", _Terminal(None)).labels == source.labels
    source.path.unlink()
    other = prepared(write_rows(tmp_path / "a.csv", rows[::-1]), max_seq_length=16).source
    assert other.labels == source.labels[::-1] and other.path == source.path
    for checkpoint in (tmp_path / "run", tmp_path / "run" / "step-0000001"):
        with refused("data-mismatch", source.path, checkpoint, "*_trained_model"):
            open_classifier(checkpoint, _Terminal(None))


def test_the_folder_of_a_model_is_known_by_what_is_written_into_it() -> None:
    found = commands.RESULTS_FORMAT, commands.RESULTS_FILE
    assert found == (classification.FORMAT, classification.RESULTS_FILE)


class Knowing(TextClassifier):
    """Takes every text for spam."""

    __slots__ = ()

    def predict(self, texts: Sequence[str], *_: Any) -> list[tuple[str, float] | None]:
        return [("spam", 0.75)] * len(texts)


def test_labels_that_the_model_does_not_know_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = SimpleNamespace(ready=lambda *_: None)
    classifier = Knowing(opened, ("ham", "spam"), Vocabulary((), True), 8)  # type: ignore[arg-type]
    monkeypatch.setattr("bert.tasks.classify.commands.open_classifier", lambda *_: classifier)
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
    told = text(result(*argv).blocks)
    assert "accuracy     20.0 % of 5 labels in the file" in told
    assert "unknown      3 labels that the model lacks count as wrong: 'Spam', 'junk'" in told
    assert call([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unknown_labels"] == 3
    (tmp_path / "new.csv").write_text("text,label\na b,spam\n")
    assert "unknown" not in text(result(*argv).blocks)
