"""The study of a search for a score: Optuna's storage in a folder, and the files written from its trials.

    STUDY/study.db       Optuna's storage, which several workers share
    STUDY/trial-0000/    the run directory of a trial and of the trials that continue it
    STUDY/tune.json      results; trials.csv is Optuna's own table
    STUDY/best.json      the best trial; STUDY/best leads to its run directory

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

from bench.search.objective import Objective
from bench.sweep.request import check_same_request
from common import locks
from common.atomic import write_text
from common.errors import MissingToolError, StorageError, UsageError, first_line
from common.reading import read_notes
from common.scores import score
from records.files import write_record
from records.training import TrainRun

HEARTBEAT_SECONDS, GRACE_SECONDS = 10, 60
"""Time between two heartbeats of a trial, and until one without a heartbeat is lost."""
# Also of trials that were stopped and queued again.
_RETRIES = 20
# Another worker writes for milliseconds; the limit is for slow file systems.
_BUSY_SECONDS = 120.0
_STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}


def import_optuna() -> Any:
    """Import Optuna without its log and its warnings of experimental parts. Raises MissingToolError."""
    try:
        import optuna
    except ImportError as error:
        raise MissingToolError(
            "package-missing", f"`bertbench tune --for score` needs Optuna ({error}): pip install 'bertbench[tune]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


@contextlib.contextmanager
def open_study(folder: Path, request: Mapping[str, Any], maximize: bool, pruner: str) -> Iterator[Any]:
    """Open the Optuna study in a folder, created if missing.

    Raises:
        MissingToolError: Optuna is not installed.
        UsageError: the folder has a study with another request.
        StorageError: the storage is damaged, locked or cannot be written, now or in the block of `with`.
    """
    optuna = import_optuna()
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    path = folder / "study.db"
    if "request" in read_notes(folder / "tune.json"):
        raise UsageError("folder-occupied", f"{folder} holds a search for throughput: give another --out")
    try:
        with locks.locked(folder, "another worker", "wait for it", wait=True):
            study = optuna.create_study(
                storage=_storage(path),
                study_name="bertbench",
                direction="maximize" if maximize else "minimize",
                pruner=optuna.pruners.NopPruner()
                if pruner == "none"
                else optuna.pruners.MedianPruner(n_warmup_steps=1),
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


def _storage(path: Path) -> Any:
    storages = import_optuna().storages
    from sqlalchemy.engine import URL

    url = URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)
    return storages.RDBStorage(
        url.replace("{", "{{").replace("}", "}}"),  # Optuna takes it as a template
        engine_kwargs={"connect_args": {"timeout": _BUSY_SECONDS}},
        heartbeat_interval=HEARTBEAT_SECONDS,
        grace_period=GRACE_SECONDS,
        heartbeat_stale_trial_callback=storages.RetryHeartbeatStaleTrialCallback(_RETRIES),
    )


def trials_of(study: Any) -> dict[int, Any]:
    """Return the trials by number; of those that continue one another the last, by the number of the first."""
    return {trial.system_attrs.get("failed_trial", trial.number): trial for trial in study.get_trials(deepcopy=False)}


def put_back(study: Any, number: int) -> None:
    """Queue a trial that continues this one, for the next worker."""
    import_optuna().storages.RetryHeartbeatStaleTrialCallback()(study, study.get_trials()[number])


def trial_run(folder: Path, number: int) -> TrainRun:
    """Return the run directory of a trial."""
    return TrainRun(folder / f"trial-{number:04d}")


def write_results(study: Any, folder: Path, objective: Objective, more: Mapping[str, Any]) -> dict[str, Any]:
    """Write the files of a study, remove the checkpoints of trials that are not the best, and return tune.json.

    Args:
        study: the study.
        folder: its folder.
        objective: what it optimizes.
        more: task, space and training, for tune.json.
    """
    with locks.locked(folder, "another worker", "wait for it", wait=True):
        trials = trials_of(study)
        complete = {
            number: trial
            for number, trial in trials.items()
            if trial.state.name == "COMPLETE" and "same_as" not in trial.user_attrs
        }
        sign = -1.0 if objective.maximize else 1.0
        best = min(complete, key=lambda number: (sign * complete[number].value, number), default=None)
        for number, trial in trials.items():
            lost = trial.state.name == "FAIL" and "reason" not in trial.user_attrs  # Optuna is about to queue it again
            if number != best and trial.state.is_finished() and not lost:
                shutil.rmtree(trial_run(folder, number).checkpoints, ignore_errors=True)
        label = score(objective.name).label
        document = {
            **more,
            "objective": {"name": objective.name, "label": label, "maximize": objective.maximize},
            "trials": [_row(number, trial) for number, trial in trials.items()],
            "best": None if best is None else _export(folder, best, complete[best]),
        }
        write_text(folder / "trials.csv", study.trials_dataframe().to_csv(index=False))
        write_record(folder / "tune.json", document)
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


def _export(folder: Path, number: int, trial: Any) -> dict[str, Any]:
    """Write best.json and the link to the run of a trial; return the trial with the command that repeats it."""
    run = trial_run(folder, number)
    out = folder.with_name(f"{folder.name}-best")
    command = shlex.join(["bertbench", "train", *trial.user_attrs["words"], "--out", str(out)])
    best = {
        **_row(number, trial),
        "command": command,
        "checkpoint": None if (path := run.best_checkpoint()) is None else str(path),
    }
    write_record(folder / "best.json", best)
    link = folder / ".best"
    with contextlib.suppress(OSError):  # some file systems have no links
        link.unlink(missing_ok=True)
        link.symlink_to(run.path.name, target_is_directory=True)
        link.replace(folder / "best")
    return best
