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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import msgspec

from common.errors import SchemaError
from records.files import read_record, typed_rows, write_record
from records.run import TrialDirectory
from records.schema import COLLECTIVE_COLUMNS, COMPONENT_COLUMNS

# What parts are of, in the order in which the waterfall shows what they lose.
GROUPS = ("layers", "attention", "head", "elementwise", "copies", "optimizer")

# Which whole steps were made when, in rank-<rank>.json as `series`: [first step, one past the last).
SERIES = ("warmup", "before", "rounds", "after")


def collectives_csv(directory: TrialDirectory) -> Path:
    """The measurements of a trial of kind comm."""
    return directory.path / "collectives.csv"


def read_measurements(directory: TrialDirectory) -> list[dict[str, Any]]:
    """Return the rows of collectives.csv, none without the file. Raises SchemaError if it is damaged."""
    return list(typed_rows(collectives_csv(directory), COLLECTIVE_COLUMNS))


_Amount = Annotated[float, msgspec.Meta(ge=0)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One part of a step that is timed alone."""

    name: str
    """Unique name."""
    group: str
    """One of GROUPS."""
    shape: str
    """What it works on, in words."""
    calls_per_step: Annotated[int, msgspec.Meta(ge=0)]
    """How often a step does it; 0 if it is timed for comparison only."""
    model_flops: _Amount = 0.0
    """What the mathematics needs, of one call, as bert.model.step counts: padding is nothing. 0: the part is bound by
    memory."""
    computed_flops: _Amount = 0.0
    """What is really multiplied, of one call, padding included."""
    bytes: _Amount = 0.0
    """Memory traffic that no way of doing it can avoid, of one call: every input read once, every result written
    once."""


class _Components(TypedDict):
    batch: dict[str, Any]
    components: Annotated[list[Component], msgspec.Meta(min_length=1)]


def components_json(directory: TrialDirectory) -> Path:
    """The parts and the batch they are of."""
    return directory.path / "components.json"


def components_csv(directory: TrialDirectory, rank: int) -> Path:
    """The times of one rank."""
    return directory.path / f"components-{rank}.csv"


def write_components(directory: TrialDirectory, components: Sequence[Component], batch: Mapping[str, Any]) -> None:
    """Write components.json: what is timed, and counts of the batch it is of, and its layout. Raises StorageError."""
    rows = [dataclasses.asdict(component) for component in components]
    write_record(components_json(directory), {"batch": dict(batch), "components": rows})


def read_components(directory: TrialDirectory) -> list[Component]:
    """Return the parts of a trial. Raises SchemaError if components.json is damaged or missing."""
    record = read_record(components_json(directory), _Components)
    return msgspec.convert(record["components"], list[Component])


def read_rounds(directory: TrialDirectory, components: Sequence[Component]) -> dict[str, list[float]]:
    """Return, by component, the time of one call in ms in each round that all ranks finished: the slowest rank's.

    Raises:
        SchemaError: times are damaged, or no round was finished.
    """
    names = {component.name for component in components}
    ranks = []
    for path in sorted(directory.path.glob("components-*.csv")):
        times: dict[int, dict[str, float]] = {}
        for row in typed_rows(path, COMPONENT_COLUMNS):
            times.setdefault(row["round"], {})[row["component"]] = row["time_ms"]
        ranks.append({number: timed for number, timed in times.items() if timed.keys() >= names})
    rounds = sorted(set.intersection(*map(set, ranks))) if ranks else []
    if not rounds:
        raise SchemaError(
            "run-incomplete", f"{directory.path} holds no finished round of component times; measure that trial again"
        )
    return {one.name: [max(rank[number][one.name] for rank in ranks) for number in rounds] for one in components}
