"""Predictions that a later measurement can check: the file predictions.jsonl of a run directory.

    runs/<name>/predictions.jsonl    one prediction per line, the earliest first

A line is a JSON object with the fields of `Prediction`. The file is replaced as a whole by a rename, and lines that
cannot be read are kept as they are. Run directories from before it existed have none.
"""

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from common.atomic import atomic_path, storage_errors
from common.errors import BertbenchError, InputError, SchemaError, content_code
from common.locks import locked
from common.reading import read_regular
from records.files import MOST_TABLE_BYTES, SCHEMA_VERSION
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial

PREDICTIONS_FILE = "predictions.jsonl"
KINDS = {
    "projection": "step time on more devices than were measured (bertbench report --project)",
    "what_if": "lowest time per sample after a change that an answer advises",
    "memory": "peak memory of a rank from shapes alone, before the trial",
    "memory_corrected": "peak memory of a rank from shapes and smaller trials (bertbench autotune)",
    "floor": "lowest possible step time (bertbench speed-of-light)",
}
"""What is predicted, by kind."""
UNITS = {"step_time_ms": "ms", "sample_time_ms": "ms", "peak_memory_bytes": "B"}
"""Quantities with their units. sample_time_ms is step_time_ms / samples of a step of all ranks."""
BOUNDS = ("", "lower")
_HOW_MEASURED = (
    "kind", "round", "start_iteration", "stop_iteration", "min_steps", "max_steps", "max_seconds",
    "relative_half_width", "memory_limit_bytes", "profiler", "profiler_options", "training", "collective",
)  # fmt: skip
_LOCK = ".predictions.lock"
_COLLECTED = f"nodes/*/{PREDICTIONS_FILE}"
"""Files of other nodes, where `bertbench collect` puts those that differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """A trial that a prediction was computed from."""

    trial_id: str
    start_ns: int | None = None
    """Unix time in ns at which its first step began: distinguishes repetitions of a trial; None if it has no steps."""

    def is_of(self, other: "Origin") -> bool:
        """Whether both are one measurement, also in a copy of its run directory."""
        same_start = None in (self.start_ns, other.start_ns) or self.start_ns == other.start_ns
        return self.trial_id == other.trial_id and same_start


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """A value that a measurement of `trial` on `machine` can check."""

    kind: str
    """A name in KINDS."""
    quantity: str
    """A name in UNITS, whose unit `value`, `low` and `high` have."""
    value: float
    """Above 0."""
    low: float | None = None
    """Lower end of its 95 % interval; None if the prediction has none."""
    high: float | None = None
    bound: str = ""
    """"lower" if a measurement can only be at or above `value`; "" if it is expected there."""
    trial: Trial
    """The configuration that it is about. How it is measured (round, window, limits) has no meaning."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """What `machine_of` returned of the environment."""
    origins: tuple[Origin, ...] = ()
    """The measurements that it was computed from; they cannot check it. Empty if it was computed from none."""
    basis: str = ""
    """How it was computed and what it assumes."""
    made: str = ""
    """When: ISO 8601, UTC, seconds."""
    version: str = ""
    """Version of bertbench that made it."""

    def __post_init__(self) -> None:
        """Refuse a record that no prediction can be. Raises SchemaError."""
        numbers = [value for value in (self.value, self.low, self.high) if value is not None]
        finite = all(isinstance(value, int | float) and math.isfinite(value) for value in numbers)
        known = self.kind in KINDS and self.quantity in UNITS and self.bound in BOUNDS
        if not (known and finite and self.value > 0):
            raise SchemaError(
                "file-damaged",
                f"no prediction: kind {self.kind!r}, quantity {self.quantity!r}, bound {self.bound!r}, value "
                f"{self.value!r} ({self.low!r} to {self.high!r})",
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, with the schema version and the unit."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "quantity": self.quantity,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "unit": UNITS[self.quantity],
            "bound": self.bound,
            "trial": self.trial.to_json(),
            "machine": dict(self.machine),
            "origins": [{"trial_id": one.trial_id, "start_ns": one.start_ns} for one in self.origins],
            "basis": self.basis,
            "made": self.made,
            "version": self.version,
        }

    @classmethod
    def from_json(cls, record: Any) -> "Prediction":
        """Read what `to_json` returned. Raises SchemaError for anything else, and for a newer version."""
        version = record.get("schema_version") if isinstance(record, dict) else None
        if not isinstance(version, int) or isinstance(version, bool):
            raise SchemaError("record-foreign", "it has no schema_version")
        if version > SCHEMA_VERSION:
            raise SchemaError("record-newer", f"it has schema_version {version}, newer than {SCHEMA_VERSION}")
        try:
            values: dict[str, Any] = {name: record[name] for name in ("value", "low", "high")}
            values |= {name: str(record[name]) for name in ("kind", "quantity", "bound", "basis", "made", "version")}
            return cls(
                **values,
                trial=Trial.from_json(record["trial"]),
                machine=dict(record["machine"]),
                origins=tuple(Origin(trial_id=str(o["trial_id"]), start_ns=o["start_ns"]) for o in record["origins"]),
            )
        except BertbenchError as error:
            raise SchemaError("file-damaged", str(error)) from error
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise SchemaError("file-damaged", f"{type(error).__name__}: {error}") from error

    @property
    def content(self) -> str:
        """What is predicted, of what and from what, as text: equal where a command repeats its prediction."""
        record = {name: value for name, value in self.to_json().items() if name not in ("made", "version")}
        return json.dumps(record, sort_keys=True)


def configuration_of(trial: Trial) -> Trial:
    """Return what a trial trains, with nothing that says how it is measured: the same for its rounds and probes."""
    usual = Trial()
    return dataclasses.replace(trial, **{name: getattr(usual, name) for name in _HOW_MEASURED})


def machine_of(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what has to agree before two measurements are those of one kind of machine.

    Args:
        environment: env.json of a trial.
    """
    cpu = environment.get("cpu") or {}
    return {
        "device_name": environment.get("device_name"),
        "cpu": cpu.get("model"),
        "cores": cpu.get("physical_cores"),
        "usable_cores": cpu.get("usable_cores"),
        "gpus": len(environment.get("gpus") or []),
    }


