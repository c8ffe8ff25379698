"""The results of a text classification, read from any one of the files that a training leaves beside its CSV.

<root>_train_test_stats.json        everything below, as one document
<root>_testset_predictions.csv      prediction, true_label
<root>_trained_model/               weights, config.json, vocab.txt, and the same document as results.json
<root>.sqlite                       the data; the document of each run, in the table runs
"""

import json
from pathlib import Path
from typing import Annotated, Any

import msgspec

from common.errors import InputError, SchemaError
from common.reading import read_errors
from records.files import check_version

FORMAT = "bertbench classification result"
STATISTICS_ENDING = "_train_test_stats.json"
PREDICTIONS_ENDING = "_testset_predictions.csv"
MODEL_ENDING = "_trained_model"
_ENDINGS = (STATISTICS_ENDING, PREDICTIONS_ENDING, MODEL_ENDING)
RESULTS_FILE = "results.json"
PREDICTION_COLUMNS = ("prediction", "true_label")
DATABASE_ID = 0x62627463
"""Application id of databases of texts (bert.tasks.classify.store)."""
_NEEDED = "give a file of `bertbench train classify` beside its *_train_test_stats.json, or *_trained_model"

Pairs = dict[tuple[str, str], int]
"""(true label, predicted label) -> how often."""
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Test(msgspec.Struct):
    confusion: Annotated[list[tuple[str, str, _Count]], msgspec.Meta(min_length=1)]
    """True label, prediction, texts of the test split."""


class ClassificationResult(msgspec.Struct):
    """Results of a training."""

    test: _Test
    labels: tuple[str, ...]
    """Labels in the order of their codes."""
    label_distribution: dict[str, dict[str, _Count]]
    """Texts by split and label."""
    curve: list[tuple[int, float]]
    """(updates applied, training loss)."""
    evaluations: list[dict[str, Any]]
    """Scores on the validation split, with `applied_steps`."""
    run: dict[str, Any]
    """How it was trained, by name."""
    root: Path
    """What the names of the files begin with."""

    @property
    def pairs(self) -> Pairs:
        """Predictions of the test split."""
        return {(true, predicted): count for true, predicted, count in self.test.confusion}


def root_of(path: Path) -> Path:
    """Return what the names of a training's files begin with: the CSV without its ending."""
    path = path.resolve()
    for ending in _ENDINGS:
        if path.name.endswith(ending) and path.name != ending:
            return path.with_name(path.name.removesuffix(ending))
    return path.with_suffix("")


def is_classification(path: Path) -> bool:
    """Return whether a path has the name or the kind of a file that holds the results of a training."""
    if path.name.endswith(_ENDINGS) or not path.is_file():
        return path.name.endswith(_ENDINGS)
    with path.open("rb") as file:
        return file.read(72)[68:] == DATABASE_ID.to_bytes(4, "big")


def read_result(path: Path) -> ClassificationResult:
    """Read the results of a training by any one of its files; of predictions and a database by the statistics beside.

    Raises:
        InputError: it is missing, damaged, or none of them.
        SchemaError: another version wrote it.
    """
    root = root_of(path)
    source = root.with_name(root.name + STATISTICS_ENDING)
    source = path / RESULTS_FILE if path.is_dir() else path if path.suffix == ".json" else source
    with read_errors(source, _NEEDED, SchemaError):
        document = json.loads(source.read_bytes())
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise InputError("record-foreign", f"{source} is not a classification result: {_NEEDED}")
        check_version(source, document)
        return msgspec.convert({**document, "root": root}, ClassificationResult)
