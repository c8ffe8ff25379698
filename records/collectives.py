"""What `bertbench comm` records of a collective, by size."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import SchemaError, UsageError
from common.registry import lookup
from records.files import typed_rows
from records.run import TrialDirectory
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

# collectives.csv of a trial of kind comm: a row per size, placement and repetition.
COLLECTIVE_COLUMNS: dict[str, type] = {
    "size_bytes": int,  # as nccl-tests has it: the whole tensor, also where a rank sends or keeps a part of it
    "count": int,  # elements that a rank sends (all-gather) or keeps (reduce-scatter), else of the tensor
    "placement": str,
    "repetition": int,
    "iterations": int,  # operations of this repetition, one after another
    "time_us": float,  # of one operation: the slowest rank's time / iterations
    "wrong": int,  # elements of all ranks together that came out wrong
}

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30}


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
        """Refuse what cannot be measured."""
        lookup(COLLECTIVES, self.name, "collective")
        if not 1 <= self.min_bytes <= self.max_bytes:
            raise UsageError(
                "option-value",
                f"sizes from {self.min_bytes} to {self.max_bytes} bytes: give at least 1, and no less at the end than "
                "at the beginning",
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
        """Return what a trial measures. Raises UsageError where it holds no such test."""
        try:
            return cls(**dict(trial.collective))
        except TypeError as error:
            raise UsageError(
                "file-damaged", f"trial {trial.trial_id} describes no test of a collective: {error}"
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
    """Return the rows of collectives.csv, none where there is no such file. Raises SchemaError where it is damaged."""
    path = collectives_csv(directory)
    rows = list(typed_rows(path, COLLECTIVE_COLUMNS)) if path.exists() else []
    for row in rows:
        if None in row.values() or not (math.isfinite(row["time_us"]) and row["time_us"] > 0 and row["size_bytes"] > 0):
            raise SchemaError(
                "file-damaged", f"{path} holds a row that is no measurement: {row}; measure that trial again"
            )
    return rows
