"""What a trial of kind components records: the parts of a step, what each has to do at least, and how long it took.

trials/<trial id>/components.json          Component by Component, and which batch they are of
                  components-<rank>.csv    COMPONENT_COLUMNS, one row per part and round; grows while they are timed
                  steps-<rank>.csv         whole steps: before the rounds, one in each round, after them
                  rank-<rank>.json         `series` says which, with measured_peak and measured_bandwidth
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import SchemaError
from records.files import read_record, typed_rows, write_record
from records.run import TrialDirectory

# What parts are of, in the order in which the waterfall shows what they lose.
GROUPS = ("layers", "attention", "head", "elementwise", "copies", "optimizer")

# Which whole steps were made when, in rank-<rank>.json as `series`: [first step, one past the last).
SERIES = ("warmup", "before", "rounds", "after")

COMPONENT_COLUMNS: dict[str, type] = {
    "round": int,
    "component": str,
    "calls": int,  # one after another, timed together
    "time_ms": float,  # of one call
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One part of a step that is timed alone."""

    name: str
    """What it is; no two are called the same."""
    group: str
    shape: str
    """What it works on, in words."""
    calls_per_step: int
    """How often a step does it; 0 where it is timed for comparison only."""
    model_flops: float = 0.0
    """What the mathematics needs, of one call, as bert.model.step counts: padding is nothing. 0: the part is bound by
    memory."""
    computed_flops: float = 0.0
    """What is really multiplied, of one call, padding included."""
    bytes: float = 0.0
    """Memory traffic that no way of doing it can avoid, of one call: every input read once, every result written
    once."""

    def __post_init__(self) -> None:
        """Refuse what no part can be."""
        numbers = (self.calls_per_step, self.model_flops, self.computed_flops, self.bytes)
        if self.group not in GROUPS or not all(math.isfinite(value) and value >= 0 for value in numbers):
            raise SchemaError(
                "file-damaged", f"{self} is no part of a step: a group of {', '.join(GROUPS)}, and no number below 0"
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
    """Return the parts of a trial. Raises SchemaError where components.json is damaged or missing."""
    path = components_json(directory)
    names = {field.name for field in dataclasses.fields(Component)}
    try:
        found = [
            Component(**{name: value for name, value in row.items() if name in names})
            for row in read_record(path)["components"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise SchemaError(
            "file-damaged", f"{path} does not list the parts of a step: {error}; measure that trial again"
        ) from error
    if not found or len({component.name for component in found}) < len(found):
        raise SchemaError("file-damaged", f"{path} lists no parts of a step, or one twice; measure that trial again")
    return found


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
                raise SchemaError(
                    "file-damaged", f"{path} holds a row that is no measurement: {row}; measure that trial again"
                )
            times.setdefault(row["round"], {})[row["component"]] = row["time_ms"]
        ranks.append({number: found for number, found in times.items() if found.keys() >= set(names)})
    rounds = sorted(set.intersection(*(set(rank) for rank in ranks))) if ranks else []
    if not rounds:
        raise SchemaError(
            "run-incomplete", f"{directory.path} holds no finished round of component times; measure that trial again"
        )
    return {name: [max(rank[number][name] for rank in ranks) for number in rounds] for name in names}
