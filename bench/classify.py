"""Results of a trained text classifier: predictions, statistics and model beside its CSV, and a row in its database."""

import csv
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.machine.devices import Devices
from bench.sweep.options import resolve_precision
from bert.data.vocabulary import VOCABULARY_FILE
from bert.tasks.classify.prepare import lock_name
from bert.tasks.classify.source import TEST, ClassifyData, rows_fingerprint, token_rows
from bert.tasks.classify.store import SPLITS, TextSource, add_run, label_distribution, read_runs
from bert.tasks.row_data import TRAINING
from common.atomic import atomic_path, write_json
from common.errors import InputError
from common.locks import locked
from common.scores import scores_in
from records.classification import (
    FORMAT,
    MODEL_ENDING,
    PREDICTION_COLUMNS,
    PREDICTIONS_ENDING,
    RESULTS_FILE,
    SCHEMA_VERSION,
    STATISTICS_ENDING,
)
from records.training import TrainRun, read_events

if TYPE_CHECKING:
    from bert.data.rows import TokenRows
    from bert.predict import Opened
    from bert.train.settings import TrainSettings

_MOST_POINTS = 2000
"""Most points of the loss curve; a longer curve is averaged."""


@dataclass(frozen=True, slots=True)
class Left:
    """Files and scores of a finished classifier."""

    paths: tuple[Path, ...]
    """Predictions, statistics and model folder."""
    scores: Mapping[str, float]
    """Scores on the test split, by name."""
    texts: int


def leave_results(
    run: TrainRun, settings: "TrainSettings", devices: Devices, threads: int | None, warn: Callable[[str], None]
) -> Left:
    """Test the best model of a finished run on the test split, and write the results beside its database.

    One process at a time writes the files of one database. Each file is written atomically.
    """
    from bert.tasks.base import DataIdentity
    from bert.tasks.classify.task import ClassifyTask, class_scores, text_probabilities

    source, found = ClassifyData().texts(Path(settings.data), TEST)
    rows = token_rows(source, found, TEST)
    _check_trained_on(run, source, warn)
    task = ClassifyTask(labels=len(source.labels))
    data = DataIdentity(source=settings.data, vocab_size=rows.vocab_size, vocabulary=rows.vocabulary)
    from bert.predict import open_model

    opened = open_model(run.best_checkpoint() or run.checkpoints, task, data, warn)
    logits = logits_of(opened, rows, task.labels, devices, settings.precision, settings.micro_batch_size, threads)
    first, shares = text_probabilities(logits, found.texts)
    true = found.labels[first]
    scores = class_scores(shares, true)
    given = shares.argmax(axis=1)
    pairs = Counter(zip(true.tolist(), given.tolist(), strict=True))
    document = _document(run, settings, source, scores, pairs)
    root = source.path.with_suffix("")
    paths = tuple(
        root.with_name(f"{root.name}{ending}") for ending in (PREDICTIONS_ENDING, STATISTICS_ENDING, MODEL_ENDING)
    )
    with locked(root.parent, "another training", "wait for it", wait=True, name=lock_name(source.path), remove=True):
        earlier = _earlier_run(paths[1])
        document["run"]["instead_of"] = earlier.get("instead_of") if earlier.get("run") == str(run.path) else None
        if earlier.get("run") not in (None, str(run.path)):
            document["run"]["instead_of"] = earlier["run"]
            warn(
                f"results of {run.path} replaced those of {earlier['run']} beside {source.path}; to keep both, use "
                "another CSV or `bertbench data csv --output`"
            )
        _write_predictions(paths[0], [source.labels[code] for code in given], [source.labels[code] for code in true])
        write_json(paths[1], document)
        _write_model(paths[2], opened, source, document)
        if read_runs(source.path)[-1:] != [document]:
            add_run(source.path, source.fingerprint, document)
    return Left(paths, scores, len(true))


