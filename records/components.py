"""Trials of kind components: the parts of a step, what each has to do at least, and how long it took.

Whole steps are in steps-<rank>.csv: before the rounds, one in each round, after them; rank-<rank>.json says which.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from common.errors import SchemaError
from records.files import read_struct, typed_rows, write_record
from records.run import TrialDirectory
from records.schema import COMPONENT_COLUMNS

# What parts are of, in the order in which the waterfall shows what they lose.
GROUPS = ("layers", "attention", "head", "elementwise", "copies", "optimizer")

# Which whole steps were made when, in rank-<rank>.json as `series`: [first step, one past the last).
SERIES = ("warmup", "before", "rounds", "after")

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
    """How often a step does it."""
    model_flops: _Amount = 0.0
    """What the mathematics needs, of one call, as bert.model.step counts; 0 if the part is bound by memory."""
    computed_flops: _Amount = 0.0
    """What is really multiplied, of one call, padding included."""
    bytes: _Amount = 0.0
    """Memory traffic of one call that no way of doing it can avoid: every input read, every result written once."""


class _Components(msgspec.Struct):
    components: Annotated[list[Component], msgspec.Meta(min_length=1)]


def write_components(directory: TrialDirectory, components: Sequence[Component], batch: Mapping[str, Any]) -> None:
    """Write components.json: what is timed, and counts of the batch it is of, and its layout. Raises StorageError."""
    rows = [dataclasses.asdict(component) for component in components]
    write_record(directory.components_json, {"batch": dict(batch), "components": rows})


def read_components(directory: TrialDirectory) -> list[Component]:
    """Return the parts of a trial. Raises SchemaError if components.json is damaged or missing."""
    return read_struct(directory.components_json, _Components).components


def read_rounds(directory: TrialDirectory, components: Sequence[Component]) -> dict[str, list[float]]:
    """Return, by component, the time of one call in ms in each round that all ranks finished: the slowest rank's.

    Raises:
        SchemaError: times are damaged, or no round was finished.
    """
    names = {component.name for component in components}
    ranks = []
    for path in directory.path.glob("components-*.csv"):
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
