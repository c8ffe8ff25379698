"""A trained classifier of texts, opened with its vocabulary and its labels."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.classify import logits_of
from bench.machine.devices import Devices
from bert.data.rows import Ragged, TokenRows
from bert.data.vocabulary import VOCABULARY_FILE, Vocabulary, load_vocabulary
from bert.tasks.classify.prepare import fold
from bert.tasks.classify.store import open_source
from common.errors import InputError, content_code
from records.classification import FORMAT, RESULTS_FILE
from records.training import TrainRun, is_train_run

if TYPE_CHECKING:
    from bert.predict import Opened

_STATE_FILE = "state.json"


@dataclass(frozen=True, slots=True)
class TextClassifier:
    """A model that gives texts one of its labels."""

    opened: "Opened"
    labels: tuple[str, ...]
    vocabulary: Vocabulary
    """How its texts are cut into word pieces."""
    max_seq_length: int
    """Tokens of a row at most; longer texts have several."""

    def predict(
        self, texts: Sequence[str], devices: Devices, precision: str, batch_size: int, threads: int | None = None
    ) -> list[tuple[str, float] | None]:
        """Return label and probability of each text; None for a text without word pieces.

        Raises:
            InputError: the model gives no finite numbers.
        """
        from bert.tasks.classify.task import text_probabilities

        numbers, rows = self._rows(texts)
        found: list[tuple[str, float] | None] = [None] * len(texts)
        if not len(rows):
            return found
        logits = logits_of(self.opened, rows, len(self.labels), devices, precision, batch_size, threads)
        _, shares = text_probabilities(logits, numbers)
        for number, share in zip(np.unique(numbers), shares, strict=True):
            best = int(share.argmax())
            found[int(number)] = self.labels[best], float(share[best])
        return found

    def _rows(self, texts: Sequence[str]) -> tuple[Any, TokenRows]:
        vocabulary = self.vocabulary
        rows, numbers = [], []
        for number, pieces in enumerate(vocabulary.encode(texts)):
            for row in fold(pieces, self.max_seq_length, vocabulary.cls_id, vocabulary.sep_id):
                rows.append(row)
                numbers.append(number)
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        values = np.array([piece for row in rows for piece in row], dtype=np.int32)
        return np.array(numbers, dtype=np.int64), TokenRows(
            ids=Ragged(values, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)),
            second=lengths,
            labels=np.zeros(0, dtype=np.int64),
            fingerprint="texts to predict",
            vocab_size=len(vocabulary.pieces),
            vocabulary=vocabulary.fingerprint,
            pad_id=vocabulary.pad_id,
            max_seq_length=self.max_seq_length,
        )


def open_classifier(checkpoint: Path, warn: Callable[[str], None]) -> TextClassifier:
    """Open the folder of a trained model, or a checkpoint of a run whose database is where it was.

    Raises:
        InputError: it is neither, damaged, or nothing beside it says its labels.
    """
    from bert.predict import open_model
    from bert.tasks.base import DataIdentity
    from bert.tasks.classify.task import ClassifyTask

    if not checkpoint.exists():
        raise InputError(
            "path-missing", f"{checkpoint} does not exist: give *_trained_model or a run directory of `train classify`"
        )
    labels, vocabulary, longest = _words_of(checkpoint)
    data = DataIdentity(source=str(checkpoint), vocab_size=len(vocabulary.pieces), vocabulary=vocabulary.fingerprint)
    opened = open_model(checkpoint, ClassifyTask(labels=len(labels)), data, warn)
    return TextClassifier(opened, labels, vocabulary, longest)


def _words_of(checkpoint: Path) -> tuple[tuple[str, ...], Vocabulary, int]:
    """Labels, vocabulary and length of rows of a model."""
    results, state = checkpoint / RESULTS_FILE, checkpoint / _STATE_FILE
    try:
        if results.is_file():
            document = _object(results)
            if document.get("format") != FORMAT:
                raise InputError(
                    "record-foreign",
                    f"{results} is not what `bertbench train classify` writes: give another --checkpoint",
                )
            text = document["text"]
            vocabulary = load_vocabulary(checkpoint / VOCABULARY_FILE, bool(text["lower_case"]))
            if vocabulary.fingerprint != text["vocabulary"]:
                raise InputError(
                    "vocabulary-mismatch",
                    f"{checkpoint / VOCABULARY_FILE} is not the vocabulary of that model: put it back",
                )
            return tuple(map(str, document["labels"])), vocabulary, int(text["max_seq_length"])
        data = _data_of_state(checkpoint, state) if state.is_file() else _data_of_run(checkpoint)
        if data is not None:
            source = open_source(Path(data))
            return source.labels, source.vocabulary, source.max_seq_length
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            "file-damaged", f"{checkpoint} is damaged ({error!r}): train again, or give another --checkpoint"
        ) from error
    raise InputError(
        "checkpoint-missing",
        f"nothing in {checkpoint} says the labels of the model: give the *_trained_model that `bertbench train "
        "classify` left, or its run directory",
    )


def _data_of_state(checkpoint: Path, state: Path) -> str:
    """What a checkpoint was trained on. Raises InputError: on another task."""
    settings = _object(state)["settings"]
    _check_task(checkpoint, str(settings["task"]))
    return str(settings["data"])


def _check_task(checkpoint: Path, task: str) -> None:
    if task != "classify":
        raise InputError(
            "weights-mismatch",
            f"{checkpoint} holds no model that was trained on classify, but one trained on {task}: train it with "
            f"`bertbench train classify FILE.csv --init {checkpoint}`",
        )


def _data_of_run(checkpoint: Path) -> str | None:
    """What the run trained on in whose folder lie weights that say nothing themselves; None outside of one.

    Raises:
        InputError: it was another task.
    """
    folder = checkpoint.parent.parent
    attempts = TrainRun(folder).attempts() if is_train_run(folder) else []
    trial = attempts[-1].read_trial() if attempts else None
    if trial is None:
        return None
    _check_task(checkpoint, trial.task)
    return trial.data


def _object(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            content_code(error), f"cannot read {path} ({error}): train again, or give another --checkpoint"
        ) from error
    if not isinstance(found, dict):
        raise InputError("file-format", f"{path} is no JSON object: train again, or give another --checkpoint")
    return found
