"""The one observer that hands scalars to loggers: which ones are asked for, opened, fed and closed."""

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
"""Words of --log-to: those that want to log here, and none."""
VARIABLE = "BERTBENCH_LOG_TO"
"""Environment variable: what --log-to was given, for the ranks; absent it is auto."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What is logged."""

    run: TrainRun
    purge_from: int
    """First step that this attempt logs: an earlier attempt's later ones are replaced."""
    settings: Mapping[str, Any]
    """The settings of the training, plain values."""


class Logger(Protocol):
    """Takes scalars on rank 0. `Logger(target)` opens it."""

    package: ClassVar[str]
    """What has to be installed."""
    remedy: ClassVar[str]
    """How to install it."""

    @staticmethod
    def wanted() -> bool:
        """Whether it logs where nobody asked for a logger."""

    @staticmethod
    def load() -> None:
        """Import what it needs. Raises ImportError."""

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take finite values by name.

        Raises:
            StorageError: the disk is full: the training ends.
            LostError: the values go nowhere: the training goes on without this logger.
        """

    def flush(self) -> None:
        """Bring everything taken so far to where it belongs. Raises as add."""

    def close(self, finished: bool) -> None:
        """Write out and close; `finished` says whether the training came to its end. Raises as add."""


class LostError(Exception):
    """A logger lost its connection; the message says why."""


class Loggers:
    """The loggers of an attempt. One that gets lost costs its scalars and no training."""

    def __init__(self, loggers: Mapping[str, Logger], warn: Callable[[str], None]) -> None:
        self._loggers = dict(loggers)
        self._warn = warn

    @property
    def names(self) -> tuple[str, ...]:
        """Those that log."""
        return tuple(self._loggers)

    def add(self, step: int, values: Mapping[str, float | None]) -> None:
        """Add the values that are known and finite, by name. Raises StorageError."""
        known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
        self._each(lambda logger: logger.add(step, known))

    def flush(self) -> None:
        """Bring everything added so far to where it belongs. Raises StorageError."""
        self._each(lambda logger: logger.flush())

    def close(self, finished: bool) -> None:
        """Close all. Raises StorageError."""
        self._each(lambda logger: logger.close(finished))

    def _each(self, act: Callable[[Logger], None]) -> None:
        for name, logger in list(self._loggers.items()):
            try:
                act(logger)
            except LostError as error:
                del self._loggers[name]
                self._warn(f"nothing more is sent to {name}: {error}")


def check_loggers(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return what --log-to asks for; None is auto. Imports no logger.

    Raises:
        UsageError: no such logger, or auto or none beside others.
        MissingToolError: one that is asked for is not installed.
    """
    if not names:
        return (AUTO,)
    for name in names:
        lookup({**LOGGERS, AUTO: "", NONE: ""}, name, "logger")
    if len(names) > 1 and {AUTO, NONE} & set(names):
        raise UsageError("option-conflict", f"--log-to {' '.join(names)}: auto and none go with no others")
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
    """Import the loggers that VARIABLE asks for and return their classes by name; imports take seconds.

    Args:
        warn: told of each that would log and is not installed.
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
            warn(f"nothing is logged to {name} ({error}): {kind.remedy}")
    return found


def open_loggers(kinds: Mapping[str, Any], target: Target, warn: Callable[[str], None]) -> Loggers:
    """Open loggers.

    Args:
        kinds: as `loaded_loggers` returns them.
        target: what is logged.
        warn: told of each that cannot be opened, and later of each that gets lost.

    Raises:
        StorageError: a logger cannot write its files.
    """
    opened: dict[str, Logger] = {}
    for name, kind in kinds.items():
        try:
            opened[name] = kind(target)
        except LostError as error:
            warn(f"nothing is sent to {name}: {error}")
    return Loggers(opened, warn)
