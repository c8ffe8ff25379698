"""Results of a trained text classifier: predictions, statistics and model beside its CSV, and a row in its database."""

import csv
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.metrics.comparison.trainings import evaluations_of
from bench.machine.devices import Devices
from bench.sweep.options import resolve_precision
from bert.data.vocabulary import VOCABULARY_FILE
from bert.tasks.classify.prepare import lock_name
from bert.tasks.classify.store import (
    SPLITS,
    TextSource,
    add_run,
    label_distribution,
    open_source,
    read_runs,
    split_sizes,
)
from bert.tasks.classify.task import TEST, ClassifyTask, class_scores, text_probabilities
from common.atomic import atomic_path, write_json
from common.locks import locked
from common.scores import in_words, scores_in
from records import classification
from records.files import SCHEMA_VERSION
from records.training import TrainRun

if TYPE_CHECKING:
    from bert.predict import Opened
    from bert.train.settings import TrainSettings

_MOST_POINTS = 2000
"""Most points of the loss curve; of a longer one every n-th is kept."""
_SETTINGS = ("global_batch_size", "learning_rate", "precision", "world_size", "seed")


def leave_results(
    run: TrainRun, settings: "TrainSettings", devices: Devices, threads: int | None, warn: Callable[[str], None]
) -> list[tuple[str, str]]:
    """Test the best model of a finished run on the test split, write the results beside its database, return the facts.

    One process at a time writes the files of one database. Each file is written atomically, the model last.
    """
    import torch

    from bert.predict import open_model
    from bert.tasks.base import DataIdentity
    from bert.tasks.evaluation import check_logits, row_logits

    source = open_source(Path(settings.data))
    rows, texts = ClassifyTask().texts(source, TEST)
    task = ClassifyTask(labels=len(source.labels))
    opened = open_model(run.best_checkpoint() or run.checkpoints, task, DataIdentity.of(settings.data, rows), warn)
    if threads is not None:
        torch.set_num_threads(threads)
    precision = "bf16" if settings.precision == "fp8" else resolve_precision(settings.precision, devices)
    logits = row_logits(opened.ready(devices.kind, precision, settings.micro_batch_size), rows, task.labels)
    check_logits(logits)
    first, shares = text_probabilities(logits, texts)
    true, predicted = rows.labels[first].tolist(), shares.argmax(axis=1).tolist()
    scores, labels = class_scores(shares, rows.labels[first]), source.labels
    pairs = Counter(zip(true, predicted, strict=True))
    confusion = [[labels[one], labels[other], count] for (one, other), count in sorted(pairs.items())]
    document = _document(run, settings, source, {**scores, "texts": len(true), "confusion": confusion})
    root = source.path.with_suffix("")
    endings = (classification.PREDICTIONS_ENDING, classification.STATISTICS_ENDING, classification.MODEL_ENDING)
    predictions, statistics, model = (root.with_name(f"{root.name}{ending}") for ending in endings)
    with locked(root.parent, "another training", "wait for it", wait=True, name=lock_name(source.path)):
        with atomic_path(predictions) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            pairs_in_words = ((labels[answer], labels[label]) for answer, label in zip(predicted, true, strict=True))
            csv.writer(file).writerows([classification.PREDICTION_COLUMNS, *pairs_in_words])
        write_json(statistics, document)
        _write_model(model, opened, source, document)
        if read_runs(source.path)[-1:] != [document]:
            add_run(source.path, source.fingerprint, document)
    text = ", ".join(in_words(name, value) for name, value in scores.items())
    files = (("wrote", str(path)) for path in (predictions, statistics, model))
    return [("test", f"{text}, on {len(true):,} texts"), *files]


def _document(run: TrainRun, settings: "TrainSettings", source: TextSource, test: Mapping[str, Any]) -> dict[str, Any]:
    state = run.read_state()
    samples = max(1, split_sizes(source.path)[SPLITS[0]]["rows"])
    # Calling a finished run again adds an attempt without updates; its time is not training time.
    results = [attempt.read_result() or {} for attempt in run.attempts()]
    results = [result for result in results if result.get("steps_measured") or result.get("steps_warmup")]
    points = [[row["applied_steps"], row["loss"]] for row in run.read_curve() if row["loss"] is not None]
    evaluations = [
        {"applied_steps": step} | {name: value for name, value in scores_in(event).items() if value is not None}
        for step, event in evaluations_of(run).items()
    ]
    return {
        "format": classification.FORMAT,
        "schema_version": SCHEMA_VERSION,
        "input": source.origin["name"],
        "fingerprint": source.fingerprint,
        "text": {name: source.settings[name] for name in ("lower_case", "max_seq_length", "vocabulary", "vocab_size")},
        "run": {
            "run": str(run.path),
            "checkpoint": (state.best or state).checkpoint,
            "model": settings.preset,
            "begun_from": settings.init,
            "seconds": round(sum(float(result.get("wall_seconds") or 0) for result in results), 1),
            "updates": settings.steps,
            "epochs": round(settings.steps * settings.global_batch_size / samples, 2),
            **{name: getattr(settings, name) for name in _SETTINGS},
        },
        "labels": list(source.labels),
        "label_distribution": label_distribution(source.path),
        "curve": points[:: 1 + len(points) // _MOST_POINTS],
        "evaluations": evaluations,
        "test": test,
    }


def _write_model(folder: Path, opened: "Opened", source: TextSource, document: Mapping[str, Any]) -> None:
    from bert.checkpoints.files import new_folder, save_model

    shutil.rmtree(folder, ignore_errors=True)
    with new_folder(folder) as temporary:
        save_model(temporary, opened.model)
        source.vocabulary.save(temporary / VOCABULARY_FILE)
        write_json(temporary / classification.RESULTS_FILE, document)
