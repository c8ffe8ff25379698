"""Optuna as studies use it: found or not, its storage opened, its errors in words, samplers and pruners made."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.tune.question import Search
from common.errors import Code, InputError, MissingToolError, StorageError

# Another worker writes for milliseconds; a file system that is slow or stuck needs a limit.
_BUSY_SECONDS = 120.0
REMEDY = "pip install 'bertbench[tune]'"


def storage_path(folder: Path) -> Path:
    """The storage of the study in a folder."""
    return folder / "study.db"


def trial_folder(folder: Path, number: int) -> Path:
    """The run directory of a trial."""
    return folder / f"trial-{number:04d}"


def import_optuna() -> Any:
    """Import Optuna, quiet. Raises MissingToolError."""
    try:
        import optuna
    except ImportError as error:
        raise MissingToolError(
            "package-missing", f"`bertbench tune` needs Optuna, which is not installed ({error}): {REMEDY}"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_storage(folder: Path) -> Any:
    """Return Optuna's storage in a folder, made where there is none.

    Raises:
        InputError: it is damaged, or of another version of Optuna.
        StorageError: it is locked, or cannot be opened.
    """
    optuna = import_optuna()
    from sqlalchemy.engine import URL

    path = storage_path(folder)
    url = URL.create("sqlite", database=str(path)).render_as_string(hide_password=False)
    try:
        with storage_errors(folder):
            # Braces would be a template of Optuna's.
            return optuna.storages.RDBStorage(
                url.replace("{", "{{").replace("}", "}}"), engine_kwargs={"connect_args": {"timeout": _BUSY_SECONDS}}
            )
    except RuntimeError as error:  # written by another version of Optuna
        raise InputError("tool-version", f"{path} cannot be read by this Optuna: {_first_line(error)}") from error


@contextlib.contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the storage in a folder into one with the way out.

    Raises:
        InputError: it is damaged.
        StorageError: it is locked, or cannot be read or written now: what is in it may be whole.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    path = storage_path(folder)
    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        said = _first_line(_first_cause(error))
        if any(word in said for word in _DAMAGED):
            raise InputError("file-damaged", _damaged(path, said)) from error
        code: Code = "disk-full" if "disk is full" in said else "write-failed"
        remedy = "see to disk and permissions"
        if "is locked" in said:
            code, remedy = "folder-locked", "another program has held it for minutes: end that one"
        raise StorageError(
            code, f"{path} cannot be used ({said}): {remedy}, then run the same command again"
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:  # of what Optuna has in it
        raise InputError("file-damaged", _damaged(path, _first_line(error))) from error


# What SQLite says of a file whose content is at fault; all else may pass.
_DAMAGED = ("malformed", "not a database", "no such table", "no such column", "file format", "Could not decode")


def _damaged(path: Path, said: str) -> str:
    return f"{path} is no storage of a study, or damaged ({said}): restore or remove it, or give another --out"


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def make_sampler(search: Search, number: int) -> Any:
    """A sampler whose draws depend on the seed and the trial alone, not on what this process drew before."""
    optuna = import_optuna()
    own = int.from_bytes(hashlib.sha256(f"{search.seed}/{number}".encode()).digest()[:4], "big")
    if search.sampler == "random":
        return optuna.samplers.RandomSampler(seed=own)
    return optuna.samplers.TPESampler(seed=own, n_startup_trials=search.startup_trials)


def make_pruner(search: Search) -> Any:
    """Return what decides which trials end early."""
    optuna = import_optuna()
    if search.pruner == "none":
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(n_startup_trials=search.prune_after, n_warmup_steps=search.unpruned_readings)


def make_evaluator(name: str, seed: int) -> Any:
    """Return Optuna's evaluator of importance by a name in EVALUATORS. Raises ImportError without what it needs."""
    importance = import_optuna().importance
    if name == "fanova":
        return importance.FanovaImportanceEvaluator(seed=seed)
    if name == "mdi":
        return importance.MeanDecreaseImpurityImportanceEvaluator(seed=seed)
    return importance.PedAnovaImportanceEvaluator()
