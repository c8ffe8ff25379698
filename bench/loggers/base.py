"""Select, open, feed and close the loggers that receive the scalars of a training."""

import importlib.util
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from bench.loggers import LOGGERS
from common.errors import MissingToolError, UsageError
from common.registry import load, lookup
from records.training import TrainRun

AUTO, NONE = "auto", "none"
"""Values of --log-to: auto selects the loggers that are set up here."""
VARIABLE = "BERTBENCH_LOG_TO"
"""Environment variable that passes --log-to to the ranks; unset means auto."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """The training that is logged."""

    run: TrainRun
    purge_from: int
    """First step of this attempt; it replaces later steps of earlier attempts."""
    settings: Mapping[str, Any]
    """The settings of the training as plain values."""
    run_ids: Mapping[str, str]
    """Ids of the runs that earlier attempts logged to, by logger."""


class Logger(Protocol):
    """Receives scalars on rank 0. `Logger(target)` opens it."""

    package: ClassVar[str]
    """The package it needs."""
    remedy: ClassVar[str]
    """How to install the package."""
    run_id: str | None
    """Id of the run that a resumed training continues; None if there is none to continue."""

    @staticmethod
    def wanted() -> bool:
        """Return whether it logs by default."""

    @staticmethod
    def load() -> None:
        """Import its packages. Raises ImportError."""

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Log finite values by name.

        Raises:
            StorageError: the disk is full; the training ends.
            LostError: the connection is lost; the training continues without this logger.
        """

    def flush(self) -> None:
        """Write or send all pending values. Raises as add does."""

    def close(self, finished: bool) -> None:
        """Flush and close; `finished` says whether the training is complete. Raises as add does."""


class LostError(Exception):
    """A logger lost its connection; the message gives the reason."""


class Loggers:
    """The loggers of an attempt. A lost logger does not stop the training."""

    def __init__(self, loggers: Mapping[str, Logger], warn: Callable[[str], None]) -> None:
        self._loggers = dict(loggers)
        self._warn = warn

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the active loggers."""
        return tuple(self._loggers)

    @property
    def run_ids(self) -> dict[str, str]:
        """Return the ids of the runs that a resumed training continues, by logger."""
        return {name: logger.run_id for name, logger in self._loggers.items() if logger.run_id is not None}

    def add(self, step: int, values: Mapping[str, float | None]) -> None:
        """Log the known, finite values by name. Raises StorageError."""
        known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        self._each(lambda logger: logger.add(step, known))

    def flush(self) -> None:
        """Write or send all pending values. Raises StorageError."""
        self._each(lambda logger: logger.flush())

    def close(self, finished: bool) -> None:
        """Close all loggers. Raises StorageError."""
        self._each(lambda logger: logger.close(finished))

    def _each(self, act: Callable[[Logger], None]) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                act(logger)
            except LostError as error:
                del self._loggers[name]
                self._warn(f"logging to {name} stopped: {error}")


def check_loggers(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the loggers that --log-to selects; None means auto. Imports no logger."""
    if not names:
        return (AUTO,)
    for name in names:
        lookup({**LOGGERS, AUTO: "", NONE: ""}, name, "logger")
    if len(names) > 1 and {AUTO, NONE} & set(names):
        raise UsageError("option-conflict", f"--log-to {' '.join(names)}: give auto or none alone")
    for name in names:
        if name in LOGGERS:
            kind = load(LOGGERS, name, "logger")
            if not _installed(kind.package):
                raise MissingToolError(
                    "package-missing", f"--log-to {name} needs {kind.package}, which is not installed: {kind.remedy}"
                )
    return tuple(dict.fromkeys(names))


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def loaded_loggers(warn: Callable[[str], None]) -> dict[str, Any]:
    """Import the loggers that VARIABLE selects and return their classes by name; imports take seconds.

    Args:
        warn: called for each selected logger that is not installed.
    """
    asked = os.environ.get(VARIABLE, AUTO).split()
    found = {}
    for name in LOGGERS:
        kind = load(LOGGERS, name, "logger")
        if name not in asked and not (AUTO in asked and kind.wanted()):
            continue
        try:
            kind.load()
            found[name] = kind
        except ImportError as error:
            warn(f"not logging to {name} ({error}): {kind.remedy}")
    return found


def open_loggers(kinds: Mapping[str, Any], target: Target, warn: Callable[[str], None]) -> Loggers:
    """Open loggers.

    Args:
        kinds: classes by name, from `loaded_loggers`.
        target: the training that is logged.
        warn: called for each logger that cannot be opened or is lost later.
    """
    opened: dict[str, Logger] = {}
    for name, kind in kinds.items():
        try:
            opened[name] = kind(target)
        except LostError as error:
            warn(f"not logging to {name}: {error}")
    return Loggers(opened, warn)
