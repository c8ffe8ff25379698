"""The results of a study as plain values: tune.json, the source of the table."""

import shlex
from pathlib import Path
from typing import Any

from bench.tune.study import Search, Study, TrialRow, trial_folder
from bert.data.lengths import is_synthetic
from common.errors import SchemaError
from common.scores import score
from records.classification import MODEL_ENDING, PREDICTIONS_ENDING, STATISTICS_ENDING, root_of
from records.files import read_record
from records.training import TrainRun

FILE = "tune.json"


def document(study: Study, search: Search, trials: int | None) -> dict[str, Any]:
    """Return the results of a study.

    Args:
        study: the study.
        search: how this call chose trials.
        trials: number of trials in the whole study; None for no limit.

    Raises:
        StorageError: the storage cannot be read.
    """
    question = study.question
    best = study.best()
    return {
        "task": question.task,
        "objective": {
            "name": question.objective,
            "label": "training loss" if question.objective == "loss" else score(question.objective).label,
            "maximize": question.maximize,
        },
        "space": dict(question.space),
        "training": {name: value for name, value in question.training.items() if value is not None},
        "search": {
            "sampler": search.sampler, "seed": search.seed, "startup_trials": search.startup_trials,
            "pruner": search.pruner, "trials": trials,
        },
        "trials": [_trial(study.folder, row) for row in study.rows()],
        "best": None if best is None else _best(study, best),
    }  # fmt: skip


def command(study: Study, row: TrialRow) -> list[str]:
    """Return the command that repeats the training of a trial, in a folder beside the study."""
    out = study.folder.with_name(f"{study.folder.name}-trial-{row.number}")
    return ["bertbench", "train", *row.words, "--out", str(out)]


def _best(study: Study, row: TrialRow) -> dict[str, Any]:
    again = {"command": shlex.join(command(study, row)), "replaces": replaced(study, row)}
    return {**_trial(study.folder, row), **again}


def replaced(study: Study, row: TrialRow) -> list[str]:
    """Return the files outside its folder that `command` replaces: the results of classify."""
    data = row.values.get("data", study.question.training.get("data"))
    if study.question.task != "classify" or data is None or is_synthetic(str(data)):
        return []
    root = root_of(Path(str(data)))
    return [
        str(root.with_name(f"{root.name}{ending}")) for ending in (MODEL_ENDING, PREDICTIONS_ENDING, STATISTICS_ENDING)
    ]


def _trial(folder: Path, row: TrialRow) -> dict[str, Any]:
    own = trial_folder(folder, row.number)
    return {
        "number": row.number,
        "state": row.state,
        "value": row.value,
        "values": dict(row.values),
        "readings": [[number, value] for number, value in row.readings],
        "seconds": _seconds(TrainRun(own)),
        "reason": row.reason,
        "killed": row.killed,
        "same_as": row.same_as,
        "folder": own.name,
    }


def _seconds(run: TrainRun) -> float | None:
    """Total time in s of all attempts that ended; None if there are none."""
    found = []
    for directory in run.run.trials():
        try:
            found.append(float(read_record(directory.result_json).get("wall_seconds") or 0.0))
        except (SchemaError, ValueError, TypeError):
            continue
    return sum(found) if found else None
