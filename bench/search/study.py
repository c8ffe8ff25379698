"""The study of a search for a score: Optuna's storage in a folder, and the files written from its trials.

    STUDY/study.db       Optuna's storage, which several workers share
    STUDY/trial-0000/    the run directory of a trial and of the trials that continue it
    STUDY/tune.json      results; trials.csv is Optuna's own table
    STUDY/best.json      the best trial and the command that repeats it

A worker writes a heartbeat while a trial runs. Optuna fails a trial whose heartbeat has stopped and queues another
one with the same values, which resumes the training from its last checkpoint.
"""

import contextlib
import shlex
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.sweep.request import check_same_request
from common import locks
from common.atomic import write_text
from common.errors import StorageError, first_line
from common.scores import score
from records.files import write_record
from records.training import TrainRun

# Time between two heartbeats of a trial, and until one without a heartbeat is lost.
_HEARTBEAT_SECONDS, _GRACE_SECONDS = 10, 60
LOST_SECONDS = _HEARTBEAT_SECONDS + _GRACE_SECONDS
"""Longest time until the trial of a killed worker is lost."""
# Also of trials that were stopped and queued again.
_RETRIES = 20
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


@contextlib.contextmanager
def open_study(folder: Path, request: Mapping[str, Any], maximize: bool, pruner: str) -> Iterator[Any]:
    """Open the Optuna study in a folder, created if missing.

    Raises:
        UsageError: the folder has a study with another request.
        StorageError: the storage is damaged, locked or cannot be written, now or in the block of `with`.
    """
    import optuna
    from optuna.exceptions import ExperimentalWarning, StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    path = folder / "study.db"
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=ExperimentalWarning)
    nop, median = optuna.pruners.NopPruner, optuna.pruners.MedianPruner
    try:
        with locks.locked(folder, "another worker", "wait for it", wait=True):
            storage = optuna.storages.RDBStorage(
                f"sqlite:///{path}",
                engine_kwargs={"connect_args": {"timeout": 120}},  # in s, for slow file systems
                heartbeat_interval=_HEARTBEAT_SECONDS,
                grace_period=_GRACE_SECONDS,
                heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(_RETRIES),
            )
            study = optuna.create_study(
                storage=storage,
                study_name="bertbench",
                direction="maximize" if maximize else "minimize",
                pruner=nop() if pruner == "none" else median(n_warmup_steps=1),
                load_if_exists=True,
            )
            check_same_request(folder, study.user_attrs.get("request", {}), request)
            study.set_user_attr("request", dict(request))
        yield study
    except (StorageInternalError, SQLAlchemyError) as error:
        reason = first_line(error.__cause__ or error)
        raise StorageError(
            "write-failed", f"{path} cannot be used ({reason}): repair it, or give another --out"
        ) from error


def trials_of(study: Any) -> dict[int, Any]:
    """Return the trials by number; of those that continue one another the last, by the number of the first."""
    return {trial.system_attrs.get("failed_trial", trial.number): trial for trial in study.get_trials(deepcopy=False)}


def put_back(study: Any, number: int) -> None:
    """Queue a trial that continues this one, for the next worker."""
    from optuna.storages import RetryHeartbeatStaleTrialCallback

    RetryHeartbeatStaleTrialCallback()(study, study.get_trials()[number])


def trial_run(folder: Path, number: int) -> TrainRun:
    """Return the run directory of a trial."""
    return TrainRun(folder / f"trial-{number:04d}")


def write_results(study: Any, folder: Path, objective: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """Write the files of a study, remove the checkpoints of trials that are not the best, and return tune.json.

    Args:
        study: the study.
        folder: its folder.
        objective: the score that it optimizes.
        about: task, space and training, for tune.json.
    """
    with locks.locked(folder, "another worker", "wait for it", wait=True):
        trials = trials_of(study)
        maximize = study.direction.name == "MAXIMIZE"
        order = sorted(trials, key=lambda number: trials[number].number)
        complete = [number for number in order if trials[number].state.name == "COMPLETE"]
        # Of equal ones the first: a repeated trial has no training of its own.
        best = (max if maximize else min)(complete, key=lambda number: trials[number].value, default=None)
        for number, trial in trials.items():
            ended = trial.state.name in ("COMPLETE", "PRUNED") or "reason" in trial.user_attrs  # others may resume
            if ended and number != best:
                shutil.rmtree(trial_run(folder, number).checkpoints, ignore_errors=True)
        document = {
            **about,
            "objective": {"name": objective, "label": score(objective).label, "maximize": maximize},
            "trials": [_row(number, trial) for number, trial in trials.items()],
            "best": None if best is None else _best(folder, best, trials[best]),
        }
        write_text(folder / "trials.csv", study.trials_dataframe().to_csv(index=False))
        write_record(folder / "tune.json", document)
        if document["best"] is not None:
            write_record(folder / "best.json", document["best"])
    return document


def _row(number: int, trial: Any) -> dict[str, Any]:
    reason = "its worker was lost" if trial.state.name == "FAIL" else ""
    return {
        "number": number,
        "state": _STATES[trial.state.name],
        "value": trial.value,
        "values": dict(trial.params),
        "readings": [[step, value if value == value else None] for step, value in trial.intermediate_values.items()],
        "seconds": trial.duration.total_seconds() if trial.duration else None,
        "reason": trial.user_attrs.get("reason", reason),
        "resumed": len(trial.system_attrs.get("retry_history", ())),
        "same_as": trial.user_attrs.get("same_as"),
        "folder": f"trial-{number:04d}",
    }


def _best(folder: Path, number: int, trial: Any) -> dict[str, Any]:
    """Return the best trial with its checkpoint and the command that repeats it."""
    out = folder.with_name(f"{folder.name}-best")
    checkpoint = trial_run(folder, number).best_checkpoint()
    return {
        **_row(number, trial),
        "command": shlex.join(["bertbench", "train", *trial.user_attrs["words"], "--out", str(out)]),
        "checkpoint": None if checkpoint is None else str(checkpoint),
    }