def origin_of(directory: TrialDirectory, trial_id: str) -> Origin:
    """Return a measured trial as an origin of predictions. Raises SchemaError if its steps are damaged."""
    starts = [row["start_ns"] for rank in directory.ranks() for row in directory.read_steps(rank)[:1]]
    return Origin(trial_id=trial_id, start_ns=min((start for start in starts if start is not None), default=None))


def predictions_path(run: RunDirectory) -> Path:
    """The file with the predictions of a run."""
    return run.path / PREDICTIONS_FILE


def read_predictions(run: RunDirectory) -> tuple[list[Prediction], list[str]]:
    """Return the predictions of a run, the earliest first, and what could not be read, one sentence each."""
    found: list[Prediction] = []
    problems: list[str] = []
    for path in (predictions_path(run), *sorted(run.path.glob(_COLLECTED))):
        try:
            lines = _lines(path)
        except InputError as error:
            problems.append(str(error))
            continue
        for number, line in enumerate(lines, start=1):
            try:
                found.append(_parsed(line))
            except SchemaError as error:
                problems.append(f"{path} line {number} was skipped: it is no prediction that can be read: {error}")
    return found, problems


def add_predictions(run: RunDirectory, predictions: Iterable[Prediction]) -> int:
    """Append predictions that the run does not hold yet; return their number.

    Time and version are filled in. Other processes may do the same at the same time.

    Raises:
        StorageError: the file cannot be written; it keeps its content.
        InputError: the file cannot be read.
    """
    wanted = list(predictions)
    if not wanted:
        return 0
    path = predictions_path(run)
    with locked(run.path, "another command", "try again", wait=True, name=_LOCK, remove=True):
        lines = _lines(path)
        known = set(_contents(lines))
        new = {one.content: one for one in wanted if one.content not in known}
        if not new:
            return 0
        lines += [json.dumps(_stamped(one), allow_nan=False).encode() for one in new.values()]
        with atomic_path(path) as temporary, storage_errors(path):
            temporary.write_bytes(b"".join(line + b"\n" for line in lines))
    return len(new)


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in read_regular(path, MOST_TABLE_BYTES).split(b"\n") if line.strip()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(
            content_code(error), f"cannot read {path}: {error.strerror}; remove it, or restore it"
        ) from error


def _parsed(line: bytes) -> Prediction:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SchemaError("file-damaged", str(error)) from error
    return Prediction.from_json(record)


def _contents(lines: Sequence[bytes]) -> Iterable[str]:
    for line in lines:
        try:
            yield _parsed(line).content
        except SchemaError:
            continue


def _stamped(prediction: Prediction) -> dict[str, Any]:
    try:
        version = metadata.version("bertbench")
    except metadata.PackageNotFoundError:
        version = ""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**prediction.to_json(), "made": prediction.made or now, "version": prediction.version or version}
