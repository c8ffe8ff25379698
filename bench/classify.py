"""Results of a trained text classifier: predictions, statistics and model beside its CSV, and a row in its database."""

import csv
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.machine.devices import Devices
from bench.sweep.options import resolve_precision
from bert.data.vocabulary import VOCABULARY_FILE
from bert.tasks.classify.prepare import lock_name
from bert.tasks.classify.source import TEST, ClassifyData, rows_fingerprint, token_rows
from bert.tasks.classify.store import SPLITS, TextSource, add_run, label_distribution, read_runs, split_sizes
from bert.tasks.row_data import TRAINING
from common.atomic import atomic_path, write_json
from common.errors import InputError
from common.locks import locked
from common.scores import in_words, scores_in
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


def leave_results(
    run: TrainRun, settings: "TrainSettings", devices: Devices, threads: int | None, warn: Callable[[str], None]
) -> list[tuple[str, str]]:
    """Test the best model of a finished run on the test split, write the results beside its database, return the facts.

    One process at a time writes the files of one database. Each file is written atomically.
    """
    from bert.predict import open_model
    from bert.tasks.base import DataIdentity
    from bert.tasks.classify.task import ClassifyTask, class_scores, text_probabilities

    source, texts = ClassifyData().texts(Path(settings.data), TEST)
    rows = token_rows(source, texts, TEST)
    check_trained_on(run, source, warn)
    task = ClassifyTask(labels=len(source.labels))
    data = DataIdentity(source=settings.data, vocab_size=rows.vocab_size, vocabulary=rows.vocabulary)
    opened = open_model(run.best_checkpoint() or run.checkpoints, task, data, warn)
    logits = logits_of(opened, rows, task.labels, devices, settings.precision, settings.micro_batch_size, threads)
    first, shares = text_probabilities(logits, texts.texts)
    true = [source.labels[code] for code in texts.labels[first]]
    predicted = [source.labels[code] for code in shares.argmax(axis=1)]
    scores = class_scores(shares, texts.labels[first])
    pairs = Counter(zip(texts.labels[first].tolist(), shares.argmax(axis=1).tolist(), strict=True))
    test = {
        **scores,
        "texts": len(true),
        "confusion": [[source.labels[one], source.labels[other], n] for (one, other), n in sorted(pairs.items())],
    }
    document = _document(run, settings, source, test)
    root = source.path.with_suffix("")
    endings = (PREDICTIONS_ENDING, STATISTICS_ENDING, MODEL_ENDING)
    predictions, statistics, model = (root.with_name(f"{root.name}{ending}") for ending in endings)
    with locked(root.parent, "another training", "wait for it", wait=True, name=lock_name(source.path), remove=True):
        earlier = _run_of(statistics)
        replaced = earlier.get("instead_of") if earlier.get("run") == str(run.path) else earlier.get("run")
        document["run"]["instead_of"] = replaced
        if replaced and earlier.get("run") == replaced:
            warn(f"results of {run.path} replaced those of {replaced} beside {source.path}")
        with atomic_path(predictions) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([PREDICTION_COLUMNS, *zip(predicted, true, strict=True)])
        write_json(statistics, document)
        _write_model(model, opened, source, document)
        if read_runs(source.path)[-1:] != [document]:
            add_run(source.path, source.fingerprint, document)
    text = ", ".join(in_words(name, value) for name, value in scores.items())
    files = (("wrote", str(path)) for path in (predictions, statistics, model))
    return [("test", f"{text}, on {len(true):,} texts"), *files]


def _run_of(statistics: Path) -> Mapping[str, Any]:
    try:
        return dict(json.loads(statistics.read_text(encoding="utf-8"))["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def check_trained_on(run: TrainRun, source: TextSource, warn: Callable[[str], None]) -> None:
    """Refuse a database that changed after the training, since its splits may differ. Raises InputError."""
    from bert.tasks.base import DataIdentity
    from bert.train.resume import find_weights

    trained = find_weights(run.checkpoints, DataIdentity(source=str(source.path)), warn, "it is tested", whole=False)
    before = trained.checkpoint.state.data.fingerprint if trained.checkpoint is not None else None
    if before not in (None, rows_fingerprint(source, TRAINING)):
        raise InputError(
            "data-mismatch",
            f"{source.path} changed after {run.path} was trained on it, so its test texts may have been trained on: "
            "train with another --out",
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
    logits = row_logits(Ready(opened.model.to(strategy.device), strategy.device, chosen, batch_size), rows, classes)
    check_logits(logits)
    return logits


def _document(run: TrainRun, settings: "TrainSettings", source: TextSource, test: Mapping[str, Any]) -> dict[str, Any]:
    state = run.read_state()
    samples = max(1, split_sizes(source.path)[SPLITS[0]]["rows"])
    # Calling a finished run again adds an attempt without updates; its time is not training time.
    results = [attempt.read_result() or {} for attempt in run.attempts()]
    results = [result for result in results if result.get("steps_measured") or result.get("steps_warmup")]
    evaluations = {
        event["applied_steps"]: {name: value for name, value in scores_in(event).items() if value is not None}
        for attempt in run.attempts()
        for event in read_events(attempt)
        if event["event"] == "evaluated"
    }
    return {
        "format": FORMAT,
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
        "curve": _curve(run),
        "evaluations": [{"applied_steps": step, **evaluations[step]} for step in sorted(evaluations)],
        "test": test,
    }


_SETTINGS = ("global_batch_size", "learning_rate", "precision", "world_size", "seed")


def _curve(run: TrainRun) -> list[list[float]]:
    points = [[row["applied_steps"], row["loss"]] for row in run.read_curve() if row["loss"] is not None]
    if len(points) <= _MOST_POINTS:
        return points
    parts = np.array_split(np.array(points, dtype=np.float64), _MOST_POINTS)
    return [[int(part[-1, 0]), float(part[:, 1].mean())] for part in parts]


def _write_model(folder: Path, opened: "Opened", source: TextSource, document: Mapping[str, Any]) -> None:
    from bert.checkpoints.folder import new_folder
    from bert.checkpoints.ours import save_model

    whole, before = (folder.with_name(f".{folder.name}.{ending}") for ending in ("new", "old"))
    for left in (whole, before):
        shutil.rmtree(left, ignore_errors=True)
    with new_folder(whole) as temporary:
        save_model(temporary, opened.model)
        source.vocabulary.save(temporary / VOCABULARY_FILE)
        write_json(temporary / RESULTS_FILE, document)
    if folder.exists():
        folder.rename(before)
    whole.rename(folder)
    shutil.rmtree(before, ignore_errors=True)
