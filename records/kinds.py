"""Additional records of trials of the kinds comm and components.

comm, one collective over a range of sizes:
    trials/<trial id>/collectives.csv        a row per size, placement and repetition

components, the parts of a step, what each has to do at least, and how long it took:
    trials/<trial id>/components.json        Component by Component, and which batch they are of
                      components-<rank>.csv  one row per part and round; grows while they are timed
                      steps-<rank>.csv       whole steps: before the rounds, one in each round, after them
                      rank-<rank>.json       `series` says which, with measured_peak and measured_bandwidth
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from common.errors import SchemaError, UsageError
from common.registry import lookup
from records.files import read_record, typed_rows, write_record
from records.run import TrialDirectory
from records.schema import COLLECTIVE_COLUMNS, COMPONENT_COLUMNS
from records.trial import Trial

# Placements that torch.distributed has: its all-reduce and its broadcast write where they read.
COLLECTIVES: dict[str, tuple[str, ...]] = {
    "all_reduce": ("in_place",),
    "reduce_scatter": ("out_of_place", "in_place"),
    "all_gather": ("out_of_place", "in_place"),
    "broadcast": ("in_place",),
}
# precision -> (bytes of an element, what nccl-tests calls it)
DTYPES = {"fp32": (4, "float"), "fp16": (2, "half"), "bf16": (2, "bfloat16")}

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}

# What parts are of, in the order in which the waterfall shows what they lose.
GROUPS = ("layers", "attention", "head", "elementwise", "copies", "optimizer")

# Which whole steps were made when, in rank-<rank>.json as `series`: [first step, one past the last).
SERIES = ("warmup", "before", "rounds", "after")


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTest:
    """What one trial of kind comm measures: one collective over a range of sizes."""

    name: str
    min_bytes: int
    max_bytes: int
    """Largest size; it is reached only where the factor meets it."""
    factor: float
    repetitions: int
    """Times each size is measured; their median counts, their spread is the interval."""
    iterations: int | None
    """Operations per repetition; None: as many as take 20 ms, at most 100."""
    warmup: int
    """Operations of each size before any that counts."""

    def __post_init__(self) -> None:
        """Refuse invalid tests."""
        lookup(COLLECTIVES, self.name, "collective")
        if not 1 <= self.min_bytes <= self.max_bytes:
            raise UsageError(
                "option-value",
                f"sizes from {self.min_bytes} to {self.max_bytes} bytes: give at least 1, and --max-bytes not below "
                "--min-bytes",
            )
        if not (math.isfinite(self.factor) and self.factor > 1):
            raise UsageError("option-value", f"--factor {self.factor:g} must be above 1, such as 2")
        for name in ("repetitions", "iterations"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError("option-value", f"--{name} {value} must be at least 1")
        if self.warmup < 0:
            raise UsageError("option-value", f"--warmup {self.warmup} must be at least 0")

    def sizes(self, ranks: int) -> list[int]:
        """Return the sizes in bytes, each a multiple of what divides over the ranks in parts of 16 bytes.

        Raises:
            UsageError: not even the largest size gives every rank a part.
        """
        grain = 16 * ranks
        found: list[int] = []
        size = float(self.min_bytes)
        while size <= self.max_bytes * (1 + 1e-9):
            whole = int(size) // grain * grain
            if whole and whole not in found:
                found.append(whole)
            size *= self.factor
        if not found:
            raise UsageError(
                "option-value",
                f"--max-bytes {self.max_bytes} is less than 16 bytes for each of {ranks} ranks: give {grain} or more",
            )
        return found

    def plain(self) -> tuple[tuple[str, Any], ...]:
        """Return the fields as Trial.collective holds them."""
        return tuple(sorted(dataclasses.asdict(self).items()))

    @classmethod
    def of(cls, trial: Trial) -> "CollectiveTest":
        """Return what a trial measures. Raises UsageError if it holds no such test."""
        try:
            return msgspec.convert(dict(trial.collective), cls)
        except msgspec.ValidationError as error:
            raise UsageError(
                "file-damaged", f"trial {trial.trial_id} is not a collective benchmark: {error}"
            ) from error


def parse_size(text: str, option: str) -> int:
    """Return bytes of "1024", "64K", "1M" or "1G" (powers of 1024, as nccl-tests reads them). Raises UsageError."""
    cleaned = text.strip().upper().removesuffix("IB").removesuffix("B")
    number, unit = (cleaned[:-1], cleaned[-1]) if cleaned[-1:] in ("K", "M", "G") else (cleaned, "")
    try:
        value = float(number) * 2 ** _UNITS[unit]
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and 1 <= value < 2**50):
        raise UsageError("option-value", f"{option} {text}: give a number of bytes, such as 1024, 64K, 256M or 1G")
    return int(value)


def collectives_csv(directory: TrialDirectory) -> Path:
    """The measurements of a trial of kind comm."""
    return directory.path / "collectives.csv"


def read_measurements(directory: TrialDirectory) -> list[dict[str, Any]]:
    """Return the rows of collectives.csv, none without the file. Raises SchemaError if it is damaged."""
    path = collectives_csv(directory)
    rows = list(typed_rows(path, COLLECTIVE_COLUMNS)) if path.exists() else []
    for row in rows:
        if None in row.values() or not (math.isfinite(row["time_us"]) and row["time_us"] > 0 and row["size_bytes"] > 0):
            raise SchemaError("file-damaged", f"{path} holds the invalid row {row}: measure that trial again")
    return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One part of a step that is timed alone."""

    name: str
    """Unique name."""
    group: str
    shape: str
    """What it works on, in words."""
    calls_per_step: int
    """How often a step does it; 0 if it is timed for comparison only."""
    model_flops: float = 0.0
    """What the mathematics needs, of one call, as bert.model.step counts: padding is nothing. 0: the part is bound by
    memory."""
    computed_flops: float = 0.0
    """What is really multiplied, of one call, padding included."""
    bytes: float = 0.0
    """Memory traffic that no way of doing it can avoid, of one call: every input read once, every result written
    once."""

    def __post_init__(self) -> None:
        """Refuse invalid parts."""
        numbers = (self.calls_per_step, self.model_flops, self.computed_flops, self.bytes)
        if self.group not in GROUPS or not all(math.isfinite(value) and value >= 0 for value in numbers):
            raise SchemaError(
                "file-damaged",
                f"{self} is not a component of a step: it needs a group of {', '.join(GROUPS)} and numbers of at "
                "least 0",
            )