def _earlier_run(statistics: Path) -> Mapping[str, Any]:
    try:
        return dict(json.loads(statistics.read_text(encoding="utf-8"))["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _check_trained_on(run: TrainRun, source: TextSource, warn: Callable[[str], None]) -> None:
    """Raise InputError if the database changed after the training, since its splits may differ."""
    from bert.tasks.base import DataIdentity
    from bert.train.resume import find_weights

    trained = find_weights(run.checkpoints, DataIdentity(source=str(source.path)), warn, "it is tested", whole=False)
    before = trained.checkpoint.state.data.fingerprint if trained.checkpoint is not None else None
    if before is not None and before != rows_fingerprint(source, TRAINING):
        raise InputError(
            "data-mismatch",
            f"{source.path} changed after {run.path} was trained on it, so its test texts may have been trained on: "
            "train with another --out, or make the database again with the original options",
        )


def logits_of(
    opened: "Opened",
    rows: "TokenRows",
    classes: int,
    devices: Devices,
    precision: str,
    batch_size: int,
    threads: int | None = None,
) -> Any:
    """Return the logits [N, K] of rows, computed in this process on one device."""
    import torch

    from bert.optim.precision import Precision
    from bert.parallel.single import SingleStrategy
    from bert.tasks.base import Ready
    from bert.tasks.evaluation import check_logits, row_logits

    if threads is not None:
        torch.set_num_threads(threads)
    strategy = SingleStrategy.alone(devices.kind)  # this process is still a rank after a launched training
    chosen = Precision(resolve_precision(precision, devices), devices.kind)
    model = opened.model.to(strategy.device)
    logits = row_logits(Ready(model, strategy.device, chosen, batch_size), rows, classes)
    check_logits(logits)
    return logits


def _document(
    run: TrainRun,
    settings: "TrainSettings",
    source: TextSource,
    scores: Mapping[str, float],
    pairs: Mapping[tuple[int, int], int],
) -> dict[str, Any]:
    state = run.read_state() or {}
    return {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "input": source.origin["name"],
        "fingerprint": source.fingerprint,
        "text": {name: source.settings[name] for name in ("lower_case", "max_seq_length", "vocabulary", "vocab_size")},
        "run": _about(run, settings, source, state),
        "labels": list(source.labels),
        "label_distribution": label_distribution(source.path),
        "curve": _curve(run),
        "evaluations": _evaluations(run),
        "test": {
            **scores,
            "texts": sum(pairs.values()),
            "confusion": [[source.labels[true], source.labels[given], n] for (true, given), n in sorted(pairs.items())],
        },
    }


def _about(
    run: TrainRun, settings: "TrainSettings", source: TextSource, state: Mapping[str, Any]
) -> dict[str, str | int | float | None]:
    # Calling a finished run again adds an attempt without updates; its time is not training time.
    results = [attempt.read_result() or {} for attempt in run.attempts()]
    seconds = [
        float(result.get("wall_seconds") or 0)
        for result in results
        if result.get("steps_measured") or result.get("steps_warmup")
    ]
    return {
        "run": str(run.path),
        "checkpoint": (state.get("best") or state).get("checkpoint"),
        "model": settings.preset,
        "begun_from": settings.init,
        "seconds": round(sum(seconds), 1),
        "updates": settings.steps,
        "epochs": round(settings.steps * settings.global_batch_size / max(1, _samples(source)), 2),
        "global_batch_size": settings.global_batch_size,
        "learning_rate": settings.learning_rate,
        "precision": settings.precision,
        "world_size": settings.world_size,
        "seed": settings.seed,
    }


def _samples(source: TextSource) -> int:
    from bert.tasks.classify.store import split_sizes

    return split_sizes(source.path)[SPLITS[0]]["rows"]


def _curve(run: TrainRun) -> list[list[float]]:
    points = [(row["applied_steps"], row["loss"]) for row in run.read_curve() if row["loss"] is not None]
    if len(points) <= _MOST_POINTS:
        return [[step, loss] for step, loss in points]
    parts = np.array_split(np.array(points, dtype=np.float64), _MOST_POINTS)
    return [[int(part[-1, 0]), float(part[:, 1].mean())] for part in parts]


def _evaluations(run: TrainRun) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for attempt in run.attempts():
        for event in read_events(attempt):
            if event["event"] == "evaluated":
                own = {name: value for name, value in scores_in(event).items() if value is not None}
                found[event["applied_steps"]] = {"applied_steps": event["applied_steps"], **own}
    return [found[step] for step in sorted(found)]


def _write_predictions(path: Path, given: Sequence[str], true: Sequence[str]) -> None:
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(PREDICTION_COLUMNS)
        writer.writerows(zip(given, true, strict=True))


def _write_model(folder: Path, opened: "Opened", source: TextSource, document: Mapping[str, Any]) -> None:
    from bert.checkpoints.folder import new_folder
    from bert.checkpoints.ours import save_model

    whole = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(whole, ignore_errors=True)
    with new_folder(whole) as temporary:
        save_model(temporary, opened.model)
        source.vocabulary.save(temporary / VOCABULARY_FILE)
        write_json(temporary / RESULTS_FILE, document)
    before = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(before, ignore_errors=True)
    if folder.exists():
        folder.rename(before)
    whole.rename(folder)
    shutil.rmtree(before, ignore_errors=True)