def components_json(directory: TrialDirectory) -> Path:
    """The parts and the batch they are of."""
    return directory.path / "components.json"


def components_csv(directory: TrialDirectory, rank: int) -> Path:
    """The times of one rank."""
    return directory.path / f"components-{rank}.csv"


def write_components(directory: TrialDirectory, components: Sequence[Component], batch: Mapping[str, Any]) -> None:
    """Write components.json. Raises StorageError.

    Args:
        directory: of the trial.
        components: what is timed.
        batch: counts of the batch they are of, and its layout.
    """
    rows = [dataclasses.asdict(component) for component in components]
    write_record(components_json(directory), {"batch": dict(batch), "components": rows})


def read_components(directory: TrialDirectory) -> list[Component]:
    """Return the parts of a trial. Raises SchemaError if components.json is damaged or missing."""
    path = components_json(directory)
    try:
        components = msgspec.convert(read_record(path).get("components"), list[Component])
    except msgspec.ValidationError as error:
        raise SchemaError(
            "file-damaged", f"{path} does not list the components of a step: {error}; measure that trial again"
        ) from error
    if not components:
        raise SchemaError("file-damaged", f"{path} lists no components of a step; measure that trial again")
    return components


def read_rounds(directory: TrialDirectory, components: Sequence[Component]) -> dict[str, list[float]]:
    """Return, by component, the time of one call in ms in each round that all ranks finished: the slowest rank's.

    Raises:
        SchemaError: times are damaged, or no round was finished.
    """
    names = [component.name for component in components]
    ranks = []
    for path in sorted(directory.path.glob("components-*.csv")):
        times: dict[int, dict[str, float]] = {}
        for row in typed_rows(path, COMPONENT_COLUMNS):
            if None in row.values() or not (math.isfinite(row["time_ms"]) and row["time_ms"] > 0):
                raise SchemaError("file-damaged", f"{path} holds the invalid row {row}: measure that trial again")
            times.setdefault(row["round"], {})[row["component"]] = row["time_ms"]
        ranks.append({number: found for number, found in times.items() if found.keys() >= set(names)})
    rounds = sorted(set.intersection(*(set(rank) for rank in ranks))) if ranks else []
    if not rounds:
        raise SchemaError(
            "run-incomplete", f"{directory.path} holds no finished round of component times; measure that trial again"
        )
    return {name: [max(rank[number][name] for rank in ranks) for number in rounds] for name in names}
